//! Counterfoil's outbox on SQLite.
//!
//! # Promise
//! [`enqueue`] writes messages in the caller's own transaction and nothing else. [`SqliteStore`]
//! gives them to relays, each queue to one owner at a time, and forgets none before it is settled.
//!
//! # Connections
//! The store opens connections of its own on the same file: one that writes, two that read, and one
//! for each listener. The file is put into WAL mode, so that reading and writing do not wait for
//! each other; every commit is synced (`synchronous = FULL`).
//!
//! # Beside the file
//! `<file>.locks/` holds one file for each queue and for each running relay. A lock of the operating
//! system on such a file is the ownership: it ends with the process, however that ends. The file
//! system must know locks, as it must for SQLite itself.
//!
//! # Transactions of the application
//! SQLite has one writer at a time. Begin a transaction that will write with
//! `pool.begin_with("BEGIN IMMEDIATE")`: one that reads first and writes later is refused as soon as
//! somebody else has written in between.

mod breakers;
mod classify;

mod desk;
mod enqueue;
mod guard;
mod identity;
pub mod inbox;
mod locks;
mod migrate;
mod once;
mod ownership;
mod packed;
mod parked;
mod place;
mod presence;
mod reading;
mod relay;
mod rows;
mod searching;
mod settle;
mod wake;
mod write;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::store::{Result, StoreError};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::sync::OnceCell;

pub use classify::classify;
pub use enqueue::{check_before_commit, enqueue, enqueue_keyed, once};
pub use guard::{GUARD_TABLE, SqliteGuard};
pub use migrate::{MIGRATIONS, print_migrations};

use locks::Locks;
use write::WriteTx;

/// One writer, one owner: a second shard would gain nothing.
pub(crate) const SHARDS: u16 = 1;
/// The oldest library that is supported: it has `RETURNING` and `UPDATE ... FROM`.
const OLDEST_LIBRARY: (u32, u32) = (3, 35);
/// How long a statement waits for another writer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The outbox in a SQLite database file.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: SqliteConnectOptions,
    writer: SqlitePool,
    reader: SqlitePool,
    locks: Locks,
    /// Makes the ids of rows whose writer left out everything, see [`rows`].
    birth: OnceCell<i64>,
}

impl SqliteStore {
    /// A store for the database of this pool, with connections of its own.
    ///
    /// The file is put into WAL mode; the pool's options must not ask for another one. A database in
    /// memory is refused.
    pub fn from_pool(pool: &SqlitePool) -> Result<Self> {
        let options = place::on_a_file(pool.connect_options().as_ref().clone())?;
        Ok(Self::with_options(options))
    }

    /// A store for the database at this URL (`sqlite:data/app.db`) or path (`data/app.db`).
    ///
    /// Nothing is opened before the first use. The file and its directory are created when they are
    /// missing; a database in memory is refused.
    pub fn connect(url_or_path: &str) -> Result<Self> {
        Ok(Self::with_options(place::parse(url_or_path)?))
    }

    /// The records of the guard in the same database, over the store's own connections: for tools.
    pub fn guard(&self, table: Option<&str>) -> Result<SqliteGuard> {
        match table {
            None => Ok(SqliteGuard::new(self.inner.writer.clone())),
            Some(name) => SqliteGuard::table(self.inner.writer.clone(), name),
        }
    }

    fn with_options(options: SqliteConnectOptions) -> Self {
        let options = options
            .shared_cache(false)
            .busy_timeout(PATIENCE)
            .synchronous(SqliteSynchronous::Full)
            // A write-ahead log that a long reader made large shrinks again.
            .pragma("journal_size_limit", "67108864")
            // Settling is deleting, which touches many pages: copy them back less often.
            .pragma("wal_autocheckpoint", "4000")
            .pragma("temp_store", "MEMORY")
            .row_buffer_size(1_024)
            .log_statements(tracing::log::LevelFilter::Off);
        let pool = |size: u32| {
            SqlitePoolOptions::new()
                .max_connections(size)
                .min_connections(0)
                .acquire_timeout(PATIENCE * 3)
                .idle_timeout(None)
                .max_lifetime(None)
                // A file does not hang up.
                .test_before_acquire(false)
        };
        let writer = if place::is_read_only(&options) {
            pool(1)
        } else {
            pool(1).after_connect(|connection, _| Box::pin(write_ahead(connection)))
        };
        let locks = Locks::beside(options.get_filename());
        Self {
            inner: Arc::new(Inner {
                writer: writer.connect_lazy_with(options.clone()),
                reader: pool(2).connect_lazy_with(reading(options.clone())),
                options,
                locks,
                birth: OnceCell::new(),
            }),
        }
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        self.inner.options.get_filename()
    }

