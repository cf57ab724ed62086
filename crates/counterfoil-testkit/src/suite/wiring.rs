//! The rest of the contract: schema, wake-up, pauses, unavailable destinations.

use std::time::Duration;

use chrono::DateTime;
use counterfoil_core::explain::Facts;
use counterfoil_core::policy::breaker::Forced;
use counterfoil_core::store::{MAX_SHARDS, Opened, Outage, Remember, Retention};

use crate::fixture::{Fixture, OTHER, QUEUE, message, messages};
use crate::harness::Harness;

/// A store says what it is.
pub async fn a_store_describes_itself<H: Harness>(t: Fixture<H>) {
    let (name, shards) = (t.store.describe(), t.store.shards());

    assert!(!name.is_empty() && !name.contains('\n'));
    assert!((1..=MAX_SHARDS).contains(&shards));
    assert_eq!(t.harness.second_store().await.shards(), shards);
    t.store.check().await.unwrap();
}

/// Migrating again, and by several at once, changes nothing.
pub async fn migrations_can_be_run_again_and_by_several_at_once<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(t.harness.second_store().await);
    }

    let running: Vec<_> = others
        .into_iter()
        .map(|s| tokio::spawn(async move { s.migrate().await }))
        .collect();
    for one in running {
        one.await.unwrap().unwrap();
    }

    t.store.check().await.unwrap();
    let relay = t.relay(&[QUEUE]).await;
    assert_eq!(relay.read(QUEUE).await.len(), 2);
}

/// Since when nobody answers is remembered until somebody does.
pub async fn an_unavailable_destination_is_remembered<H: Harness>(t: Fixture<H>) {
    let first = t
        .store
        .note_unavailable(QUEUE, true)
        .await
        .unwrap()
        .unwrap();
    let second = t
        .store
        .note_unavailable(QUEUE, true)
        .await
        .unwrap()
        .unwrap();
    let noted = t.stats().await;

    let over = t.store.note_unavailable(QUEUE, false).await.unwrap();
    let never = t.store.note_unavailable(OTHER, false).await.unwrap();

    assert!(first < Duration::from_secs(60) && second >= first);
    let queue = noted.iter().find(|s| s.queue == QUEUE).unwrap();
    assert!(queue.unavailable_since.is_some());
    assert_eq!((over, never), (None, None));
    let stats = t.stats().await;
    assert!(stats.iter().all(|s| s.unavailable_since.is_none()));
}

/// What is remembered of breakers is there for the next process, under any name.
pub async fn what_is_remembered_of_breakers_outlives_the_process<H: Harness>(t: Fixture<H>) {
    assert_eq!(t.store.breakers().await.unwrap(), []);
    let until = DateTime::from_timestamp_millis(1_900_000_000_123).unwrap();
    let open = Remember::Open {
        until: Some(until),
        open_for: Some(Duration::from_millis(4_500)),
        outage: None,
    };
    let odd = "Straße 'x'; -- \u{1f980}";
    t.store.remember_breaker(QUEUE, &open).await.unwrap();
    t.store
        .remember_breaker(odd, &forced(Some(Forced::Open)))
        .await
        .unwrap();
    t.store
        .remember_breaker("a", &forced(Some(Forced::Closed)))
        .await
        .unwrap();
    t.store.remember_breaker("A", &forced(None)).await.unwrap();

    let mut kept = t.harness.second_store().await.breakers().await.unwrap();

    kept.sort_by(|a, b| a.destination.cmp(&b.destination));
    let found = |name: &str| kept.iter().find(|k| k.destination == name).unwrap();
    assert_eq!(kept.len(), 4, "{kept:?}");
    assert_eq!(found(QUEUE).snapshot.open_until, Some(until));
    assert_eq!(
        found(QUEUE).snapshot.open_for,
        Some(Duration::from_millis(4_500))
    );
    assert_eq!(found(odd).snapshot.forced, Some(Forced::Open));
    assert_eq!(found(odd).by.as_deref(), Some("anna"));
    assert_eq!(found("a").snapshot.forced, Some(Forced::Closed));
    assert_eq!(found("A").snapshot.forced, None);
}

