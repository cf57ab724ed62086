//! What a destination can do wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_core::desk::{Desk, Filter};
use counterfoil_core::store::{RelayId, ShardRef, Store};
use counterfoil_core::{Code, Outcome};
use counterfoil_engine::{EngineBuilder, QueueSpec, Settings};
use counterfoil_testkit::harness::{ForeignRow, Harness};
use counterfoil_testkit::memory::{MemoryHarness, MemoryStore};

use crate::support::*;

#[tokio::test]
async fn the_maximum_of_attempts_is_really_enforced() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::retry(Code::UPSTREAM_5XX, "no"));
    enqueue(&store, &[message("a", 1)]).await;

    let _engine = start(
        &store,
        QueueSpec {
            backoff: quick(4),
            ..spec(&script)
        },
    )
    .await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;

    let attempts: Vec<u32> = script.seen().iter().map(|d| d.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
    let entry = &parked(&store).await[0];
    assert_eq!(entry.code.as_deref(), Some("UPSTREAM_5XX"));
    assert_eq!(entry.attempts, 4);
}

#[tokio::test]
async fn every_attempt_carries_the_same_id() {
    let store = MemoryStore::new();
    let script = Script::new(|d| {
        if d.attempt < 5 {
            Outcome::retry(Code::TIMEOUT, "…")
        } else {
            Outcome::Stored
        }
    });
    let ids = enqueue(&store, &[message("a", 1)]).await;

    let _engine = start(&store, spec(&script)).await;
    until_empty(&store).await;

    assert_eq!(script.seen().len(), 5);
    assert!(script.seen().iter().all(|d| d.id == ids[0]));
}

#[tokio::test]
async fn what_is_postponed_uses_up_no_attempt_and_holds_back_its_aggregate_only() {
    let store = MemoryStore::new();
    let mut calls = 0;
    let script = Script::new(move |d| {
        if d.aggregate.as_ref().is_some_and(|a| a.id != "a") {
            return Outcome::Stored;
        }
        calls += 1;
        match calls {
            1..=3 => Outcome::Postponed {
                code: Code::UNAVAILABLE,
                error: "no memory".into(),
            },
            _ => Outcome::Stored,
        }
    });
    let a = [message("a", 1), message("a", 2)];
    enqueue(&store, &a).await;
    enqueue(&store, &[message("b", 1), message("c", 1)]).await;

    let queue = QueueSpec {
        backoff: quick(2),
        ..spec(&script)
    };
    let _engine = start(&store, queue).await;
    script
        .until("the others go on", |seen| {
            let others = seen.iter().filter(|d| d.aggregate != a[0].aggregate);
            others.count() == 2
        })
        .await;
    until_empty(&store).await;

    let of_a = script
        .seen()
        .into_iter()
        .filter(|d| d.aggregate == a[0].aggregate);
    let tried: Vec<(i64, u32)> = of_a.map(|d| (d.version.unwrap(), d.attempt)).collect();
    assert_eq!(tried, [(1, 1), (1, 1), (1, 1), (1, 1), (2, 1)]);
}

#[tokio::test]
async fn after_the_patience_what_is_postponed_uses_up_attempts() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Postponed {
        code: Code::UNAVAILABLE,
        error: "no memory".into(),
    });
    enqueue(&store, &[message("a", 1)]).await;

    let queue = QueueSpec {
        backoff: quick(3),
        ..spec(&script)
    };
    let settings = Settings {
        patience: Duration::ZERO,
        ..settings()
    };
    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings)
        .queue(queue)
        .start()
        .await
        .unwrap();
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;

    let attempts: Vec<u32> = script.seen().iter().map(|d| d.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!(parked(&store).await[0].code.as_deref(), Some("UNAVAILABLE"));
}

#[tokio::test]
async fn an_unavailable_destination_uses_up_no_attempts() {
    let store = MemoryStore::new();
    let mut calls = 0;
    let script = Script::new(move |_| {
        calls += 1;
        if calls <= 3 {
            Outcome::Unavailable {
                error: "nobody".into(),
            }
        } else {
            Outcome::Stored
        }
    });
    enqueue(&store, &[message("a", 1), message("a", 2)]).await;

    let _engine = start(
        &store,
        QueueSpec {
            backoff: quick(1),
            ..spec(&script)
        },
    )
    .await;
    until_empty(&store).await;

    assert!(script.seen().iter().all(|d| d.attempt == 1));
    assert!(parked(&store).await.is_empty());
    eventually("the outage is over", || async {
        stats(&store).await.unavailable_since.is_none()
    })
    .await;
}

#[tokio::test]
async fn after_a_day_an_unavailable_destination_does_use_up_attempts() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Unavailable {
        error: "nobody".into(),
    });
    enqueue(&store, &[message("a", 1)]).await;
    let settings = Settings {
        patience: Duration::ZERO,
        ..settings()
    };

    let queue = QueueSpec {
        backoff: quick(2),
        ..spec(&script)
    };
    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings)
        .queue(queue)
        .start()
        .await
        .unwrap();

    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;
    assert_eq!(parked(&store).await[0].code.as_deref(), Some("UNAVAILABLE"));
}

#[tokio::test]
async fn a_destination_that_refuses_everything_is_probed_and_goes_on_by_itself() {
    let store = MemoryStore::new();
    let deployed = Arc::new(AtomicBool::new(false));
    let there = Arc::clone(&deployed);
    let script = Script::new(move |_| match there.load(Ordering::SeqCst) {
        true => Outcome::Stored,
        false => Outcome::DestinationRefused {
            code: Code::DESTINATION_REFUSED,
            error: "HTTP 404 Not Found".into(),
        },
    });
    let all: Vec<_> = (0..50).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;

    let mut queue = QueueSpec {
        backoff: quick(4),
        ..spec(&script)
    };
    queue.breaker.open_for = Duration::from_millis(1);
    queue.breaker.open_cap = Duration::from_millis(20);
    let _engine = start(&store, queue).await;
    script.until("many probes", |seen| seen.len() > 150).await;
    let shown = stats(&store).await;
    assert_eq!((shown.pending(), shown.paused), (50, None));
    assert!(parked(&store).await.is_empty(), "probes use up no attempts");

    deployed.store(true, Ordering::SeqCst);
    until_empty(&store).await;
    assert!(parked(&store).await.is_empty());
}

