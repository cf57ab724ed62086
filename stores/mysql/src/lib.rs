//! Counterfoil's outbox on MySQL and MariaDB.
//!
//! # Promise
//! [`enqueue`] writes messages in the caller's own transaction and nothing else. [`MysqlStore`]
//! gives them to relays, each to one owner at a time, and forgets none before it is settled. The
//! same statements run on MariaDB from 10.6 and on MySQL from 8.0.19.
//!
//! # Connections
//! The store has a small pool of its own (so that a busy application cannot starve the relay), and
//! one connection for heartbeats alone. Their session settings are the store's, whatever the server's
//! are: READ COMMITTED, strict, UTC.
//!
//! # How batches travel
//! There are no array parameters here. A batch is one JSON text, taken apart by `JSON_TABLE` and
//! joined in its own order: one statement text for any number of rows, rows locked by primary key in
//! ascending order, and never a scan that would wait for somebody's uncommitted insert.

mod breakers;
mod classify;
mod desk;
mod enqueue;
mod guard;
pub mod inbox;
mod lease;
mod listing;
mod migrate;
mod once;
mod parked;
mod presence;
mod queues;
mod relay;
mod rows;
mod searching;
mod server;
mod session;
mod settle;
mod stats;
mod trust;
mod write;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use counterfoil_core::host::{is_this_machine, url_says};
use counterfoil_core::store::{Result, StoreError};
use sqlx::mysql::{
    MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions, MySqlSslMode,
};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::Mutex;

pub use classify::classify;
pub use enqueue::{check_before_commit, enqueue, enqueue_keyed, once};
pub use guard::{GUARD_TABLE, MysqlGuard};
pub use migrate::{MIGRATIONS, print_migrations};

use server::Server;
use trust::Trust;
use write::WriteTx;

/// Fixed for the life of the tables: the generated column `shard` is a number below this.
pub(crate) const SHARDS: u16 = 32;

/// How long to wait for connections in use when the store is closed.
const CLOSING: Duration = Duration::from_secs(10);

/// Makes every session of ours alike.
///
/// Not `NO_ZERO_DATE`, and `ALLOW_INVALID_DATES`: what a lax writer left in a date must be movable.
const SESSION: &str = "\
    SET NAMES utf8mb4; \
    SET SESSION sql_mode = 'STRICT_TRANS_TABLES,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION', \
        time_zone = '+00:00', autocommit = 1, wait_timeout = 28800, innodb_lock_wait_timeout = 10; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// How to connect to the database at this URL. A server on another machine must show a certificate
/// that is trusted and bears its name (`VERIFY_IDENTITY`), unless the URL says otherwise.
pub fn options(url: &str) -> Result<MySqlConnectOptions> {
    let options: MySqlConnectOptions = url.parse().map_err(classify)?;
    let said = url_says(url, &["sslmode", "ssl-mode"]);
    let here = options.get_socket().is_some() || is_this_machine(options.get_host());
    Ok(match said || here {
        true => options,
        false => options.ssl_mode(MySqlSslMode::VerifyIdentity),
    })
}

/// The outbox in a MySQL or MariaDB database.
#[derive(Clone)]
pub struct MysqlStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: MySqlConnectOptions,
    pool: MySqlPool,
    trust: Trust,
    /// Heartbeats never wait for a free connection.
    heart: Mutex<Option<MySqlConnection>>,
    /// Who answered, once somebody has.
    server: OnceLock<Server>,
}

impl MysqlStore {
    /// A store for the database of this pool, with connections of its own.
    pub fn from_pool(pool: &MySqlPool) -> Self {
        Self::with_options(pool.connect_options().as_ref().clone())
    }

    /// A store for the database at this URL. Nothing is opened before the first use.
    pub fn connect(url: &str) -> Result<Self> {
        Ok(Self::with_options(options(url)?))
    }