/// What a process tells about its breaker does not touch what an operator wants, and the other way
/// round.
pub async fn an_operators_word_and_an_open_breaker_are_kept_apart<H: Harness>(t: Fixture<H>) {
    let until = DateTime::from_timestamp_millis(1_900_000_000_000);
    let open = |until| Remember::Open {
        until,
        open_for: None,
        outage: None,
    };
    let s = &t.store;
    s.remember_breaker(QUEUE, &forced(Some(Forced::Open)))
        .await
        .unwrap();
    s.remember_breaker(QUEUE, &open(until)).await.unwrap();
    let both = s.breakers().await.unwrap().remove(0).snapshot;
    s.remember_breaker(QUEUE, &open(None)).await.unwrap();
    let word = s.breakers().await.unwrap().remove(0).snapshot;
    s.remember_breaker(QUEUE, &open(until)).await.unwrap();
    s.remember_breaker(QUEUE, &forced(None)).await.unwrap();
    let state = s.breakers().await.unwrap().remove(0).snapshot;

    assert_eq!((both.forced, both.open_until), (Some(Forced::Open), until));
    assert_eq!((word.forced, word.open_until), (Some(Forced::Open), None));
    assert_eq!((state.forced, state.open_until), (None, until));
    assert_eq!(s.breakers().await.unwrap().len(), 1);
}

fn forced(forced: Option<Forced>) -> Remember {
    let by = "anna".into();
    Remember::Forced { forced, by }
}

/// Who pauses first has said why.
pub async fn pausing_twice_keeps_the_first_reason<H: Harness>(t: Fixture<H>) {
    t.store
        .pause(QUEUE, "401 from the destination", "relay")
        .await
        .unwrap();
    t.desk.pause_queue(QUEUE, "lunch", "bob").await.unwrap();

    let stats = t.stats().await;
    let reason = stats[0].paused.clone().unwrap();
    assert!(
        reason.contains("401 from the destination") && reason.contains("relay"),
        "{reason}"
    );
    assert!(t.desk.resume_queue(QUEUE, "bob").await.unwrap());
    t.desk.pause_queue(QUEUE, "lunch", "bob").await.unwrap();
    let stats = t.stats().await;
    assert!(stats[0].paused.clone().unwrap().contains("lunch"));
}

/// Every pause and every resume says who did it; what changed nothing leaves no line.
pub async fn a_queue_tells_who_paused_and_resumed_it<H: Harness>(t: Fixture<H>) {
    t.desk.pause_queue(QUEUE, "lunch", "bob").await.unwrap();
    t.store.pause(QUEUE, "401", "relay").await.unwrap();
    t.desk.pause_queue(OTHER, "dinner", "eve").await.unwrap();
    assert!(t.desk.resume_queue(QUEUE, "ann").await.unwrap());
    assert!(!t.desk.resume_queue(QUEUE, "eve").await.unwrap());
    t.store.pause(QUEUE, "401", "relay").await.unwrap();

    let story = t.desk.queue_history(QUEUE).await.unwrap();

    let lines: Vec<_> = story
        .iter()
        .map(|e| {
            let actor = e.actor.as_deref().unwrap();
            (e.kind.as_str(), actor, e.detail.as_deref())
        })
        .collect();
    assert_eq!(
        lines,
        [
            ("paused", "bob", Some("lunch")),
            ("resumed", "ann", None),
            ("paused", "relay", Some("401")),
        ]
    );
    assert!(story.is_sorted_by_key(|e| e.at));
    assert!(t.desk.queue_history("nobody").await.unwrap().is_empty());
    t.harness.age_history(Duration::from_secs(86_400)).await;
    let short = Retention {
        history: Duration::from_secs(3_600),
        ledger: Duration::from_secs(3_600),
        ..Retention::default()
    };
    assert_eq!(t.store.sweep(&short).await.unwrap(), 4);
    assert!(t.desk.queue_history(QUEUE).await.unwrap().is_empty());
}

