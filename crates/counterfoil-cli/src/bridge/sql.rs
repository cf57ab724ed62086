//! Statements on each database: checked at the start, run in the transaction of the inbox.
//!
//! # Promise
//! A statement that the database does not understand is found before the first message. Values are
//! bound, with the types that the database has found for them.

use std::future::Future;
use std::sync::Arc;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::time::Duration;

use counterfoil::Database;
use sqlx::{
    AssertSqlSafe, Either, Executor as _, Pool, SqlSafeStr as _, Statement as _, Transaction,
};

use super::statement::Statement;
use super::value::Value;
use crate::database::Place;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A statement that the database has understood.
#[derive(Debug)]
pub(super) struct Prepared {
    text: Arc<str>,
    /// Which parameters are bytes. PostgreSQL only.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code))]
    bytes: Vec<bool>,
}

/// A database on which statements run.
pub(super) trait Sql: Database {
    /// Connections for one consumer. Nothing is opened yet.
    fn pool(place: &Place, workers: usize) -> Result<Pool<Self::Sqlx>>;

    /// Asks the database whether it understands a statement.
    fn prepare(
        pool: &Pool<Self::Sqlx>,
        statement: &Statement,
    ) -> impl Future<Output = Result<Prepared>> + Send;

    /// Runs a statement and answers how many rows it has changed.
    fn run(
        tx: &mut Transaction<'static, Self::Sqlx>,
        prepared: &Prepared,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// The placeholders are ours, all of them.
fn count(expected: usize, found: Option<usize>) -> Result<()> {
    match found {
        Some(found) if found != expected => Err(sqlx::Error::Protocol(
            "it has placeholders such as ? or $1: write parameters by their names, such as :id"
                .into(),
        )),
        _ => Ok(()),
    }
}

fn number<T>(parameters: Option<Either<&[T], usize>>) -> Option<usize> {
    parameters.map(|p| match p {
        Either::Left(types) => types.len(),
        Either::Right(number) => number,
    })
}

/// One for the workers each, and for what is tried again and looked after.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn size(workers: usize) -> u32 {
    u32::try_from(workers).unwrap_or(u32::MAX).saturating_add(2)
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use counterfoil::Sqlite;
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
    use sqlx::{ConnectOptions as _, SqlitePool};

    use super::*;
    use crate::args::Dialect;

    impl Sql for Sqlite {
        fn pool(place: &Place, _: usize) -> Result<SqlitePool> {
            let url = place.url();
            let options: SqliteConnectOptions = match url.starts_with("sqlite:") {
                true => url.parse()?,
                false => SqliteConnectOptions::new().filename(url),
            };
            let options = options
                .busy_timeout(std::time::Duration::from_secs(10))
                .synchronous(SqliteSynchronous::Full)
                .log_statements(tracing::log::LevelFilter::Off);
            // One writer at a time is all that there can be.
            let pool = SqlitePoolOptions::new()
                .max_connections(1)
                .test_before_acquire(false);
            Ok(pool.connect_lazy_with(options))
        }

        async fn prepare(pool: &SqlitePool, statement: &Statement) -> Result<Prepared> {
            let text: Arc<str> = statement.text(Dialect::Sqlite).into();
            let mut connection = pool.acquire().await?;
            let sql = AssertSqlSafe(Arc::clone(&text)).into_sql_str();
            let prepared = connection.prepare(sql).await?;
            count(statement.parameters().len(), number(prepared.parameters()))?;
            let bytes = Vec::new();
            Ok(Prepared { text, bytes })
        }

        async fn run(
            tx: &mut Transaction<'static, sqlx::Sqlite>,
            prepared: &Prepared,
            values: Vec<Value>,
        ) -> Result<u64> {
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&prepared.text)));
            for value in values {
                query = match value {
                    Value::Null => query.bind(None::<i64>),
                    Value::Whole(number) => query.bind(number),
                    Value::Fraction(text) => match text.parse::<f64>() {
                        Ok(number) => query.bind(number),
                        Err(_) => query.bind(text),
                    },
                    Value::Truth(truth) => query.bind(truth),
                    Value::Text(text) => query.bind(text),
                    Value::Bytes(bytes) => query.bind(bytes),
                };
            }
            Ok(query.execute(&mut **tx).await?.rows_affected())
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use counterfoil::Postgres;
    use counterfoil_core::hex::Hex;
    use sqlx::postgres::PgPoolOptions;
    use sqlx::postgres::types::Oid;
    use sqlx::{ConnectOptions as _, PgConnection, PgPool};

    use super::*;
    use crate::args::Dialect;

    /// A consumer that freezes in the middle must not keep its aggregates locked.
    const SETTINGS: &[(&str, &str)] = &[("idle_in_transaction_session_timeout", "60s")];

