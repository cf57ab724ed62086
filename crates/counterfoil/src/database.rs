//! One sealed implementation for each database, instead of generics over `sqlx::Database`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use counterfoil_core::desk::Desk;
use counterfoil_core::guard::{Expect, Key, Locks, Records, Tokens, Write};
use counterfoil_core::inbox::{Admitted, Deferred, Keep, Mode, Redriven};
use counterfoil_core::message::{Aggregate, Message};
use counterfoil_core::store::{Enqueued, Keyed, Result, Store, StoreError};
use sqlx::{Pool, Transaction};

mod sealed {
    pub trait Sealed {}
}

/// A boxed future, so that the trait stays simple to read.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A database on which Counterfoil works: `Postgres`, `MySql` or `Sqlite`.
pub trait Database: sealed::Sealed + Send + Sync + 'static {
    /// The same database in the words of sqlx.
    type Sqlx: sqlx::Database;

    #[doc(hidden)]
    fn open(pool: &Pool<Self::Sqlx>) -> Result<(Arc<dyn Store>, Arc<dyn Desk>)>;

    #[doc(hidden)]
    fn begin(pool: &Pool<Self::Sqlx>) -> BoxFuture<'_, Result<Transaction<'static, Self::Sqlx>>>;

    #[doc(hidden)]
    fn enqueue<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        messages: &'a [Message],
    ) -> BoxFuture<'a, Result<()>>;

    #[doc(hidden)]
    fn enqueue_keyed<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        keyed: &'a Keyed,
    ) -> BoxFuture<'a, Result<Enqueued>>;

    #[doc(hidden)]
    fn once<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        scope: &'a str,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool>>;

    #[doc(hidden)]
    fn commit(tx: Transaction<'_, Self::Sqlx>) -> BoxFuture<'_, Result<()>>;

    #[doc(hidden)]
    fn classify(error: sqlx::Error) -> counterfoil_core::StoreError;

    #[doc(hidden)]
    fn rows(done: &<Self::Sqlx as sqlx::Database>::QueryResult) -> u64;

    /// Where the guard keeps its records.
    #[doc(hidden)]
    type Guard: Records + Tokens + Locks + Clone;

    #[doc(hidden)]
    fn guard(pool: &Pool<Self::Sqlx>, table: Option<&str>) -> Result<Self::Guard>;

    #[doc(hidden)]
    fn guard_begin<'a>(
        guard: &'a Self::Guard,
        key: &'a Key,
        expect: Expect,
    ) -> BoxFuture<'a, Result<Option<Transaction<'static, Self::Sqlx>>>>;

    #[doc(hidden)]
    fn guard_undo<'a>(
        guard: &'a Self::Guard,
        tx: &'a mut Transaction<'static, Self::Sqlx>,
    ) -> BoxFuture<'a, Result<()>>;

    #[doc(hidden)]
    fn guard_commit<'a>(
        guard: &'a Self::Guard,
        tx: Transaction<'static, Self::Sqlx>,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<bool>>;

    #[doc(hidden)]
    fn inbox_begin(
        pool: &Pool<Self::Sqlx>,
    ) -> BoxFuture<'_, Result<Transaction<'static, Self::Sqlx>>>;

    #[doc(hidden)]
    fn inbox_admit<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        consumer: &'a str,
        mode: Mode,
        keys: &'a [&'a str],
        aggregates: &'a [&'a Aggregate],
    ) -> BoxFuture<'a, Result<Admitted>>;

    #[doc(hidden)]
    fn inbox_defer<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        consumer: &'a str,
        deferred: &'a [Deferred],
    ) -> BoxFuture<'a, Result<()>>;

    #[doc(hidden)]
    fn inbox_finish<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        consumer: &'a str,
        applied: &'a [(&'a Aggregate, i64)],
    ) -> BoxFuture<'a, Result<()>>;

    #[doc(hidden)]
    fn inbox_redriven<'a>(
        tx: &'a mut Transaction<'_, Self::Sqlx>,
        seq: i64,
    ) -> BoxFuture<'a, Result<Option<Redriven>>>;

    #[doc(hidden)]
    fn inbox_waiting<'a>(
        pool: &'a Pool<Self::Sqlx>,
        consumer: &'a str,
        most: u32,
    ) -> BoxFuture<'a, Result<u64>>;

    #[doc(hidden)]
    fn inbox_purge<'a>(
        pool: &'a Pool<Self::Sqlx>,
        consumer: &'a str,
        keep: Keep,
        batch: u32,
    ) -> BoxFuture<'a, Result<u64>>;
}

