//! What a driver's tests supply so that the inbox's suite can run on it.

use async_trait::async_trait;
use counterfoil_core::inbox::{Admitted, Deferred, Keep, Mode, Redriven};
use counterfoil_core::message::Aggregate;
use counterfoil_core::store::Result;

use crate::harness::Harness;

/// The steps of the inbox, each the driver's function of the same name.
///
/// The application has a table `business` with one column `id`, its primary key.
#[async_trait]
pub trait InboxHarness: Harness {
    /// Makes the application's table. Called once, before anything else.
    async fn prepare(&self);

    /// `inbox::begin`, on a pool of the application.
    async fn begin_consumer(&self) -> Result<Self::Tx>;

    /// `inbox::admit`.
    async fn admit(
        &self,
        tx: &mut Self::Tx,
        consumer: &str,
        mode: Mode,
        keys: &[&str],
        aggregates: &[&Aggregate],
    ) -> Result<Admitted>;

    /// `inbox::defer`.
    async fn defer(&self, tx: &mut Self::Tx, consumer: &str, deferred: &[Deferred]) -> Result<()>;

    /// `inbox::finish`.
    async fn finish(
        &self,
        tx: &mut Self::Tx,
        consumer: &str,
        applied: &[(&Aggregate, i64)],
    ) -> Result<()>;

    /// `inbox::redriven`.
    async fn redriven(&self, tx: &mut Self::Tx, seq: i64) -> Result<Option<Redriven>>;

    /// `inbox::purge`.
    async fn purge(&self, consumer: &str, keep: Keep, batch: u32) -> Result<u64>;

    /// Commits, and asks nothing before.
    async fn plain_commit(&self, tx: Self::Tx) -> Result<()>;

    /// Inserts a row of the application.
    async fn insert(&self, tx: &mut Self::Tx, id: i64) -> Result<()>;

    /// Runs a statement that every database knows, as a careless handler would.
    async fn execute(&self, tx: &mut Self::Tx, sql: &'static str);

    /// The committed rows of the application, in order.
    async fn rows(&self) -> Vec<i64>;

    /// Makes the database give the transaction up, and swallows the error, as a careless
    /// application would.
    async fn swallow(&self, tx: &mut Self::Tx);

    /// Hook: makes everything in the inbox older. Aggregates by whole days.
    async fn age_inbox(&self, days: u32);
}
