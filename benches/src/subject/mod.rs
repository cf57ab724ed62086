//! The databases under test, each with its raw baseline.

mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::Store;

pub use postgres::Postgres;
pub use sqlite::Sqlite;

/// The queue that all benches use.
pub const QUEUE: &str = "bench";

/// A database with Counterfoil's tables and a business table.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The store under test.
    fn store(&self) -> Arc<dyn Store>;
    /// Empties the tables and gives their space back.
    async fn clean(&self) -> anyhow::Result<()>;
    /// Puts `n` messages of 256 bytes over `aggregates` into the outbox.
    async fn preload(&self, n: u64, aggregates: u64) -> anyhow::Result<()>;
    /// Lets `n` messages pass through the table without the engine, and leaves what they leave.
    async fn pass_through(&self, n: u64) -> anyhow::Result<()>;
    /// The baseline: a loop that claims and deletes the rows, and does nothing with them.
    async fn raw_drain(&self) -> anyhow::Result<u64>;
    /// Rows in the outbox.
    async fn pending(&self) -> anyhow::Result<u64>;
    /// Runs business transactions for a while, with or without a message; answers how many.
    async fn transactions(
        &self,
        with_message: bool,
        for_time: Duration,
        connections: usize,
    ) -> anyhow::Result<u64>;
    /// Puts `rows` held rows of `lanes` aggregates into another queue, each lane behind a parked message.
    async fn hold_lanes(&self, queue: &str, rows: u64, lanes: u64) -> anyhow::Result<()>;
    /// Transactions that the database has ended so far, where it counts them.
    async fn ended_transactions(&self) -> anyhow::Result<Option<i64>>;
    /// A producer with a connection of its own.
    async fn producer(&self) -> anyhow::Result<Box<dyn Producer>>;
    /// A session that keeps a snapshot open until it is dropped.
    async fn hold_snapshot(&self) -> anyhow::Result<Box<dyn Send + Sync>>;
}

/// Somebody who commits messages.
#[async_trait]
pub trait Producer: Send {
    /// One business transaction with a message of this id; returns after the commit.
    async fn transaction(&mut self, id: counterfoil_core::MessageId, n: i64) -> anyhow::Result<()>;
}
