//! A destination in trouble: its messages wait, others go on, and nobody uses up attempts in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_core::desk::{Desk, Filter};
use counterfoil_core::policy::breaker::{Forced, State};
use counterfoil_core::policy::{Backoff, Ratio, budget};
use counterfoil_core::store::Store;
use counterfoil_core::{Code, Outcome};
use counterfoil_engine::{Engine, EngineBuilder, QueueSpec, SettingsError, StartError};
use counterfoil_testkit::memory::MemoryStore;

use crate::support::*;

/// A destination that fails as long as the switch is on.
fn broken(switch: &Arc<AtomicBool>, outcome: fn() -> Outcome) -> Arc<Script> {
    let switch = Arc::clone(switch);
    Script::new(move |_| match switch.load(Ordering::SeqCst) {
        true => outcome(),
        false => Outcome::Stored,
    })
}

fn failed() -> Outcome {
    Outcome::retry(Code::UPSTREAM_5XX, "no")
}

fn nobody() -> Outcome {
    Outcome::Unavailable {
        error: "nobody".into(),
    }
}

#[tokio::test]
async fn a_destination_in_trouble_gets_probes_only_and_its_messages_wait_without_attempts() {
    for outcome in [failed, nobody] {
        let store = MemoryStore::new();
        let down = Arc::new(AtomicBool::new(true));
        let script = broken(&down, outcome);
        let healthy = Script::new(|_| Outcome::Stored);
        let all: Vec<_> = (0..200).map(|a| message(a, 1)).collect();
        enqueue(&store, &all).await;
        let engine = EngineBuilder::new(Arc::new(store.clone()))
            .settings(settings())
            .queue(spec(&script))
            .queue(QueueSpec {
                name: "other".into(),
                ..spec(&healthy)
            })
            .start()
            .await
            .unwrap();
        let breaker = engine.registry().get(QUEUE).unwrap();

        eventually("the breaker opens", || async {
            breaker.state() == State::Open
        })
        .await;
        let before = script.calls().len();
        // Two probes have failed.
        eventually("probes are sent", || async {
            script.calls().len() >= before + 2
        })
        .await;

        let calls = script.calls();
        let probes = &calls[calls.len() - 2..];
        assert!(probes[1].0 - probes[0].0 >= Duration::from_millis(500));
        assert!(probes.iter().all(|(_, batch)| *batch == 1), "{probes:?}");
        assert!(calls.len() < 40, "{}", calls.len());
        let untouched = store.outbox(&Filter::default()).await.unwrap();
        let spent: u32 = untouched.iter().map(|e| e.attempts).sum();
        assert!(spent < 100, "attempts wait for better times: {spent}");
        let others: Vec<_> = (0..50).map(|a| message(a, 1).queue("other")).collect();
        enqueue(&store, &others).await;
        engine.nudge().nudge();
        healthy
            .until("the other queue flows", |seen| seen.len() == 50)
            .await;

        down.store(false, Ordering::SeqCst);
        until_empty(&store).await;
        assert!(parked(&store).await.is_empty());
        assert_eq!(breaker.state(), State::Closed);
    }
}

#[tokio::test]
async fn one_message_that_always_fails_says_nothing_about_its_destination() {
    let store = MemoryStore::new();
    let script = Script::new(|_| failed());
    enqueue(&store, &[message("bad", 1)]).await;

    let engine = start(
        &store,
        QueueSpec {
            backoff: quick(40),
            ..spec(&script)
        },
    )
    .await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;

    let status = engine.registry().list().remove(0);
    assert_eq!(status.breaker, State::Closed);
    assert_eq!(script.calls().len(), 40);
}

#[tokio::test]
async fn messages_that_pass_at_the_second_attempt_get_through_although_every_first_one_fails() {
    let store = MemoryStore::new();
    let script = Script::new(|d| match d.attempt {
        1 => failed(),
        _ => Outcome::Stored,
    });
    let all: Vec<_> = (0..200).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;

    let engine = start(&store, spec(&script)).await;
    until_empty(&store).await;

    assert_eq!(script.seen().len(), 400);
    assert!(parked(&store).await.is_empty());
    drop(engine);
}

