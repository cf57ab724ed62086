//! Records that are over do not pile up, also where nobody runs a reconciler.
//!
//! # Promise
//! While requests come, what is over and expired is purged in the background at every interval, in
//! small batches. No request waits for it, and of one guard only one purge runs at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_core::guard::Records;
use counterfoil_core::store::Disposition;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::reconcile::purge;

/// Between the beginnings of two purges.
const PURGE_EVERY: Duration = Duration::from_secs(600);

#[derive(Clone)]
pub(super) struct Tidy(Arc<Mutex<Last>>);

struct Last {
    begun: Instant,
    purge: Option<JoinHandle<()>>,
}

impl Tidy {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Last {
            begun: Instant::now(),
            purge: None,
        })))
    }

    /// Begins a purge if it is time.
    pub(super) fn now_and_then(&self, records: &Arc<dyn Records>) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = last.purge.as_ref().is_some_and(|p| !p.is_finished());
        if runs || last.begun.elapsed() < PURGE_EVERY {
            return;
        }
        let records = Arc::clone(records);
        last.begun = Instant::now();
        last.purge = Some(tokio::spawn(async move { purged(&*records).await }));
    }
}

/// A purge of which nobody waits for the outcome: it is in the log.
pub(super) async fn purged(records: &dyn Records) {
    match purge(records).await {
        Ok(gone) => tracing::debug!(gone, "purged records of the guard"),
        // The next purge does it; that the database is away is told where somebody waits for it.
        Err(error) if error.disposition() == Disposition::Retry => {
            tracing::debug!(
                error = error.one_line(),
                "cannot purge records of the guard now"
            );
        }
        Err(error) => tracing::warn!(
            error = error.one_line(),
            "cannot purge records of the guard"
        ),
    }
}
