//! The one transaction that writes.
//!
//! # Promise
//! Everything between [`WriteTx::begin`] and [`WriteTx::commit`] happens or does not. The lock is
//! taken at the beginning, so that nothing has to be upgraded halfway, which SQLite would refuse.
//! # When it is dropped
//! Without a commit the connection is closed, which rolls back. It is not used again: after some
//! errors (a full disk) SQLite has already rolled back by itself, and the driver, which counts
//! transactions on its own, would keep on counting one that is not there.

use std::ops::{Deref, DerefMut};

use counterfoil_core::store::{Result, StoreError};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};
use sqlx::{Connection, SqlSafeStr, Transaction};

use crate::classify;

/// Begins a transaction of the application that holds the write lock.
///
/// When SQLite has rolled back by itself and the transaction was dropped, the driver goes on
/// counting it, and no transaction begins on that connection any more. It is replaced.
pub(crate) async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>> {
    for _ in 0..=pool.options().get_max_connections() {
        // Looked at in our hands: the pool hands out another one each time.
        let connection = pool.acquire().await.map_err(classify)?;
        if connection.is_in_transaction() {
            connection.close().await.map_err(classify)?;
            continue;
        }
        let statement = "BEGIN IMMEDIATE".into_sql_str();
        let begun = Transaction::begin(connection, Some(statement)).await;
        return begun.map_err(classify);
    }
    let why = "every connection of the pool is inside a transaction that SQLite has ended";
    Err(StoreError::Busy(why.into()))
}

pub(crate) struct WriteTx {
    connection: PoolConnection<Sqlite>,
    committed: bool,
}

impl WriteTx {
    pub(crate) async fn begin(writer: &SqlitePool) -> Result<Self> {
        let connection = writer.acquire().await.map_err(classify)?;
        let mut tx = Self {
            connection,
            committed: false,
        };
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut *tx.connection)
            .await
            .map_err(classify)?;
        Ok(tx)
    }

    pub(crate) async fn commit(mut self) -> Result<()> {
        sqlx::query("COMMIT")
            .execute(&mut *self.connection)
            .await
            .map_err(classify)?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for WriteTx {
    fn drop(&mut self) {
        if !self.committed {
            self.connection.close_on_drop();
        }
    }
}

impl Deref for WriteTx {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for WriteTx {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}
