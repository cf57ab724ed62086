//! The conformance suite on PostgreSQL. Every case has a schema of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this is test code: a surprise ends the test"
)]

#[path = "conformance/inbox.rs"]
mod inbox;
#[path = "support/place.rs"]
mod place;
#[path = "conformance/plans.rs"]
mod plans;
#[path = "conformance/pooled.rs"]
mod pooled;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::desk::Desk;
use counterfoil_core::message::Message;
use counterfoil_core::store::{Enqueued, Keyed, RelayId, Result, Store};
use counterfoil_postgres::{PostgresStore, check_before_commit, classify};
use counterfoil_testkit::fixture::Fixture;
use counterfoil_testkit::gone::after_polls;
use counterfoil_testkit::harness::{Due, Fault, ForeignRow, Harness, Value};
use counterfoil_testkit::server;
use counterfoil_testkit::suite::run;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder, Transaction};

use place::Place;

counterfoil_testkit::store_suite!(PostgresHarness);

/// Directly at the server, or behind a pooler of transactions.
struct SuiteHarness<const POOLED: bool> {
    place: Place,
    store: PostgresStore,
    /// The application's own connections.
    pool: PgPool,
}

type PostgresHarness = SuiteHarness<false>;

impl<const POOLED: bool> SuiteHarness<POOLED> {
    async fn run(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.pool).await.unwrap();
    }
}

#[async_trait]
impl<const POOLED: bool> Harness for SuiteHarness<POOLED> {
    type Tx = Transaction<'static, Postgres>;

    async fn fresh() -> Option<Self> {
        let place = Place::fresh("suite", POOLED).await?;
        let url = place.url();
        let store = PostgresStore::connect(&url).unwrap();
        if let Some(database) = &place.database {
            let direct = pooled::direct(&place.server, database).await;
            store.listen_at(&direct).unwrap();
        }
        store.migrate().await.unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .connect_lazy(&url)
            .unwrap();
        Some(Self { place, store, pool })
    }

    async fn clean_up(&self) {
        self.pool.close().await;
        self.store.close().await;
        self.place.remove().await;
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn desk(&self) -> Arc<dyn Desk> {
        Arc::new(self.store.clone())
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::connect(&self.place.url()).unwrap())
    }

    async fn begin(&self) -> Self::Tx {
        self.pool.begin().await.unwrap()
    }

    async fn enqueue(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<()> {
        counterfoil_postgres::enqueue(tx, messages).await
    }

    async fn enqueue_keyed(&self, tx: &mut Self::Tx, keyed: &Keyed) -> Result<Enqueued> {
        counterfoil_postgres::enqueue_keyed(tx, keyed).await
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
            "UPDATE counterfoil_outbox SET available_at = available_at - interval '1 day'
             WHERE state IN ('scheduled', 'retrying')",
        )
        .await;
    }

    async fn expire_lease(&self, relay: &RelayId) {
        sqlx::query(
            "UPDATE counterfoil_relays SET lease_until = clock_timestamp() - interval '1 second' WHERE relay = $1",
        )
        .bind(relay.as_str())
        .execute(&self.pool)
        .await
        .unwrap();
    }

    async fn age_history(&self, by: Duration) {
        for sql in [
            "UPDATE counterfoil_history SET ended_at = ended_at - $1 * interval '1 second'",
            "UPDATE counterfoil_ledger SET created_at = created_at - $1 * interval '1 second'",
            "UPDATE counterfoil_events SET at = at - $1 * interval '1 second'",
            "UPDATE counterfoil_parked SET updated_at = updated_at - $1 * interval '1 second'",
        ] {
            sqlx::query(sql)
                .bind(by.as_secs_f64())
                .execute(&self.pool)
                .await
                .unwrap();
        }
    }

