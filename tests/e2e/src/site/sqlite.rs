//! A database file of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::desk::Desk;
use counterfoil_core::store::Store;
use counterfoil_sqlite::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};

use super::{FACTS, Obstacle, Ownership, STANDINGS, Site, Standing, Trapped, fact, standing};
use crate::app::{Fact, TABLES};

/// A database file in a directory that goes away with it.
pub struct SqliteSite {
    home: tempfile::TempDir,
    store: SqliteStore,
}

impl SqliteSite {
    /// A place for a file, which is not there yet.
    pub fn bare() -> Self {
        let home = tempfile::tempdir().expect("no directory for temporary files");
        let path = home.path().join("app.db");
        let store = SqliteStore::connect(path.to_str().expect("a path in UTF-8")).unwrap();
        Self { home, store }
    }

    /// A file with every table.
    pub async fn fresh() -> Self {
        let site = Self::bare();
        site.store.migrate().await.unwrap();
        site.found_application().await;
        site
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.home.path().join("app.db")
    }

    async fn connection(&self, patience: Duration) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.path())
            .busy_timeout(patience);
        options
            .connect()
            .await
            .expect("the database cannot be opened")
    }

    async fn look(&self) -> SqliteConnection {
        self.connection(Duration::from_secs(20)).await
    }
}

async fn run(connection: &mut SqliteConnection, sql: impl Into<String>) {
    sqlx::raw_sql(AssertSqlSafe(sql.into()))
        .execute(connection)
        .await
        .unwrap();
}

#[async_trait]
impl Site for SqliteSite {
    fn url(&self, _label: &str) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn desk(&self) -> Arc<dyn Desk> {
        Arc::new(self.store.clone())
    }

    fn shards(&self) -> u16 {
        self.store.shards()
    }

    fn leases(&self) -> bool {
        false
    }

    async fn found_application(&self) {
        run(&mut self.look().await, TABLES).await;
    }

    async fn committed(&self) -> Vec<Fact> {
        let rows = sqlx::query_as(FACTS)
            .fetch_all(&mut self.look().await)
            .await
            .unwrap();
        rows.into_iter().map(fact).collect()
    }

    async fn standings(&self) -> Vec<Standing> {
        let rows = sqlx::query_as(STANDINGS)
            .fetch_all(&mut self.look().await)
            .await
            .unwrap();
        rows.into_iter().map(standing).collect()
    }

    async fn owners(&self) -> Vec<Ownership> {
        let rows: Vec<(String, u16, Option<String>, i64)> =
            sqlx::query_as("SELECT queue, shard, owner, epoch FROM counterfoil_shards")
                .fetch_all(&mut self.look().await)
                .await
                .unwrap();
        rows.into_iter()
            .map(|(queue, shard, owner, epoch)| Ownership {
                queue,
                shard,
                owner,
                epoch,
            })
            .collect()
    }

    /// The locks of a process end with it.
    async fn is_gone(&self, _label: &str) {}

    async fn cut_off(&self, _label: &str) {}

    async fn forbid_settling(&self) -> Box<dyn Obstacle> {
        let mut writer = self.look().await;
        run(&mut writer, "BEGIN IMMEDIATE").await;
        Box::new(Writing(writer))
    }

    async fn trap(&self, trapped: Trapped) -> Box<dyn Obstacle> {
        let event = match trapped {
            Trapped::Leaving => "DELETE",
            Trapped::Rescheduling => "UPDATE",
        };
        let mut connection = self.look().await;
        // Nobody can wait inside a transaction of SQLite, but one can count for a very long time.
        run(
            &mut connection,
            format!(
                "CREATE TABLE e2e_many (n);
                 WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000)
                     INSERT INTO e2e_many SELECT n FROM c;
                 CREATE TRIGGER e2e_trap AFTER {event} ON counterfoil_outbox BEGIN
                     SELECT count(*) FROM e2e_many a, e2e_many b, e2e_many c, e2e_many d;
                 END"
            ),
        )
        .await;
        let impatient = self.connection(Duration::ZERO).await;
        Box::new(Trap {
            connection,
            impatient,
        })
    }

    async fn hang_up(&self, _label: &str) {}

    async fn pulse(&self) {}

    async fn remove(&self) {
        self.store.close().await;
    }
}

/// The one write transaction.
struct Writing(SqliteConnection);

#[async_trait]
impl Obstacle for Writing {
    /// Nobody can see who waits for the lock.
    async fn blocks_somebody(&mut self) -> bool {
        true
    }

    async fn remove(mut self: Box<Self>) {
        run(&mut self.0, "ROLLBACK").await;
    }
}

struct Trap {
    connection: SqliteConnection,
    /// Does not wait for locks.
    impatient: SqliteConnection,
}

#[async_trait]
impl Obstacle for Trap {
    /// Somebody is in the trap when nobody else can write, for longer than any statement takes.
    async fn blocks_somebody(&mut self) -> bool {
        for _ in 0..20 {
            if sqlx::query("BEGIN IMMEDIATE")
                .execute(&mut self.impatient)
                .await
                .is_ok()
            {
                run(&mut self.impatient, "ROLLBACK").await;
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    async fn remove(mut self: Box<Self>) {
        run(
            &mut self.connection,
            "DROP TRIGGER e2e_trap; DROP TABLE e2e_many",
        )
        .await;
    }
}
