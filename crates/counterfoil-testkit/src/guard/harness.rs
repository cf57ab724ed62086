//! What a driver's tests supply so that the guard's suite can run on it.
//!
//! A driver's `tests/guard.rs` holds one implementation of [`GuardHarness`], one of [`TxHarness`],
//! and two lines:
//!
//! ```text
//! counterfoil_testkit::guard_suite!(PostgresHarness);
//! counterfoil_testkit::guard_tx_suite!(PostgresHarness);
//! ```

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Expect, Key, Locks, Records, Tokens, Write};
use counterfoil_core::store::Result;

use crate::memory::{Clock, MemoryGuard};

/// No records, no tokens and no locks yet.
#[async_trait]
pub trait GuardHarness: Send + Sync + Sized + 'static {
    /// What is under test.
    type Guard: Records + Tokens + Locks + Clone;

    /// New and empty, with its tables. Absent when the server is missing: see
    /// [`server`](crate::server), which has then said so.
    async fn fresh() -> Option<Self>;

    /// Removes what [`fresh`](GuardHarness::fresh) made. Called after each case, failed ones
    /// included.
    async fn clean_up(&self) {}

    /// The guard over the application's pool.
    fn guard(&self) -> Self::Guard;

    /// Hook: lets so much time pass, by moving the clock or by making everything older.
    async fn advance(&self, by: Duration);
}

/// The same with claims inside the application's transactions.
///
/// The application has a table `business` with one column `id`, its primary key.
#[async_trait]
pub trait TxHarness: GuardHarness {
    /// The application's transaction.
    type Tx: Send;

    /// Whether two transactions can write at the same time. With a single writer, the second one
    /// waits at its beginning, whatever its key is, and is told that the database is busy.
    fn concurrent_writers(&self) -> bool {
        true
    }

    /// The guard as another process would have it: over a pool of one connection, with little
    /// patience.
    fn rival(&self) -> Self::Guard;

    /// A guard on a table of its own, which is made with `print_table`.
    async fn domain(&self, name: &str) -> Self::Guard;

    /// `Guard::begin`.
    async fn begin(
        &self,
        guard: &Self::Guard,
        key: &Key,
        expect: Expect,
    ) -> Result<Option<Self::Tx>>;

    /// `Guard::undo`.
    async fn undo(&self, guard: &Self::Guard, tx: &mut Self::Tx) -> Result<()>;

    /// `Guard::finish`.
    async fn finish(&self, guard: &Self::Guard, tx: &mut Self::Tx, write: &Write) -> Result<bool>;

    /// `Guard::commit`.
    async fn end(&self, guard: &Self::Guard, tx: Self::Tx, write: &Write) -> Result<bool>;

    /// Commits.
    async fn commit(&self, tx: Self::Tx) -> Result<()>;

    /// Rolls back.
    async fn rollback(&self, tx: Self::Tx);

    /// Inserts a row of the application.
    async fn insert(&self, tx: &mut Self::Tx, id: i64) -> Result<()>;

    /// The committed rows of the application, in order.
    async fn rows(&self) -> Vec<i64>;

    /// Makes the database give the transaction up, and swallows the error, as a careless
    /// application would.
    async fn swallow(&self, tx: &mut Self::Tx);
}

/// The memory guard under test: the shortest example of a harness.
#[derive(Debug)]
pub struct MemoryGuardHarness(MemoryGuard);

#[async_trait]
impl GuardHarness for MemoryGuardHarness {
    type Guard = MemoryGuard;

    async fn fresh() -> Option<Self> {
        Some(Self(MemoryGuard::with_clock(Clock::running())))
    }

    fn guard(&self) -> MemoryGuard {
        self.0.clone()
    }

    async fn advance(&self, by: Duration) {
        self.0.clock().advance(by);
    }
}
