//! The guard's conformance suite on SQLite, and what only SQLite has to show.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Change, Expect, Key, Records, State, Write};
use counterfoil_core::store::{Result, Store, StoreError};
use counterfoil_sqlite::{SqliteGuard, SqliteStore, classify};
use counterfoil_testkit::guard::fixture::{finished, key};
use counterfoil_testkit::guard::harness::{GuardHarness, TxHarness};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Transaction};

counterfoil_testkit::guard_suite!(SqliteHarness);
counterfoil_testkit::guard_tx_suite!(SqliteHarness);

type Tx = Transaction<'static, Sqlite>;

struct SqliteHarness {
    home: tempfile::TempDir,
    /// The application's own connections.
    pool: SqlitePool,
}

impl SqliteHarness {
    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new().filename(self.home.path().join("app.db"))
    }

    fn one(&self, options: SqliteConnectOptions) -> SqlitePool {
        let options = options.busy_timeout(Duration::from_millis(200));
        SqlitePoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(options)
    }

    async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap();
    }
}

#[async_trait]
impl GuardHarness for SqliteHarness {
    type Guard = SqliteGuard;

    async fn fresh() -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(home.path().join("app.db"))
            .create_if_missing(true)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new()
            .max_connections(8)
            .connect_with(options)
            .await
            .unwrap();
        let store = SqliteStore::from_pool(&pool).unwrap();
        store.migrate().await.unwrap();
        store.close().await;
        let harness = Self { home, pool };
        harness
            .run("CREATE TABLE business (id INTEGER PRIMARY KEY)".into())
            .await;
        Some(harness)
    }

    async fn clean_up(&self) {
        self.pool.close().await;
    }

    fn guard(&self) -> SqliteGuard {
        SqliteGuard::new(self.pool.clone())
    }

    async fn advance(&self, by: Duration) {
        let ms = by.as_millis();
        self.run(format!(
            "UPDATE counterfoil_guard SET created_at = created_at - {ms}, updated_at = updated_at - {ms},
                 expires_at = expires_at - {ms}, lease_until = lease_until - {ms}, retry_at = retry_at - {ms};
             UPDATE counterfoil_tokens SET expires_at = expires_at - {ms};
             UPDATE counterfoil_locks SET lease_until = lease_until - {ms}"
        ))
        .await;
    }
}

#[async_trait]
impl TxHarness for SqliteHarness {
    type Tx = Tx;

    fn concurrent_writers(&self) -> bool {
        false
    }

    fn rival(&self) -> SqliteGuard {
        SqliteGuard::new(self.one(self.options()))
    }

    async fn domain(&self, name: &str) -> SqliteGuard {
        self.run(SqliteGuard::print_table(name).unwrap()).await;
        SqliteGuard::table(self.pool.clone(), name).unwrap()
    }

    async fn begin(&self, guard: &SqliteGuard, key: &Key, expect: Expect) -> Result<Option<Tx>> {
        guard.begin(key, expect).await
    }

    async fn undo(&self, guard: &SqliteGuard, tx: &mut Tx) -> Result<()> {
        guard.undo(tx).await
    }

    async fn finish(&self, guard: &SqliteGuard, tx: &mut Tx, write: &Write) -> Result<bool> {
        guard.finish(tx, write).await
    }

    async fn end(&self, guard: &SqliteGuard, tx: Tx, write: &Write) -> Result<bool> {
        guard.commit(tx, write).await
    }

    async fn commit(&self, tx: Tx) -> Result<()> {
        tx.commit().await.map_err(classify)
    }

    async fn rollback(&self, tx: Tx) {
        // When SQLite has rolled back by itself, the driver's own attempt fails.
        let _ = tx.rollback().await;
    }

    async fn insert(&self, tx: &mut Tx, id: i64) -> Result<()> {
        sqlx::query("INSERT INTO business (id) VALUES (?1)")
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
        // As a full disk does.
        let failed = sqlx::raw_sql(
            "INSERT INTO business (id) VALUES (-1); INSERT OR ROLLBACK INTO business (id) VALUES (-1)",
        )
        .execute(&mut **tx)
        .await;
        assert!(failed.is_err());
    }
}

#[tokio::test]
async fn a_full_disk_during_the_business_records_nothing() {
    let t = SqliteHarness::fresh().await.unwrap();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&t.pool)
        .await
        .unwrap();
    let limit = (pages + 2).to_string();
    let guard = SqliteGuard::new(t.one(t.options().pragma("max_page_count", limit)));
    let mut tx = guard
        .begin(&key("k"), Expect::Absent)
        .await
        .unwrap()
        .unwrap();
    t.insert(&mut tx, 1).await.unwrap();

    let full = sqlx::query("CREATE TABLE large AS SELECT zeroblob(100000) AS b")
        .execute(&mut *tx)
        .await
        .map_err(classify);

    assert!(matches!(full, Err(StoreError::NotWritable(..))), "{full:?}");
    // Whether SQLite has given the transaction up or only the statement: both or none.
    let done = match guard.finish(&mut tx, &finished("k", Expect::Absent)).await {
        Ok(done) => {
            tx.commit().await.unwrap();
            done
        }
        Err(_) => {
            drop(tx);
            false
        }
    };
    assert_eq!(t.rows().await.len(), usize::from(done));
    let found = guard.look(&key("k").digest()).await.unwrap();
    assert_eq!(found.is_some(), done);
}

#[tokio::test]
async fn a_record_that_cannot_be_stored_is_not_reported_as_stored() {
    let t = SqliteHarness::fresh().await.unwrap();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&t.pool)
        .await
        .unwrap();
    let guard = SqliteGuard::new(t.one(t.options().pragma("max_page_count", pages.to_string())));
    let large = counterfoil_core::guard::Snapshot {
        status: 200,
        headers: vec![],
        body: Some(vec![1; 1_000_000].into()),
    };

    let full = guard
        .put(&Write {
            snapshot: Some(large),
            ..finished("k", Expect::Absent)
        })
        .await;

    assert!(matches!(full, Err(StoreError::NotWritable(..))), "{full:?}");
    assert_eq!(guard.look(&key("k").digest()).await.unwrap(), None);
}

/// Nobody knows then, and everybody can see that.
#[tokio::test]
async fn a_business_that_commits_behind_our_back_leaves_uncertainty() {
    let t = SqliteHarness::fresh().await.unwrap();
    let guard = t.rival();
    let mut tx = guard
        .begin(&key("k"), Expect::Absent)
        .await
        .unwrap()
        .unwrap();
    t.insert(&mut tx, 1).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut *tx).await.unwrap();

    let done = guard.finish(&mut tx, &finished("k", Expect::Absent)).await;

    assert!(matches!(done, Err(StoreError::Doomed(_))), "{done:?}");
    tx.rollback().await.unwrap();
    let digest = key("k").digest();
    let found = guard.look(&digest).await.unwrap().unwrap();
    assert_eq!(found.state(), State::Uncertain);
    assert!(
        guard
            .begin(&key("k"), Expect::Absent)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        guard.stuck(Duration::ZERO, None, 10).await.unwrap().len(),
        1
    );
    let settled = guard.change(&digest, found.record.fence, &Change::Release);
    assert!(settled.await.unwrap());
}