    impl Sql for Postgres {
        fn pool(place: &Place, workers: usize) -> Result<PgPool> {
            let options = counterfoil_postgres::options(place.url())
                .map_err(|e| sqlx::Error::Configuration(e.into()))?
                .application_name("counterfoil")
                .log_statements(tracing::log::LevelFilter::Off);
            let pool = PgPoolOptions::new()
                .max_connections(size(workers))
                .acquire_timeout(Duration::from_secs(10))
                .test_before_acquire(false);
            Ok(pool.connect_lazy_with(options))
        }

        async fn prepare(pool: &PgPool, statement: &Statement) -> Result<Prepared> {
            // A server that does not answer is told about at the next line.
            let _ = counterfoil_postgres::settings::prefer(pool, SETTINGS).await;
            let mut connection = pool.acquire().await?;
            let sql = AssertSqlSafe(statement.text(Dialect::Postgres)).into_sql_str();
            let asked = connection.prepare(sql).await?;
            let parameters = asked.parameters();
            count(statement.parameters().len(), number(parameters))?;
            let oids: Vec<Oid> = match parameters {
                Some(Either::Left(types)) => types.iter().filter_map(|t| t.oid()).collect(),
                _ => Vec::new(),
            };
            let types = names(&mut connection, &oids).await?;
            let text: Arc<str> = statement.cast(&types).into();
            // Once more as it will run.
            let sql = AssertSqlSafe(Arc::clone(&text)).into_sql_str();
            connection.prepare(sql).await?;
            let bytes = types.iter().map(|kind| kind == "bytea").collect();
            Ok(Prepared { text, bytes })
        }

        async fn run(
            tx: &mut Transaction<'static, sqlx::Postgres>,
            prepared: &Prepared,
            values: Vec<Value>,
        ) -> Result<u64> {
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&prepared.text)));
            for (n, value) in values.into_iter().enumerate() {
                let is_bytes = prepared.bytes.get(n).copied().unwrap_or(false);
                query = query.bind(text(value, is_bytes));
            }
            Ok(query.execute(&mut **tx).await?.rows_affected())
        }
    }

    /// The names by which the database knows types, as they are written in a cast.
    async fn names(connection: &mut PgConnection, oids: &[Oid]) -> Result<Vec<String>> {
        let sql = "SELECT format_type(t, -1) FROM unnest($1::oid[]) WITH ORDINALITY AS u(t, n) \
                   ORDER BY n";
        sqlx::query_scalar(sql)
            .bind(oids)
            .fetch_all(connection)
            .await
    }

    /// A value as the database reads it.
    fn text(value: Value, is_bytes: bool) -> Option<String> {
        let hex = |bytes: &[u8]| format!("\\x{}", Hex(bytes));
        Some(match value {
            Value::Null => return None,
            Value::Text(text) if is_bytes => hex(text.as_bytes()),
            Value::Bytes(bytes) if is_bytes => hex(&bytes),
            Value::Bytes(bytes) => match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(error) => hex(error.as_bytes()),
            },
            Value::Text(text) | Value::Fraction(text) => text,
            Value::Whole(number) => number.to_string(),
            Value::Truth(truth) => truth.to_string(),
        })
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use counterfoil::MySql;
    use sqlx::mysql::MySqlPoolOptions;
    use sqlx::{ConnectOptions as _, MySqlPool};

    use super::*;
    use crate::args::Dialect;

    impl Sql for MySql {
        fn pool(place: &Place, workers: usize) -> Result<MySqlPool> {
            let options = counterfoil_mysql::options(place.url())
                .map_err(|e| sqlx::Error::Configuration(e.into()))?
                .log_statements(tracing::log::LevelFilter::Off);
            let pool = MySqlPoolOptions::new()
                .max_connections(size(workers))
                .acquire_timeout(Duration::from_secs(10))
                .test_before_acquire(false);
            Ok(pool.connect_lazy_with(options))
        }

        async fn prepare(pool: &MySqlPool, statement: &Statement) -> Result<Prepared> {
            let text: Arc<str> = statement.text(Dialect::Mysql).into();
            let mut connection = pool.acquire().await?;
            let sql = AssertSqlSafe(Arc::clone(&text)).into_sql_str();
            let prepared = connection.prepare(sql).await?;
            count(statement.parameters().len(), number(prepared.parameters()))?;
            let bytes = Vec::new();
            Ok(Prepared { text, bytes })
        }

        async fn run(
            tx: &mut Transaction<'static, sqlx::MySql>,
            prepared: &Prepared,
            values: Vec<Value>,
        ) -> Result<u64> {
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&prepared.text)));
            for value in values {
                query = match value {
                    Value::Null => query.bind(None::<String>),
                    Value::Whole(number) => query.bind(number),
                    Value::Truth(truth) => query.bind(truth),
                    // As a text no digit is lost.
                    Value::Text(text) | Value::Fraction(text) => query.bind(text),
                    Value::Bytes(bytes) => query.bind(bytes),
                };
            }
            Ok(query.execute(&mut **tx).await?.rows_affected())
        }
    }
}
