//! A shop on every database.

use std::future::Future;
#[cfg(feature = "sqlite")]
use std::time::Duration;

use counterfoil::write::{insert_or_duplicate, update_if, update_version, upsert};
use counterfoil::{Applied, Database};
use counterfoil_testkit::gone::after_polls;
use sqlx::{ConnectOptions as _, Pool, Transaction};

pub(crate) struct Scratch<D: Database> {
    pub(crate) pool: Pool<D::Sqlx>,
    _folder: Option<tempfile::TempDir>,
}

pub(crate) trait Shop: Database + Sized {
    fn scratch() -> impl Future<Output = Option<Scratch<Self>>>;
    fn pay(
        tx: &mut Transaction<'static, Self::Sqlx>,
        amount: i64,
    ) -> impl Future<Output = sqlx::Result<()>>;
    fn paid(pool: &Pool<Self::Sqlx>) -> impl Future<Output = i64>;
    /// A payment outside a transaction, on every connection of the pool. Answers how many there
    /// were, and how many payments another connection sees then.
    fn pay_everywhere(pool: &Pool<Self::Sqlx>) -> impl Future<Output = (i64, i64)>;
    /// An insert that a caller may leave in the middle.
    fn insert_once(
        tx: &mut Transaction<'static, Self::Sqlx>,
        polls: usize,
    ) -> impl Future<Output = bool>;
    /// The statements that make a table of one domain.
    fn print_table(name: &str) -> String;
    fn run(pool: &Pool<Self::Sqlx>, sql: String) -> impl Future<Output = ()>;
    fn records_in(pool: &Pool<Self::Sqlx>, table: &str) -> impl Future<Output = i64>;
    fn repeated_writes(tx: &mut Transaction<'static, Self::Sqlx>) -> impl Future<Output = ()>;
}

const TABLES: &str = "CREATE TABLE payments (amount bigint NOT NULL);
    CREATE TABLE stock (sku int PRIMARY KEY, qty bigint NOT NULL, version bigint NOT NULL);
    INSERT INTO stock (sku, qty, version) VALUES (1, 5, 7)";

macro_rules! shop {
    ($database:ident, $one:literal, $open:expr) => {
        impl Shop for counterfoil::$database {
            async fn scratch() -> Option<Scratch<Self>> {
                let (pool, folder): (Pool<Self::Sqlx>, _) = ($open)().await?;
                sqlx::raw_sql(TABLES).execute(&pool).await.unwrap();
                Some(Scratch {
                    pool,
                    _folder: folder,
                })
            }

            async fn pay(
                tx: &mut Transaction<'static, Self::Sqlx>,
                amount: i64,
            ) -> sqlx::Result<()> {
                sqlx::query(concat!("INSERT INTO payments (amount) VALUES (", $one, ")"))
                    .bind(amount)
                    .execute(&mut **tx)
                    .await?;
                Ok(())
            }

            async fn paid(pool: &Pool<Self::Sqlx>) -> i64 {
                let (n,): (i64,) = sqlx::query_as("SELECT count(*) FROM payments")
                    .fetch_one(pool)
                    .await
                    .unwrap();
                n
            }

            async fn pay_everywhere(pool: &Pool<Self::Sqlx>) -> (i64, i64) {
                let mut all = Vec::new();
                while all.len() < pool.size() as usize {
                    all.push(pool.acquire().await.unwrap());
                }
                for connection in &mut all {
                    sqlx::query("INSERT INTO payments (amount) VALUES (1)")
                        .execute(&mut **connection)
                        .await
                        .unwrap();
                }
                // They are all taken, and there may be no more of them.
                let mut apart = pool.connect_options().connect().await.unwrap();
                let (seen,): (i64,) = sqlx::query_as("SELECT count(*) FROM payments")
                    .fetch_one(&mut apart)
                    .await
                    .unwrap();
                (i64::try_from(all.len()).unwrap(), seen)
            }

            async fn insert_once(tx: &mut Transaction<'static, Self::Sqlx>, polls: usize) -> bool {
                let insert = sqlx::query(concat!(
                    "INSERT INTO stock (sku, qty, version) VALUES (",
                    $one,
                    ", 1, 1)"
                ))
                .bind(i32::try_from(1_000 + polls).unwrap());
                let inserted = counterfoil::insert_once::<Self>(tx, insert);
                after_polls(polls, inserted).await.is_some_and(|done| {
                    assert!(done.unwrap().is_first());
                    true
                })
            }

            fn print_table(name: &str) -> String {
                <Self as Database>::Guard::print_table(name).unwrap()
            }

            async fn run(pool: &Pool<Self::Sqlx>, sql: String) {
                let script = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
                script.execute(pool).await.unwrap();
            }

            async fn records_in(pool: &Pool<Self::Sqlx>, table: &str) -> i64 {
                let sql = format!("SELECT count(*) FROM {table}");
                let (n,): (i64,) = sqlx::query_as(sqlx::AssertSqlSafe(sql))
                    .fetch_one(pool)
                    .await
                    .unwrap();
                n
            }

            async fn repeated_writes(tx: &mut Transaction<'static, Self::Sqlx>) {
                let take =
                    || sqlx::query("UPDATE stock SET qty = qty - 3 WHERE sku = 1 AND qty >= 3");
                let taken = || sqlx::query("SELECT 1 FROM stock WHERE sku = 1 AND qty = 2");
                let never = || sqlx::query("SELECT 1 FROM stock WHERE sku = 99");
                let raise =
                    || sqlx::query("UPDATE stock SET version = 8 WHERE sku = 1 AND version = 7");
                let rival =
                    || sqlx::query("SELECT 1 FROM stock WHERE sku = 1 AND version = 8 AND qty = 7");
                let mine =
                    || sqlx::query("SELECT 1 FROM stock WHERE sku = 1 AND version = 8 AND qty = 2");
                let insert =
                    || sqlx::query("INSERT INTO stock (sku, qty, version) VALUES (2, 1, 1)");
                let same = || sqlx::query("SELECT 1 FROM stock WHERE sku = 2 AND qty = 1");
                let newer =
                    || sqlx::query("UPDATE stock SET version = 9 WHERE sku = 1 AND version < 9");
                let first =
                    || sqlx::query("INSERT INTO stock (sku, qty, version) VALUES (1, 0, 9)");
                let third =
                    || sqlx::query("INSERT INTO stock (sku, qty, version) VALUES (3, 0, 9)");

                let ninth = || sqlx::query("SELECT 1 FROM stock WHERE sku = 1 AND version = 9");
                let eighth = || sqlx::query("SELECT 1 FROM stock WHERE sku = 1 AND version = 8");

                let answers = [
                    update_if::<Self>(tx, take(), taken()).await.unwrap(),
                    update_if::<Self>(tx, take(), taken()).await.unwrap(),
                    update_if::<Self>(tx, take(), never()).await.unwrap(),
                    update_version::<Self>(tx, raise(), mine()).await.unwrap(),
                    update_version::<Self>(tx, raise(), mine()).await.unwrap(),
                    update_version::<Self>(tx, raise(), rival()).await.unwrap(),
                    update_version::<Self>(tx, raise(), never()).await.unwrap(),
                    insert_or_duplicate::<Self>(tx, insert(), same())
                        .await
                        .unwrap(),
                    insert_or_duplicate::<Self>(tx, insert(), same())
                        .await
                        .unwrap(),
                    insert_or_duplicate::<Self>(tx, insert(), never())
                        .await
                        .unwrap(),
                    upsert::<Self>(tx, newer(), first(), ninth()).await.unwrap(),
                    upsert::<Self>(tx, newer(), first(), ninth()).await.unwrap(),
                    upsert::<Self>(tx, newer(), first(), eighth())
                        .await
                        .unwrap(),
                    upsert::<Self>(tx, newer(), third(), never()).await.unwrap(),
                ];
                use Applied::{Already, Now, Refused};
                assert_eq!(
                    answers,
                    [
                        Now, Already, Refused, Now, Already, Refused, Refused, Now, Already,
                        Refused, Now, Already, Refused, Now
                    ]
                );
            }
        }
    };
}

#[cfg(feature = "sqlite")]
shop!(Sqlite, "?", async || {
    use counterfoil_core::store::Store as _;
    let folder = tempfile::tempdir().unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(5));
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    counterfoil_sqlite::SqliteStore::from_pool(&pool)
        .unwrap()
        .migrate()
        .await
        .unwrap();
    Some((pool, Some(folder)))
});

