//! Handlers that register themselves by the attribute [`macro@crate::task`].

use counterfoil_core::policy::Backoff;
use counterfoil_engine::{SettingsError, TaskRegistry};

pub use inventory::submit;

/// One handler with the attribute.
pub struct Discovered {
    /// Its scene.
    pub scene: &'static str,
    /// Adds it to the handlers of an engine.
    pub register: fn(&mut TaskRegistry) -> Result<(), SettingsError>,
}

inventory::collect!(Discovered);

/// Every handler of this program, by scene.
pub fn all() -> Vec<&'static Discovered> {
    let mut found: Vec<_> = inventory::iter::<Discovered>.into_iter().collect();
    found.sort_by_key(|d| d.scene);
    found
}

#[doc(hidden)]
pub fn with_attempts(backoff: Backoff, attempts: u32) -> Backoff {
    backoff.with_max_attempts(attempts)
}
