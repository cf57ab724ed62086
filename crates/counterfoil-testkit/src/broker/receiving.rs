//! Receiving and settling.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::source::{Settle, Tag};
use tokio::time::{Instant, timeout};

use super::fixture::{BrokerFixture, PATIENCE, assert_once, ids, message, messages, until};
use super::harness::BrokerHarness;
use crate::gone::after_polls;
use crate::suite::Seed;

/// A group gets what came while nobody of it was there.
pub async fn what_was_stored_before_anybody_subscribed_is_received<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let _group = t.source().await;
    let all = messages(20);
    t.publish(&all).await;

    let mut member = t.member().await;

    let arrivals = member.take_done(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    member.close().await;
}

/// `max` is a promise.
pub async fn no_more_is_received_than_was_asked_for<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let all = messages(30);
    t.publish(&all).await;

    let mut arrivals = Vec::new();
    for max in [1, 2, 3].into_iter().cycle() {
        if arrivals.len() == all.len() {
            break;
        }
        let received = timeout(PATIENCE, member.receive(max)).await;
        let received = received.expect("nothing comes").expect("receiving failed");
        member.done(&received).await;
        arrivals.extend(received);
    }

    assert_once(&arrivals, &all, t.manner);
    let tags: BTreeSet<Tag> = arrivals.iter().map(|a| a.tag).collect();
    let positions: BTreeSet<&str> = arrivals.iter().map(|a| a.position.as_str()).collect();
    assert_eq!(tags.len(), all.len(), "each reception has its tag");
    assert_eq!(positions.len(), all.len(), "each message has its place");
    member.close().await;
}

/// The caller waits for several things at once, and goes away from this one at any point.
pub async fn receiving_can_be_given_up_at_any_moment<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut seed = Seed::new("receiving_can_be_given_up_at_any_moment");
    let mut member = t.member().await;
    let all = messages(300);
    let publishing = {
        let (destination, all) = (Arc::clone(&t.destination), all.clone());
        let size = destination.capabilities().max_batch.min(10);
        tokio::spawn(async move {
            for batch in all.chunks(size) {
                super::fixture::offer(&destination, batch).await;
            }
        })
    };

    let mut arrivals = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while arrivals.len() < all.len() {
        assert!(Instant::now() < deadline, "{} came", arrivals.len());
        let max = 1 + seed.below(9);
        let received = match seed.below(3) {
            0 => after_polls(1 + seed.below(4), member.receive(max)).await,
            1 => {
                let brief = Duration::from_micros(seed.below(3_000) as u64);
                timeout(brief, member.receive(max)).await.ok()
            }
            _ => timeout(Duration::from_millis(50), member.receive(max))
                .await
                .ok(),
        };
        if let Some(received) = received {
            let received = received.expect("receiving failed");
            member.done(&received).await;
            arrivals.extend(received);
        }
    }

    publishing.await.expect("publishing failed");
    assert_once(&arrivals, &all, t.manner);
    member.close().await;
}

/// Backwards, in pieces, and again.
pub async fn settling_in_any_order_and_twice_does_no_harm<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut seed = Seed::new("settling_in_any_order_and_twice_does_no_harm");
    let mut member = t.member().await;
    let all = messages(40);
    t.publish(&all).await;

    let mut arrivals = member.take(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    for n in (1..arrivals.len()).rev() {
        arrivals.swap(n, seed.below(n + 1));
    }
    for some in arrivals.chunks(7) {
        member.done(some).await;
        member.done(some).await;
    }
    member.done(&arrivals).await;
    member.close().await;

    let mut next = t.member().await;
    let end = message("order", 1, 2);
    t.publish(std::slice::from_ref(&end)).await;
    let came = next.take_ids(&ids(std::slice::from_ref(&end))).await;
    assert_once(&came, &[end], t.manner);
    next.close().await;
}

/// Tags of nobody, of another subscription, and a mixture with good ones.
pub async fn unknown_tags_do_no_harm<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let all = messages(5);
    t.publish(&all).await;
    let arrivals = member.take(all.len()).await;

    let unknown = [Tag(u64::MAX), Tag(1 << 40)];
    for how in [Settle::Done, Settle::Release { delay: None }] {
        let settled = unknown.iter().map(|tag| (*tag, how.clone())).collect();
        member.subscription().settle(settled).await.expect("harm");
    }
    member.subscription().settle(vec![]).await.expect("harm");
    let mut mixed: Vec<_> = arrivals.iter().map(|a| (a.tag, Settle::Done)).collect();
    mixed.insert(2, (Tag(u64::MAX - 1), Settle::Done));
    member.subscription().settle(mixed).await.expect("harm");

    let end = message("order", 1, 2);
    t.publish(std::slice::from_ref(&end)).await;
    let came = member.take_done(1).await;
    assert_once(&came, &[end], t.manner);
    member.close().await;
}

/// Many wait: the lag is not zero. All are settled: it is.
pub async fn the_lag_is_true_where_it_is_told<H: BrokerHarness>(t: BrokerFixture<H>) {
    let source = t.source().await;
    let all = messages(300);
    t.publish(&all).await;
    let mut member = super::fixture::join(&source, t.manner).await;
    let Some(_) = member.lag().await else {
        return member.close().await;
    };

    // It may take a moment until a broker knows, or until the member has its place.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lag = member.lag().await.expect("it was told before");
        assert!(lag <= all.len() as u64, "{lag}");
        if lag > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "300 wait, and the lag is 0");
    }
    let arrivals = member.take_done(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    let member = Arc::new(tokio::sync::Mutex::new(member));
    until("nothing waits", || async {
        member.lock().await.lag().await == Some(0)
    })
    .await;
    let Some(member) = Arc::into_inner(member) else {
        panic!("somebody still looks");
    };
    member.into_inner().close().await;
}