#[tokio::test]
async fn a_handlers_own_failures_do_not_open_its_breaker() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::retry(Code::TASK_FAILED, "not yet"));
    let all: Vec<_> = (0..60).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;

    let engine = start(
        &store,
        QueueSpec {
            backoff: quick(3),
            ..spec(&script)
        },
    )
    .await;
    eventually("all are parked", || async {
        parked(&store).await.len() == 60
    })
    .await;

    assert_eq!(engine.registry().list()[0].breaker, State::Closed);
}

/// Another queue shows by its messages that the relay is awake and has looked.
async fn start_two(store: &MemoryStore, script: &Arc<Script>, other: &Arc<Script>) -> Engine {
    EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings())
        .queue(spec(script))
        .queue(QueueSpec {
            name: "other".into(),
            ..spec(other)
        })
        .start()
        .await
        .unwrap()
}

#[tokio::test]
async fn an_operator_holds_a_destination_back_and_lets_it_go_on() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let other = Script::new(|_| Outcome::Stored);
    let engine = start_two(&store, &script, &other).await;
    let destination = engine.registry().get(QUEUE).unwrap();

    destination.force(Some(Forced::Open), "anna");
    enqueue(&store, &[message("a", 1)]).await;
    for n in 1..=20 {
        // Another queue shows that the relay is awake and has looked.
        enqueue(&store, &[message("b", n).queue("other")]).await;
        engine.nudge().nudge();
        other
            .until("the relay looks", |seen| seen.len() as i64 == n)
            .await;
    }
    assert!(script.calls().is_empty());

    destination.force(None, "anna");
    until_empty(&store).await;
    assert_eq!(script.calls().len(), 1);
}

#[tokio::test]
async fn retries_without_a_budget_wait_and_use_up_no_attempts() {
    let store = MemoryStore::new();
    let script = Script::new(|d| match d.attempt {
        1 => Outcome::retry(Code::TASK_FAILED, "once"),
        _ => Outcome::Stored,
    });
    let all: Vec<_> = (0..10).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;

    let engine = start(
        &store,
        QueueSpec {
            budget: budget::Limits {
                ratio: Ratio::ZERO,
                floor: 3,
                cap: 3,
                ..budget::Limits::DEFAULT
            },
            ..spec(&script)
        },
    )
    .await;
    let waiting = Filter {
        code: Some("RETRY_BUDGET".into()),
        ..Filter::default()
    };
    eventually("seven wait", || async {
        store.outbox(&waiting).await.unwrap().len() == 7
    })
    .await;

    let again = script.seen().iter().filter(|d| d.attempt > 1).count();
    assert_eq!(again, 3);
    let rows = store.outbox(&waiting).await.unwrap();
    assert!(rows.iter().all(|row| row.attempts == 1), "{rows:?}");
    assert_eq!(engine.registry().list()[0].retries_left, 0);
}

/// A destination that answers everything with this code, and asks for ten minutes.
async fn asks_for_time(code: Code, messages: i64) -> (Engine, Arc<Script>) {
    let store = MemoryStore::new();
    let script = Script::new(move |_| Outcome::Retry {
        code: code.clone(),
        error: "not now".into(),
        after: Some(Duration::from_secs(600)),
    });
    let all: Vec<_> = (0..messages).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;
    (start(&store, spec(&script)).await, script)
}

#[tokio::test]
async fn a_destination_that_keeps_asking_for_a_pause_gets_it() {
    let (engine, script) = asks_for_time(Code::UPSTREAM_4XX, 500).await;
    let destination = engine.registry().get(QUEUE).unwrap();
    eventually("it waits", || async {
        destination.wait() > Some(Duration::from_secs(20))
    })
    .await;

    assert_eq!(destination.state(), State::Closed);
    assert!(script.calls().len() <= 5 + 3, "{}", script.calls().len());
}

