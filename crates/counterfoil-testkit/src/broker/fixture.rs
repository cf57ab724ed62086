//! What every case of the broker suite starts with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use counterfoil_core::row::RowState;
use counterfoil_core::source::{Arrival, Features, Settle, Source, SourceError, Subscription};
use counterfoil_core::{Aggregate, Delivery, Destination, Headers, MessageId, Outcome, Payload};
use tokio::time::{Instant, timeout, timeout_at};

use super::harness::{BrokerHarness, Manner};

/// Long enough for a slow broker on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The group of most cases.
pub const GROUP: &str = "stock";
/// The most messages that one call receives in most cases.
pub const BATCH: usize = 50;
/// Between two looks at something that cannot be waited for.
const LOOK: Duration = Duration::from_millis(50);

/// A fresh topic of the broker under test.
pub struct BrokerFixture<H: BrokerHarness> {
    /// The harness of the broker.
    pub harness: Arc<H>,
    /// What is known about it.
    pub manner: Manner,
    /// The topic.
    pub topic: String,
    /// The way into it.
    pub destination: Arc<dyn Destination>,
}

impl<H: BrokerHarness> BrokerFixture<H> {
    /// A topic of its own.
    pub async fn new(harness: Arc<H>) -> Self {
        let topic = harness.topic().await;
        Self {
            manner: harness.manner(),
            destination: harness.destination(&topic).await,
            topic,
            harness,
        }
    }

    /// A source of the usual group.
    pub async fn source(&self) -> Arc<dyn Source> {
        self.harness.source(&self.topic, GROUP).await
    }

    /// What the driver declares.
    pub async fn features(&self) -> Features {
        self.source().await.features()
    }

    /// The largest payload that passes, where there is one.
    pub async fn largest_payload(&self) -> Option<usize> {
        let declared = self.features().await.largest_payload;
        declared.or(self.harness.largest_payload())
    }

    /// A new member of the usual group.
    pub async fn member(&self) -> Member {
        self.member_of(GROUP).await
    }

    /// A new member of a group.
    pub async fn member_of(&self, group: &str) -> Member {
        let source = self.harness.source(&self.topic, group).await;
        join(&source, self.manner).await
    }

    /// Publishes as the relay does: never two of one aggregate at a time, and all of them stored.
    pub async fn publish(&self, deliveries: &[Delivery]) {
        for batch in batches(deliveries, self.destination.capabilities().max_batch) {
            let outcomes = self.offer(&batch).await;
            for (delivery, outcome) in batch.iter().zip(&outcomes) {
                assert_eq!(outcome, &Outcome::Stored, "{}", delivery.id);
            }
        }
    }

    /// Offers one batch, and sees that it is answered in full and in time.
    pub async fn offer(&self, batch: &[Delivery]) -> Vec<Outcome> {
        offer(&self.destination, batch).await
    }

    /// The id that an arrival carries.
    pub fn id(&self, arrival: &Arrival) -> MessageId {
        id_of(arrival, self.manner)
    }

    /// The ids of several.
    pub fn ids(&self, arrivals: &[Arrival]) -> BTreeSet<MessageId> {
        arrivals.iter().map(|a| self.id(a)).collect()
    }

    /// Lets the members of a group find their places: until each of them was given something, or a
    /// while has passed, because some brokers keep the others in reserve.
    pub async fn acquaint(&self, members: &mut [Member]) {
        let deadline = Instant::now() + Duration::from_secs(15);
        let mut served = BTreeSet::new();
        while served.len() < members.len() && Instant::now() < deadline {
            let batch: Vec<_> = (0..16).map(|n| message("acquaintance", n, 1)).collect();
            self.publish(&batch).await;
            let mut expected = ids(&batch);
            while !expected.is_empty() {
                for (place, member) in members.iter_mut().enumerate() {
                    let found = member.take_for(LOOK).await;
                    if !found.is_empty() {
                        served.insert(place);
                    }
                    for arrival in &found {
                        expected.remove(&self.id(arrival));
                    }
                    member.done(&found).await;
                }
                assert!(
                    Instant::now() < deadline + PATIENCE,
                    "not received: {expected:?}"
                );
            }
        }
    }
}

