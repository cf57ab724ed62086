//! The memory store in a user's test: its clock is the test's to move.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::store::{ShardSet, Store, Want};
use counterfoil_testkit::fixture::{LEASE, PLENTY, QUEUE, Relay, ids, message};
use counterfoil_testkit::memory::{Clock, MemoryStore};

fn want(store: &MemoryStore) -> Want<'static> {
    let shards: ShardSet = (0..store.shards()).collect();
    Want {
        queue: QUEUE,
        shards,
        after: 0,
        limit: 10,
        bytes: PLENTY,
    }
}

#[tokio::test]
async fn due_times_come_when_the_clock_is_moved() {
    let store = MemoryStore::with_clock(Clock::frozen());
    let hour = Duration::from_secs(3_600);
    let mut tx = store.begin();
    tx.enqueue(&[message("a", 1).not_before(store.clock().now() + hour)])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let early = async || store.read(&[want(&store)], &[]).await.unwrap().rows[0][0].early;

    assert!(early().await);
    store.clock().advance(hour);

    assert!(!early().await);
}

#[tokio::test]
async fn leases_run_out_when_the_clock_is_moved() {
    let store = MemoryStore::with_clock(Clock::frozen());
    let mut first = Relay::join(Arc::new(store.clone()), &[QUEUE]).await;
    let mut second = Relay::join(Arc::new(store.clone()), &[QUEUE]).await;
    first.take_all().await;

    store.clock().advance(LEASE / 2);
    assert!(second.store.heartbeat(&second.id, LEASE).await.unwrap());
    assert!(second.take_all().await.is_empty());
    store.clock().advance(LEASE / 2);

    let taken = second.take_all().await;
    assert_eq!(taken.len(), usize::from(store.shards()));
    assert!(taken.iter().all(|t| t.from_dead));
    assert!(!first.store.heartbeat(&first.id, LEASE).await.unwrap());
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back_and_a_commit_wakes_listeners() {
    let store = MemoryStore::new();
    let mut wake = store.listen().await.unwrap().unwrap();
    let (dropped, kept) = (message("a", 1), message("a", 2));
    let mut tx = store.begin();
    tx.enqueue(&[dropped]).await.unwrap();
    drop(tx);
    let mut tx = store.begin();
    tx.enqueue(std::slice::from_ref(&kept)).await.unwrap();
    tx.commit().await.unwrap();

    wake.wait().await.unwrap();

    let read = store.read(&[want(&store)], &[]).await.unwrap();
    assert_eq!(ids(&read.rows[0]), [kept.id]);
}
