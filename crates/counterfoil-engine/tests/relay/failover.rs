//! A store that comes back as another one: it lacks the last transactions, and gives their numbers to
//! other messages.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::{Capabilities, Delivery, Destination, MessageId, Outcome};
use counterfoil_engine::QueueSpec;
use counterfoil_testkit::memory::MemoryStore;
use tokio::sync::watch;

use crate::support::*;

/// A destination that keeps its answers to some messages until it is opened.
struct Gate {
    kept: Vec<MessageId>,
    open: watch::Sender<bool>,
    seen: watch::Sender<Vec<Delivery>>,
}

impl Gate {
    fn new(kept: &[MessageId]) -> Arc<Self> {
        Arc::new(Self {
            kept: kept.to_vec(),
            open: watch::Sender::new(false),
            seen: watch::Sender::new(Vec::new()),
        })
    }

    async fn until_seen(&self, wanted: &[MessageId]) {
        let all = |seen: &Vec<Delivery>| wanted.iter().all(|id| seen.iter().any(|d| d.id == *id));
        eventually("everything is offered", || async {
            all(&self.seen.borrow())
        })
        .await;
    }
}

#[async_trait]
impl Destination for Gate {
    fn describe(&self) -> String {
        "gate".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 1,
            concurrency: 20,
            timeout: None,
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        self.seen.send_modify(|seen| seen.extend_from_slice(batch));
        if batch.iter().any(|d| self.kept.contains(&d.id)) {
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
        batch.iter().map(|_| Outcome::Stored).collect()
    }
}

/// What the new primary has is delivered: also what stands under numbers that the relay still holds.
#[tokio::test]
async fn messages_under_numbers_that_came_back_are_delivered() {
    let store = MemoryStore::new();
    let old: Vec<_> = (0..10).map(|n| message(format!("old-{n}"), 1)).collect();
    let new: Vec<_> = (1..=10)
        .map(|n| message(format!("new-{}", n % 3), n))
        .collect();
    let old_ids: Vec<_> = old.iter().map(|m| m.id).collect();
    let new_ids: Vec<_> = new.iter().map(|m| m.id).collect();
    let gate = Gate::new(&old_ids);
    enqueue(&store, &old).await;
    let destination = Arc::clone(&gate) as Arc<dyn Destination>;
    let _engine = start(&store, QueueSpec::new(QUEUE, destination)).await;
    gate.until_seen(&old_ids).await;

    let away = store.go_away();
    store.lose(&old_ids);
    enqueue(&store, &new).await;
    let reads = store.calls("read");
    eventually("the relay notices", || async {
        store.calls("read") > reads
    })
    .await;
    drop(away);

    // While the old ones are under way, and after they have come to an end.
    gate.until_seen(&new_ids).await;
    gate.open.send_replace(true);
    until_empty(&store).await;
    let seen = gate.seen.borrow().clone();
    for lane in 0..3 {
        let lane = format!("new-{lane}");
        let of_lane = seen
            .iter()
            .filter(|d| d.aggregate.as_ref().is_some_and(|a| a.id == lane));
        let versions: Vec<_> = of_lane.map(|d| d.version).collect();
        assert!(versions.is_sorted(), "{lane}: {versions:?}");
    }
}

/// A relay that holds old messages under numbers that came back settles them without touching the new.
#[tokio::test]
async fn what_was_under_way_does_not_settle_what_came_after_it() {
    let store = MemoryStore::new();
    let old: Vec<_> = (0..5).map(|n| message(format!("old-{n}"), 1)).collect();
    let new: Vec<_> = (0..5).map(|n| message(format!("new-{n}"), 1)).collect();
    let old_ids: Vec<_> = old.iter().map(|m| m.id).collect();
    let new_ids: Vec<_> = new.iter().map(|m| m.id).collect();
    let gate = Gate::new(&old_ids);
    enqueue(&store, &old).await;
    let destination = Arc::clone(&gate) as Arc<dyn Destination>;
    let _engine = start(&store, QueueSpec::new(QUEUE, destination)).await;
    gate.until_seen(&old_ids).await;

    let away = store.go_away();
    gate.open.send_replace(true);
    let settlements = store.calls("settle");
    eventually("the relay tries to settle", || async {
        store.calls("settle") > settlements
    })
    .await;
    store.lose(&old_ids);
    enqueue(&store, &new).await;
    drop(away);

    gate.until_seen(&new_ids).await;
    until_empty(&store).await;
}
