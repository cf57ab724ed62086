//! Relays with many queues, and with many lanes that wait.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::desk::{Desk, Filter};
use counterfoil_core::store::Store;
use counterfoil_core::{Code, Destination, Message, Outcome};
use counterfoil_engine::{Engine, EngineBuilder, QueueSpec};
use counterfoil_testkit::memory::{MemoryStore, Point};

use crate::support::*;

async fn serve(store: &MemoryStore, queues: usize, script: &Arc<Script>) -> Engine {
    let mut builder = EngineBuilder::new(Arc::new(store.clone())).settings(settings());
    for n in 0..queues {
        let destination = Arc::clone(script) as Arc<dyn Destination>;
        builder = builder.queue(QueueSpec {
            backoff: quick(3),
            ..QueueSpec::new(&format!("queue-{n:04}"), destination)
        });
    }
    builder.start().await.unwrap()
}

fn to(queue: usize, aggregate: &str, version: i64) -> Message {
    message(aggregate, version).queue(format!("queue-{queue:04}"))
}

#[tokio::test]
async fn a_thousand_idle_queues_cost_one_look_at_a_time() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let engine = serve(&store, 1_000, &script).await;
    enqueue(&store, &[to(7, "a", 1)]).await;
    script.until("it arrives", |seen| seen.len() == 1).await;
    until_empty_everywhere(&store).await;

    let (looks, all) = (store.calls("occupied"), store.all_calls());
    eventually("the relay looks", || async {
        store.calls("occupied") >= looks + 20
    })
    .await;

    let (looks, all) = (store.calls("occupied") - looks, store.all_calls() - all);
    // Beside the looks: heartbeats, the members, breakers.
    assert!(all <= looks + 10, "{all} calls for {looks} looks");
    engine.stop().await;
}

#[tokio::test]
async fn among_many_queues_every_way_of_a_message_is_found() {
    let store = MemoryStore::new();
    let script = Script::new(|d| match (d.version, d.attempt) {
        (Some(1), 1) => Outcome::Retry {
            code: Code::TIMEOUT,
            error: "not yet".into(),
            after: None,
        },
        (Some(2), _) => Outcome::Refused {
            code: Code::UPSTREAM_4XX,
            error: "never".into(),
            confirm: false,
        },
        _ => Outcome::Stored,
    });
    store.pause("queue-0030", "a test", "test").await.unwrap();
    let engine = serve(&store, 100, &script).await;

    // Retried, then parked, then held behind it; and one in a queue that is paused.
    let lane: Vec<Message> = (1..=4).map(|version| to(20, "a", version)).collect();
    enqueue(&store, &lane).await;
    enqueue(&store, &[to(30, "b", 9)]).await;
    eventually("the second one is parked", || async {
        !parked(&store).await.is_empty()
    })
    .await;
    let id = parked(&store).await[0].id.to_string();
    store.ignore(&[id], "a test", "test").await.unwrap();
    store.resume_queue("queue-0030", "test").await.unwrap();

    script
        .until("what was held and what was paused arrives", |seen| {
            let arrived = |id: &str, version: i64| {
                let same = |d: &&counterfoil_core::Delivery| d.version == Some(version);
                let of = |d: &counterfoil_core::Delivery| {
                    d.aggregate.as_ref().is_some_and(|a| a.id == id)
                };
                seen.iter().filter(same).any(of)
            };
            arrived("a", 3) && arrived("a", 4) && arrived("b", 9)
        })
        .await;
    until_empty_everywhere(&store).await;
    engine.stop().await;
}

#[tokio::test]
async fn lanes_are_searched_once_at_a_time() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let search = store.hold("runnable_lanes", Point::Before);
    let engine = start(&store, spec(&script)).await;
    search.reached().await;

    // Far longer than the pause between two searches.
    let begun = std::time::Instant::now();
    eventually("the relay goes on", || async {
        begun.elapsed() > Duration::from_secs(3)
    })
    .await;

    assert_eq!(store.calls("runnable_lanes"), 1);
    drop(search);
    engine.stop().await;
}

async fn until_empty_everywhere(store: &MemoryStore) {
    eventually("the outbox is empty", || async {
        store.outbox(&Filter::default()).await.unwrap().is_empty()
    })
    .await;
}
