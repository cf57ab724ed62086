//! Order within an aggregate, whatever fails.

use std::collections::HashMap;

use counterfoil_core::desk::Desk;
use counterfoil_core::{Code, Outcome};
use counterfoil_testkit::memory::MemoryStore;

use crate::support::*;

#[tokio::test]
async fn a_committed_message_arrives_and_a_rolled_back_one_does_not() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let engine = start(&store, spec(&script)).await;

    let mut gone = store.begin();
    gone.enqueue(&[message("a", 1)]).await.unwrap();
    drop(gone);
    enqueue(&store, &[message("a", 2)]).await;
    engine.nudge().nudge();

    script
        .until("version 2 arrives", |seen| !seen.is_empty())
        .await;
    until_empty(&store).await;
    assert_eq!(versions(&script.seen()), [("a".into(), 2, 1)]);
}

#[tokio::test]
async fn versions_that_wait_together_go_by_version_and_the_others_by_insertion() {
    let store = MemoryStore::new();
    let unversioned = |n: i64| {
        let mut m = message("b", n);
        m.version = None;
        m
    };
    let all = [
        message("a", 3),
        message("a", 1),
        message("a", 2),
        unversioned(1),
        unversioned(2),
    ];
    enqueue(&store, &all).await;

    let script = Script::new(|_| Outcome::Stored);
    let _engine = start(&store, spec(&script)).await;

    script
        .until("all five arrive", |seen| seen.len() == 5)
        .await;
    let order = script.first_deliveries();
    assert_eq!(order["a"], [1, 2, 3]);
    assert!(order["b"].is_sorted());
}

