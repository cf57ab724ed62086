//! The guard's conformance suite on PostgreSQL, and what only PostgreSQL has to show. Every case has
//! a schema of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

#[path = "guard/back_to_back.rs"]
mod back_to_back;
#[path = "guard/begin.rs"]
mod begin;
#[path = "support/place.rs"]
mod place;

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Expect, Key, Write};
use counterfoil_core::store::{Result, Store};
use counterfoil_postgres::{PostgresGuard, PostgresStore, classify};
use counterfoil_testkit::guard::harness::{GuardHarness, TxHarness};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use place::Place;

counterfoil_testkit::guard_suite!(PostgresHarness);
counterfoil_testkit::guard_tx_suite!(PostgresHarness);

mod pooled {
    use super::PooledHarness;

    counterfoil_testkit::guard_suite!(PooledHarness);
    counterfoil_testkit::guard_tx_suite!(PooledHarness);
}

pub(crate) type PostgresHarness = Harness<false>;
/// Behind a pooler of transactions.
pub(crate) type PooledHarness = Harness<false, true>;

pub(crate) type Tx = Transaction<'static, Postgres>;

/// With connections that go from one request straight to the next, or without.
pub(crate) struct Harness<const BACK_TO_BACK: bool, const POOLED: bool = false> {
    place: Place,
    /// The application's own connections.
    pub(crate) pool: PgPool,
}

impl<const BACK_TO_BACK: bool, const POOLED: bool> Harness<BACK_TO_BACK, POOLED> {
    /// A pool whose connections have these settings.
    pub(crate) fn pool(&self, size: u32, settings: &str) -> PgPool {
        PgPoolOptions::new()
            .max_connections(size)
            .connect_lazy(&self.place.url_with(settings))
            .unwrap()
    }

    async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap();
    }
}

#[async_trait]
impl<const BACK_TO_BACK: bool, const POOLED: bool> GuardHarness for Harness<BACK_TO_BACK, POOLED> {
    type Guard = PostgresGuard;

    async fn fresh() -> Option<Self> {
        let place = Place::fresh("guard", POOLED).await?;
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .connect_lazy(&place.url())
            .unwrap();
        let harness = Self { place, pool };
        let store = PostgresStore::from_pool(&harness.pool);
        store.migrate().await.unwrap();
        store.close().await;
        harness
            .run("CREATE TABLE business (id bigint PRIMARY KEY)".into())
            .await;
        Some(harness)
    }

    async fn clean_up(&self) {
        self.pool.close().await;
        self.place.remove().await;
    }

    fn guard(&self) -> PostgresGuard {
        let guard = PostgresGuard::new(self.pool.clone());
        match BACK_TO_BACK {
            true => guard.back_to_back(),
            false => guard,
        }
    }

    async fn advance(&self, by: Duration) {
        let by = format!("interval '1 microsecond' * {}", by.as_micros());
        self.run(format!(
            "UPDATE counterfoil_guard SET created_at = created_at - {by}, updated_at = updated_at - {by},
                 expires_at = expires_at - {by}, lease_until = lease_until - {by}, retry_at = retry_at - {by};
             UPDATE counterfoil_tokens SET expires_at = expires_at - {by};
             UPDATE counterfoil_locks SET lease_until = lease_until - {by}"
        ))
        .await;
    }
}

#[async_trait]
impl<const BACK_TO_BACK: bool, const POOLED: bool> TxHarness for Harness<BACK_TO_BACK, POOLED> {
    type Tx = Tx;

    fn rival(&self) -> PostgresGuard {
        PostgresGuard::new(self.pool(1, ""))
    }

    async fn domain(&self, name: &str) -> PostgresGuard {
        let name = format!("{}.{name}", self.place.schema);
        self.run(PostgresGuard::print_table(&name).unwrap()).await;
        let guard = PostgresGuard::table(self.pool.clone(), &name).unwrap();
        match BACK_TO_BACK {
            true => guard.back_to_back(),
            false => guard,
        }
    }

    async fn begin(&self, guard: &PostgresGuard, key: &Key, expect: Expect) -> Result<Option<Tx>> {
        guard.begin(key, expect).await
    }

    async fn undo(&self, guard: &PostgresGuard, tx: &mut Tx) -> Result<()> {
        guard.undo(tx).await
    }

    async fn finish(&self, guard: &PostgresGuard, tx: &mut Tx, write: &Write) -> Result<bool> {
        guard.finish(tx, write).await
    }

    async fn end(&self, guard: &PostgresGuard, tx: Tx, write: &Write) -> Result<bool> {
        guard.commit(tx, write).await
    }

    async fn commit(&self, tx: Tx) -> Result<()> {
        tx.commit().await.map_err(classify)
    }

    async fn rollback(&self, tx: Tx) {
        tx.rollback().await.unwrap();
    }

    async fn insert(&self, tx: &mut Tx, id: i64) -> Result<()> {
        sqlx::query("INSERT INTO business (id) VALUES ($1)")
            .bind(id)
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        Ok(())
    }

    async fn rows(&self) -> Vec<i64> {
        sqlx::query_scalar("SELECT id FROM business ORDER BY id")
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    async fn swallow(&self, tx: &mut Tx) {
        let failed = sqlx::raw_sql("SELECT 1 / 0").execute(&mut **tx).await;
        assert!(failed.is_err());
    }
}
