//! One scratch database for each test.

use std::future::Future;
use std::sync::Arc;

use counterfoil::{Database, StoreError};
use counterfoil_core::guard::Tokens;
use counterfoil_core::store::Store as _;
use sqlx::{Pool, Transaction};

/// A database that a test may fill.
pub(crate) struct Scratch<D: Database> {
    pub(crate) pool: Pool<D::Sqlx>,
    /// What goes away with the test.
    _keep: Option<tempfile::TempDir>,
}

/// What the tests need of a database.
pub(crate) trait TestDb: Database + Sized {
    /// Whether a statement that failed leaves a transaction that cannot commit, or a whole one.
    const A_FAILED_STATEMENT_DOOMS: bool;

    fn scratch(connections: u32) -> impl Future<Output = Option<Scratch<Self>>> + Send;

    /// The effect that must happen once.
    fn effect(
        tx: &mut Transaction<'static, Self::Sqlx>,
        n: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The same outside a transaction.
    fn effect_outside(
        pool: &Pool<Self::Sqlx>,
        n: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn effects(pool: &Pool<Self::Sqlx>) -> impl Future<Output = i64> + Send;

    /// Where one-time tokens are.
    fn tokens(pool: &Pool<Self::Sqlx>) -> Arc<dyn Tokens>;

    /// Takes their table away.
    fn drop_tokens(pool: &Pool<Self::Sqlx>) -> impl Future<Output = ()> + Send;

    /// A statement that fails.
    fn fail(tx: &mut Transaction<'static, Self::Sqlx>) -> impl Future<Output = bool> + Send;
}

/// Runs one case on a scratch database, or says why not.
pub(crate) async fn run<D, F, Fut>(case: F)
where
    D: TestDb,
    F: FnOnce(Scratch<D>) -> Fut,
    Fut: Future<Output = ()>,
{
    if let Some(scratch) = D::scratch(5).await {
        case(scratch).await;
    }
}

macro_rules! test_db {
    ($database:ident, $dooms:literal, $insert:literal, $open:expr) => {
        impl TestDb for counterfoil::$database {
            const A_FAILED_STATEMENT_DOOMS: bool = $dooms;

            async fn scratch(connections: u32) -> Option<Scratch<Self>> {
                ($open)(connections).await
            }

            async fn effect(tx: &mut Transaction<'static, Self::Sqlx>, n: i64) -> sqlx::Result<()> {
                sqlx::query($insert).bind(n).execute(&mut **tx).await?;
                Ok(())
            }

            async fn effect_outside(pool: &Pool<Self::Sqlx>, n: i64) -> sqlx::Result<()> {
                sqlx::query($insert).bind(n).execute(pool).await?;
                Ok(())
            }

            async fn effects(pool: &Pool<Self::Sqlx>) -> i64 {
                let (n,): (i64,) = sqlx::query_as("SELECT count(*) FROM effects")
                    .fetch_one(pool)
                    .await
                    .unwrap();
                n
            }

            fn tokens(pool: &Pool<Self::Sqlx>) -> Arc<dyn Tokens> {
                Arc::new(Self::guard(pool, None).unwrap())
            }

            async fn drop_tokens(pool: &Pool<Self::Sqlx>) {
                sqlx::raw_sql("DROP TABLE counterfoil_tokens")
                    .execute(pool)
                    .await
                    .unwrap();
            }

            async fn fail(tx: &mut Transaction<'static, Self::Sqlx>) -> bool {
                sqlx::query("INSERT INTO no_such_table (n) VALUES (1)")
                    .execute(&mut **tx)
                    .await
                    .is_err()
            }
        }
    };
}

fn migrated(result: Result<(), StoreError>) {
    result.unwrap();
}

#[cfg(feature = "sqlite")]
test_db!(
    Sqlite,
    false,
    "INSERT INTO effects (n) VALUES (?)",
    async |connections| {
        use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(std::time::Duration::from_secs(1));
        let pool = SqlitePoolOptions::new()
            .max_connections(connections)
            .connect_with(options)
            .await
            .unwrap();
        migrated(
            counterfoil_sqlite::SqliteStore::from_pool(&pool)
                .unwrap()
                .migrate()
                .await,
        );
        sqlx::raw_sql("CREATE TABLE effects (n integer NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Some(Scratch {
            pool,
            _keep: Some(directory),
        })
    }
);

#[cfg(feature = "postgres")]
test_db!(
    Postgres,
    true,
    "INSERT INTO effects (n) VALUES ($1)",
    async |connections| {
        use sqlx::postgres::{PgPool, PgPoolOptions};
        let server = counterfoil_testkit::server::postgres()?;
        let schema = format!("guard_{:x}", fastrand::u64(..));
        let admin = PgPool::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}")))
            .execute(&admin)
            .await
            .unwrap();
        admin.close().await;
        let joint = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{joint}options=-c%20search_path%3D{schema}");
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .connect(&url)
            .await
            .unwrap();
        migrated(
            counterfoil_postgres::PostgresStore::connect(&url)
                .unwrap()
                .migrate()
                .await,
        );
        sqlx::raw_sql("CREATE TABLE effects (n bigint NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Some(Scratch { pool, _keep: None })
    }
);

#[cfg(feature = "mysql")]
test_db!(
    MySql,
    false,
    "INSERT INTO effects (n) VALUES (?)",
    async |connections| {
        use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
        let server = counterfoil_testkit::server::mysql()?;
        let schema = format!("guard_{:x}", fastrand::u64(..));
        let admin = MySqlPool::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE {schema}")))
            .execute(&admin)
            .await
            .unwrap();
        let options = admin.connect_options().as_ref().clone().database(&schema);
        admin.close().await;
        let pool = MySqlPoolOptions::new()
            .max_connections(connections)
            .connect_with(options)
            .await
            .unwrap();
        migrated(
            counterfoil_mysql::MysqlStore::from_pool(&pool)
                .migrate()
                .await,
        );
        sqlx::raw_sql("CREATE TABLE effects (n bigint NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Some(Scratch { pool, _keep: None })
    }
);
