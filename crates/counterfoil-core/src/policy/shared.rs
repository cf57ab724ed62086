//! A policy that several threads use.
//!
//! # Promise
//! Whatever is done in one [`Shared::with`] is one step: nobody sees or changes the state in
//! between. So "is there room, and then take it" cannot be taken twice.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A policy behind a lock. Clones share one state.
pub struct Shared<P>(Arc<Mutex<P>>);

impl<P> Shared<P> {
    /// Shares a policy.
    pub fn new(policy: P) -> Self {
        Self(Arc::new(Mutex::new(policy)))
    }

    /// One step. Keep it short: it runs under the lock.
    pub fn with<R>(&self, step: impl FnOnce(&mut P) -> R) -> R {
        // Steps do not panic; if one does, counters may be off by one, which is better than a
        // destination that is never called again.
        step(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<P> Clone for Shared<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: fmt::Debug> fmt::Debug for Shared<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
