//! How much of the outbox a relay takes into memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use counterfoil_core::{Capabilities, Delivery, Destination, Message, Outcome};
use counterfoil_engine::{EngineBuilder, QueueSpec, Settings};
use counterfoil_testkit::memory::MemoryStore;
use tokio::sync::Semaphore;

use crate::support::*;

const MIB: usize = 1 << 20;

/// Keeps every message until the test lets one go.
struct Slow {
    gate: Semaphore,
    inside: AtomicUsize,
    largest: AtomicUsize,
    seen: AtomicUsize,
}

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(0),
            inside: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl Destination for Slow {
    fn describe(&self) -> String {
        "slow".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::single(1_000, None)
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let bytes: usize = batch.iter().map(|d| d.payload.len()).sum();
        let inside = self.inside.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.largest.fetch_max(inside, Ordering::SeqCst);
        self.seen.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.inside.fetch_sub(bytes, Ordering::SeqCst);
        vec![Outcome::Stored; batch.len()]
    }
}

fn big(n: usize, size: usize) -> Message {
    Message::json("order", n, "Big", &"x".repeat(size))
        .unwrap()
        .queue(QUEUE)
}

fn small_memory() -> Settings {
    Settings {
        queue_memory: 4 * MIB,
        memory: 8 * MIB,
        ..settings()
    }
}

#[tokio::test]
async fn large_messages_are_taken_a_few_at_a_time_and_one_that_is_too_large_alone() {
    let store = MemoryStore::new();
    let slow = Slow::new();
    let mut all: Vec<Message> = (0..30).map(|n| big(n, MIB)).collect();
    all.push(big(30, 15 * MIB));
    all.extend((31..40).map(|n| big(n, MIB)));
    enqueue(&store, &all).await;

    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(small_memory())
        .queue(QueueSpec::new(
            QUEUE,
            Arc::clone(&slow) as Arc<dyn Destination>,
        ))
        .start()
        .await
        .unwrap();
    eventually("the memory is used", || async {
        slow.inside.load(Ordering::SeqCst) >= 2 * MIB
    })
    .await;
    slow.gate.add_permits(1_000);
    until_empty(&store).await;

    let largest = slow.largest.load(Ordering::SeqCst);
    assert!(largest <= 15 * MIB + 5 * MIB, "{largest} bytes at once");
    assert_eq!(
        slow.seen.load(Ordering::SeqCst),
        40,
        "each is delivered once"
    );
}

#[tokio::test]
async fn a_queue_that_fills_its_memory_keeps_no_other_from_being_read() {
    let store = MemoryStore::new();
    let (slow, script) = (Slow::new(), Script::new(|_| Outcome::Stored));
    let stuck: Vec<Message> = (0..30).map(|n| big(n, MIB).queue("stuck")).collect();
    enqueue(&store, &stuck).await;
    let also: Vec<Message> = (0..30).map(|n| big(n, MIB).queue("also")).collect();
    enqueue(&store, &also).await;
    let spec_of = |name: &str| QueueSpec::new(name, Arc::clone(&slow) as Arc<dyn Destination>);
    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(Settings {
            memory: 4 * MIB,
            ..small_memory()
        })
        .queue(spec_of("stuck"))
        .queue(spec_of("also"))
        .queue(spec(&script))
        .start()
        .await
        .unwrap();
    eventually("both are stuck", || async {
        slow.inside.load(Ordering::SeqCst) >= 2 * MIB
    })
    .await;

    let all: Vec<Message> = (0..500).map(|n| message(n, 1)).collect();
    enqueue(&store, &all).await;
    script.until("all arrive", |seen| seen.len() == 500).await;

    assert!(slow.largest.load(Ordering::SeqCst) <= 7 * MIB);
}
