//! Every case has a database of its own. Its default character set is an old one on purpose: nothing
//! of ours may depend on it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::desk::Desk;
use counterfoil_core::message::{Message, MessageId};
use counterfoil_core::store::{Enqueued, Keyed, RelayId, Result, Store};
use counterfoil_mysql::{MysqlStore, check_before_commit, classify};
use counterfoil_testkit::harness::{Due, Fault, ForeignRow, Harness, Value};
use counterfoil_testkit::server;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, MySql, MySqlConnection, QueryBuilder, Transaction,
};

pub(crate) struct MysqlHarness {
    pub(crate) server: String,
    pub(crate) database: String,
    pub(crate) store: MysqlStore,
    /// The application's own connections: with the isolation and the modes that servers come with.
    pub(crate) pool: MySqlPool,
}

impl MysqlHarness {
    /// An empty database, without any table.
    pub(crate) async fn empty() -> Option<Self> {
        let server = server::mysql()?;
        let database = format!("suite_{}", MessageId::new().as_uuid().simple());
        on_server(
            &server,
            format!("CREATE DATABASE {database} CHARACTER SET latin1"),
        )
        .await;
        let store = MysqlStore::connect(&within(&server, &database)).unwrap();
        let pool = MySqlPoolOptions::new()
            .max_connections(8)
            .connect_lazy(&within(&server, &database))
            .unwrap();
        Some(Self {
            server,
            database,
            store,
            pool,
        })
    }

    pub(crate) fn url(&self) -> String {
        within(&self.server, &self.database)
    }

    /// Runs statements behind the driver's back.
    pub(crate) async fn run(&self, sql: impl Into<String>) {
        sqlx::raw_sql(AssertSqlSafe(sql.into()))
            .execute(&self.pool)
            .await
            .unwrap();
    }
}

/// The URL of a database on a server.
fn within(server: &str, database: &str) -> String {
    let options: MySqlConnectOptions = server.parse().expect("the URL of the server");
    options.database(database).to_url_lossy().to_string()
}

pub(crate) async fn on_server(server: &str, sql: String) {
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
impl Harness for MysqlHarness {
    type Tx = Transaction<'static, MySql>;

    async fn fresh() -> Option<Self> {
        let harness = Self::empty().await?;
        harness.store.migrate().await.unwrap();
        Some(harness)
    }

    async fn clean_up(&self) {
        self.pool.close().await;
        self.store.close().await;
        on_server(&self.server, format!("DROP DATABASE {}", self.database)).await;
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn desk(&self) -> Arc<dyn Desk> {
        Arc::new(self.store.clone())
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        Arc::new(MysqlStore::connect(&self.url()).unwrap())
    }

    async fn begin(&self) -> Self::Tx {
        self.pool.begin().await.unwrap()
    }

    async fn enqueue(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<()> {
        counterfoil_mysql::enqueue(tx, messages).await
    }

    async fn enqueue_keyed(&self, tx: &mut Self::Tx, keyed: &Keyed) -> Result<Enqueued> {
        counterfoil_mysql::enqueue_keyed(tx, keyed).await
    }

    async fn foreign(&self, tx: &mut Self::Tx, row: &ForeignRow) -> Result<(), BoxError> {
        insert(row).build().execute(&mut **tx).await?;
        Ok(())
    }

    async fn savepoint(&self, tx: &mut Self::Tx) {
        sqlx::raw_sql("SAVEPOINT suite")
            .execute(&mut **tx)
            .await
            .unwrap();
    }

    async fn rollback_to(&self, tx: &mut Self::Tx) {
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT suite")
            .execute(&mut **tx)
            .await
            .unwrap();
    }

    async fn commit(&self, mut tx: Self::Tx) -> Result<()> {
        check_before_commit(&mut tx).await?;
        tx.commit().await.map_err(classify)
    }

    async fn rollback(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }

    async fn make_due(&self) {
        self.run(
            "UPDATE counterfoil_outbox SET available_at = available_at - INTERVAL 1 DAY
             WHERE state IN ('scheduled', 'retrying')",
        )
        .await;
    }

    async fn expire_lease(&self, relay: &RelayId) {
        sqlx::query("UPDATE counterfoil_relays SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE relay = ?")
            .bind(relay.as_str())
            .execute(&self.pool)
            .await
            .unwrap();
    }

    async fn age_history(&self, by: Duration) {
        for (table, column) in [
            ("history", "ended_at"),
            ("ledger", "created_at"),
            ("events", "at"),
            ("parked", "updated_at"),
        ] {
            self.run(format!(
                "UPDATE counterfoil_{table} SET {column} = {column} - INTERVAL {} MICROSECOND",
                by.as_micros()
            ))
            .await;
        }
    }

    async fn corrupt(&self, fault: &Fault) -> bool {
        match fault {
            Fault::AlsoInHistory(seq) => {
                self.run(format!(
                    "INSERT INTO counterfoil_history (seq, id, queue, state)
                     SELECT seq, id, queue, 'sent' FROM counterfoil_outbox WHERE seq = {seq}"
                ))
                .await;
            }
            Fault::RowVanishes(seq) => {
                self.run(format!("DELETE FROM counterfoil_outbox WHERE seq = {seq}"))
                    .await;
            }
            Fault::NumberComesBack { seq, id } => {
                self.run(format!(
                    "UPDATE counterfoil_outbox SET id = '{id}' WHERE seq = {seq}"
                ))
                .await;
            }
        }
        true
    }
}

/// The INSERT of a program in another language.
fn insert(row: &ForeignRow) -> QueryBuilder<MySql> {
    let columns = row.columns();
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
            Value::Time(due) => values.push(moment(due)),
        };
    }
    sql.push(")");
    sql
}

fn moment(due: Due) -> &'static str {
    match due {
        Due::Now => "UTC_TIMESTAMP(6)",
        Due::Past => "UTC_TIMESTAMP(6) - INTERVAL 10 YEAR",
        Due::FarFuture => "'9999-12-31 23:59:59'",
        Due::Earliest => "'0000-01-01 00:00:00'",
        Due::Latest => "'9999-12-31 23:59:59.999999'",
    }
}
