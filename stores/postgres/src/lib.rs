//! Counterfoil's outbox on PostgreSQL.
//!
//! # Promise
//! [`enqueue`] writes messages in the caller's own transaction and nothing else. [`PostgresStore`]
//! gives them to relays, each to one owner at a time, and forgets none before it is settled.
//!
//! # Connections
//! The store has a small pool of its own (so that a busy application cannot starve the relay), one
//! connection for heartbeats alone, and one for `NOTIFY`.

mod breakers;
mod classify;
mod clerk;
mod desk;
mod ending;
mod enqueue;
mod guard;
mod handy;
mod held;
pub mod inbox;
mod kept;
mod migrate;
mod once;
mod parked;
mod presence;
mod relay;
mod rows;
mod searching;
pub mod settings;
mod together;
mod trust;
mod values;
mod wake;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use counterfoil_core::host::{is_this_machine, url_says};
use counterfoil_core::store::{Result, StoreError};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, Postgres, Transaction};
use tokio::sync::Mutex;

pub use classify::classify;
pub use enqueue::{check_before_commit, enqueue, enqueue_keyed, once};
pub use guard::{GUARD_TABLE, PostgresGuard};
pub use migrate::{MIGRATIONS, print_migrations};

use kept::Kept;
use trust::Trust;

/// Fixed for the life of the tables: the generated column `shard` is a number below this.
pub(crate) const SHARDS: u16 = 32;
/// The oldest server that is supported.
const OLDEST_SERVER: i32 = 13;

/// How to connect to the database at this URL. A server on another machine must show a certificate
/// that is trusted and bears its name (`verify-full`), unless the URL or `PGSSLMODE` says otherwise.
pub fn options(url: &str) -> Result<PgConnectOptions> {
    let options: PgConnectOptions = url.parse().map_err(classify)?;
    let said = url_says(url, &["sslmode", "ssl-mode"]) || std::env::var_os("PGSSLMODE").is_some();
    let here = options.get_socket().is_some() || is_this_machine(options.get_host());
    Ok(match said || here {
        true => options,
        false => options.ssl_mode(PgSslMode::VerifyFull),
    })
}

/// The outbox in a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: PgConnectOptions,
    /// Where to listen, if not there.
    direct: OnceLock<PgConnectOptions>,
    pool: PgPool,
    trust: Trust,
    reader: Kept,
    settler: Kept,
    looker: Kept,
    /// Heartbeats never wait for a free connection.
    heart: Mutex<Option<PgConnection>>,
    /// `NOTIFY` goes out on a connection of its own, never inside a business transaction.
    voice: Mutex<Option<PgConnection>>,
}

impl PostgresStore {
    /// A store for the database of this pool, with connections of its own.
    pub fn from_pool(pool: &PgPool) -> Self {
        Self::with_options(pool.connect_options().as_ref().clone())
    }

    /// A store for the database at this URL. Nothing is opened before the first use.
    pub fn connect(url: &str) -> Result<Self> {
        let options = options(url)?;
        Ok(Self::with_options(options.application_name("counterfoil")))
    }

    /// Listens for other processes' commits on a connection of its own to this URL: for databases
    /// behind a proxy that pools transactions, which forwards no `NOTIFY`. Only the first call
    /// counts.
    pub fn listen_at(&self, url: &str) -> Result<()> {
        let options = options(url)?;
        // A second one is ignored, as the documentation says.
        let _ = self
            .inner
            .direct
            .set(options.application_name("counterfoil"));
        Ok(())
    }

    fn with_options(options: PgConnectOptions) -> Self {
        let options = options
            .log_statements(tracing::log::LevelFilter::Off)
            // A pooler refuses it unless it is told otherwise, and we read no numbers as text.
            .extra_float_digits(None);
        let trust = Trust::default();
        let pool = trust
            .guard(PgPoolOptions::new())
            .max_connections(5)
            .min_connections(0)
            .acquire_timeout(Duration::from_secs(5))
            // A broken connection shows itself at the next statement, which is tried again anyway.
            .test_before_acquire(false)
            .connect_lazy_with(options.clone());
        Self {
            inner: Arc::new(Inner {
                options,
                direct: OnceLock::new(),
                pool,
                reader: Kept::new(trust.clone()),
                settler: Kept::new(trust.clone()),
                looker: Kept::new(trust.clone()),
                trust,
                heart: Mutex::new(None),
                voice: Mutex::new(None),
            }),
        }
    }