#[tokio::test]
async fn a_refusal_that_only_one_aggregate_meets_parks_that_one() {
    let store = MemoryStore::new();
    let script = Script::new(|d| match d.aggregate.as_ref().map(|a| a.id.as_str()) {
        Some("gone") => Outcome::DestinationRefused {
            code: Code::DESTINATION_REFUSED,
            error: "404".into(),
        },
        _ => Outcome::Stored,
    });
    enqueue(&store, &[message("gone", 1), message("fine", 1)]).await;

    let _engine = start(
        &store,
        QueueSpec {
            backoff: quick(3),
            ..spec(&script)
        },
    )
    .await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;

    assert!(stats(&store).await.paused.is_none());
}

#[tokio::test]
async fn a_panic_is_a_failure_like_any_other() {
    let store = MemoryStore::new();
    let script = Script::new(|d| {
        assert!(d.attempt > 1, "boom");
        Outcome::Stored
    });
    enqueue(&store, &[message("a", 1)]).await;

    // The poisoned lock makes the second attempt panic too: what counts is that it is parked.
    let _engine = start(
        &store,
        QueueSpec {
            backoff: quick(2),
            ..spec(&script)
        },
    )
    .await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;

    assert_eq!(parked(&store).await[0].code.as_deref(), Some("PANIC"));
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_parked_with_its_reason() {
    let outbox = MemoryHarness::fresh().await.unwrap();
    let odd = ForeignRow {
        queue: Some(QUEUE.into()),
        aggregate_id: Some("a".into()),
        payload: Some("{".into()),
        ..ForeignRow::default()
    };
    let mut tx = outbox.begin().await;
    outbox.foreign(&mut tx, &odd).await.unwrap();
    outbox.enqueue(&mut tx, &[message("b", 1)]).await.unwrap();
    outbox.commit(tx).await.unwrap();
    let script = Script::new(|_| Outcome::Stored);

    let _engine = EngineBuilder::new(outbox.store())
        .settings(settings())
        .queue(spec(&script))
        .start()
        .await
        .unwrap();
    let desk = outbox.desk();
    eventually("it is parked", || async {
        desk.parked(&Filter::default()).await.unwrap().len() == 1
    })
    .await;

    let entry = desk.parked(&Filter::default()).await.unwrap().remove(0);
    assert_eq!(entry.code.as_deref(), Some("VALIDATION_ERROR"));
    assert!(entry.error.as_deref().unwrap().contains("not valid JSON"));
    script
        .until("the other passes", |seen| seen.len() == 1)
        .await;
}

#[tokio::test]
async fn a_paused_queue_is_not_delivered_and_a_resumed_one_is() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    store
        .pause_queue(QUEUE, "maintenance", "ann")
        .await
        .unwrap();
    enqueue(&store, &[message("a", 1)]).await;
    let engine = start(&store, spec(&script)).await;
    engine.nudge().nudge();
    eventually("the relay owns the queue", || async {
        stats(&store).await.relays == 1
    })
    .await;
    assert!(script.seen().is_empty());

    assert!(store.resume_queue(QUEUE, "ann").await.unwrap());

    script.until("it arrives", |seen| seen.len() == 1).await;
}

#[tokio::test]
async fn what_a_dead_relay_left_is_tried_alone_and_parked_after_three_crashes() {
    let store = MemoryStore::new();
    enqueue(&store, &[message("killer", 1), message("fine", 1)]).await;
    let script = Script::new(|_| Outcome::Stored);
    let queue: Arc<str> = Arc::from(QUEUE);
    let mut seq = 0;
    // Three relays take everything, count the first message before they try it, and die.
    for n in 0..3 {
        let relay = RelayId::new(&format!("dead-{n}"));
        store
            .join(&relay, &[Arc::clone(&queue)], Duration::from_secs(5))
            .await
            .unwrap();
        let all: Vec<ShardRef> = (0..store.shards())
            .map(|shard| ShardRef {
                queue: Arc::clone(&queue),
                shard,
            })
            .collect();
        let taken = store.take(&relay, &all).await.unwrap();
        let want = counterfoil_core::store::Want {
            queue: QUEUE,
            shards: (0..store.shards()).collect(),
            after: 0,
            limit: 1,
            bytes: 1_000_000,
        };
        let read = store.read(&[want], &[]).await.unwrap();
        let row = &read.rows[0][0];
        seq = row.seq;
        let epoch = taken
            .iter()
            .find(|t| t.shard.shard == row.shard)
            .unwrap()
            .epoch;
        let fence = counterfoil_core::store::Fence {
            relay,
            queue: Arc::clone(&queue),
            shards: vec![(row.shard, epoch)],
        };
        assert_eq!(
            store.suspect(&fence, &row.key()).await.unwrap(),
            Some(n + 1)
        );
        store.clock().advance(Duration::from_secs(6));
    }

    let _engine = start(&store, spec(&script)).await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;
    script
        .until("the other passes", |seen| seen.len() == 1)
        .await;

    let entry = &parked(&store).await[0];
    assert_eq!(
        (entry.seq, entry.code.as_deref()),
        (seq, Some("CRASH_SUSPECT"))
    );
}
