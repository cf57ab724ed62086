//! Which connections may be used again.
//!
//! # Promise
//! When an operation was not answered in time, no connection from before is used again: neither one
//! that lies idle nor one that comes back later. The pool would ask such a connection whether it
//! still lives, and wait for the answer while the connection keeps its place in the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::pool::{PoolConnectionMetadata, PoolOptions};
use tokio::sync::watch;

/// Whatever is opened so soon after a silence may have been opened on its account.
const SLACK: Duration = Duration::from_secs(1);

/// When an operation was last not answered in time.
#[derive(Clone, Default)]
pub(crate) struct Trust(Arc<watch::Sender<Option<Instant>>>);

impl Trust {
    /// Trusts no connection that is open now.
    pub(crate) fn hang_up(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Lets a pool use only connections that are trusted. It asks when it lends one and when it gets
    /// one back.
    pub(crate) fn guard(&self, options: PoolOptions<sqlx::MySql>) -> PoolOptions<sqlx::MySql> {
        let (lent, returned) = (self.clone(), self.clone());
        options
            .before_acquire(move |_, about| {
                let trusted = lent.trusts(&about);
                Box::pin(async move { Ok(trusted) })
            })
            .after_release(move |_, about| {
                let trusted = returned.trusts(&about);
                Box::pin(async move { Ok(trusted) })
            })
    }

    fn trusts(&self, about: &PoolConnectionMetadata) -> bool {
        match Instant::now().checked_sub(about.age) {
            Some(opened) => self.trusts_since(opened),
            None => true,
        }
    }

    fn trusts_since(&self, opened: Instant) -> bool {
        self.0.borrow().is_none_or(|at| opened > at + SLACK)
    }
}
