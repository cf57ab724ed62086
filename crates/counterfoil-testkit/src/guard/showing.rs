//! Lists and figures for operators.

use std::time::Duration;

use counterfoil_core::guard::{
    Change, Found, GuardStats, Key, RecordFilter, Records, State, Write,
};

use super::fixture::{GuardFixture, LEASE, claim, claim_of, end};
use super::harness::GuardHarness;

const MINUTE: Duration = Duration::from_secs(60);

fn names(found: &[Found]) -> Vec<&str> {
    found.iter().map(|f| f.record.key.key()).collect()
}

/// Changed last, shown first.
pub async fn records_are_listed_the_most_recently_changed_first<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let mut claims = Vec::new();
    for name in ["a", "b", "c", "d"] {
        claims.push(t.claim(name).await);
        t.advance(MINUTE).await;
    }
    assert!(t.change(claims[1], &end(State::Succeeded)).await);
    let limited = RecordFilter {
        limit: 2,
        ..RecordFilter::default()
    };

    let all = t.guard.list(&RecordFilter::default()).await.unwrap();
    let some = t.guard.list(&limited).await.unwrap();

    assert_eq!(names(&all), ["b", "d", "c", "a"]);
    assert_eq!(names(&some), ["b", "d"]);
    assert_eq!(all[0].record.snapshot, Some(super::fixture::answer()));
}

/// By business type, caller, key and state; also by all of them.
pub async fn lists_are_filtered<H: GuardHarness>(t: GuardFixture<H>) {
    for (scope, business, name) in [
        ("a", "pay", "1"),
        ("a", "refund", "1"),
        ("b", "pay", "1"),
        ("b", "pay", "2"),
    ] {
        t.put(&claim_of(Key::new(scope, business, name).unwrap()))
            .await;
    }
    let lost = t.claim("lost").await;
    t.advance(LEASE).await;
    let live = t.claim("live").await;
    let doubted = t.claim("doubted").await;
    assert!(t.change(doubted, &Change::Doubt).await);
    t.ended("failed", State::Failed).await;
    let list = async |business: Option<&str>, scope: Option<&str>, key: Option<&str>, state| {
        let filter = RecordFilter {
            business_type: business.map(Into::into),
            scope: scope.map(Into::into),
            key: key.map(Into::into),
            state,
            limit: 0,
        };
        let mut found: Vec<String> = t
            .guard
            .list(&filter)
            .await
            .unwrap()
            .iter()
            .map(|f| {
                format!(
                    "{}/{}/{}",
                    f.record.key.scope(),
                    f.record.key.business_type(),
                    f.record.key.key()
                )
            })
            .collect();
        found.sort();
        found
    };

    assert_eq!(list(Some("refund"), None, None, None).await, ["a/refund/1"]);
    assert_eq!(
        list(None, Some("b"), None, None).await,
        ["b/pay/1", "b/pay/2"]
    );
    assert_eq!(
        list(None, None, Some("1"), None).await,
        ["a/pay/1", "a/refund/1", "b/pay/1"]
    );
    assert_eq!(
        list(Some("pay"), Some("a"), Some("1"), Some(State::Uncertain)).await,
        ["a/pay/1"]
    );
    assert_eq!(list(Some("PAY"), None, None, None).await, [""; 0]);
    assert_eq!(list(None, Some(""), None, None).await, [""; 0]);
    assert_eq!(
        list(None, None, None, Some(State::Processing)).await,
        ["shop/pay/live"]
    );
    assert_eq!(
        list(None, Some("shop"), None, Some(State::Uncertain)).await,
        ["shop/pay/doubted", "shop/pay/lost"]
    );
    assert_eq!(
        list(None, None, None, Some(State::Failed)).await,
        ["shop/pay/failed"]
    );
    assert_eq!(
        list(None, None, None, Some(State::Succeeded)).await,
        [""; 0]
    );
    assert!(live.fence > lost.fence);
}

/// Uncertain, or their owner is silent; and quiet for so long.
pub async fn stuck_records_are_found_the_oldest_first<H: GuardHarness>(t: GuardFixture<H>) {
    t.claim("first").await;
    t.advance(MINUTE).await;
    let doubted = t.claim("second").await;
    assert!(t.change(doubted, &Change::Doubt).await);
    let beating = t.claim("beating").await;
    t.put(&Write {
        lease: None,
        ..claim("without a lease")
    })
    .await;
    t.ended("over", State::Failed).await;
    t.advance(LEASE).await;
    assert!(t.change(beating, &Change::Heartbeat { lease: LEASE }).await);
    let young = t.claim("young").await;
    assert!(t.change(young, &Change::Doubt).await);

    let all = t.guard.stuck(Duration::ZERO, None, 10).await.unwrap();
    let idle = t.guard.stuck(LEASE, None, 10).await.unwrap();
    let older = t.guard.stuck(LEASE + MINUTE, None, 10).await.unwrap();
    let one = t.guard.stuck(Duration::ZERO, None, 1).await.unwrap();

    assert_eq!(names(&all), ["first", "second", "young"]);
    assert_eq!(names(&idle), ["first", "second"]);
    assert_eq!(names(&older), ["first"]);
    assert_eq!(names(&one), ["first"]);
    assert!(all.iter().all(|f| f.state() == State::Uncertain));
}

/// However many there are, and whatever the pages: each once, in one order.
pub async fn stuck_records_are_found_page_by_page<H: GuardHarness>(t: GuardFixture<H>) {
    for name in 0..7 {
        let claim = t.claim(&name.to_string()).await;
        assert!(t.change(claim, &Change::Doubt).await);
    }
    let all = t.guard.stuck(Duration::ZERO, None, 10).await.unwrap();

    let mut pages: Vec<Found> = Vec::new();
    loop {
        let page = t
            .guard
            .stuck(Duration::ZERO, pages.last(), 2)
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        pages.extend(page);
    }

    assert_eq!(names(&all).len(), 7);
    assert_eq!(names(&pages), names(&all));
}

/// Counts by state, and how long the oldest that is not over waits.
pub async fn figures_are_told_for_each_business_type<H: GuardHarness>(t: GuardFixture<H>) {
    assert_eq!(t.guard.stats().await.unwrap(), []);
    t.claim("lost").await;
    t.advance(LEASE).await;
    t.claim("live").await;
    let doubted = t.claim("doubted").await;
    assert!(t.change(doubted, &Change::Doubt).await);
    for state in [State::Succeeded, State::Failed, State::Retryable] {
        t.ended(state.as_str(), state).await;
    }
    let fee = Key::new("shop", "fee", "over").unwrap();
    let digest = fee.digest();
    let fence = t.put(&claim_of(fee)).await;
    t.guard
        .change(&digest, fence, &end(State::Succeeded))
        .await
        .unwrap();

    let mut stats = t.guard.stats().await.unwrap();

    assert_eq!(stats.len(), 2);
    let oldest = stats[1].oldest_open_seconds.take().unwrap();
    assert!((600.0..660.0).contains(&oldest), "{oldest}");
    assert_eq!(
        stats,
        [
            GuardStats {
                business_type: "fee".into(),
                succeeded: 1,
                ..GuardStats::default()
            },
            GuardStats {
                business_type: "pay".into(),
                processing: 1,
                succeeded: 1,
                retryable: 1,
                failed: 1,
                uncertain: 2,
                oldest_open_seconds: None,
            },
        ]
    );
}
