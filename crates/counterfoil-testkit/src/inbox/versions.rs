//! Aggregates: one at a time, and the version that was applied.

use counterfoil_core::inbox::{Lane, Mode};
use counterfoil_core::message::Aggregate;

use super::fixture::{CONSUMER, RIVAL};
use super::harness::InboxHarness;
use crate::fixture::{Fixture, lane};

fn applied(version: i64) -> Lane {
    Lane {
        applied: Some(version),
        taken: false,
    }
}

/// With the business rows, or not at all.
pub async fn versions_are_remembered_after_a_commit_and_not_after_a_rollback<H: InboxHarness>(
    t: Fixture<H>,
) {
    let order = lane(1);
    assert_eq!(t.lane(&order).await, Lane::default());
    t.apply("a", &order, 3).await;
    assert_eq!(t.lane(&order).await, applied(3));

    let mut tx = t.consume().await;
    t.admit(&mut tx, &["b"], &[&order]).await;
    let finished = t.harness.finish(&mut tx, CONSUMER, &[(&order, 9)]).await;
    finished.unwrap();
    t.harness.rollback(tx).await;

    assert_eq!(t.lane(&order).await, applied(3));
    t.apply("c", &order, i64::MAX).await;
    assert_eq!(t.lane(&order).await, applied(i64::MAX));
    t.apply("d", &lane(2), i64::MIN).await;
    assert_eq!(t.lane(&lane(2)).await, applied(i64::MIN));
}

/// What an operator has applied late, too, does not make newer ones look new.
pub async fn a_version_does_not_come_down<H: InboxHarness>(t: Fixture<H>) {
    t.apply("a", &lane(1), 7).await;
    t.apply("b", &lane(1), 5).await;

    assert_eq!(t.lane(&lane(1)).await, applied(7));
}

/// Whatever their order is.
pub async fn of_several_versions_in_one_batch_the_highest_counts<H: InboxHarness>(t: Fixture<H>) {
    let (one, two) = (lane(1), lane(2));
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a", "b", "c", "d"], &[&one, &two]).await;

    let all = [(&two, 4), (&one, 8), (&two, 6), (&one, 2)];
    t.end(tx, &all).await;

    assert_eq!(t.lane(&one).await, applied(8));
    assert_eq!(t.lane(&two).await, applied(6));
}

/// The second one waits, and sees what the first one did.
pub async fn one_aggregate_is_processed_by_one_at_a_time<H: InboxHarness>(t: Fixture<H>) {
    let order = lane(1);
    t.apply("a", &order, 1).await;
    for (version, mode) in [(2, Mode::Arrival), (3, Mode::Retry)] {
        let mut tx = t.consume().await;
        let key = format!("b{version}");
        t.try_admit(&mut tx, mode, &[&key], &[&order])
            .await
            .unwrap();
        let mut other = t.elsewhere(mode, &format!("c{version}"), Some(&order));
        other.waits().await;

        t.end(tx, &[(&order, version)]).await;

        let told = other.told().await;
        assert_eq!(told.lanes[&order], applied(version));
        assert_eq!(told.fresh.len(), 1);
    }
}

/// Nobody has a row to lock yet.
pub async fn a_new_aggregate_is_processed_by_one_at_a_time<H: InboxHarness>(t: Fixture<H>) {
    let (one, two) = (lane(1), lane(2));
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a"], &[&one]).await;
    let mut other = t.elsewhere(Mode::Arrival, "b", Some(&one));
    other.waits().await;
    t.end(tx, &[(&one, 1)]).await;
    assert_eq!(other.told().await.lanes[&one], applied(1));

    let mut tx = t.consume().await;
    t.admit(&mut tx, &["c"], &[&two]).await;
    let mut other = t.elsewhere(Mode::Arrival, "d", Some(&two));
    other.waits().await;
    t.harness.rollback(tx).await;
    assert_eq!(other.told().await.lanes[&two], Lane::default());
}

/// Neither new ones nor known ones.
pub async fn different_aggregates_do_not_wait_for_each_other<H: InboxHarness>(t: Fixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    let orders: Vec<Aggregate> = (0..5).map(lane).collect();
    for round in 0..2 {
        let mut open = Vec::new();
        for (n, order) in orders.iter().enumerate() {
            let mut tx = t.consume().await;
            let key = format!("{round} {n}");
            assert_eq!(t.admit(&mut tx, &[&key], &[order]).await.fresh.len(), 1);
            open.push((tx, order));
        }
        for (tx, order) in open.into_iter().rev() {
            t.end(tx, &[(order, round)]).await;
        }
    }

    for order in &orders {
        assert_eq!(t.lane(order).await, applied(1));
    }
}

/// Neither versions nor locks.
pub async fn consumers_do_not_share_aggregates<H: InboxHarness>(t: Fixture<H>) {
    let order = lane(1);
    t.apply("a", &order, 7).await;
    if t.harness.concurrent_writers() {
        let mut tx = t.consume().await;
        t.admit(&mut tx, &["b"], &[&order]).await;
        let theirs = t.lane_of(RIVAL, Mode::Arrival, &order).await;
        assert_eq!(theirs, Lane::default());
        t.end(tx, &[]).await;
    }

    let theirs = t.lane_of(RIVAL, Mode::Arrival, &order).await;

    assert_eq!(theirs, Lane::default());
}

/// Where one name ends and the next begins matters, and every byte.
pub async fn aggregates_that_look_alike_are_different<H: InboxHarness>(t: Fixture<H>) {
    let long = "\u{1f4b6}".repeat(63);
    let mut all = [
        ("", "a"),
        ("a", "a"),
        ("A", "a"),
        ("a", "A"),
        ("a ", "a"),
        ("a", "a "),
        ("ab", "c"),
        ("a", "bc"),
        ("", "abc"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("1:a", "b"),
        ("\u{e4}", "b"),
        ("a\u{308}", "b"),
        ("[", "\""),
        (&long, &long),
        ("\\", "\\\\"),
    ]
    .map(|(kind, id)| Aggregate::new(kind, id));
    all.sort();
    let every: Vec<&Aggregate> = all.iter().collect();

    let mut tx = t.consume().await;
    let admitted = t.admit(&mut tx, &[], &every).await;
    assert_eq!(admitted.lanes.len(), all.len());
    let versions: Vec<_> = every.iter().copied().zip(1..).collect();
    t.end(tx, &versions).await;

    for (aggregate, version) in versions {
        assert_eq!(t.lane(aggregate).await, applied(version), "{aggregate:?}");
    }
}
