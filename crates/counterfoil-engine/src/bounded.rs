//! A store whose operations end.
//!
//! # Why
//! A connection can fall silent: a firewall forgets it, or the server's host vanishes. Then nothing
//! comes back, not even an error, until the operating system gives up after a quarter of an hour. A
//! relay that waited so long would keep its shards by its heartbeats and deliver nothing.
//!
//! # Promise
//! Every operation of a relay ends before a lease has passed: with its answer, or with an error. When it
//! ends without an answer, the connections that are open then are not used again. [`Bounded::silent_for`]
//! tells how long no work was done, so that a relay that cannot work stops claiming to be alive.
//!
//! Migrations and checks are the operator's: they take as long as they take.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::message::Aggregate;
use counterfoil_core::presence::ConsumerReport;
use counterfoil_core::row::RowKey;
use counterfoil_core::store::{
    Enqueued, Fence, Held, Kept, Keyed, LaneCursor, Occupied, Read, RelayId, Remember, Result,
    Retention, Runnable, Settled, Settlement, ShardRef, Store, StoreError, Survey, Taken, Waiting,
    Wake, Want,
};
use tokio::sync::watch;

/// Sweeping removes a batch of rows, and nobody waits for it.
const SWEEP: Duration = Duration::from_secs(300);

/// An operation was not answered in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct Late(Duration);

pub(crate) struct Bounded {
    inner: Arc<dyn Store>,
    lease: Duration,
    /// When work was last done.
    worked: watch::Sender<Instant>,
    /// How often an operation was not answered in time.
    hang_ups: watch::Sender<u64>,
}

impl Bounded {
    pub(crate) fn new(inner: Arc<dyn Store>, lease: Duration) -> Self {
        Self {
            inner,
            lease,
            worked: watch::Sender::new(Instant::now()),
            hang_ups: watch::Sender::new(0),
        }
    }

    /// How long ago an operation of the relay's work succeeded.
    pub(crate) fn silent_for(&self) -> Duration {
        self.worked.borrow().elapsed()
    }

    /// Changes when the connections were given up.
    pub(crate) fn hang_ups(&self) -> watch::Receiver<u64> {
        self.hang_ups.subscribe()
    }

    /// Leaves time for a second try within the lease.
    fn limit(&self) -> Duration {
        self.lease * 2 / 3
    }

    async fn work<T>(&self, operation: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = self.within(self.limit(), operation).await;
        if answer.is_ok() {
            self.worked.send_replace(Instant::now());
        }
        answer
    }

    async fn within<T>(
        &self,
        limit: Duration,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let mut operation = pin!(operation);
        match tokio::time::timeout(limit, operation.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                // Before the operation is dropped, and its connection with it.
                self.inner.hang_up();
                self.hang_ups.send_modify(|n| *n += 1);
                Err(StoreError::Unreachable(Late(limit).into()))
            }
        }
    }
}

#[async_trait]
impl Store for Bounded {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn shards(&self) -> u16 {
        self.inner.shards()
    }

    fn hang_up(&self) {
        self.inner.hang_up();
    }

    async fn check(&self) -> Result<()> {
        self.inner.check().await
    }

    async fn migrate(&self) -> Result<()> {
        self.inner.migrate().await
    }

    async fn join(&self, relay: &RelayId, queues: &[Arc<str>], lease: Duration) -> Result<()> {
        self.work(self.inner.join(relay, queues, lease)).await
    }

    /// Has a connection of its own, and says nothing about the others. It leaves time for two more
    /// before the lease is over.
    async fn heartbeat(&self, relay: &RelayId, lease: Duration) -> Result<bool> {
        self.within(lease / 3, self.inner.heartbeat(relay, lease))
            .await
    }

    async fn survey(&self, relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey> {
        self.work(self.inner.survey(relay, queues)).await
    }

    async fn members(&self) -> Result<Vec<RelayId>> {
        self.work(self.inner.members()).await
    }

    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>> {
        self.work(self.inner.take(relay, wanted)).await
    }

    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        self.work(self.inner.give(relay, given)).await
    }

    async fn leave(&self, relay: &RelayId) -> Result<()> {
        self.work(self.inner.leave(relay)).await
    }

    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        self.work(self.inner.read(wants, skip)).await
    }

    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        self.work(self.inner.read_waiting(wants, skip)).await
    }

    async fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        self.work(self.inner.read_lanes(queue, lanes, per_lane, bytes))
            .await
    }

    async fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        self.work(self.inner.runnable_lanes(wants, from, at_most))
            .await
    }

    async fn occupied(&self) -> Result<Occupied> {
        self.work(self.inner.occupied()).await
    }

    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        self.work(self.inner.suspect(fence, row)).await
    }

    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        self.work(self.inner.settle(fence, settlement)).await
    }

    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>> {
        self.work(self.inner.enqueue(messages)).await
    }

    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>> {
        self.work(self.inner.note_unavailable(queue, unavailable))
            .await
    }

    async fn breakers(&self) -> Result<Vec<Kept>> {
        self.work(self.inner.breakers()).await
    }

    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        self.work(self.inner.remember_breaker(destination, what))
            .await
    }

    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        self.work(self.inner.report_consumer(report)).await
    }

    async fn forget_consumer(&self, member: &RelayId) -> Result<()> {
        self.work(self.inner.forget_consumer(member)).await
    }

    async fn look_again(&self, limit: u32) -> Result<u64> {
        self.work(self.inner.look_again(limit)).await
    }

    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        self.work(self.inner.pause(queue, reason, by)).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64> {
        self.within(SWEEP, self.inner.sweep(retention)).await
    }

    async fn announce(&self) -> Result<()> {
        self.within(self.limit(), self.inner.announce()).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Wake>>> {
        self.within(self.limit(), self.inner.listen()).await
    }
}
