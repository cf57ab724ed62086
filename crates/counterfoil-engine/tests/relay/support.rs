//! A relay on an outbox in memory, and a destination that does what the test says.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::desk::{Desk, Entry, Filter, QueueStats};
use counterfoil_core::policy::Backoff;
use counterfoil_core::{Capabilities, Delivery, Destination, Message, MessageId, Outcome};
use counterfoil_engine::{Engine, EngineBuilder, OnPark, QueueSpec, Settings};
use counterfoil_testkit::memory::MemoryStore;
use tokio::sync::watch;

pub(crate) const QUEUE: &str = "orders";
const LIMIT: Duration = Duration::from_secs(10);

type Answer = Box<dyn FnMut(&Delivery) -> Outcome + Send>;

/// A destination that answers by a function and remembers what it was given.
pub(crate) struct Script {
    answer: Mutex<Answer>,
    seen: watch::Sender<Vec<Delivery>>,
    calls: Mutex<Vec<(Instant, usize)>>,
    caps: Capabilities,
}

impl Script {
    pub(crate) fn new(answer: impl FnMut(&Delivery) -> Outcome + Send + 'static) -> Arc<Self> {
        let caps = Capabilities {
            max_batch: 7,
            concurrency: 3,
            timeout: Some(Duration::from_secs(5)),
        };
        Arc::new(Self {
            answer: Mutex::new(Box::new(answer)),
            seen: watch::Sender::new(Vec::new()),
            calls: Mutex::default(),
            caps,
        })
    }

    pub(crate) fn seen(&self) -> Vec<Delivery> {
        self.seen.borrow().clone()
    }

    /// When it was called, and with how many messages.
    pub(crate) fn calls(&self) -> Vec<(Instant, usize)> {
        self.calls.lock().unwrap().clone()
    }

    /// Waits until what was seen fulfils a condition.
    pub(crate) async fn until(&self, what: &str, condition: impl FnMut(&Vec<Delivery>) -> bool) {
        let mut seen = self.seen.subscribe();
        let found = tokio::time::timeout(LIMIT, seen.wait_for(condition)).await;
        assert!(
            found.is_ok(),
            "waited in vain: {what}; seen: {:?}",
            versions(&self.seen())
        );
    }

    /// The versions of each aggregate in the order of their first deliveries.
    pub(crate) fn first_deliveries(&self) -> BTreeMap<String, Vec<i64>> {
        let mut seen = std::collections::HashSet::new();
        let mut order: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for d in self.seen() {
            if let (true, Some(aggregate)) = (seen.insert(d.id), &d.aggregate) {
                order
                    .entry(aggregate.id.clone())
                    .or_default()
                    .push(d.version.unwrap_or(d.seq));
            }
        }
        order
    }
}

pub(crate) fn versions(seen: &[Delivery]) -> Vec<(String, i64, u32)> {
    seen.iter()
        .map(|d| {
            let id = d
                .aggregate
                .as_ref()
                .map(|a| a.id.clone())
                .unwrap_or_default();
            (id, d.version.unwrap_or(d.seq), d.attempt)
        })
        .collect()
}

#[async_trait]
impl Destination for Script {
    fn describe(&self) -> String {
        "script".into()
    }

    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        self.calls
            .lock()
            .unwrap()
            .push((Instant::now(), batch.len()));
        let mut answer = self.answer.lock().unwrap();
        let mut outcomes = Vec::new();
        for delivery in batch {
            self.seen.send_modify(|seen| seen.push(delivery.clone()));
            outcomes.push(answer(delivery));
        }
        outcomes
    }
}

pub(crate) fn quick(max_attempts: u32) -> Backoff {
    Backoff::new(
        Duration::from_millis(1),
        Duration::from_millis(4),
        max_attempts,
    )
    .unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings {
        poll: Duration::from_millis(10),
        batch: 50,
        lane: 5,
        ..Settings::default()
    }
}

pub(crate) fn spec(destination: &Arc<Script>) -> QueueSpec {
    let destination = Arc::clone(destination) as Arc<dyn Destination>;
    QueueSpec {
        backoff: quick(10),
        ..QueueSpec::new(QUEUE, destination)
    }
}

pub(crate) fn skipping(destination: &Arc<Script>) -> QueueSpec {
    QueueSpec {
        on_park: OnPark::Skip,
        ..spec(destination)
    }
}

pub(crate) async fn start(store: &MemoryStore, queue: QueueSpec) -> Engine {
    EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings())
        .queue(queue)
        .start()
        .await
        .unwrap()
}

pub(crate) fn message(aggregate: impl std::fmt::Display, version: i64) -> Message {
    Message::json("order", aggregate, "OrderPaid", &version)
        .unwrap()
        .version(version)
        .queue(QUEUE)
}

pub(crate) async fn enqueue(store: &MemoryStore, messages: &[Message]) -> Vec<MessageId> {
    let mut tx = store.begin();
    tx.enqueue(messages).await.unwrap();
    tx.commit().await.unwrap();
    messages.iter().map(|m| m.id).collect()
}

/// Looks again and again until a condition holds; fails after a generous limit.
pub(crate) async fn eventually<F, Fut>(what: &str, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let found = tokio::time::timeout(LIMIT, async {
        while !condition().await {
            ticks.tick().await;
        }
    });
    assert!(found.await.is_ok(), "waited in vain: {what}");
}

pub(crate) async fn stats(store: &MemoryStore) -> QueueStats {
    let all = store.stats().await.unwrap();
    all.into_iter()
        .find(|q| q.queue == QUEUE)
        .unwrap_or_default()
}

pub(crate) async fn parked(store: &MemoryStore) -> Vec<Entry> {
    store.parked(&Filter::default()).await.unwrap()
}

pub(crate) async fn until_empty(store: &MemoryStore) {
    eventually("the outbox is empty", || async {
        stats(store).await.pending() == 0
    })
    .await;
}
