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

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Expect, Key, Write};
use counterfoil_core::message::MessageId;
use counterfoil_core::store::{Result, Store};
use counterfoil_postgres::{PostgresGuard, PostgresStore, classify};
use counterfoil_testkit::guard::harness::{GuardHarness, TxHarness};
use counterfoil_testkit::server;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Transaction};

counterfoil_testkit::guard_suite!(PostgresHarness);
counterfoil_testkit::guard_tx_suite!(PostgresHarness);

pub(crate) type PostgresHarness = Harness<false>;

pub(crate) type Tx = Transaction<'static, Postgres>;

/// With connections that go from one request straight to the next, or without.
pub(crate) struct Harness<const BACK_TO_BACK: bool> {
    server: String,
    schema: String,
    /// The application's own connections.
    pub(crate) pool: PgPool,
}

impl<const BACK_TO_BACK: bool> Harness<BACK_TO_BACK> {
    /// A pool whose connections have these settings.
    pub(crate) fn pool(&self, size: u32, settings: &str) -> PgPool {
        let and = if self.server.contains('?') { '&' } else { '?' };
        let schema = &self.schema;
        let url = format!(
            "{}{and}options=-c%20search_path%3D{schema}{settings}",
            self.server
        );
        PgPoolOptions::new()
            .max_connections(size)
            .connect_lazy(&url)
            .unwrap()
    }

    async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap();
    }
}

async fn on_server(server: &str, sql: String) {
    let mut connection = PgConnection::connect(server)
        .await
        .expect("no connection to PostgreSQL");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

#[async_trait]
impl<const BACK_TO_BACK: bool> GuardHarness for Harness<BACK_TO_BACK> {
    type Guard = PostgresGuard;

    async fn fresh() -> Option<Self> {
        let server = server::postgres()?;
        let schema = format!("guard_{}", MessageId::new().as_uuid().simple());
        on_server(&server, format!("CREATE SCHEMA {schema}")).await;
        let mut harness = Self {
            pool: PgPoolOptions::new().connect_lazy(&server).unwrap(),
            server,
            schema,
        };
        harness.pool = harness.pool(8, "");
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
        on_server(&self.server, format!("DROP SCHEMA {} CASCADE", self.schema)).await;
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
impl<const BACK_TO_BACK: bool> TxHarness for Harness<BACK_TO_BACK> {
    type Tx = Tx;

    fn rival(&self) -> PostgresGuard {
        PostgresGuard::new(self.pool(1, ""))
    }

    async fn domain(&self, name: &str) -> PostgresGuard {
        let name = format!("{}.{name}", self.schema);
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
