//! Which keys are fresh.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::inbox::Mode;
use counterfoil_core::message::Aggregate;
use counterfoil_core::store::StoreError;

use super::fixture::{CONSUMER, RIVAL};
use super::harness::InboxHarness;
use crate::fixture::{Fixture, lane};

/// Also in the same transaction.
pub async fn a_first_arrival_is_fresh_and_the_second_is_not<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    assert_eq!(t.admit(&mut tx, &["a", "b"], &[]).await.fresh.len(), 2);
    let again = t.admit(&mut tx, &["b", "c"], &[]).await;
    assert_eq!(again.fresh, ["c".to_owned()].into());
    t.end(tx, &[]).await;

    assert_eq!(t.arrive(&["a", "b", "c", "d"]).await, ["d"]);
    assert!(t.arrive(&["a", "b", "c", "d"]).await.is_empty());
}

/// Nothing happened, so it may happen.
pub async fn a_rolled_back_arrival_leaves_the_key_fresh<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a"], &[&lane(1)]).await;
    t.harness.insert(&mut tx, 1).await.unwrap();
    t.harness.finish(&mut tx, CONSUMER, &[]).await.unwrap();
    t.harness.rollback(tx).await;

    assert_eq!(t.arrive(&["a"]).await, ["a"]);
    assert!(t.harness.rows().await.is_empty());
}

/// As when the process dies.
pub async fn a_dropped_transaction_leaves_the_key_fresh<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a"], &[]).await;
    t.harness.insert(&mut tx, 1).await.unwrap();
    drop(tx);

    assert_eq!(t.arrive(&["a"]).await, ["a"]);
    assert!(t.harness.rows().await.is_empty());
}

/// The same message on two machines.
pub async fn an_arrival_waits_for_an_open_one_and_is_a_repeat_after_its_commit<H: InboxHarness>(
    t: Fixture<H>,
) {
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a", "b", "c"], &[]).await;
    let mut other = t.elsewhere(Mode::Arrival, "b", None);
    other.waits().await;

    t.end(tx, &[]).await;

    assert!(other.told().await.fresh.is_empty());
}

/// The first one failed.
pub async fn an_arrival_waits_for_an_open_one_and_is_fresh_after_its_rollback<H: InboxHarness>(
    t: Fixture<H>,
) {
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a", "b", "c"], &[]).await;
    let mut other = t.elsewhere(Mode::Arrival, "b", None);
    other.waits().await;

    t.harness.rollback(tx).await;

    assert_eq!(other.told().await.fresh, ["b".to_owned()].into());
    assert_eq!(t.arrive(&["a", "b", "c"]).await, ["a", "c"]);
}

/// And do not wait for each other, where two can write.
pub async fn consumers_do_not_share_keys<H: InboxHarness>(t: Fixture<H>) {
    if t.harness.concurrent_writers() {
        let mut tx = t.consume().await;
        t.admit(&mut tx, &["a"], &[&lane(1)]).await;
        assert_eq!(t.process(RIVAL, Mode::Arrival, &["a"]).await, ["a"]);
        t.end(tx, &[]).await;
    } else {
        assert_eq!(t.arrive(&["a"]).await, ["a"]);
        assert_eq!(t.process(RIVAL, Mode::Arrival, &["a"]).await, ["a"]);
    }
    for name in ["Stock", "stock ", "stöck", "s"] {
        assert_eq!(
            t.process(name, Mode::Arrival, &["a"]).await,
            ["a"],
            "{name}"
        );
    }

    assert!(t.arrive(&["a"]).await.is_empty());
    assert!(t.process(RIVAL, Mode::Arrival, &["a"]).await.is_empty());
}

/// Bytes are compared, and nothing in a key means anything.
pub async fn keys_that_look_alike_are_different<H: InboxHarness>(t: Fixture<H>) {
    let (long, wide) = ("x".repeat(255), "\u{1f4b6}".repeat(63));
    let mut keys = vec![
        "a",
        "A",
        "a ",
        "a  ",
        " a",
        "ä",
        "a\u{308}",
        "å",
        "ss",
        "ß",
        "\u{1f4b6}",
        "\u{1f4b7}",
        "'; DROP TABLE counterfoil_inbox; --",
        "\"",
        "\\",
        "\\u0041",
        "[1]",
        "null",
        "1",
        "1.0",
        "%",
        "_",
        "?",
        "$1",
        "{}",
        "\u{feff}a",
        "a\u{a0}",
        &long,
        &long[..254],
        &wide,
        "ﬁ",
        "fi",
    ];
    keys.sort_unstable();

    assert_eq!(t.arrive(&keys).await, keys);
    assert!(t.arrive(&keys).await.is_empty());
    for key in &keys {
        assert!(t.arrive(&[key]).await.is_empty(), "{key:?}");
        assert_eq!(t.process(RIVAL, Mode::Arrival, &[key]).await, [*key]);
    }
}

/// The transaction goes on.
pub async fn a_name_that_cannot_be_stored_is_refused_before_anything_is_written<H: InboxHarness>(
    t: Fixture<H>,
) {
    let long = "x".repeat(256);
    let mut tx = t.consume().await;
    for key in ["", "a\0b", "\0", "a\nb", &long] {
        let refused = t.try_admit(&mut tx, Mode::Arrival, &["a", key], &[]).await;
        assert!(matches!(refused, Err(StoreError::Message(_))), "{key:?}");
        let aggregate = Aggregate::new("order", key);
        let refused = t
            .try_admit(&mut tx, Mode::Retry, &["a"], &[&aggregate])
            .await;
        assert!(matches!(refused, Err(StoreError::Message(_))), "{key:?}");
    }

    assert_eq!(t.admit(&mut tx, &["a"], &[&lane(1)]).await.fresh.len(), 1);
    t.end(tx, &[]).await;
}

/// Some of them were there.
pub async fn a_large_batch_is_told_key_by_key<H: InboxHarness>(t: Fixture<H>) {
    let all: Vec<String> = (0..600).map(|n| format!("key-{n:04}")).collect();
    let (mut odd, mut even) = (Vec::new(), Vec::new());
    for (n, key) in all.iter().enumerate() {
        let half = if n % 2 == 1 { &mut odd } else { &mut even };
        half.push(key.as_str());
    }
    assert_eq!(t.arrive(&odd).await, odd);

    let every: Vec<&str> = all.iter().map(String::as_str).collect();

    assert_eq!(t.arrive(&every).await, even);
}

/// A batch may turn out to be empty.
pub async fn nothing_at_all_is_admitted_too<H: InboxHarness>(t: Fixture<H>) {
    assert!(t.arrive(&[]).await.is_empty());
    assert_eq!(t.arrive(&["a"]).await, ["a"]);
    assert!(t.arrive(&["a"]).await.is_empty());
    assert!(t.process(CONSUMER, Mode::Retry, &[]).await.is_empty());
}

/// No connection goes back to the pool inside a transaction.
pub async fn a_caller_that_goes_away_while_it_begins_leaves_nothing<H: InboxHarness>(
    t: Fixture<H>,
) {
    for n in 0..60 {
        let wait = Duration::from_micros(n * 25);
        let harness = Arc::clone(&t.harness);
        // Whether it came in time or not, what it began is dropped.
        let _ = tokio::time::timeout(wait, harness.begin_consumer()).await;
    }

    for n in 0..12 {
        let key = format!("k{n}");
        assert_eq!(t.arrive(&[&key]).await.len(), 1);
        assert!(t.arrive(&[&key]).await.is_empty());
    }
}
