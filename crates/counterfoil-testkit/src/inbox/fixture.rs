//! What every case of the inbox starts with.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::Code;
use counterfoil_core::inbox::{Admitted, Deferred, Lane, Mode, queue_of};
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{Park, Result, Settlement};
use tokio::task::JoinHandle;

use super::harness::InboxHarness;
use crate::fixture::{Fixture, LATER, message, park};
use crate::relay::Relay;

/// The consumer that most cases use.
pub const CONSUMER: &str = "stock";
/// Another one.
pub const RIVAL: &str = "mail";
/// So long a transaction that waits for another one is seen to wait.
const A_WHILE: Duration = Duration::from_millis(200);

impl<H: InboxHarness> Fixture<H> {
    /// Begins a transaction of a consumer.
    pub async fn consume(&self) -> H::Tx {
        self.harness.begin_consumer().await.unwrap()
    }

    /// Arrivals of [`CONSUMER`].
    pub async fn admit(
        &self,
        tx: &mut H::Tx,
        keys: &[&str],
        aggregates: &[&Aggregate],
    ) -> Admitted {
        self.try_admit(tx, Mode::Arrival, keys, aggregates)
            .await
            .unwrap()
    }

    /// The same in any mode.
    pub async fn try_admit(
        &self,
        tx: &mut H::Tx,
        mode: Mode,
        keys: &[&str],
        aggregates: &[&Aggregate],
    ) -> Result<Admitted> {
        self.harness
            .admit(tx, CONSUMER, mode, keys, aggregates)
            .await
    }

    /// Finishes and commits.
    pub async fn end(&self, mut tx: H::Tx, applied: &[(&Aggregate, i64)]) {
        let finished = self.harness.finish(&mut tx, CONSUMER, applied).await;
        finished.unwrap();
        self.harness.plain_commit(tx).await.unwrap();
    }

    /// A whole transaction of a consumer: which of the keys were fresh, in their order.
    pub async fn process(&self, consumer: &str, mode: Mode, keys: &[&str]) -> Vec<String> {
        let mut tx = self.consume().await;
        let admitted = self.harness.admit(&mut tx, consumer, mode, keys, &[]).await;
        let mut fresh = admitted.unwrap().fresh;
        self.harness.finish(&mut tx, consumer, &[]).await.unwrap();
        self.harness.plain_commit(tx).await.unwrap();
        let told = keys.iter().filter_map(|key| fresh.take(*key)).collect();
        assert!(fresh.is_empty(), "nobody asked for {fresh:?}");
        told
    }

    /// The same for arrivals of [`CONSUMER`].
    pub async fn arrive(&self, keys: &[&str]) -> Vec<String> {
        self.process(CONSUMER, Mode::Arrival, keys).await
    }

    /// Applies a version of an aggregate, under a key of its own.
    pub async fn apply(&self, key: &str, aggregate: &Aggregate, version: i64) {
        let mut tx = self.consume().await;
        let admitted = self.admit(&mut tx, &[key], &[aggregate]).await;
        assert!(admitted.fresh.contains(key));
        self.end(tx, &[(aggregate, version)]).await;
    }

    /// Puts messages off in one transaction, as they arrive.
    pub async fn put_off(&self, deferred: &[Deferred]) {
        let mut tx = self.consume().await;
        self.put_off_in(&mut tx, CONSUMER, deferred).await;
        self.end(tx, &[]).await;
    }

    /// The same in an open transaction, for any consumer.
    pub async fn put_off_in(&self, tx: &mut H::Tx, consumer: &str, deferred: &[Deferred]) {
        let mut keys: Vec<&str> = deferred.iter().map(|d| d.key.as_str()).collect();
        keys.sort_unstable();
        let mut aggregates: Vec<&Aggregate> = deferred
            .iter()
            .filter_map(|d| d.message.aggregate.as_ref())
            .collect();
        aggregates.sort();
        aggregates.dedup();
        let harness = &self.harness;
        let admitted = harness
            .admit(tx, consumer, Mode::Arrival, &keys, &aggregates)
            .await
            .unwrap();
        assert_eq!(admitted.fresh.len(), keys.len());
        harness.defer(tx, consumer, deferred).await.unwrap();
    }

    /// What is known of an aggregate. Leaves nothing behind.
    pub async fn lane(&self, aggregate: &Aggregate) -> Lane {
        self.lane_of(CONSUMER, Mode::Arrival, aggregate).await
    }

    /// The same for any consumer, in any mode.
    pub async fn lane_of(&self, consumer: &str, mode: Mode, aggregate: &Aggregate) -> Lane {
        let mut tx = self.consume().await;
        let admitted = self
            .harness
            .admit(&mut tx, consumer, mode, &[], &[aggregate])
            .await
            .unwrap();
        self.harness.rollback(tx).await;
        assert_eq!(admitted.lanes.len(), 1);
        admitted.lanes[aggregate]
    }

    /// Another consumer's process, which begins, asks and commits.
    pub fn elsewhere(&self, mode: Mode, key: &str, aggregate: Option<&Aggregate>) -> Elsewhere {
        let harness = Arc::clone(&self.harness);
        let (key, aggregate) = (key.to_owned(), aggregate.cloned());
        let aggregates = aggregate.into_iter().collect::<Vec<_>>();
        Elsewhere(tokio::spawn(async move {
            let mut tx = harness.begin_consumer().await.unwrap();
            let aggregates: Vec<&Aggregate> = aggregates.iter().collect();
            let admitted = harness
                .admit(&mut tx, CONSUMER, mode, &[&key], &aggregates)
                .await
                .unwrap();
            harness.finish(&mut tx, CONSUMER, &[]).await.unwrap();
            harness.plain_commit(tx).await.unwrap();
            admitted
        }))
    }

    /// The relay of the queue in which a consumer's messages wait.
    pub async fn inbox_relay(&self) -> Relay {
        self.relay(&[&queue_of(CONSUMER)]).await
    }

    /// Parks the one message that is due.
    pub async fn park_due(&self, relay: &Relay, change: impl FnOnce(&mut Park)) -> RawRow {
        let queue = queue_of(CONSUMER);
        self.harness.make_due().await;
        let row = relay.waiting(&queue).await.remove(0);
        let mut parked = park(&row);
        change(&mut parked);
        let settlement = Settlement {
            park: vec![parked],
            ..Settlement::default()
        };
        relay.settle(&queue, &settlement).await;
        row
    }
}

/// A transaction of another process.
pub struct Elsewhere(JoinHandle<Admitted>);

impl Elsewhere {
    /// It waits for somebody.
    pub async fn waits(&mut self) {
        let early = tokio::time::timeout(A_WHILE, &mut self.0).await;
        assert!(early.is_err(), "it did not wait: {early:?}");
    }

    /// What it was told, in the end.
    pub async fn told(self) -> Admitted {
        self.0.await.unwrap()
    }
}

/// A message that has failed once.
pub fn failed(key: &str, aggregate: impl std::fmt::Display, version: i64) -> Deferred {
    Deferred {
        key: key.into(),
        message: message(aggregate, version).queue(queue_of(CONSUMER)),
        held: false,
        delay: LATER,
        attempts: 1,
        code: Some(Code::TIMEOUT),
        error: Some("no answer within 5s".into()),
    }
}

/// A message behind one that has failed.
pub fn behind(key: &str, aggregate: impl std::fmt::Display, version: i64) -> Deferred {
    Deferred {
        held: true,
        delay: Duration::ZERO,
        attempts: 0,
        code: None,
        error: None,
        ..failed(key, aggregate, version)
    }
}
