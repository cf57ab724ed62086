//! Groups.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::fixture::{BrokerFixture, PATIENCE, assert_once, ids, messages};
use super::harness::BrokerHarness;

/// Two of one group share; one of another group gets all of it.
pub async fn consumers_of_a_group_share_and_another_group_gets_everything<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let other = match t.manner.groups {
        true => Some(t.member_of("billing").await),
        false => None,
    };
    let mut pair = [t.member().await, t.member().await];
    t.acquaint(&mut pair).await;
    let all = messages(100);

    t.publish(&all).await;

    let mut arrivals = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while arrivals.len() < all.len() {
        assert!(Instant::now() < deadline, "{} came", arrivals.len());
        for member in &mut pair {
            let found = member.take_for(Duration::from_millis(100)).await;
            member.done(&found).await;
            arrivals.extend(found);
        }
    }
    assert_once(&arrivals, &all, t.manner);
    if let Some(mut other) = other {
        let mut arrivals = other.take_ids(&ids(&all)).await;
        other.done(&arrivals).await;
        let wanted = ids(&all);
        arrivals.retain(|arrival| wanted.contains(&t.id(arrival)));
        assert_once(&arrivals, &all, t.manner);
        other.close().await;
    }
    for member in pair {
        member.close().await;
    }
}

/// Work may take longer than the broker waits for a sign of life: the driver gives one.
pub async fn a_slow_consumer_keeps_what_it_has<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut pair = [t.member().await, t.member().await];
    t.acquaint(&mut pair).await;
    let [mut slow, mut quick] = pair;
    let all = messages(30);
    t.publish(&all).await;

    // The slow one takes what it gets, and does not say a word until the end.
    let mut held = slow.take_for(Duration::from_secs(1)).await;
    let mut other = quick.take_for(t.manner.window * 3).await;
    let both: BTreeSet<_> = t.ids(&held).intersection(&t.ids(&other)).copied().collect();
    assert_eq!(both, BTreeSet::new(), "given to two");

    slow.done(&held).await;
    quick.done(&other).await;
    let deadline = Instant::now() + PATIENCE;
    while held.len() + other.len() < all.len() {
        assert!(Instant::now() < deadline, "some do not come");
        for (member, kept) in [(&mut slow, &mut held), (&mut quick, &mut other)] {
            let found = member.take_for(Duration::from_millis(100)).await;
            member.done(&found).await;
            kept.extend(found);
        }
    }
    held.extend(other);
    assert_once(&held, &all, t.manner);
    slow.close().await;
    quick.close().await;
}
