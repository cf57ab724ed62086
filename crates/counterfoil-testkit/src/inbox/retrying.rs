//! What was put off comes back, once.

use counterfoil_core::inbox::Mode;

use super::fixture::{CONSUMER, RIVAL, failed};
use super::harness::InboxHarness;
use crate::fixture::{Fixture, lane};

/// The outbox has it already.
pub async fn what_is_put_off_is_a_repeat_for_arrivals<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1)]).await;

    assert!(t.arrive(&["a"]).await.is_empty());
    assert!(t.arrive(&["a"]).await.is_empty());
    assert_eq!(t.process(RIVAL, Mode::Arrival, &["a"]).await, ["a"]);
}

/// A relay that died before it could tell hands the row out again.
pub async fn a_retry_is_admitted_once<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1), failed("b", 2, 1)]).await;

    assert_eq!(t.process(CONSUMER, Mode::Retry, &["a"]).await, ["a"]);
    assert!(t.process(CONSUMER, Mode::Retry, &["a"]).await.is_empty());
    assert_eq!(t.process(CONSUMER, Mode::Retry, &["a", "b"]).await, ["b"]);
    assert!(t.arrive(&["a", "b"]).await.is_empty());
}

/// It failed again.
pub async fn a_retry_that_is_rolled_back_still_waits<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1)]).await;
    for _ in 0..2 {
        let mut tx = t.consume().await;
        let admitted = t.try_admit(&mut tx, Mode::Retry, &["a"], &[&lane(1)]).await;
        assert_eq!(admitted.unwrap().fresh.len(), 1);
        t.harness.rollback(tx).await;
    }

    assert!(t.arrive(&["a"]).await.is_empty());
    assert_eq!(t.process(CONSUMER, Mode::Retry, &["a"]).await, ["a"]);
}

/// An operator may redrive what is older than the ledger.
pub async fn a_retry_of_what_was_forgotten_is_admitted<H: InboxHarness>(t: Fixture<H>) {
    assert_eq!(t.process(CONSUMER, Mode::Retry, &["a"]).await, ["a"]);
    assert!(t.process(CONSUMER, Mode::Retry, &["a"]).await.is_empty());
    assert!(t.arrive(&["a"]).await.is_empty());
}

/// Whatever the outbox says.
pub async fn a_retry_of_what_was_applied_is_a_repeat<H: InboxHarness>(t: Fixture<H>) {
    assert_eq!(t.arrive(&["a"]).await, ["a"]);

    assert!(t.process(CONSUMER, Mode::Retry, &["a"]).await.is_empty());
}

/// Two relays believe to own the row.
pub async fn of_two_retries_one_waits_and_is_a_repeat<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1), failed("b", 2, 1)]).await;
    for (key, commits) in [("a", true), ("b", false)] {
        let mut tx = t.consume().await;
        let admitted = t.try_admit(&mut tx, Mode::Retry, &[key], &[]).await;
        assert_eq!(admitted.unwrap().fresh.len(), 1);
        let mut other = t.elsewhere(Mode::Retry, key, None);
        other.waits().await;

        if commits {
            t.end(tx, &[]).await;
        } else {
            t.harness.rollback(tx).await;
        }

        assert_eq!(other.told().await.fresh.is_empty(), commits);
    }
}