/// Subscribes, and fails if that does not work in time.
pub async fn join(source: &Arc<dyn Source>, manner: Manner) -> Member {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match timeout_at(deadline, source.subscribe()).await {
            Ok(Ok(subscription)) => return Member::new(subscription, manner),
            // A broker may need a moment until a new topic can be read.
            Ok(Err(_)) if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
            Ok(Err(error)) => panic!("not let in: {error}"),
            Err(_) => panic!("not let in within {PATIENCE:?}"),
        }
    }
}

/// A member of a group.
pub struct Member {
    subscription: Option<Box<dyn Subscription>>,
    manner: Manner,
}

impl Member {
    /// Of a subscription.
    pub fn new(subscription: Box<dyn Subscription>, manner: Manner) -> Self {
        Self {
            subscription: Some(subscription),
            manner,
        }
    }

    /// The subscription itself.
    pub fn subscription(&mut self) -> &mut dyn Subscription {
        &mut **self.subscription.as_mut().expect("it has left")
    }

    /// One call of `receive`, checked.
    pub async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        let received = self.subscription().receive(max).await?;
        assert!(
            !received.is_empty(),
            "receive waits until there is something"
        );
        assert!(received.len() <= max, "{} of {max}", received.len());
        Ok(received)
    }

    /// Receives so many, neither more nor fewer.
    pub async fn take(&mut self, count: usize) -> Vec<Arrival> {
        let mut all = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while all.len() < count {
            let max = BATCH.min(count - all.len());
            match timeout_at(deadline, self.receive(max)).await {
                Ok(received) => all.extend(received.expect("receiving failed")),
                Err(_) => panic!("{} of {count} came within {PATIENCE:?}", all.len()),
            }
        }
        all
    }

    /// Receives and settles so many.
    pub async fn take_done(&mut self, count: usize) -> Vec<Arrival> {
        let all = self.take(count).await;
        self.done(&all).await;
        all
    }

    /// Receives until each of these ids has come, whatever else comes.
    pub async fn take_ids(&mut self, wanted: &BTreeSet<MessageId>) -> Vec<Arrival> {
        let mut left = wanted.clone();
        let mut all = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while !left.is_empty() {
            let Ok(received) = timeout_at(deadline, self.receive(BATCH)).await else {
                panic!("not received within {PATIENCE:?}: {left:?}");
            };
            for arrival in received.expect("receiving failed") {
                left.remove(&id_of(&arrival, self.manner));
                all.push(arrival);
            }
        }
        all
    }

    /// What comes within this time.
    pub async fn take_for(&mut self, time: Duration) -> Vec<Arrival> {
        let deadline = Instant::now() + time;
        let mut all = Vec::new();
        while let Ok(received) = timeout_at(deadline, self.receive(BATCH)).await {
            all.extend(received.expect("receiving failed"));
        }
        all
    }

    /// Settles: their effects are committed.
    pub async fn done(&mut self, arrivals: &[Arrival]) {
        self.settle(arrivals, &Settle::Done).await;
    }

    /// Settles all of them in the same way.
    pub async fn settle(&mut self, arrivals: &[Arrival], how: &Settle) {
        self.try_settle(arrivals, how).await.expect("not settled");
    }

    /// Settles, or says why not.
    pub async fn try_settle(
        &mut self,
        arrivals: &[Arrival],
        how: &Settle,
    ) -> Result<(), SourceError> {
        if arrivals.is_empty() {
            return Ok(());
        }
        let all = arrivals.iter().map(|a| (a.tag, how.clone())).collect();
        timeout(PATIENCE, self.subscription().settle(all))
            .await
            .expect("settling takes too long")
    }

    /// How many wait at the broker.
    pub async fn lag(&mut self) -> Option<u64> {
        timeout(PATIENCE, self.subscription().lag())
            .await
            .expect("the lag takes too long")
            .expect("no lag")
    }

    /// Leaves in good order.
    pub async fn close(mut self) {
        let subscription = self.subscription.take().expect("it has left");
        timeout(PATIENCE, subscription.close())
            .await
            .expect("leaving takes too long")
            .expect("not left");
    }

    /// Is gone without a word.
    pub fn die(self) {
        drop(self);
    }
}