    /// The records of the guard in the same database, over the store's own connections: for tools.
    pub fn guard(&self, table: Option<&str>) -> Result<PostgresGuard> {
        match table {
            None => Ok(PostgresGuard::new(self.pool().clone())),
            Some(name) => PostgresGuard::table(self.pool().clone(), name),
        }
    }

    /// The store's own pool.
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// A transaction of our own. Dropping it rolls back.
    ///
    /// It begins in a task of its own: the driver does not roll back when its caller goes away in
    /// the middle of BEGIN, and the connection would go back to the pool inside a transaction.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Postgres>> {
        let (pool, trust) = (self.pool().clone(), self.inner.trust.clone());
        let begun = tokio::spawn(async move {
            tokio::select! {
                biased;
                // The pool closes the connection instead of taking it back.
                () = trust.hung_up() => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                begun = pool.begin_with(settings::BEGIN) => begun,
            }
        });
        let begun = begun.await.map_err(|e| StoreError::Database(e.into()))?;
        begun.map_err(classify)
    }

    /// The connection that reads due messages.
    pub(crate) fn reader(&self) -> &Kept {
        &self.inner.reader
    }

    /// The connection that settles.
    pub(crate) fn settler(&self) -> &Kept {
        &self.inner.settler
    }

    /// The connection that looks where there is work.
    pub(crate) fn looker(&self) -> &Kept {
        &self.inner.looker
    }

    /// Whether somebody has said where to listen.
    pub(crate) fn listens_elsewhere(&self) -> bool {
        self.inner.direct.get().is_some()
    }

    /// Where to listen.
    pub(crate) fn direct(&self) -> &PgConnectOptions {
        self.inner.direct.get().unwrap_or(&self.inner.options)
    }

    pub(crate) fn options(&self) -> &PgConnectOptions {
        &self.inner.options
    }

    /// How the connections of this store are encrypted, for people. Behind a pooler this is how the
    /// pooler reaches the server.
    pub async fn encryption(&self) -> Result<String> {
        let found: Option<(String, String)> = sqlx::query_as(
            "SELECT version, cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl",
        )
        .fetch_optional(&self.inner.pool)
        .await
        .map_err(classify)?;
        let verified = match self.inner.options.get_ssl_mode() {
            PgSslMode::VerifyFull => "certificate and name verified",
            PgSslMode::VerifyCa => "certificate verified, its name not",
            _ => "certificate not verified",
        };
        Ok(match found {
            Some((version, cipher)) => format!("{version} {cipher}, {verified}"),
            None => "none".into(),
        })
    }

    /// Warns about settings with which a crash of the server can lose what was committed.
    async fn warn_about_durability(&self) -> Result<()> {
        let risky: Vec<(String, String)> = sqlx::query_as(
            "SELECT name, setting FROM pg_settings
             WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'",
        )
        .fetch_all(&self.inner.pool)
        .await
        .map_err(classify)?;
        for (name, setting) in risky {
            tracing::warn!(
                name,
                setting,
                "a crash of PostgreSQL can lose committed messages"
            );
        }
        Ok(())
    }

    async fn check_server(&self) -> Result<()> {
        let mut connection = settings::ask_for(self.pool(), settings::OURS).await?;
        let (number, full): (i32, String) = sqlx::query_as(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version')",
        )
        .fetch_one(&mut connection)
        .await
        .map_err(classify)?;
        // The server notices by itself that it is gone.
        let _ = connection.close().await;
        if number / 10_000 < OLDEST_SERVER {
            return Err(StoreError::Unsupported {
                found: format!("PostgreSQL {full}"),
                needed: "PostgreSQL 13 or later",
            });
        }
        Ok(())
    }
}
