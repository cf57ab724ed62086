//! The key goes along: into messages, into further calls, into logs.

use std::future::Future;

use counterfoil_core::guard::{Key, KeyError};

tokio::task_local! {
    static CURRENT: Context;
}

/// The request that the running code belongs to.
#[derive(Debug, Clone)]
pub struct Context {
    key: Key,
    fence: i64,
    attempt: u32,
}

impl Context {
    /// A request with this key. The fence is 0 in transactional mode.
    pub fn new(key: Key, fence: i64, attempt: u32) -> Self {
        Self {
            key,
            fence,
            attempt,
        }
    }

    /// The request that the calling code belongs to.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Runs something as part of this request. What it enqueues carries the key.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The key for one step that may happen several times: `req-001:item-A`.
    pub fn derive(&self, step: impl std::fmt::Display) -> Result<Key, KeyError> {
        self.key.derive(step)
    }

    /// The number of the claim; 0 in transactional mode.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Which run of this request it is.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Writes a line to the application's own log of SQL, with the key: target
    /// `counterfoil::sql`, level debug. Call it beside your statements, and match the lines with
    /// records after a crash.
    pub fn log_sql(statement: &str) {
        match Self::current() {
            Some(context) => tracing::debug!(
                target: "counterfoil::sql",
                key = context.key.encoded(),
                business_type = context.key.business_type(),
                statement,
            ),
            None => tracing::debug!(target: "counterfoil::sql", statement),
        }
    }
}
