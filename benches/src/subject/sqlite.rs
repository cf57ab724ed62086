//! SQLite, in a file of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::{Message, MessageId, Store};
use counterfoil_sqlite::SqliteStore;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Row};

use super::{Producer, QUEUE, Subject};

const FILL: &str = "
INSERT INTO counterfoil_outbox (id, queue, aggregate_type, aggregate_id, version, event_type, payload)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
SELECT lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-a'
             || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
       ?1, 'order', cast(i % ?3 AS TEXT), i, 'OrderPaid', '\"' || printf('%0254d', i) || '\"'
FROM n";

/// A scratch file.
pub struct Sqlite {
    store: SqliteStore,
    pool: SqlitePool,
    options: SqliteConnectOptions,
    _folder: tempfile::TempDir,
}

impl Sqlite {
    /// Makes the scratch file.
    pub async fn open() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("bench.db");
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .max_connections(8)
            .test_before_acquire(false)
            .connect_with(options.clone())
            .await?;
        let store = SqliteStore::connect(&file.to_string_lossy())
            .map_err(|e| anyhow::anyhow!(e.one_line()))?;
        store.migrate().await?;
        sqlx::raw_sql("CREATE TABLE business (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER)")
            .execute(&pool)
            .await?;
        Ok(Self {
            store,
            pool,
            options,
            _folder: folder,
        })
    }

    async fn fill(&self, n: u64, aggregates: u64) -> anyhow::Result<()> {
        sqlx::query(FILL)
            .bind(QUEUE)
            .bind(n.cast_signed())
            .bind(aggregates.cast_signed())
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}

fn message(id: MessageId, n: i64) -> anyhow::Result<Message> {
    let payload = format!("{n:0>254}");
    let message = Message::json("order", n % 20_000, "OrderPaid", &payload)?;
    Ok(message.id(id).queue(QUEUE).version(n))
}

#[async_trait]
impl Subject for Sqlite {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn clean(&self) -> anyhow::Result<()> {
        for statement in [
            "DELETE FROM counterfoil_outbox",
            "DELETE FROM counterfoil_history",
            "DELETE FROM business",
        ] {
            sqlx::query(statement).execute(&self.pool).await?;
        }
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn preload(&self, n: u64, aggregates: u64) -> anyhow::Result<()> {
        self.fill(n, aggregates).await?;
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn pass_through(&self, n: u64) -> anyhow::Result<()> {
        let mut left = n;
        while left > 0 {
            let part = left.min(500_000);
            self.fill(part, 20_000).await?;
            sqlx::query("DELETE FROM counterfoil_outbox")
                .execute(&self.pool)
                .await?;
            left -= part;
            eprint!("\r  passed through: {} of {n}   ", n - left);
        }
        eprintln!();
        Ok(())
    }

    async fn raw_drain(&self) -> anyhow::Result<u64> {
        let mut connection = self.options.connect().await?;
        let mut total = 0;
        loop {
            let rows = sqlx::query(
                "DELETE FROM counterfoil_outbox
                 WHERE seq IN (SELECT seq FROM counterfoil_outbox ORDER BY seq LIMIT 500)
                 RETURNING id, aggregate_type, aggregate_id, version, event_type, headers, payload",
            )
            .fetch_all(&mut connection)
            .await?;
            if rows.is_empty() {
                return Ok(total);
            }
            for row in &rows {
                let _: (String, String, i64, String) = (
                    row.try_get(0)?,
                    row.try_get(2)?,
                    row.try_get(3)?,
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
                    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
                    insert_business(&mut tx, n).await?;
                    if with_message {
                        let message = message(MessageId::new(), n)?;
                        counterfoil_sqlite::enqueue(&mut tx, &[message]).await?;
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

    async fn hold_lanes(&self, _queue: &str, _rows: u64, _lanes: u64) -> anyhow::Result<()> {
        anyhow::bail!("held lanes are measured on PostgreSQL: `--store postgres`")
    }

    async fn ended_transactions(&self) -> anyhow::Result<Option<i64>> {
        Ok(None)
    }

    async fn producer(&self) -> anyhow::Result<Box<dyn Producer>> {
        Ok(Box::new(Connected(self.options.connect().await?)))
    }

    async fn hold_snapshot(&self) -> anyhow::Result<Box<dyn Send + Sync>> {
        let mut connection = self.options.connect().await?;
        sqlx::raw_sql("BEGIN; SELECT count(*) FROM business")
            .execute(&mut connection)
            .await?;
        Ok(Box::new(tokio::sync::Mutex::new(connection)))
    }
}

async fn insert_business(
    tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
    n: i64,
) -> anyhow::Result<()> {
    sqlx::query("INSERT INTO business (name, amount) VALUES (?, ?)")
        .bind("somebody")
        .bind(n)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

struct Connected(SqliteConnection);

#[async_trait]
impl Producer for Connected {
    async fn transaction(&mut self, id: MessageId, n: i64) -> anyhow::Result<()> {
        let mut tx = self.0.begin_with("BEGIN IMMEDIATE").await?;
        insert_business(&mut tx, n).await?;
        counterfoil_sqlite::enqueue(&mut tx, &[message(id, n)?]).await?;
        tx.commit().await?;
        Ok(())
    }
}
