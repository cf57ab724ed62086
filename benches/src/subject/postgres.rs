//! PostgreSQL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::{Message, MessageId, Store};
use counterfoil_postgres::PostgresStore;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection, Row};

use super::{Producer, QUEUE, Subject};

/// A scratch schema in a PostgreSQL database.
pub struct Postgres {
    store: PostgresStore,
    pool: PgPool,
    url: String,
}

impl Postgres {
    /// Makes the scratch schema `counterfoil_bench` anew.
    pub async fn open(url: &str) -> anyhow::Result<Self> {
        let mut admin = PgConnection::connect(url).await?;
        sqlx::raw_sql(
            "DROP SCHEMA IF EXISTS counterfoil_bench CASCADE; CREATE SCHEMA counterfoil_bench",
        )
        .execute(&mut admin)
        .await?;
        let joint = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{joint}options=-c%20search_path%3Dcounterfoil_bench");
        let pool = PgPoolOptions::new()
            .max_connections(16)
            .test_before_acquire(false)
            .connect(&url)
            .await?;
        let store = PostgresStore::connect(&url).map_err(|e| anyhow::anyhow!(e.one_line()))?;
        store.migrate().await?;
        sqlx::raw_sql("CREATE TABLE business (id bigserial PRIMARY KEY, name text NOT NULL, amount bigint NOT NULL)")
            .execute(&pool)
            .await?;
        Ok(Self { store, pool, url })
    }

    /// The address of the scratch schema.
    pub fn url(&self) -> &str {
        &self.url
    }
}

fn message(id: MessageId, n: i64) -> anyhow::Result<Message> {
    Ok(
        Message::json("order", n % 20_000, "OrderPaid", &format!("{:0>254}", n))?
            .id(id)
            .queue(QUEUE)
            .version(n),
    )
}

#[async_trait]
impl Subject for Postgres {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn clean(&self) -> anyhow::Result<()> {
        sqlx::raw_sql("TRUNCATE counterfoil_outbox, counterfoil_parked, counterfoil_history, business, counterfoil_shards, counterfoil_relays")
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn preload(&self, n: u64, aggregates: u64) -> anyhow::Result<()> {
        sqlx::query(
            "INSERT INTO counterfoil_outbox (id, queue, aggregate_type, aggregate_id, version, event_type, payload)
             SELECT gen_random_uuid()::text, $1, 'order', (i % $3)::text, i, 'OrderPaid', '\"' || lpad(i::text, 254, '0') || '\"'
             FROM generate_series(1, $2) AS i",
        )
        .bind(QUEUE)
        .bind(n.cast_signed())
        .bind(aggregates.cast_signed())
        .execute(&self.pool)
        .await?;
        sqlx::raw_sql("VACUUM ANALYZE counterfoil_outbox")
            .execute(&self.pool)
            .await?;
        sqlx::raw_sql("CHECKPOINT").execute(&self.pool).await?;
        Ok(())
    }

    async fn pass_through(&self, n: u64) -> anyhow::Result<()> {
        let mut left = n;
        while left > 0 {
            let part = left.min(500_000);
            sqlx::query(
                "INSERT INTO counterfoil_outbox (id, queue, aggregate_type, aggregate_id, version, event_type, payload)
                 SELECT gen_random_uuid()::text, $1, 'order', (i % 20000)::text, i, 'OrderPaid', '\"' || lpad(i::text, 254, '0') || '\"'
                 FROM generate_series(1, $2) AS i",
            )
            .bind(QUEUE)
            .bind(part.cast_signed())
            .execute(&self.pool)
            .await?;
            sqlx::raw_sql("DELETE FROM counterfoil_outbox")
                .execute(&self.pool)
                .await?;
            left -= part;
            eprint!("\r  passed through: {} of {n}   ", n - left);
        }
        eprintln!();
        Ok(())
    }