#[tokio::test(flavor = "multi_thread")]
async fn first_deliveries_stay_in_order_under_random_failures() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let store = MemoryStore::new();
        let mut all = Vec::new();
        for version in 1..=25 {
            for aggregate in 0..8 {
                all.push(message(aggregate, version));
            }
        }
        let mut dice = fastrand::Rng::with_seed(seed ^ 0xfeed);
        let script = Script::new(move |d| match dice.u32(0..100) {
            0..30 => Outcome::retry(Code::UPSTREAM_5XX, "not now"),
            30..40 if d.attempt > 1 => Outcome::refused(Code::UPSTREAM_4XX, "never"),
            40 => Outcome::Unavailable {
                error: "nobody".into(),
            },
            _ => Outcome::Stored,
        });
        let engine = start(&store, skipping(&script)).await;
        while !all.is_empty() {
            let n = rng.usize(1..=all.len().min(20));
            let part: Vec<_> = all.drain(..n).collect();
            enqueue(&store, &part).await;
            engine.nudge().nudge();
        }

        until_empty(&store).await;

        let mut ends: HashMap<_, u32> = HashMap::new();
        for d in script.seen() {
            *ends.entry(d.id).or_default() += 1;
        }
        assert_eq!(ends.len(), 200, "seed {seed}: every message was offered");
        for (aggregate, order) in script.first_deliveries() {
            assert!(
                order.is_sorted(),
                "seed {seed}, aggregate {aggregate}: {order:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_failing_message_holds_back_its_own_aggregate_only() {
    let store = MemoryStore::new();
    let script = Script::new(|d| match d.aggregate.as_ref().map(|a| a.id.as_str()) {
        Some("bad") => Outcome::retry(Code::UPSTREAM_5XX, "no"),
        _ => Outcome::Stored,
    });
    let mut all = vec![message("bad", 1), message("bad", 2)];
    all.extend((1..=30).map(|v| message("good", v)));
    enqueue(&store, &all).await;

    let _engine = start(&store, spec(&script)).await;

    eventually("the bad one is parked", || async {
        !parked(&store).await.is_empty()
    })
    .await;
    script
        .until("all good ones arrive", |s| {
            s.iter().filter(|d| d.version > Some(2)).count() == 28
        })
        .await;
    let bad: Vec<i64> = script.first_deliveries()["bad"].clone();
    assert_eq!(bad, [1], "version 2 waits behind the parked version 1");
}

#[tokio::test]
async fn what_waits_behind_a_parked_message_goes_on_in_order_after_its_redrive() {
    let store = MemoryStore::new();
    let (heal, healed) = tokio::sync::watch::channel(false);
    let script = Script::new(move |d| {
        if d.version == Some(2) && !*healed.borrow() {
            Outcome::refused(Code::UPSTREAM_4XX, "no")
        } else {
            Outcome::Stored
        }
    });
    let all: Vec<_> = (1..=40).map(|v| message("a", v)).collect();
    let ids = enqueue(&store, &all).await;
    let engine = start(&store, spec(&script)).await;
    eventually("version 2 is parked", || async {
        parked(&store).await.len() == 1
    })
    .await;
    eventually("the rest is put aside", || async {
        stats(&store).await.held == 38
    })
    .await;
    enqueue(&store, &[message("a", 41)]).await;
    engine.nudge().nudge();

    heal.send_replace(true);
    let redriven = store
        .redrive(&[ids[1].to_string()], false, "ann")
        .await
        .unwrap();
    assert_eq!(redriven.redriven, [ids[1]]);
    engine.nudge().nudge();

    until_empty(&store).await;
    assert_eq!(script.first_deliveries()["a"], (1..=41).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_aggregate_that_is_redriven_together_arrives_in_order() {
    for seed in 0..4 {
        let store = MemoryStore::new();
        let (heal, healed) = tokio::sync::watch::channel(false);
        let script = Script::new(move |d| {
            if d.version <= Some(6) && !*healed.borrow() {
                Outcome::refused(Code::UPSTREAM_4XX, "no")
            } else {
                Outcome::Stored
            }
        });
        let all: Vec<_> = (1..=12).map(|v| message("a", v)).collect();
        let mut ids = enqueue(&store, &all).await;
        // Under `skip` all six are parked, one after the other.
        let engine = start(&store, skipping(&script)).await;
        eventually("six are parked", || async {
            parked(&store).await.len() == 6
        })
        .await;
        until_empty(&store).await;
        let before = script.seen().len();

        heal.send_replace(true);
        ids.truncate(6);
        fastrand::Rng::with_seed(seed).shuffle(&mut ids);
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        store.redrive(&ids, false, "ann").await.unwrap();
        engine.nudge().nudge();
        until_empty(&store).await;

        let again: Vec<_> = script.seen()[before..].iter().map(|d| d.version).collect();
        assert_eq!(again, (1..=6).map(Some).collect::<Vec<_>>(), "seed {seed}");
        engine.stop().await;
    }
}

#[tokio::test]
async fn what_waits_behind_a_parked_message_goes_on_when_that_is_ignored() {
    let store = MemoryStore::new();
    let script = Script::new(|d| {
        if d.version == Some(1) {
            Outcome::refused(Code::UPSTREAM_4XX, "no")
        } else {
            Outcome::Stored
        }
    });
    let all: Vec<_> = (1..=12).map(|v| message("a", v)).collect();
    let ids = enqueue(&store, &all).await;
    let _engine = start(&store, spec(&script)).await;
    eventually("the rest is put aside", || async {
        stats(&store).await.held == 11
    })
    .await;

    let one = [ids[0].to_string()];
    store.ignore(&one, "never mind", "ann").await.unwrap();

    until_empty(&store).await;
    assert_eq!(script.first_deliveries()["a"], (1..=12).collect::<Vec<_>>());
    assert_eq!(
        script.seen().len(),
        12,
        "the ignored one is not tried again"
    );
}

#[tokio::test]
async fn a_hot_aggregate_does_not_keep_the_others_out() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let mut all: Vec<_> = (1..=500).map(|v| message("hot", v)).collect();
    all.push(message("cold", 1));
    enqueue(&store, &all).await;

    let _engine = start(&store, spec(&script)).await;
    until_empty(&store).await;

    let seen = script.seen();
    let cold = seen
        .iter()
        .position(|d| d.aggregate.as_ref().is_some_and(|a| a.id == "cold"))
        .unwrap();
    assert!(cold < 400, "the cold one came at place {cold}");
    assert_eq!(
        script.first_deliveries()["hot"],
        (1..=500).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_late_commit_is_neither_lost_nor_overtaken() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let engine = start(&store, spec(&script)).await;

    let mut late = store.begin();
    late.enqueue(&[message("a", 1)]).await.unwrap();
    for n in 1..=100 {
        enqueue(&store, &[message(format!("other-{n}"), 1)]).await;
    }
    engine.nudge().nudge();
    script
        .until("the others pass", |seen| seen.len() == 100)
        .await;
    late.commit().await.unwrap();
    enqueue(&store, &[message("a", 2)]).await;
    engine.nudge().nudge();

    until_empty(&store).await;
    assert_eq!(script.first_deliveries()["a"], [1, 2]);
}

#[tokio::test]
async fn a_scheduled_message_holds_nobody_back() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let later = chrono::Utc::now() + chrono::Duration::days(400);
    enqueue(
        &store,
        &[message("a", 1).not_before(later), message("a", 2)],
    )
    .await;

    let _engine = start(&store, spec(&script)).await;
    script
        .until("version 2 passes", |seen| seen.len() == 1)
        .await;
    eventually("version 1 is put aside", || async {
        stats(&store).await.scheduled == 1
    })
    .await;

    store
        .clock()
        .advance(std::time::Duration::from_secs(401 * 86_400));
    script
        .until("version 1 arrives in its time", |seen| seen.len() == 2)
        .await;
}
