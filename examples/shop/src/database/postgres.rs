//! The services on PostgreSQL.

#![expect(clippy::duplicate_mod, reason = "the same service on another database")]

#[path = "../orders.rs"]
pub mod orders;
#[path = "../stock.rs"]
pub mod stock;

use counterfoil::{Builder, Counterfoil};
use sqlx::{PgPool, Transaction};

/// The database.
pub type Db = counterfoil::Postgres;
/// Its connections.
pub type Pool = PgPool;

async fn connect(url: &str) -> sqlx::Result<Pool> {
    PgPool::connect(url).await
}

async fn begin(pool: &Pool) -> sqlx::Result<Transaction<'static, sqlx::Postgres>> {
    pool.begin().await
}

fn counterfoil_on(pool: &Pool) -> Builder<Db> {
    Counterfoil::postgres(pool.clone())
}
