//! The services on SQLite.

#![expect(clippy::duplicate_mod, reason = "the same service on another database")]

#[path = "../orders.rs"]
pub mod orders;
#[path = "../stock.rs"]
pub mod stock;

use std::str::FromStr as _;

use counterfoil::{Builder, Counterfoil};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{Sqlite, Transaction};

/// The database.
pub type Db = counterfoil::Sqlite;
/// Its connections.
pub type Pool = SqlitePool;

async fn connect(url: &str) -> sqlx::Result<Pool> {
    let options = SqliteConnectOptions::from_str(url)?.create_if_missing(true);
    SqlitePool::connect_with(options).await
}

/// Takes the place of the writer at once, instead of finding out later that somebody else has it.
async fn begin(pool: &Pool) -> sqlx::Result<Transaction<'static, Sqlite>> {
    pool.begin_with("BEGIN IMMEDIATE").await
}

fn counterfoil_on(pool: &Pool) -> Builder<Db> {
    Counterfoil::sqlite(pool.clone())
}