    /// Closes every connection and lets go of every lock.
    pub async fn close(&self) {
        self.inner.reader.close().await;
        self.inner.writer.close().await;
        self.inner.locks.release_all();
    }

    pub(crate) fn reader(&self) -> &SqlitePool {
        &self.inner.reader
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.inner.locks
    }

    pub(crate) async fn write(&self) -> Result<WriteTx> {
        WriteTx::begin(&self.inner.writer).await
    }

    /// A number of this database that stays the same for its life.
    pub(crate) async fn birth(&self) -> Result<i64> {
        let read = || async {
            sqlx::query_scalar(
                "SELECT applied_at FROM counterfoil_migrations ORDER BY version LIMIT 1",
            )
            .fetch_one(self.reader())
            .await
            .map_err(classify)
        };
        self.inner.birth.get_or_try_init(read).await.copied()
    }

    /// Checks the library, the file and whether it can be written.
    pub(crate) async fn check_library(&self) -> Result<()> {
        let mut connection = self.inner.writer.acquire().await.map_err(classify)?;
        let version: String = scalar(&mut connection, "SELECT sqlite_version()").await?;
        if !new_enough(&version) {
            return Err(unsupported(
                format!("SQLite {version}"),
                "SQLite 3.35 or later",
            ));
        }
        let encoding: String = scalar(&mut connection, "PRAGMA encoding").await?;
        if encoding != "UTF-8" {
            return Err(unsupported(
                format!("a database in {encoding}"),
                "a database in UTF-8",
            ));
        }
        drop(connection);
        match self.try_to_write().await {
            // Somebody is writing, so one can.
            Err(StoreError::Busy(_)) => Ok(()),
            other => other,
        }
    }

    /// Writes what is there already, and takes it back. A transaction alone begins on a read-only
    /// file too.
    async fn try_to_write(&self) -> Result<()> {
        let mut tx = self.write().await?;
        let version: i32 = sqlx::query_scalar("PRAGMA user_version")
            .fetch_one(&mut *tx)
            .await
            .map_err(classify)?;
        let same = format!("PRAGMA user_version = {version}");
        sqlx::query(AssertSqlSafe(same))
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        Ok(())
    }

    /// Checks that readers and the writer do not stand in each other's way.
    pub(crate) async fn check_journal(&self) -> Result<()> {
        let mut connection = self.inner.writer.acquire().await.map_err(classify)?;
        let mode: String = scalar(&mut connection, "PRAGMA journal_mode").await?;
        if mode != "wal" {
            let found = format!("a file system on which the journal mode is {mode}");
            return Err(unsupported(
                found,
                "one on which SQLite can use a write-ahead log",
            ));
        }
        Ok(())
    }
}

/// Options for connections that only look.
pub(crate) fn reading(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.create_if_missing(false).pragma("query_only", "ON")
}

/// Switches the file to a write-ahead log. Stays so for the life of the file.
async fn write_ahead(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    let started = std::time::Instant::now();
    loop {
        // Several may try at the same moment on a new file, and SQLite does not wait for this lock.
        let done = sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut *connection)
            .await;
        match done.map_err(classify) {
            Err(StoreError::Busy(_)) if started.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // What cannot be switched is told by `check`.
            _ => return Ok(()),
        }
    }
}

async fn scalar(connection: &mut SqliteConnection, sql: &'static str) -> Result<String> {
    sqlx::query_scalar(sql)
        .fetch_one(connection)
        .await
        .map_err(classify)
}

fn unsupported(found: String, needed: &'static str) -> StoreError {
    StoreError::Unsupported { found, needed }
}

fn new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= OLDEST_LIBRARY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(new_enough("3.35.0") && new_enough("3.51.3") && new_enough("4.0"));
        assert!(!new_enough("3.9.2") && !new_enough("3.34.1") && !new_enough(""));
    }
}
