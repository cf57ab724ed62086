//! All dependencies of a process, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::dependency::{Dependency, Limits, LimitsError, Status};
use super::meter;

/// The names of services behind a gateway begin with this.
pub const UPSTREAM: &str = "upstream:";
/// The names of services that an application's client calls begin with this.
pub const CLIENT: &str = "client:";

/// Why a queue cannot have this name, if it cannot: no queue shares a breaker with a service behind
/// a gateway, or with one that is called by a client.
pub fn reserved(queue: &str) -> Option<&'static str> {
    match queue {
        name if name.starts_with(UPSTREAM) => {
            Some("those that begin with `upstream:` are the services behind a gateway")
        }
        name if name.starts_with(CLIENT) => {
            Some("those that begin with `client:` are the services that a client calls")
        }
        _ => None,
    }
}

/// The dependencies of a process. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    known: Arc<Mutex<BTreeMap<String, Arc<Dependency>>>>,
    changed: Arc<Notify>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        meter::describe();
        Self::default()
    }

    /// The dependency of this name. Whoever asks first decides its limits; later ones share it.
    pub fn dependency(&self, name: &str, limits: Limits) -> Result<Arc<Dependency>, LimitsError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(name) {
            return Ok(Arc::clone(there));
        }
        let new = Dependency::watched(name, limits, Arc::clone(&self.changed))?;
        known.insert(name.to_owned(), Arc::clone(&new));
        Ok(new)
    }

    /// The dependency of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<Arc<Dependency>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).cloned()
    }

    /// Every dependency, by name.
    pub fn all(&self) -> Vec<Arc<Dependency>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().cloned().collect()
    }

    /// What an operator sees of each, by name.
    pub fn list(&self) -> Vec<Status> {
        self.all().iter().map(|d| d.status()).collect()
    }

    /// Sets the gauges of each: some of them change by time alone.
    pub fn measure(&self) {
        self.all().iter().for_each(|d| d.measure());
    }

    /// Waits until the state of a breaker has changed, or an operator has set one. Changes since the
    /// last call count. For one listener.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