#[cfg(feature = "postgres")]
shop!(Postgres, "$1", async || {
    use counterfoil_core::store::Store as _;
    let server = counterfoil_testkit::server::postgres()?;
    let schema = format!("shop_{:x}", fastrand::u64(..));
    let admin = sqlx::PgPool::connect(&server).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}")))
        .execute(&admin)
        .await
        .unwrap();
    admin.close().await;
    let joint = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{joint}options=-c%20search_path%3D{schema}");
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    counterfoil_postgres::PostgresStore::connect(&url)
        .unwrap()
        .migrate()
        .await
        .unwrap();
    Some((pool, None))
});

#[cfg(feature = "mysql")]
shop!(MySql, "?", async || {
    use counterfoil_core::store::Store as _;
    let server = counterfoil_testkit::server::mysql()?;
    let schema = format!("shop_{:x}", fastrand::u64(..));
    let admin = sqlx::MySqlPool::connect(&server).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE {schema}")))
        .execute(&admin)
        .await
        .unwrap();
    let options = admin.connect_options().as_ref().clone().database(&schema);
    admin.close().await;
    let pool = sqlx::MySqlPool::connect_with(options).await.unwrap();
    counterfoil_mysql::MysqlStore::from_pool(&pool)
        .migrate()
        .await
        .unwrap();
    Some((pool, None))
});