    async fn corrupt(&self, fault: &Fault) -> bool {
        let sql = match fault {
            Fault::AlsoInHistory(seq) => format!(
                "INSERT INTO counterfoil_history (seq, id, queue, state)
                 SELECT seq, id, queue, 'sent' FROM counterfoil_outbox WHERE seq = {seq}"
            ),
            Fault::RowVanishes(seq) => format!("DELETE FROM counterfoil_outbox WHERE seq = {seq}"),
            Fault::NumberComesBack { seq, id } => {
                format!("UPDATE counterfoil_outbox SET id = '{id}' WHERE seq = {seq}")
            }
        };
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap();
        true
    }
}

/// The INSERT of a program in another language.
fn insert(row: &ForeignRow) -> QueryBuilder<Postgres> {
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
            Value::Time(due) => values.push(moment(due)),
        };
    }
    sql.push(")");
    sql
}

fn moment(due: Due) -> &'static str {
    match due {
        Due::Now => "now()",
        Due::Past => "now() - interval '10 years'",
        Due::FarFuture => "timestamptz '9999-12-31 23:59:59+00'",
        Due::Earliest => "timestamptz '-infinity'",
        Due::Latest => "timestamptz 'infinity'",
    }
}

#[tokio::test]
async fn a_relay_listens_where_it_is_told() {
    let Some(server) = server::postgres() else {
        return;
    };
    let nobody = PostgresStore::connect(&server).unwrap();
    nobody.listen_at("postgres://127.0.0.1:1/nobody").unwrap();
    let direct = PostgresStore::connect(&server).unwrap();
    direct.listen_at(&server).unwrap();

    assert!(nobody.listen().await.is_err());
    let mut wake = direct.listen().await.unwrap().unwrap();
    direct.announce().await.unwrap();
    wake.wait().await.unwrap();
    assert!(nobody.listen_at("not a url").is_err());
}

/// Wherever its caller goes away, a transaction of the store's own does not stay open.
#[test]
fn a_caller_that_goes_away_leaves_no_transaction_behind() {
    run::<PostgresHarness, _, _>(async |t: Fixture<PostgresHarness>| {
        let (store, pool) = (&t.harness.store, t.harness.store.pool());
        t.harness.run("CREATE TABLE seen (n int)").await;
        let (nobody, mut written) = (RelayId::new("nobody"), 0_i64);
        for polls in 1.. {
            let left = after_polls(polls, store.leave(&nobody)).await;

            let mut all = Vec::new();
            while all.len() < pool.size() as usize {
                all.push(pool.acquire().await.unwrap());
            }
            for connection in &mut all {
                let insert = sqlx::query("INSERT INTO seen VALUES (1)");
                insert.execute(&mut **connection).await.unwrap();
                written += 1;
            }
            drop(all);
            let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM seen")
                .fetch_one(&t.harness.pool)
                .await
                .unwrap();
            assert_eq!(seen, written, "a connection is inside a transaction");
            if let Some(left) = left {
                return left.unwrap();
            }
        }
    });
}

/// The server keeps plans that it made while the tables were new. That of the statement that runs
/// most often must still be good when the tables are full of rows that were sent.
#[test]
fn a_read_goes_by_an_index_even_when_it_was_planned_on_new_tables() {
    run::<PostgresHarness, _, _>(async |t: Fixture<PostgresHarness>| {
        let mut connection = t.harness.pool.acquire().await.unwrap();
        connection.close_on_drop();
        let prepare = format!(
            "SET plan_cache_mode = force_generic_plan; PREPARE reading AS {}",
            include_str!("../sql/read.sql")
        );
        sqlx::raw_sql(AssertSqlSafe(prepare))
            .execute(&mut *connection)
            .await
            .unwrap();
        let explain = "EXPLAIN EXECUTE reading ('{q}', '{-1}', '{0}', '{500}', '{}', '{8000}')";
        let plan: Vec<String> = sqlx::raw_sql(explain)
            .fetch_all(&mut *connection)
            .await
            .unwrap()
            .iter()
            .map(|row| sqlx::Row::get(row, 0))
            .collect();

        let whole = |line: &String| line.contains("Seq Scan on counterfoil_outbox");
        assert!(!plan.iter().any(whole), "{}", plan.join("\n"));
    });
}
