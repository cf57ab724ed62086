//! Members of a group that come, go and die: the order of a key stays.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil_core::source::{Settle, Subscription};
use counterfoil_core::{Destination as _, Outcome};
use counterfoil_nats::Settings;
use counterfoil_testkit::server::PrivateNats;

use crate::{
    LONG, WINDOW, build, delivery, done, join, join_within, make, publish, stream, take, versions,
};

/// What comes within a moment.
async fn glimpse(member: &mut Box<dyn Subscription>) -> usize {
    let brief = Duration::from_millis(100);
    match tokio::time::timeout(brief, member.receive(10)).await {
        Ok(received) => received.unwrap().len(),
        Err(_) => 0,
    }
}

#[tokio::test]
async fn what_a_dead_member_had_comes_before_what_is_new() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let mut first = join(&nats, "orders", 1).await;
    publish(&nats, "orders", 1..8).await;
    let had = take(&mut first, 7).await;
    assert_eq!(versions(&had), [1, 2, 3, 4, 5, 6, 7]);
    // Not in order: so the server knows no low mark.
    done(&mut first, &[had[1].clone(), had[4].clone()]).await;
    let mut second = join(&nats, "orders", 1).await;

    drop(first);
    publish(&nats, "orders", 8..12).await;

    let came = take(&mut second, 9).await;
    assert_eq!(versions(&came), [1, 3, 4, 6, 7, 8, 9, 10, 11]);
    assert_eq!(came[0].deliveries, Some(2));
    done(&mut second, &came).await;
    second.close().await.unwrap();
}

#[tokio::test]
async fn a_backlog_does_not_overtake_what_a_dead_member_had() {
    const AGGREGATES: i64 = 8;
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders.*")).await;
    let destination = build(Settings::new(nats.url(), "orders").partitions(8));
    for version in 1..=40 {
        let batch: Vec<_> = (1..=AGGREGATES).map(|n| delivery(n, version)).collect();
        let outcomes = destination.publish(&batch).await;
        assert!(outcomes.iter().all(|o| *o == Outcome::Stored));
    }
    let mut first = join(&nats, "orders", 8).await;
    let had = take(&mut first, 100).await;
    // Not in order: so the server knows no low mark.
    let some: Vec<_> = had.iter().skip(1).step_by(3).cloned().collect();
    done(&mut first, &some).await;
    drop(first);

    let mut second = join(&nats, "orders", 8).await;
    let mut left = 40 * usize::try_from(AGGREGATES).unwrap() - some.len();
    let mut last = std::collections::BTreeMap::new();
    while left > 0 {
        let came = take(&mut second, 1).await;
        for arrival in &came {
            let version = versions(std::slice::from_ref(arrival))[0];
            let before = last.insert(arrival.key.clone(), version);
            assert!(before < Some(version), "{version} after {before:?}");
        }
        done(&mut second, &came).await;
        left -= came.len();
    }
    second.close().await.unwrap();
}

#[tokio::test]
async fn what_a_member_that_left_had_comes_first_and_at_once() {
    const WINDOW: Duration = Duration::from_secs(60);
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let mut first = join_within(&nats, "orders", 1, WINDOW).await;
    publish(&nats, "orders", 1..6).await;
    let had = take(&mut first, 3).await;
    assert_eq!(versions(&had), [1, 2, 3]);

    first.close().await.unwrap();
    let left = tokio::time::Instant::now();
    let mut second = join_within(&nats, "orders", 1, WINDOW).await;
    let came = take(&mut second, 5).await;

    assert_eq!(versions(&came), [1, 2, 3, 4, 5]);
    assert!(left.elapsed() < WINDOW, "nobody was waited for");
    second.close().await.unwrap();
}

#[tokio::test]
async fn a_newcomer_gets_its_share_when_the_others_have_finished() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders.*")).await;
    let destination = build(Settings::new(nats.url(), "orders").partitions(2));
    let mut first = join(&nats, "orders", 2).await;
    let batch: Vec<_> = (1..=20).map(|n| delivery(n, 1)).collect();
    let outcomes = destination.publish(&batch).await;
    assert!(outcomes.iter().all(|o| *o == Outcome::Stored));
    let had = take(&mut first, 20).await;

    let mut second = join(&nats, "orders", 2).await;
    let batch: Vec<_> = (1..=20).map(|n| delivery(n, 2)).collect();
    destination.publish(&batch).await;
    // It has to wait for what the first one holds, longer than for one that is silent.
    let deadline = tokio::time::Instant::now() + WINDOW * 3;
    while tokio::time::Instant::now() < deadline {
        assert_eq!(
            glimpse(&mut second).await,
            0,
            "one of a key that another has"
        );
    }
    done(&mut first, &had).await;

    let (mut one, mut other) = (BTreeSet::new(), BTreeSet::new());
    let everything = async {
        while one.len() + other.len() < 20 {
            for (member, seen) in [(&mut first, &mut one), (&mut second, &mut other)] {
                let brief = Duration::from_millis(50);
                if let Ok(received) = tokio::time::timeout(brief, member.receive(20)).await {
                    let received = received.unwrap();
                    done(member, &received).await;
                    let new = received
                        .iter()
                        .filter(|a| versions(std::slice::from_ref(a)) == [2]);
                    seen.extend(new.map(|a| a.key.clone().unwrap()));
                }
            }
        }
    };
    tokio::time::timeout(LONG, everything)
        .await
        .expect("some do not come");
    assert!(!other.is_empty(), "the newcomer has a share");
    assert!(one.is_disjoint(&other));
    first.close().await.unwrap();
    second.close().await.unwrap();
}

#[tokio::test]
async fn a_released_message_comes_before_those_behind_it() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let mut member = join(&nats, "orders", 1).await;
    publish(&nats, "orders", 1..3).await;
    let had = take(&mut member, 1).await;

    let again = Settle::Release { delay: None };
    member.settle(vec![(had[0].tag, again)]).await.unwrap();
    // It is back before the server says that it knows of the next one.
    publish(&nats, "orders", 3..4).await;
    let came = take(&mut member, 3).await;

    let mut seen = versions(&came);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
    assert_eq!(member.lag().await.unwrap(), Some(0));
    member.close().await.unwrap();
}