    async fn raw_drain(&self) -> anyhow::Result<u64> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let mut total = 0;
        loop {
            let rows = sqlx::query(
                "DELETE FROM counterfoil_outbox o
                 USING (SELECT seq FROM counterfoil_outbox ORDER BY seq FOR UPDATE SKIP LOCKED LIMIT 500) due
                 WHERE o.seq = due.seq
                 RETURNING o.id, o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.headers, o.payload",
            )
            .fetch_all(&mut connection)
            .await?;
            if rows.is_empty() {
                return Ok(total);
            }
            for row in &rows {
                let _: (String, String, String, i64, String, Option<String>, String) = (
                    row.try_get(0)?,
                    row.try_get(1)?,
                    row.try_get(2)?,
                    row.try_get(3)?,
                    row.try_get(4)?,
                    row.try_get(5)?,
                    row.try_get(6)?,
                );
            }
            total += u64::try_from(rows.len())?;
        }
    }

    async fn pending(&self) -> anyhow::Result<u64> {
        let (n,): (i64,) = sqlx::query_as("SELECT count(*) FROM counterfoil_outbox")
            .fetch_one(&self.pool)
            .await?;
        Ok(n.cast_unsigned())
    }

    async fn transactions(
        &self,
        with_message: bool,
        for_time: Duration,
        connections: usize,
    ) -> anyhow::Result<u64> {
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..connections {
            let pool = self.pool.clone();
            workers.spawn(async move {
                let end = Instant::now() + for_time;
                let (mut done, mut n) = (0u64, i64::try_from(worker)?);
                while Instant::now() < end {
                    n += 64;
                    let mut tx = pool.begin().await?;
                    insert_business(&mut tx, n).await?;
                    if with_message {
                        counterfoil_postgres::enqueue(&mut tx, &[message(MessageId::new(), n)?])
                            .await?;
                    }
                    tx.commit().await?;
                    done += 1;
                }
                anyhow::Ok(done)
            });
        }
        let mut total = 0;
        while let Some(done) = workers.join_next().await {
            total += done??;
        }
        Ok(total)
    }

    async fn hold_lanes(&self, queue: &str, rows: u64, lanes: u64) -> anyhow::Result<()> {
        sqlx::query(
            "INSERT INTO counterfoil_outbox (id, queue, aggregate_type, aggregate_id, version, event_type, payload, state)
             SELECT gen_random_uuid()::text, $1, 'order', (i % $3)::text, i, 'OrderPaid', '1', 'held'
             FROM generate_series(1, $2) AS i",
        )
        .bind(queue)
        .bind(rows.cast_signed())
        .bind(lanes.cast_signed())
        .execute(&self.pool)
        .await?;
        sqlx::query(
            "INSERT INTO counterfoil_parked (seq, id, queue, shard, aggregate_type, aggregate_id, created_at, attempts, code, error, hold, confirm, state)
             SELECT -1 - i, gen_random_uuid()::text, $1, 0, 'order', i::text, now(), 1, 'BENCH', 'for a bench', true, false, 'pending'
             FROM generate_series(0, $2 - 1) AS i",
        )
        .bind(queue)
        .bind(lanes.cast_signed())
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    async fn ended_transactions(&self) -> anyhow::Result<Option<i64>> {
        // What a session has counted is told after a while.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (ended,): (i64,) = sqlx::query_as(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()",
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Some(ended))
    }

    async fn producer(&self) -> anyhow::Result<Box<dyn Producer>> {
        Ok(Box::new(Connected(PgConnection::connect(&self.url).await?)))
    }

    async fn hold_snapshot(&self) -> anyhow::Result<Box<dyn Send + Sync>> {
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM business")
            .execute(&mut connection)
            .await?;
        Ok(Box::new(tokio::sync::Mutex::new(connection)))
    }
}

async fn insert_business(
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    n: i64,
) -> anyhow::Result<()> {
    sqlx::query("INSERT INTO business (name, amount) VALUES ($1, $2)")
        .bind("somebody")
        .bind(n)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

struct Connected(PgConnection);

#[async_trait]
impl Producer for Connected {
    async fn transaction(&mut self, id: MessageId, n: i64) -> anyhow::Result<()> {
        let mut tx = self.0.begin().await?;
        insert_business(&mut tx, n).await?;
        counterfoil_postgres::enqueue(&mut tx, &[message(id, n)?]).await?;
        tx.commit().await?;
        Ok(())
    }
}
