//! A database for one test: the guard's tables and the table of effects.

use std::future::Future;
use std::str::FromStr as _;
use std::time::Duration;

use counterfoil::Database;
use counterfoil_core::store::Store as _;
use counterfoil_core::{BoxError, MessageId};
use counterfoil_testkit::server;
use sqlx::{AssertSqlSafe, Connection as _, Pool, Transaction};
use url::Url;

use super::Effect;

const TABLE: &str =
    "CREATE TABLE effects (request varchar(255) NOT NULL, receipt varchar(64) NOT NULL)";
const READ: &str = "SELECT request, receipt FROM effects ORDER BY request, receipt";
/// How long to wait for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for the one who writes, on SQLite: longer than anything here takes.
const BUSY: Duration = Duration::from_secs(60);
/// Fewer than there are callers.
const CONNECTIONS: u32 = 5;

/// A database that belongs to one test.
pub struct Home<D: Database> {
    /// Where it is.
    pub url: String,
    /// The test's own connections.
    pub pool: Pool<D::Sqlx>,
    /// What goes away with the test.
    _directory: Option<tempfile::TempDir>,
}

/// What a guarded server and its tests need of a database.
pub trait Ledger: Database + Sized {
    /// An empty database with every table. Absent when there is no server.
    fn fresh() -> impl Future<Output = Option<Home<Self>>> + Send;

    /// Connections to it, opened when they are needed.
    fn connections(url: &str) -> Result<Pool<Self::Sqlx>, BoxError>;

    /// Writes an effect that commits with the transaction.
    fn note(
        tx: &mut Transaction<'static, Self::Sqlx>,
        effect: &Effect,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Writes an effect that stays whatever happens.
    fn note_outside(
        pool: &Pool<Self::Sqlx>,
        effect: &Effect,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Every effect.
    fn effects(pool: &Pool<Self::Sqlx>) -> impl Future<Output = sqlx::Result<Vec<Effect>>> + Send;
}

macro_rules! ledger {
    ($database:ident, $insert:literal, $fresh:expr, $open:expr) => {
        impl Ledger for counterfoil::$database {
            async fn fresh() -> Option<Home<Self>> {
                let (url, directory) = ($fresh)().await?;
                let pool = Self::connections(&url).unwrap();
                sqlx::raw_sql(TABLE).execute(&pool).await.unwrap();
                Some(Home {
                    url,
                    pool,
                    _directory: directory,
                })
            }

            fn connections(url: &str) -> Result<Pool<Self::Sqlx>, BoxError> {
                ($open)(url)
            }

            async fn note(
                tx: &mut Transaction<'static, Self::Sqlx>,
                effect: &Effect,
            ) -> sqlx::Result<()> {
                let insert = sqlx::query($insert)
                    .bind(&effect.request)
                    .bind(&effect.receipt);
                insert.execute(&mut **tx).await?;
                Ok(())
            }

            async fn note_outside(pool: &Pool<Self::Sqlx>, effect: &Effect) -> sqlx::Result<()> {
                let insert = sqlx::query($insert)
                    .bind(&effect.request)
                    .bind(&effect.receipt);
                insert.execute(pool).await?;
                Ok(())
            }

            async fn effects(pool: &Pool<Self::Sqlx>) -> sqlx::Result<Vec<Effect>> {
                let rows: Vec<(String, String)> = sqlx::query_as(READ).fetch_all(pool).await?;
                let effect = |(request, receipt)| Effect { request, receipt };
                Ok(rows.into_iter().map(effect).collect())
            }
        }
    };
}

fn unique() -> String {
    format!("e2e_{}", MessageId::new().as_uuid().simple())
}

ledger!(
    Sqlite,
    "INSERT INTO effects (request, receipt) VALUES (?, ?)",
    async || {
        let directory = tempfile::tempdir().expect("no directory for temporary files");
        let url = format!("sqlite:{}", directory.path().join("app.db").display());
        let pool = counterfoil::Sqlite::connections(&url).unwrap();
        let store = counterfoil_sqlite::SqliteStore::from_pool(&pool).unwrap();
        store.migrate().await.unwrap();
        Some((url, Some(directory)))
    },
    |url: &str| {
        use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
        let options = SqliteConnectOptions::from_str(url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
        Ok(pool.connect_lazy_with(options))
    }
);

ledger!(
    Postgres,
    "INSERT INTO effects (request, receipt) VALUES ($1, $2)",
    async || {
        let server = server::postgres()?;
        let schema = unique();
        let mut admin = sqlx::PgConnection::connect(&server).await.unwrap();
        let create = AssertSqlSafe(format!("CREATE SCHEMA {schema}"));
        sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
        let and = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{and}options=-c%20search_path%3D{schema}");
        let store = counterfoil_postgres::PostgresStore::connect(&url).unwrap();
        store.migrate().await.unwrap();
        Some((url, None))
    },
    |url: &str| {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS);
        Ok(pool.acquire_timeout(PATIENCE).connect_lazy(url)?)
    }
);

ledger!(
    MySql,
    "INSERT INTO effects (request, receipt) VALUES (?, ?)",
    async || {
        let server = server::mysql()?;
        let name = unique();
        let mut admin = sqlx::MySqlConnection::connect(&server).await.unwrap();
        let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
        let mut url = Url::parse(&server).expect("a URL that the server was reached with");
        url.set_path(&name);
        let pool = counterfoil::MySql::connections(url.as_str()).unwrap();
        let store = counterfoil_mysql::MysqlStore::from_pool(&pool);
        store.migrate().await.unwrap();
        Some((url.to_string(), None))
    },
    |url: &str| {
        let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(CONNECTIONS);
        Ok(pool.acquire_timeout(PATIENCE).connect_lazy(url)?)
    }
);