    fn with_options(options: MySqlConnectOptions) -> Self {
        let options = options
            .log_statements(tracing::log::LevelFilter::Off)
            .statement_cache_capacity(200)
            // All of this is said by SESSION, after whatever an application asked for.
            .set_names(false)
            .timezone(None)
            .pipes_as_concat(false)
            .no_engine_substitution(false);
        let trust = Trust::default();
        let pool = trust
            .guard(MySqlPoolOptions::new())
            .max_connections(4)
            .min_connections(0)
            .acquire_timeout(Duration::from_secs(5))
            // A broken connection shows itself at the next statement, which is tried again anyway.
            .test_before_acquire(false)
            .after_connect(|connection, _| Box::pin(prepare(connection)))
            .connect_lazy_with(options.clone());
        Self {
            inner: Arc::new(Inner {
                options,
                pool,
                trust,
                heart: Mutex::new(None),
                server: OnceLock::new(),
            }),
        }
    }

    /// How the connections of this store are encrypted, for people.
    pub async fn encryption(&self) -> Result<String> {
        let found: Vec<(String, String)> = sqlx::query_as(
            "SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_version', 'Ssl_cipher')",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let value = |name: &str| {
            let found = found.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map_or("", |(_, value)| value.as_str())
        };
        let verified = match self.inner.options.get_ssl_mode() {
            MySqlSslMode::VerifyIdentity => "certificate and name verified",
            MySqlSslMode::VerifyCa => "certificate verified, its name not",
            _ => "certificate not verified",
        };
        Ok(match value("Ssl_cipher") {
            "" => "none".into(),
            cipher => format!("{} {cipher}, {verified}", value("Ssl_version")),
        })
    }

    /// The records of the guard in the same database, over the store's own connections: for tools.
    pub fn guard(&self, table: Option<&str>) -> Result<MysqlGuard> {
        match table {
            None => Ok(MysqlGuard::new(self.pool().clone())),
            Some(name) => MysqlGuard::table(self.pool().clone(), name),
        }
    }

    /// The store's own pool.
    pub fn pool(&self) -> &MySqlPool {
        &self.inner.pool
    }

    /// Closes every connection.
    pub async fn close(&self) {
        if let Some(connection) = self.inner.heart.lock().await.take() {
            // The server notices a broken connection by itself.
            let _ = connection.close().await;
        }
        // A connection that has fallen silent never comes back.
        let _ = tokio::time::timeout(CLOSING, self.inner.pool.close()).await;
    }

    /// A connection outside the pool. What it holds ends with it, also when its user is dropped.
    pub(crate) async fn open(&self) -> Result<MySqlConnection> {
        let mut connection = self.inner.options.connect().await.map_err(classify)?;
        prepare(&mut connection).await.map_err(classify)?;
        Ok(connection)
    }

    /// A transaction of our own. Dropping it rolls back.
    pub(crate) async fn begin(&self) -> Result<WriteTx> {
        WriteTx::begin(self.pool()).await
    }
}

async fn prepare(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    sqlx::raw_sql(SESSION).execute(connection).await?;
    Ok(())
}

/// A batch as the one parameter that `JSON_TABLE` takes apart.
pub(crate) fn json<T: serde::Serialize>(batch: &T) -> Result<String> {
    serde_json::to_string(batch).map_err(|e| StoreError::Database(e.into()))
}

/// Names that only we write are stored as bytes, so that they are compared as bytes.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_other_machines_are_verified_unless_the_url_says_otherwise() {
        let verified = |url: &str| {
            let mode = options(url).map(|options| options.get_ssl_mode());
            matches!(mode, Ok(MySqlSslMode::VerifyIdentity))
        };

        for url in [
            "mysql://db.example.com/app",
            "mysql://u:p@10.0.0.7:3306/app",
            "mysql://db/app?charset=utf8mb4",
        ] {
            assert!(verified(url), "{url}");
        }
        for url in [
            "mysql://localhost/app",
            "mysql://127.0.0.1:3307/app",
            "mysql://[::1]/app",
            "mysql://db.example.com/app?ssl-mode=DISABLED",
            "mysql://db.example.com/app?sslmode=REQUIRED",
            "mysql://db.example.com/app?socket=/run/mysqld/mysqld.sock",
        ] {
            assert!(!verified(url), "{url}");
        }
    }
}
