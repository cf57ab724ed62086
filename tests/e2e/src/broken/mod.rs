//! Stores that are wrong on purpose, each in one way.
//!
//! # Promise
//! Without a fault the store inside answers, unchanged. With one, everything else stays right: what
//! the checker then finds, it finds because of that fault.

mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::message::Aggregate;
use counterfoil_core::presence::ConsumerReport;
use counterfoil_core::row::RowKey;
use counterfoil_core::store::{
    Enqueued, Fence, Held, Kept, Keyed, LaneCursor, Occupied, Read, RelayId, Remember, Result,
    Retention, Runnable, Settled, Settlement, ShardRef, Store, Survey, Taken, Waiting, Wake, Want,
};
use tokio::sync::watch;

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Messages leave the outbox when they are read, not when they have arrived.
    SettlesBeforePublishing,
    /// Whoever settles is believed to be the owner.
    SkipsFencing,
    /// A read passes over the first message of a lane now and then, as `SKIP LOCKED` would.
    Reorders,
    /// One message in so many vanishes.
    Drops(i64),
    /// What is put aside behind a failed message is not put aside.
    ForgetsHolds,
}

/// A store with a fault.
pub struct BrokenStore {
    inner: Arc<dyn Store>,
    fault: Fault,
    notes: Mutex<Notes>,
    settled: watch::Sender<Reported>,
}

/// What a relay has said through this handle, whether it was believed or not.
#[derive(Debug, Default)]
pub struct Reported {
    /// How often it called one to be tried again.
    pub failed: usize,
    /// Rows that it called sent.
    pub sent: BTreeSet<i64>,
}

#[derive(Default)]
struct Notes {
    /// What was taken, by whom and under which number.
    taken: BTreeMap<ShardRef, (RelayId, i64)>,
    /// Rows that a read has passed over once.
    passed_over: BTreeSet<i64>,
}

impl BrokenStore {
    /// A store that has this fault.
    pub fn new(inner: Arc<dyn Store>, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            notes: Mutex::default(),
            settled: watch::Sender::new(Reported::default()),
        }
    }

    /// What the relay says.
    pub fn reported(&self) -> watch::Receiver<Reported> {
        self.settled.subscribe()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for BrokenStore {
    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>> {
        let taken = self.inner.take(relay, wanted).await?;
        for shard in &taken {
            self.notes()
                .taken
                .insert(shard.shard.clone(), (relay.clone(), shard.epoch));
        }
        Ok(taken)
    }

    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        let mut read = self.inner.read(wants, skip).await?;
        for (want, rows) in wants.iter().zip(&mut read.rows) {
            self.spoil(want.queue, rows).await?;
        }
        Ok(read)
    }

    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        let settled = match self.fault {
            Fault::SkipsFencing => self.settle_for_the_owner(fence, settlement).await?,
            Fault::ForgetsHolds => {
                let forgetful = Settlement {
                    hold: Vec::new(),
                    ..settlement.clone()
                };
                self.inner.settle(fence, &forgetful).await?
            }
            _ => self.inner.settle(fence, settlement).await?,
        };
        self.settled.send_modify(|reported| {
            reported.failed += settlement.retry.len();
            reported
                .sent
                .extend(settlement.sent.iter().map(|row| row.seq));
        });
        Ok(settled)
    }

    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        self.inner.report_consumer(report).await
    }

    async fn forget_consumer(&self, member: &RelayId) -> Result<()> {
        self.inner.forget_consumer(member).await
    }

    fn describe(&self) -> String {
        format!("{} with a fault: {:?}", self.inner.describe(), self.fault)
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
        self.inner.join(relay, queues, lease).await
    }

    async fn heartbeat(&self, relay: &RelayId, lease: Duration) -> Result<bool> {
        self.inner.heartbeat(relay, lease).await
    }

    async fn survey(&self, relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey> {
        self.inner.survey(relay, queues).await
    }

    async fn members(&self) -> Result<Vec<RelayId>> {
        self.inner.members().await
    }

    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        self.inner.give(relay, given).await
    }

    async fn leave(&self, relay: &RelayId) -> Result<()> {
        self.inner.leave(relay).await
    }

    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        self.inner.read_waiting(wants, skip).await
    }

    async fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        self.inner.read_lanes(queue, lanes, per_lane, bytes).await
    }

    async fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        self.inner.runnable_lanes(wants, from, at_most).await
    }

    async fn occupied(&self) -> Result<Occupied> {
        self.inner.occupied().await
    }

    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        self.inner.suspect(fence, row).await
    }

    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>> {
        self.inner.enqueue(messages).await
    }

    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>> {
        self.inner.note_unavailable(queue, unavailable).await
    }

    async fn breakers(&self) -> Result<Vec<Kept>> {
        self.inner.breakers().await
    }

    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        self.inner.remember_breaker(destination, what).await
    }

    async fn look_again(&self, limit: u32) -> Result<u64> {
        self.inner.look_again(limit).await
    }

    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        self.inner.pause(queue, reason, by).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64> {
        self.inner.sweep(retention).await
    }

    async fn announce(&self) -> Result<()> {
        self.inner.announce().await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Wake>>> {
        self.inner.listen().await
    }
}
