//! What was not settled comes again, and nothing else does.

use std::collections::BTreeMap;

use super::fixture::{BrokerFixture, GROUP, PATIENCE, assert_once, counts, ids, message, messages};
use super::harness::BrokerHarness;

/// How a consumer goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Going {
    Dies,
    Leaves,
}

/// A consumer dies with messages in its hands.
pub async fn what_a_dead_consumer_did_not_settle_comes_again<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    comes_again(&t, Going::Dies).await;
}

/// A consumer leaves in good order with messages in its hands.
pub async fn what_a_consumer_that_left_did_not_settle_comes_again<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    comes_again(&t, Going::Leaves).await;
}

async fn comes_again<H: BrokerHarness>(t: &BrokerFixture<H>, going: Going) {
    let mut first = t.member().await;
    let all = messages(20);
    t.publish(&all).await;
    let arrivals = first.take(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    // The first ones, in the order in which they came: some brokers know a low mark only.
    let (settled, left) = arrivals.split_at(8);
    first.done(settled).await;
    match going {
        Going::Dies => first.die(),
        Going::Leaves => first.close().await,
    }

    let mut second = t.member().await;

    let again = second.take_done(left.len()).await;
    assert_eq!(t.ids(&again), t.ids(left));
    assert!(counts(&again, t.manner).values().all(|n| *n == 1));
    let before: BTreeMap<_, _> = left.iter().map(|a| (t.id(a), a)).collect();
    for arrival in &again {
        let first = before[&t.id(arrival)];
        assert_eq!(arrival.position, first.position, "its place is the same");
        assert_eq!(arrival.key, first.key);
        assert_eq!(arrival.headers, first.headers);
        assert_eq!(arrival.body, first.body);
        if let (Some(now), Some(then)) = (arrival.deliveries, first.deliveries) {
            assert!(now > then, "{now} after {then}");
        }
    }
    second.close().await;
}

/// Settled, and then the consumer dies: only what is new comes.
pub async fn what_is_settled_never_comes_again<H: BrokerHarness>(t: BrokerFixture<H>) {
    for going in [Going::Dies, Going::Leaves] {
        let mut first = t.member().await;
        let all = messages(20);
        t.publish(&all).await;
        let arrivals = first.take_done(all.len()).await;
        assert_once(&arrivals, &all, t.manner);
        match going {
            Going::Dies => first.die(),
            Going::Leaves => first.close().await,
        }

        let mut second = t.member().await;
        let end = message("order", 1, 2);
        t.publish(std::slice::from_ref(&end)).await;
        let mut came = second.take_ids(&ids(std::slice::from_ref(&end))).await;
        // Longer than it takes until a broker misses somebody.
        came.extend(second.take_for(t.manner.window * 2).await);

        assert_once(&came, &[end], t.manner);
        second.done(&came).await;
        second.close().await;
    }
}

/// Consumers die, leave and join while messages flow: none is lost.
pub async fn a_consumer_may_come_and_go_in_the_middle<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut steady = t.member().await;
    let mut fleeting = t.member().await;
    let all = messages(200);
    let mut seen = std::collections::BTreeSet::new();
    for (round, some) in all.chunks(40).enumerate() {
        t.publish(some).await;
        let found = fleeting
            .take_for(std::time::Duration::from_millis(300))
            .await;
        // Half of them are settled, from the first on; the rest is left behind.
        let settled = &found[..found.len() / 2];
        fleeting.done(settled).await;
        seen.extend(t.ids(settled));
        match round % 2 {
            0 => fleeting.die(),
            _ => fleeting.close().await,
        }
        let source = t.harness.source(&t.topic, GROUP).await;
        fleeting = super::fixture::join(&source, t.manner).await;
    }
    fleeting.close().await;

    let deadline = tokio::time::Instant::now() + PATIENCE;
    while seen.len() < all.len() {
        let waited = tokio::time::timeout_at(deadline, steady.receive(50)).await;
        let Ok(received) = waited else {
            panic!("{} of {} came", seen.len(), all.len());
        };
        let received = received.expect("receiving failed");
        seen.extend(t.ids(&received));
        steady.done(&received).await;
    }

    assert_eq!(seen, ids(&all));
    steady.close().await;
}
