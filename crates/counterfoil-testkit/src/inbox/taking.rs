//! When later messages of an aggregate must wait.

use counterfoil_core::inbox::{Mode, queue_of};
use counterfoil_core::message::Aggregate;
use counterfoil_core::store::Settlement;

use super::fixture::{CONSUMER, RIVAL, behind, failed};
use super::harness::InboxHarness;
use crate::fixture::{Fixture, QUEUE, id, keys, lane, message};

/// The head, and those that were behind it when it is gone.
pub async fn a_lane_is_taken_while_something_of_it_is_put_off<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1), behind("b", 1, 2)]).await;
    assert!(t.lane(&lane(1)).await.taken);
    let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
    t.harness.make_due().await;

    let head = relay.waiting(&queue).await;
    assert!(t.lane(&lane(1)).await.taken, "it is on its way");
    relay.sent(&queue, &head).await;
    assert!(t.lane(&lane(1)).await.taken, "one is held");
    let held = relay.lane(&queue, &lane(1)).await;
    relay.retry(&queue, &held[0]).await;
    assert!(t.lane(&lane(1)).await.taken, "it failed");
    t.harness.make_due().await;
    let last = relay.waiting(&queue).await;
    relay.sent(&queue, &last).await;

    assert!(!t.lane(&lane(1)).await.taken);
}

/// Whoever has waited for the lane must not overtake.
pub async fn what_another_has_put_off_is_seen_when_its_lane_is_free<H: InboxHarness>(
    t: Fixture<H>,
) {
    for round in 0..2 {
        // The second time the aggregate is known.
        let one = failed(&format!("a{round}"), 1, round);
        let mut tx = t.consume().await;
        t.put_off_in(&mut tx, CONSUMER, &[one]).await;
        let mut other = t.elsewhere(Mode::Arrival, &format!("b{round}"), Some(&lane(1)));
        other.waits().await;

        t.end(tx, &[]).await;

        assert!(other.told().await.lanes[&lane(1)].taken);
        let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
        t.harness.make_due().await;
        let rows = relay.waiting(&queue).await;
        relay.sent(&queue, &rows).await;
        relay.store.leave(&relay.id).await.unwrap();
        assert!(!t.lane(&lane(1)).await.taken);
    }
}

/// Also where the application's sessions have a snapshot for the whole transaction.
pub async fn a_transaction_of_the_application_sees_it_too<H: InboxHarness>(t: Fixture<H>) {
    t.apply("x", &lane(1), 1).await;
    let mut tx = t.consume().await;
    t.put_off_in(&mut tx, CONSUMER, &[failed("a", 1, 1)]).await;
    let harness = std::sync::Arc::clone(&t.harness);
    let (began, begins) = tokio::sync::oneshot::channel();
    let other = tokio::spawn(async move {
        let _ = began.send(());
        let mut tx = harness.begin().await;
        let order = lane(1);
        let admitted = harness
            .admit(&mut tx, CONSUMER, Mode::Arrival, &["b"], &[&order])
            .await
            .unwrap();
        harness.finish(&mut tx, CONSUMER, &[]).await.unwrap();
        harness.plain_commit(tx).await.unwrap();
        admitted.lanes[&order]
    });
    begins.await.unwrap();
    let mut waiting = t.elsewhere(Mode::Arrival, "c", Some(&lane(1)));
    waiting.waits().await;

    t.end(tx, &[(&lane(1), 2)]).await;

    assert!(waiting.told().await.lanes[&lane(1)].taken);
    let told = other.await.unwrap();
    assert_eq!((told.applied, told.taken), (Some(2), true));
}

/// Redriven it is on its way, and still before the others.
pub async fn a_parked_one_that_holds_takes_its_lane_until_it_is_decided<H: InboxHarness>(
    t: Fixture<H>,
) {
    let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
    t.put_off(&[failed("a", 1, 1)]).await;
    let row = t.park_due(&relay, |_| {}).await;
    assert!(t.lane(&lane(1)).await.taken);
    let ids = [id(&row).to_string()];
    t.desk.redrive(&ids, false, "ann").await.unwrap();
    assert!(t.lane(&lane(1)).await.taken, "redriven");
    let rows = relay.waiting(&queue).await;
    relay.sent(&queue, &rows).await;
    assert!(!t.lane(&lane(1)).await.taken, "delivered");

    t.put_off(&[failed("b", 1, 2)]).await;
    let row = t.park_due(&relay, |_| {}).await;
    assert!(t.lane(&lane(1)).await.taken, "parked");
    t.desk
        .ignore(&[id(&row).to_string()], "of no use", "ann")
        .await
        .unwrap();
    assert!(!t.lane(&lane(1)).await.taken, "ignored");
}

/// Its route says so.
pub async fn a_parked_one_that_is_skipped_takes_nothing<H: InboxHarness>(t: Fixture<H>) {
    let relay = t.inbox_relay().await;
    t.put_off(&[failed("a", 1, 1)]).await;

    t.park_due(&relay, |park| park.hold = false).await;

    assert!(!t.lane(&lane(1)).await.taken);
}

/// Of other consumers, of other aggregates, and of the same one in another queue.
pub async fn rows_of_others_take_nothing<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    for (consumer, key) in [(RIVAL, "a"), ("Stock", "b"), ("stock ", "c"), ("stoc", "d")] {
        let theirs = [failed(key, 1, 1)];
        t.put_off_in(&mut tx, consumer, &theirs).await;
    }
    let others = [
        ("order", "2"),
        ("order", "1 "),
        ("order ", "1"),
        ("Order", "1"),
        ("", "order1"),
        ("orde", "r1"),
    ];
    for (kind, other) in others {
        let mut one = failed(&format!("{kind}/{other}"), 1, 1);
        one.message.aggregate = Some(Aggregate::new(kind, other));
        t.put_off_in(&mut tx, CONSUMER, &[one]).await;
    }
    t.harness.finish(&mut tx, CONSUMER, &[]).await.unwrap();
    t.harness.plain_commit(tx).await.unwrap();
    t.put(&[message(1, 1), message(1, 2), message(1, 3)]).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.park(QUEUE, &rows[0]).await;
    relay.retry(QUEUE, &rows[1]).await;
    let held = Settlement {
        hold: keys(&rows[2..]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &held).await;

    assert!(!t.lane(&lane(1)).await.taken);
    assert!(t.lane(&lane(2)).await.taken);
    assert!(t.lane_of(RIVAL, Mode::Arrival, &lane(1)).await.taken);
}

/// The relay has seen to the order.
pub async fn a_retry_finds_nothing_taken<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1), behind("b", 1, 2)]).await;

    assert!(!t.lane_of(CONSUMER, Mode::Retry, &lane(1)).await.taken);
    assert!(t.lane(&lane(1)).await.taken);
}