/// What is neither a message nor a queue has a history, too.
pub async fn a_note_says_who_did_what_and_why<H: Harness>(t: Fixture<H>) {
    let subject = format!("guard:{}", "0af".repeat(21));
    t.desk.pause_queue(QUEUE, "lunch", "bob").await.unwrap();
    t.desk
        .note(&subject, "forgotten", "paid twice by hand", "ann")
        .await
        .unwrap();
    t.desk
        .note(&subject, "did-not-happen", "\u{202e}ü'\"", "eve")
        .await
        .unwrap();

    let story = t.desk.queue_history(&subject).await.unwrap();

    let lines: Vec<_> = story
        .iter()
        .map(|e| (e.kind.as_str(), e.actor.as_deref(), e.detail.as_deref()))
        .collect();
    assert_eq!(
        lines,
        [
            ("forgotten", Some("ann"), Some("paid twice by hand")),
            ("did-not-happen", Some("eve"), Some("\u{202e}ü'\"")),
        ]
    );
    assert_eq!(t.desk.queue_history(QUEUE).await.unwrap().len(), 1);
    assert!(
        t.stats().await.iter().all(|q| q.queue == QUEUE),
        "no queue has this name"
    );
}

/// A pause and a note about the destination do not disturb each other.
pub async fn a_pause_and_an_outage_are_kept_apart<H: Harness>(t: Fixture<H>) {
    t.store.note_unavailable(QUEUE, true).await.unwrap();
    t.desk.pause_queue(QUEUE, "lunch", "bob").await.unwrap();

    t.store.note_unavailable(QUEUE, false).await.unwrap();
    let paused = t.stats().await;
    t.store.note_unavailable(QUEUE, true).await.unwrap();
    t.desk.resume_queue(QUEUE, "bob").await.unwrap();

    assert!(paused[0].paused.is_some());
    let stats = t.stats().await;
    assert!(stats[0].paused.is_none() && stats[0].unavailable_since.is_some());
}

/// A relay that listens hears what another process announces.
pub async fn an_announcement_wakes_whoever_listens<H: Harness>(t: Fixture<H>) {
    let Some(mut wake) = t.store.listen().await.unwrap() else {
        return;
    };
    let other = t.harness.second_store().await;

    for _ in 0..3 {
        t.put(&[message("a", 1)]).await;
        other.announce().await.unwrap();

        let heard = tokio::time::timeout(Duration::from_secs(20), wake.wait()).await;
        heard.expect("nothing was heard").unwrap();
    }
}

/// An open breaker is seen by who looks at its queue, or asks for a message in it.
pub async fn an_open_breaker_is_shown_with_its_error_and_its_next_probe<H: Harness>(t: Fixture<H>) {
    let all = [message("a", 1), message("b", 1).queue(OTHER)];
    t.put(&all).await;
    let (since, until) = (
        DateTime::from_timestamp_millis(1_800_000_000_123).unwrap(),
        DateTime::from_timestamp_millis(1_900_000_000_456).unwrap(),
    );
    let error = "UPSTREAM_5XX: 503 Stra\u{df}e \u{1f980}";
    let open = |until: Option<DateTime<_>>| Remember::Open {
        until,
        open_for: until.map(|_| Duration::from_secs(30)),
        outage: until.map(|_| Outage {
            since,
            error: Some(error.into()),
        }),
    };
    let breaker = async |queue: &str| {
        let stats = t.stats().await;
        stats
            .into_iter()
            .find(|s| s.queue == queue)
            .unwrap()
            .breaker
    };
    let explained = async |n: usize| match t.desk.facts(&all[n].id.to_string()).await.unwrap() {
        Facts::Pending(pending) => pending.breaker,
        other => panic!("{other:?}"),
    };

    let s = &t.store;
    s.remember_breaker(QUEUE, &open(Some(until))).await.unwrap();
    let expected = Some(Opened {
        since: Some(since),
        error: Some(error.into()),
        next_probe: Some(until),
        held_by: None,
    });
    assert_eq!(breaker(QUEUE).await, expected);
    assert_eq!(explained(0).await, expected);
    assert_eq!((breaker(OTHER).await, explained(1).await), (None, None));

    s.remember_breaker(QUEUE, &forced(Some(Forced::Open)))
        .await
        .unwrap();
    let held = breaker(QUEUE).await.unwrap();
    assert_eq!(held.held_by.as_deref(), Some("anna"));
    assert_eq!(held.next_probe, None);

    s.remember_breaker(QUEUE, &forced(None)).await.unwrap();
    s.remember_breaker(QUEUE, &open(None)).await.unwrap();
    assert_eq!((breaker(QUEUE).await, explained(0).await), (None, None));
}
