//! The store's own transactions.
//!
//! # Promise
//! Everything between [`WriteTx::begin`] and [`WriteTx::commit`] happens or does not.
//! # When it is dropped
//! Without a commit the connection is closed, which rolls back. It is not used again: when its
//! caller went away in the middle of BEGIN or while a statement was prepared, the driver knows
//! neither that a transaction is open nor which answers are still to come.

use std::ops::{Deref, DerefMut};

use counterfoil_core::store::Result;
use sqlx::mysql::{MySql, MySqlConnection, MySqlPool};
use sqlx::pool::PoolConnection;

use crate::classify;

pub(crate) struct WriteTx {
    connection: PoolConnection<MySql>,
    committed: bool,
}

impl WriteTx {
    pub(crate) async fn begin(pool: &MySqlPool) -> Result<Self> {
        let connection = pool.acquire().await.map_err(classify)?;
        let mut tx = Self {
            connection,
            committed: false,
        };
        sqlx::raw_sql("BEGIN")
            .execute(&mut *tx.connection)
            .await
            .map_err(classify)?;
        Ok(tx)
    }

    pub(crate) async fn commit(mut self) -> Result<()> {
        sqlx::raw_sql("COMMIT")
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
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection
    }
}

impl DerefMut for WriteTx {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }
}
