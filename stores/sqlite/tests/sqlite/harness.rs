//! The suite's keys to a database file in a directory of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::desk::Desk;
use counterfoil_core::message::Message;
use counterfoil_core::store::{Enqueued, Keyed, RelayId, Result, Store};
use counterfoil_sqlite::SqliteStore;
use counterfoil_testkit::harness::{Due, Fault, ForeignRow, Harness, Value};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, QueryBuilder, Transaction};

/// A database file, the application's own pool on it, and the store.
pub(crate) struct SqliteHarness {
    home: tempfile::TempDir,
    pub(crate) pool: SqlitePool,
    pub(crate) sqlite: SqliteStore,
}

impl SqliteHarness {
    pub(crate) async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("app.db");
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .busy_timeout(Duration::from_secs(60));
        let pool = SqlitePoolOptions::new()
            .max_connections(8)
            .connect_with(options)
            .await
            .unwrap();
        let sqlite = SqliteStore::from_pool(&pool).unwrap();
        sqlite.migrate().await.unwrap();
        Self { home, pool, sqlite }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.home.path().join("app.db")
    }

    /// Another handle on the same file, as another process would have it.
    pub(crate) fn other(&self) -> SqliteStore {
        SqliteStore::connect(self.path().to_str().unwrap()).unwrap()
    }

    pub(crate) async fn execute(&self, sql: impl Into<String>) -> u64 {
        sqlx::query(AssertSqlSafe(sql.into()))
            .execute(&self.pool)
            .await
            .unwrap()
            .rows_affected()
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    type Tx = Transaction<'static, Sqlite>;

    async fn fresh() -> Option<Self> {
        Some(Self::new().await)
    }

    async fn clean_up(&self) {
        self.sqlite.close().await;
        self.pool.close().await;
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.sqlite.clone())
    }

    fn desk(&self) -> Arc<dyn Desk> {
        Arc::new(self.sqlite.clone())
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        Arc::new(self.other())
    }

    fn leases(&self) -> bool {
        false
    }

    fn concurrent_writers(&self) -> bool {
        false
    }

    async fn begin(&self) -> Self::Tx {
        self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap()
    }

    async fn enqueue(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<()> {
        counterfoil_sqlite::enqueue(tx, messages).await
    }

    async fn enqueue_keyed(&self, tx: &mut Self::Tx, keyed: &Keyed) -> Result<Enqueued> {
        counterfoil_sqlite::enqueue_keyed(tx, keyed).await
    }

    async fn foreign(&self, tx: &mut Self::Tx, row: &ForeignRow) -> Result<(), BoxError> {
        insert(row).build().execute(&mut **tx).await?;
        Ok(())
    }

    async fn savepoint(&self, tx: &mut Self::Tx) {
        sqlx::query("SAVEPOINT suite")
            .execute(&mut **tx)
            .await
            .unwrap();
    }

    async fn rollback_to(&self, tx: &mut Self::Tx) {
        sqlx::query("ROLLBACK TO suite")
            .execute(&mut **tx)
            .await
            .unwrap();
    }

    async fn commit(&self, mut tx: Self::Tx) -> Result<()> {
        counterfoil_sqlite::check_before_commit(&mut tx).await?;
        tx.commit().await.map_err(counterfoil_sqlite::classify)
    }

    async fn rollback(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }

    async fn make_due(&self) {
        self.execute(
            "UPDATE counterfoil_outbox SET available_at = available_at - 86400000
             WHERE state IN ('scheduled', 'retrying')",
        )
        .await;
    }

    async fn expire_lease(&self, relay: &RelayId) {
        panic!("{relay} has no lease");
    }

    async fn age_history(&self, by: Duration) {
        let ms = by.as_millis();
        self.execute(format!(
            "UPDATE counterfoil_history SET ended_at = ended_at - {ms}"
        ))
        .await;
        self.execute(format!(
            "UPDATE counterfoil_ledger SET created_at = created_at - {ms}"
        ))
        .await;
        self.execute(format!("UPDATE counterfoil_events SET at = at - {ms}"))
            .await;
        self.execute(format!(
            "UPDATE counterfoil_parked SET updated_at = updated_at - {ms}"
        ))
        .await;
    }

    async fn corrupt(&self, fault: &Fault) -> bool {
        let sql = match fault {
            Fault::AlsoInHistory(seq) => format!(
                "INSERT INTO counterfoil_history (seq, id, queue, state, ended_at)
                 SELECT seq, id, queue, 'sent', created_at FROM counterfoil_outbox WHERE seq = {seq}"
            ),
            Fault::RowVanishes(seq) => format!("DELETE FROM counterfoil_outbox WHERE seq = {seq}"),
            Fault::NumberComesBack { seq, id } => {
                format!("UPDATE counterfoil_outbox SET id = '{id}' WHERE seq = {seq}")
            }
        };
        self.execute(sql).await == 1
    }
}

/// The INSERT of a program in another language.
fn insert(row: &ForeignRow) -> QueryBuilder<Sqlite> {
    let columns = row.columns();
    if columns.is_empty() {
        return QueryBuilder::new("INSERT INTO counterfoil_outbox DEFAULT VALUES");
    }
    let names: Vec<&str> = columns.iter().map(|c| c.0).collect();
    let mut sql = QueryBuilder::new(format!(
        "INSERT INTO counterfoil_outbox ({}) VALUES (",
        names.join(", ")
    ));
    let mut values = sql.separated(", ");
    for (_, value) in columns {
        match value {
            Value::Null => values.push("NULL"),
            Value::Text(text) => values.push_bind(text),
            Value::Number(number) => values.push_bind(number),
            Value::Bytes(bytes) => values.push_bind(bytes),
            Value::Time(due) => values.push_bind(moment(due)),
        };
    }
    sql.push(")");
    sql
}

fn moment(due: Due) -> i64 {
    let now = chrono::Utc::now().timestamp_millis();
    match due {
        Due::Now => now,
        Due::Past => now - 3_653 * 86_400_000,
        Due::FarFuture => 253_402_300_799_000,
        Due::Earliest => i64::MIN,
        Due::Latest => i64::MAX,
    }
}