macro_rules! database {
    ($(#[$doc:meta])* $name:ident, $driver:ident, $store:ident, $guard:ident, $begin:literal, |$pool:ident| $open:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl sealed::Sealed for $name {}

        impl Database for $name {
            type Sqlx = sqlx::$name;

            fn open($pool: &Pool<Self::Sqlx>) -> Result<(Arc<dyn Store>, Arc<dyn Desk>)> {
                let store = $open;
                Ok((Arc::new(store.clone()), Arc::new(store)))
            }

            fn begin(pool: &Pool<Self::Sqlx>) -> BoxFuture<'_, Result<Transaction<'static, Self::Sqlx>>> {
                let pool = pool.clone();
                // A task of its own: drivers do not roll back when their caller goes away in the
                // middle of BEGIN, and the connection would go back to the application's pool
                // inside a transaction.
                let begun = tokio::spawn(async move { pool.begin_with($begin).await });
                Box::pin(async move {
                    let begun = begun.await.map_err(|e| StoreError::Database(e.into()))?;
                    begun.map_err($driver::classify)
                })
            }

            fn enqueue<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                messages: &'a [Message],
            ) -> BoxFuture<'a, Result<()>> {
                Box::pin($driver::enqueue(tx, messages))
            }

            fn enqueue_keyed<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                keyed: &'a Keyed,
            ) -> BoxFuture<'a, Result<Enqueued>> {
                Box::pin($driver::enqueue_keyed(tx, keyed))
            }

            fn once<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                scope: &'a str,
                key: &'a str,
            ) -> BoxFuture<'a, Result<bool>> {
                Box::pin($driver::once(tx, scope, key))
            }

            fn commit(mut tx: Transaction<'_, Self::Sqlx>) -> BoxFuture<'_, Result<()>> {
                Box::pin(async move {
                    $driver::check_before_commit(&mut tx).await?;
                    tx.commit().await.map_err($driver::classify)
                })
            }

            fn classify(error: sqlx::Error) -> counterfoil_core::StoreError {
                $driver::classify(error)
            }

            fn rows(done: &<Self::Sqlx as sqlx::Database>::QueryResult) -> u64 {
                done.rows_affected()
            }

            type Guard = $driver::$guard;

            fn guard(pool: &Pool<Self::Sqlx>, table: Option<&str>) -> Result<Self::Guard> {
                match table {
                    None => Ok($driver::$guard::new(pool.clone())),
                    Some(name) => $driver::$guard::table(pool.clone(), name),
                }
            }

            fn guard_begin<'a>(
                guard: &'a Self::Guard,
                key: &'a Key,
                expect: Expect,
            ) -> BoxFuture<'a, Result<Option<Transaction<'static, Self::Sqlx>>>> {
                Box::pin(guard.begin(key, expect))
            }

            fn guard_undo<'a>(
                guard: &'a Self::Guard,
                tx: &'a mut Transaction<'static, Self::Sqlx>,
            ) -> BoxFuture<'a, Result<()>> {
                Box::pin(guard.undo(tx))
            }

            fn guard_commit<'a>(
                guard: &'a Self::Guard,
                tx: Transaction<'static, Self::Sqlx>,
                write: &'a Write,
            ) -> BoxFuture<'a, Result<bool>> {
                Box::pin(guard.commit(tx, write))
            }

            fn inbox_begin(
                pool: &Pool<Self::Sqlx>,
            ) -> BoxFuture<'_, Result<Transaction<'static, Self::Sqlx>>> {
                Box::pin($driver::inbox::begin(pool))
            }

            fn inbox_admit<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                consumer: &'a str,
                mode: Mode,
                keys: &'a [&'a str],
                aggregates: &'a [&'a Aggregate],
            ) -> BoxFuture<'a, Result<Admitted>> {
                Box::pin($driver::inbox::admit(tx, consumer, mode, keys, aggregates))
            }

            fn inbox_defer<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                consumer: &'a str,
                deferred: &'a [Deferred],
            ) -> BoxFuture<'a, Result<()>> {
                Box::pin($driver::inbox::defer(tx, consumer, deferred))
            }

            fn inbox_finish<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                consumer: &'a str,
                applied: &'a [(&'a Aggregate, i64)],
            ) -> BoxFuture<'a, Result<()>> {
                Box::pin($driver::inbox::finish(tx, consumer, applied))
            }

            fn inbox_redriven<'a>(
                tx: &'a mut Transaction<'_, Self::Sqlx>,
                seq: i64,
            ) -> BoxFuture<'a, Result<Option<Redriven>>> {
                Box::pin($driver::inbox::redriven(tx, seq))
            }

            fn inbox_waiting<'a>(
                pool: &'a Pool<Self::Sqlx>,
                consumer: &'a str,
                most: u32,
            ) -> BoxFuture<'a, Result<u64>> {
                Box::pin($driver::inbox::waiting(pool, consumer, most))
            }

            fn inbox_purge<'a>(
                pool: &'a Pool<Self::Sqlx>,
                consumer: &'a str,
                keep: Keep,
                batch: u32,
            ) -> BoxFuture<'a, Result<u64>> {
                Box::pin($driver::inbox::purge(pool, consumer, keep, batch))
            }
        }
    };
}

#[cfg(feature = "postgres")]
database!(
    /// PostgreSQL.
    Postgres, counterfoil_postgres, PostgresStore, PostgresGuard, "BEGIN", |pool| counterfoil_postgres::PostgresStore::from_pool(pool)
);

#[cfg(feature = "mysql")]
database!(
    /// MySQL and MariaDB.
    MySql, counterfoil_mysql, MysqlStore, MysqlGuard, "BEGIN", |pool| counterfoil_mysql::MysqlStore::from_pool(pool)
);

#[cfg(feature = "sqlite")]
database!(
    /// SQLite.
    Sqlite, counterfoil_sqlite, SqliteStore, SqliteGuard, "BEGIN IMMEDIATE", |pool| counterfoil_sqlite::SqliteStore::from_pool(pool)?
);