#[tokio::test]
async fn a_destination_that_fails_and_asks_for_time_gets_it() {
    let (engine, _) = asks_for_time(Code::UPSTREAM_5XX, 100).await;
    let breaker = engine.registry().get(QUEUE).unwrap();

    eventually("the breaker opens", || async {
        breaker.state() == State::Open
    })
    .await;

    let usual = QueueSpec::BREAKER.open_for;
    assert!(breaker.wait().unwrap() > usual, "30 s, less what it took");
    engine.stop().await;
}

#[tokio::test]
async fn nothing_is_sent_while_others_have_all_places_of_the_destination() {
    let store = MemoryStore::new();
    let crowded = Arc::new(AtomicBool::new(true));
    let (seen, too_many) = (Arc::clone(&crowded), Arc::new(AtomicBool::new(false)));
    let broken = Arc::clone(&too_many);
    let script = Script::new(move |_| {
        broken.fetch_or(seen.load(Ordering::SeqCst), Ordering::SeqCst);
        Outcome::Stored
    });
    let other = Script::new(|_| Outcome::Stored);
    let engine = start_two(&store, &script, &other).await;
    let dependency = engine.registry().get(QUEUE).unwrap();
    let mut places = Vec::new();
    while dependency.has_room() {
        places.extend(dependency.try_enter());
    }

    enqueue(&store, &[message(1, 1)]).await;
    // Its turns are those of the other queue, too.
    for n in 0..20 {
        enqueue(&store, &[message(n, 1).queue("other")]).await;
        other.until("a turn", |seen| seen.len() > n).await;
    }
    crowded.store(false, Ordering::SeqCst);
    places.clear();

    until_empty(&store).await;
    assert!(!too_many.load(Ordering::SeqCst));
    assert_eq!(script.seen().len(), 1);
    engine.stop().await;
}

#[tokio::test]
async fn limits_that_cannot_be_are_refused_at_the_start() {
    let script = Script::new(|_| Outcome::Stored);
    let mut queue = spec(&script);
    queue.backoff = Backoff::DEFAULT;
    queue.breaker.probes = 0;

    let refused = EngineBuilder::new(Arc::new(MemoryStore::new()))
        .queue(queue)
        .start()
        .await;

    let error = refused.err().unwrap();
    assert!(
        matches!(&error, StartError::Settings(SettingsError::Limits { queue, .. }) if queue == QUEUE),
        "{error}"
    );
}

#[tokio::test]
async fn what_an_operator_said_holds_after_a_restart() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let engine = start(&store, spec(&script)).await;
    let destination = engine.registry().get(QUEUE).unwrap();
    destination.force(Some(Forced::Open), "anna");
    eventually("it is kept", || async {
        !store.breakers().await.unwrap().is_empty()
    })
    .await;
    engine.stop().await;
    enqueue(&store, &[message("a", 1)]).await;

    let engine = start(&store, spec(&script)).await;

    let destination = engine.registry().get(QUEUE).unwrap();
    assert_eq!(destination.status().forced, Some(Forced::Open));
    assert!(script.calls().is_empty());
    destination.force(None, "anna");
    until_empty(&store).await;
}

#[tokio::test]
async fn an_open_breaker_is_shown_with_the_last_error_and_the_next_probe() {
    let store = MemoryStore::new();
    let switch = Arc::new(AtomicBool::new(true));
    let script = broken(&switch, || {
        Outcome::retry(Code::UPSTREAM_5XX, "503 Service Unavailable")
    });
    let all: Vec<_> = (0..50).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;

    let _engine = start(&store, spec(&script)).await;
    eventually("the breaker is shown", || async {
        stats(&store).await.breaker.is_some()
    })
    .await;
    let shown = stats(&store).await.breaker.unwrap();
    let error = shown.error.as_deref();
    assert_eq!(error, Some("UPSTREAM_5XX: 503 Service Unavailable"));
    assert!(shown.since.is_some() && shown.next_probe.is_some());

    switch.store(false, Ordering::SeqCst);
    until_empty(&store).await;
    eventually("the breaker is closed", || async {
        stats(&store).await.breaker.is_none()
    })
    .await;
}
