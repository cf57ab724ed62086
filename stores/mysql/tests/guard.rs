//! The guard's conformance suite on MySQL or MariaDB, and what only these have to show. Every case
//! has a database of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

#[path = "guard/sessions.rs"]
mod sessions;

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Expect, Key, Write};
use counterfoil_core::message::MessageId;
use counterfoil_core::store::{Result, Store};
use counterfoil_mysql::{MysqlGuard, MysqlStore, classify};
use counterfoil_testkit::guard::harness::{GuardHarness, TxHarness};
use counterfoil_testkit::server;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySql, MySqlConnection, Transaction};

counterfoil_testkit::guard_suite!(MysqlHarness);
counterfoil_testkit::guard_tx_suite!(MysqlHarness);

pub(crate) type Tx = Transaction<'static, MySql>;

pub(crate) struct MysqlHarness {
    server: String,
    database: String,
    /// The application's own connections: with the isolation and the modes that servers come with.
    pub(crate) pool: MySqlPool,
}

impl MysqlHarness {
    /// A pool whose sessions begin with this statement.
    pub(crate) fn pool(&self, size: u32, first: &'static str) -> MySqlPool {
        let options: MySqlConnectOptions = self.server.parse().expect("the URL of the server");
        MySqlPoolOptions::new()
            .max_connections(size)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    connection.execute(first).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options.database(&self.database))
    }

    pub(crate) async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap();
    }
}

async fn on_server(server: &str, sql: String) {
    let mut connection = MySqlConnection::connect(server)
        .await
        .expect("no connection to MySQL");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

#[async_trait]
impl GuardHarness for MysqlHarness {
    type Guard = MysqlGuard;

    async fn fresh() -> Option<Self> {
        let server = server::mysql()?;
        let database = format!("guard_{}", MessageId::new().as_uuid().simple());
        on_server(
            &server,
            format!("CREATE DATABASE {database} CHARACTER SET latin1"),
        )
        .await;
        let mut harness = Self {
            pool: MySqlPoolOptions::new().connect_lazy(&server).unwrap(),
            server,
            database,
        };
        harness.pool = harness.pool(8, "DO 0");
        let store = MysqlStore::from_pool(&harness.pool);
        store.migrate().await.unwrap();
        store.close().await;
        harness
            .run("CREATE TABLE business (id BIGINT PRIMARY KEY) ENGINE = InnoDB".into())
            .await;
        harness
            .run(
                "CREATE TABLE account (id INT PRIMARY KEY, value INT) ENGINE = InnoDB;
                 INSERT INTO account VALUES (1, 0), (2, 0)"
                    .into(),
            )
            .await;
        Some(harness)
    }

    async fn clean_up(&self) {
        self.pool.close().await;
        on_server(&self.server, format!("DROP DATABASE {}", self.database)).await;
    }

    fn guard(&self) -> MysqlGuard {
        MysqlGuard::new(self.pool.clone())
    }

    async fn advance(&self, by: Duration) {
        let by = format!("INTERVAL {} MICROSECOND", by.as_micros());
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
impl TxHarness for MysqlHarness {
    type Tx = Tx;

    fn rival(&self) -> MysqlGuard {
        MysqlGuard::new(self.pool(1, "DO 0"))
    }

    async fn domain(&self, name: &str) -> MysqlGuard {
        let name = format!("{}.{name}", self.database);
        self.run(MysqlGuard::print_table(&name).unwrap()).await;
        MysqlGuard::table(self.pool.clone(), &name).unwrap()
    }

    async fn begin(&self, guard: &MysqlGuard, key: &Key, expect: Expect) -> Result<Option<Tx>> {
        guard.begin(key, expect).await
    }

    async fn undo(&self, guard: &MysqlGuard, tx: &mut Tx) -> Result<()> {
        guard.undo(tx).await
    }

    async fn finish(&self, guard: &MysqlGuard, tx: &mut Tx, write: &Write) -> Result<bool> {
        guard.finish(tx, write).await
    }

    async fn end(&self, guard: &MysqlGuard, tx: Tx, write: &Write) -> Result<bool> {
        guard.commit(tx, write).await
    }

    async fn commit(&self, tx: Tx) -> Result<()> {
        tx.commit().await.map_err(classify)
    }

    async fn rollback(&self, tx: Tx) {
        tx.rollback().await.unwrap();
    }

    async fn insert(&self, tx: &mut Tx, id: i64) -> Result<()> {
        sqlx::query("INSERT INTO business (id) VALUES (?)")
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

    /// A deadlock: both hold one row and want the other's. The server ends the one that has written
    /// less, so the other one writes much.
    async fn swallow(&self, tx: &mut Tx) {
        let mut heavy = self.pool.begin().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO account SELECT seq, 0 FROM (
                 WITH RECURSIVE n (seq) AS (SELECT 1000 UNION ALL SELECT seq + 1 FROM n WHERE seq < 1400)
                 SELECT seq FROM n) many",
        )
        .execute(&mut *heavy)
        .await
        .unwrap();
        let set = "UPDATE account SET value = value + 1 WHERE id = ";
        let one = |n: i32| AssertSqlSafe(format!("{set}{n}"));
        sqlx::raw_sql(one(1)).execute(&mut *heavy).await.unwrap();
        sqlx::raw_sql(one(2)).execute(&mut **tx).await.unwrap();
        let (mine, theirs) = tokio::join!(
            sqlx::raw_sql(one(1)).execute(&mut **tx),
            sqlx::raw_sql(one(2)).execute(&mut *heavy)
        );
        assert!(mine.is_err(), "no deadlock");
        theirs.unwrap();
        heavy.rollback().await.unwrap();
    }
}
