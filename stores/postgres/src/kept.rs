//! A connection that stays in the hand.
//!
//! # Promise
//! The two statements that run for every message, read and settle, do not go through the pool:
//! a pool asks the server on every return whether the connection still lives, which is as dear as
//! the statement itself. After an error, or when the caller goes away in the middle, the
//! connection goes back to the pool, which finds out whether it can be used.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_core::store::Result;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, Postgres};

use crate::classify;

/// A kept connection goes back to the pool now and then, so that the pool can renew it.
const KEEP: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<(PoolConnection<Postgres>, Instant)>>);

impl Kept {
    /// Runs one piece of work on the kept connection.
    pub(crate) async fn with<T>(
        &self,
        pool: &PgPool,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
    ) -> Result<T> {
        let (mut connection, since) = match self.take() {
            Some(kept) => kept,
            None => (pool.acquire().await.map_err(classify)?, Instant::now()),
        };
        let answer = work(&mut connection).await?;
        if since.elapsed() < KEEP {
            *self.slot() = Some((connection, since));
        }
        Ok(answer)
    }

    fn take(&self) -> Option<(PoolConnection<Postgres>, Instant)> {
        self.slot().take()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<(PoolConnection<Postgres>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
