//! A connection that stays in the hand.
//!
//! # Promise
//! The two statements that run for every message, read and settle, do not go through the pool:
//! a pool asks the server on every return whether the connection still lives, which is as dear as
//! the statement itself. After an error, or when the caller goes away in the middle, the
//! connection goes back to the pool, which finds out whether it can be used.
//!
//! The server keeps the plan of a statement. One that was made while the table was empty goes
//! through the whole table, and would still do so when the table has grown; so after a statement
//! that took long, plans are made anew.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_core::store::Result;
use sqlx::Connection;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, Postgres};

use crate::classify;
use crate::trust::Trust;

/// A kept connection goes back to the pool now and then, so that the pool can renew it.
const KEEP: Duration = Duration::from_secs(60);

/// A statement that takes longer may have a plan that is out of date.
const SLOW: Duration = Duration::from_millis(10);
/// Plans are not made anew more often.
const REPLAN: Duration = Duration::from_secs(1);

struct Held {
    connection: PoolConnection<Postgres>,
    since: Instant,
    planned: Instant,
}

#[derive(Default)]
pub(crate) struct Kept {
    slot: Mutex<Option<Held>>,
    trust: Trust,
}

impl Kept {
    pub(crate) fn new(trust: Trust) -> Self {
        Self {
            trust,
            ..Self::default()
        }
    }

    /// Runs one piece of work on the kept connection.
    pub(crate) async fn with<T>(
        &self,
        pool: &PgPool,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
    ) -> Result<T> {
        let kept = self.slot().take();
        let kept = kept.filter(|held| self.trust.trusts_since(held.since));
        let mut held = match kept {
            Some(held) => held,
            None => Held {
                connection: pool.acquire().await.map_err(classify)?,
                since: Instant::now(),
                planned: Instant::now(),
            },
        };
        let begun = Instant::now();
        let answer = work(&mut held.connection).await?;
        if held.since.elapsed() >= KEEP {
            return Ok(answer);
        }
        if begun.elapsed() > SLOW && held.planned.elapsed() > REPLAN {
            // The answer is there; if this fails the connection is not kept.
            if held.connection.clear_cached_statements().await.is_err() {
                return Ok(answer);
            }
            held.planned = Instant::now();
        }
        *self.slot() = Some(held);
        Ok(answer)
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterfoil_testkit::server;

    async fn prepared(kept: &Kept, pool: &PgPool, seconds: f64) -> i64 {
        kept.with(pool, async |connection| {
            sqlx::query("SELECT pg_sleep($1)")
                .bind(seconds)
                .execute(&mut *connection)
                .await
                .map_err(classify)?;
            sqlx::raw_sql("SELECT count(*) FROM pg_prepared_statements")
                .fetch_one(connection)
                .await
                .and_then(|row| sqlx::Row::try_get(&row, 0))
                .map_err(classify)
        })
        .await
        .unwrap()
    }

    #[tokio::test]
    async fn after_a_slow_statement_plans_are_made_anew_but_not_all_the_time() {
        let Some(url) = server::postgres() else {
            return;
        };
        let pool = PgPool::connect(&url).await.unwrap();
        let kept = Kept::default();

        assert_eq!(prepared(&kept, &pool, 0.0).await, 1);
        // Too soon after the connection was made.
        assert_eq!(prepared(&kept, &pool, 0.02).await, 1);
        let planned = |kept: &Kept| kept.slot().as_ref().unwrap().planned;
        let before = planned(&kept);
        kept.slot().as_mut().unwrap().planned -= 2 * REPLAN;
        assert_eq!(prepared(&kept, &pool, 0.02).await, 1);

        assert!(planned(&kept) > before);
        let left = kept
            .with(&pool, async |connection| {
                sqlx::raw_sql("SELECT count(*) FROM pg_prepared_statements")
                    .fetch_one(connection)
                    .await
                    .and_then(|row| sqlx::Row::try_get::<i64, _>(&row, 0))
                    .map_err(classify)
            })
            .await;
        assert_eq!(left.unwrap(), 0);
    }
}
