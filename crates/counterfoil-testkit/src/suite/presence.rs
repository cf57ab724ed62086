//! Who is there: consumers that report, relays and what they own.

use std::time::Duration;

use chrono::DateTime;
use counterfoil_core::presence::{ConsumerReport, ConsumerStatus};
use counterfoil_core::store::{RelayId, Store};

use crate::fixture::{Fixture, LEASE, OTHER, QUEUE, Relay};
use crate::harness::Harness;

const PAUSE: Duration = Duration::from_millis(20);

async fn report(store: &dyn Store, member: &RelayId, consumer: &str, status: &ConsumerStatus) {
    report_for(store, member, consumer, status, LEASE).await;
}

async fn report_for(
    store: &dyn Store,
    member: &RelayId,
    consumer: &str,
    status: &ConsumerStatus,
    lease: Duration,
) {
    let report = ConsumerReport {
        member,
        consumer,
        status,
        lease,
    };
    store.report_consumer(report).await.unwrap();
}

/// Everybody sees what each said last, under any name, until it ends.
pub async fn a_consumer_is_listed_as_it_last_said<H: Harness>(t: Fixture<H>) {
    assert_eq!(t.desk.consumers().await.unwrap(), []);
    let odd = "Straße 'x'; -- \u{1f980}";
    let (first, second, third) = (RelayId::new("a"), RelayId::new("b"), RelayId::new("c"));
    let at = DateTime::from_timestamp(1_900_000_000, 0);
    let whole = ConsumerStatus {
        source: "kafka topic orders \u{0} at k:9092".into(),
        connected: true,
        since: at,
        last_message_at: at,
        lag: Some(u64::MAX >> 1),
        in_progress: 7,
        resume_at: at,
        full: true,
        last_error: Some("no \u{1f480}".repeat(100)),
        last_error_at: at,
    };
    let nothing = ConsumerStatus::default();
    report(&*t.store, &first, "stock", &nothing).await;
    report(&*t.store, &second, "stock", &nothing).await;
    report(&*t.store, &third, odd, &whole).await;
    let other = t.harness.second_store().await;
    report(&*other, &first, "stock", &whole).await;

    let listed = t.desk.consumers().await.unwrap();

    let mut found: Vec<_> = listed
        .iter()
        .map(|c| (c.consumer.as_str(), c.member.as_str(), &c.status))
        .collect();
    let mut expected = vec![
        ("stock", first.as_str(), &whole),
        ("stock", second.as_str(), &nothing),
        (odd, third.as_str(), &whole),
    ];
    found.sort_by_key(|c| c.1);
    expected.sort_by_key(|c| c.1);
    assert_eq!(found, expected);
    assert!(listed.iter().all(|c| c.alive));
    let names: Vec<&str> = listed.iter().map(|c| c.consumer.as_str()).collect();
    assert!(names == ["stock", "stock", odd] || names == [odd, "stock", "stock"]);

    t.store.forget_consumer(&second).await.unwrap();
    t.store.forget_consumer(&second).await.unwrap();
    let left = t.desk.consumers().await.unwrap();
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|c| c.member != second.as_str()));
}

/// One that says nothing more is shown as silent, and comes back when it speaks.
pub async fn a_consumer_that_falls_silent_is_shown_as_such<H: Harness>(t: Fixture<H>) {
    let (silent, speaks) = (RelayId::new("a"), RelayId::new("b"));
    let status = ConsumerStatus::default();
    report_for(
        &*t.store,
        &silent,
        "stock",
        &status,
        Duration::from_millis(1),
    )
    .await;
    report(&*t.store, &speaks, "stock", &status).await;

    let alive = async |member: &RelayId| {
        let listed = t.desk.consumers().await.unwrap();
        let found = listed.iter().find(|c| c.member == member.as_str());
        found.map(|c| c.alive)
    };
    while alive(&silent).await == Some(true) {
        tokio::time::sleep(PAUSE).await;
    }

    assert_eq!(alive(&silent).await, Some(false));
    assert_eq!(alive(&speaks).await, Some(true));
    report(&*t.store, &silent, "stock", &status).await;
    assert_eq!(alive(&silent).await, Some(true));
}

/// Relays are listed with what they serve and own, and are gone when they have left.
pub async fn relays_are_listed_with_what_they_own<H: Harness>(t: Fixture<H>) {
    let owner = t.relay(&[QUEUE, OTHER]).await;
    let idle = t.other_relay(&[OTHER]).await;

    let listed = t.desk.relays().await.unwrap();

    let found = |relay: &Relay| {
        let named = listed.iter().find(|r| r.relay == relay.id.as_str());
        named.unwrap().clone()
    };
    assert_eq!(listed.len(), 2);
    let shards: Vec<u16> = (0..t.store.shards()).collect();
    let first = found(&owner);
    assert!(first.alive && (first.lease_until.is_some() || first.since.is_some()));
    assert_eq!(first.queues, [QUEUE, OTHER]);
    assert_eq!(first.owns[QUEUE], shards);
    assert_eq!(first.owns[OTHER], shards);
    assert!(found(&idle).alive && found(&idle).owns.is_empty());

    owner.store.leave(&owner.id).await.unwrap();
    let left = t.desk.relays().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].relay, idle.id.as_str());
}

/// What a dead relay has left behind is listed under its name until somebody takes it.
pub async fn a_dead_relay_is_listed_for_as_long_as_it_owns_something<H: Harness>(t: Fixture<H>) {
    if !t.harness.leases() {
        return;
    }
    let dead = t.relay(&[QUEUE]).await;
    let mut heir = t.other_relay(&[QUEUE]).await;
    t.harness.expire_lease(&dead.id).await;

    let listed = t.desk.relays().await.unwrap();
    let found = listed.iter().find(|r| r.relay == dead.id.as_str());
    let found = found.expect("it is not listed");
    assert!(!found.alive);
    assert_eq!(found.owns[QUEUE].len(), usize::from(t.store.shards()));

    heir.take_all().await;
    let listed = t.desk.relays().await.unwrap();
    let owners: Vec<&str> = listed
        .iter()
        .filter(|r| !r.owns.is_empty())
        .map(|r| r.relay.as_str())
        .collect();
    assert_eq!(owners, [heir.id.as_str()]);
}