/// Offers one batch, and sees that it is answered in full and in time.
pub async fn offer(destination: &Arc<dyn Destination>, batch: &[Delivery]) -> Vec<Outcome> {
    let bound = destination.capabilities().timeout.unwrap_or(PATIENCE) + Duration::from_secs(15);
    let outcomes = timeout(bound, destination.publish(batch))
        .await
        .expect("a destination answers within its own timeout");
    assert_eq!(outcomes.len(), batch.len(), "one outcome for each");
    outcomes
}

/// The batches in which the relay would send these: in order, and never two of one aggregate.
pub fn batches(deliveries: &[Delivery], max_batch: usize) -> Vec<Vec<Delivery>> {
    let mut left: VecDeque<Delivery> = deliveries.iter().cloned().collect();
    let mut all = Vec::new();
    while !left.is_empty() {
        let (mut batch, mut later) = (Vec::new(), VecDeque::new());
        let mut busy: BTreeSet<Aggregate> = BTreeSet::new();
        for delivery in left {
            let free = match &delivery.aggregate {
                Some(aggregate) => busy.insert(aggregate.clone()),
                None => true,
            };
            if free && batch.len() < max_batch {
                batch.push(delivery);
            } else {
                later.push_back(delivery);
            }
        }
        all.push(batch);
        left = later;
    }
    all
}

/// An ordinary message of an aggregate.
pub fn message(kind: &str, aggregate: usize, version: i64) -> Delivery {
    Delivery {
        seq: version,
        shard: 0,
        epoch: 1,
        id: MessageId::new(),
        queue: Arc::from("q"),
        aggregate: Some(Aggregate::new(kind, aggregate)),
        version: Some(version),
        event_type: "OrderPaid".into(),
        payload: Payload::Json(format!(
            "{{\"aggregate\":{aggregate},\"version\":{version}}}"
        )),
        headers: Headers::new(),
        attempt: 1,
        crashes: 0,
        created_at: Utc::now() - TimeDelta::seconds(1),
        state: RowState::New,
        defect: None,
    }
}

/// Ordinary messages, each of an aggregate of its own.
pub fn messages(count: usize) -> Vec<Delivery> {
    (0..count).map(|n| message("order", n, 1)).collect()
}

/// A message with this payload.
pub fn opaque(aggregate: usize, payload: impl Into<bytes::Bytes>) -> Delivery {
    Delivery {
        payload: Payload::Opaque(payload.into()),
        ..message("order", aggregate, 1)
    }
}

/// The ids of messages.
pub fn ids(deliveries: &[Delivery]) -> BTreeSet<MessageId> {
    deliveries.iter().map(|d| d.id).collect()
}

/// How often each id came.
pub fn counts(arrivals: &[Arrival], manner: Manner) -> BTreeMap<MessageId, usize> {
    let mut counts = BTreeMap::new();
    for arrival in arrivals {
        *counts.entry(id_of(arrival, manner)).or_default() += 1;
    }
    counts
}

/// Fails unless each of these came once, and nothing else.
pub fn assert_once(arrivals: &[Arrival], expected: &[Delivery], manner: Manner) {
    let counts = counts(arrivals, manner);
    let expected: BTreeMap<MessageId, usize> = expected.iter().map(|d| (d.id, 1)).collect();
    assert_eq!(counts, expected);
}

/// The id that an arrival carries.
pub fn id_of(arrival: &Arrival, manner: Manner) -> MessageId {
    let text = attribute(arrival, manner, "id").expect("no id");
    MessageId::parse(text).expect("no id of ours")
}

/// An attribute of an arrival.
pub fn attribute<'a>(arrival: &'a Arrival, manner: Manner, name: &str) -> Option<&'a str> {
    arrival.text(&format!("{}{name}", manner.prefix))
}

/// Waits until something is so.
pub async fn until<F: Future<Output = bool>>(what: &str, mut look: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !look().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}
