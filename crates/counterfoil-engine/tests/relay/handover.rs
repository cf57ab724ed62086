//! Shards that are given to another relay, seen through a look around that is older than the giving.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::Outcome;
use counterfoil_core::store::{RelayId, ShardSet, Store};
use counterfoil_engine::{Engine, EngineBuilder, Settings};
use counterfoil_testkit::memory::{Hold, MemoryStore, Point};

use crate::support::*;

/// So long that nothing that a test holds runs into a limit.
const LEASE: Duration = Duration::from_secs(9);

async fn start(store: &MemoryStore, script: &Arc<Script>) -> Engine {
    EngineBuilder::new(Arc::new(store.clone()))
        .settings(Settings {
            lease: LEASE,
            ..settings()
        })
        .queue(spec(script))
        .start()
        .await
        .unwrap()
}

/// Which shards somebody owns.
async fn owned(store: &MemoryStore) -> ShardSet {
    let survey = Store::survey(store, &RelayId::new("test"), &[Arc::from(QUEUE)]).await;
    let owned = survey.unwrap().owned;
    owned.iter().map(|o| o.shard.shard).collect()
}

/// Another relay joins, so that the first one is about to give shards away; there it waits. The other
/// relay leaves again: whoever looks around now sees all shards with the first one.
async fn about_to_give(store: &MemoryStore) -> Hold {
    let all = usize::from(store.shards());
    eventually("the relay owns everything", || async {
        owned(store).await.iter().count() == all
    })
    .await;
    let hold = store.hold("give", Point::Before);
    let other = RelayId::new("other");
    let queues = [Arc::from(QUEUE)];
    let joined = store.join(&other, &queues, Duration::from_secs(3_600));
    joined.await.unwrap();
    hold.reached().await;
    store.leave(&other).await.unwrap();
    let messages: Vec<_> = (0..64).map(|n| message(format!("a{n}"), 1)).collect();
    enqueue(store, &messages).await;
    hold
}

/// Waits until the relay has gone round many times.
async fn rounds(store: &MemoryStore) {
    let until = store.calls("read") + 50;
    eventually("the relay reads", || async { store.calls("read") >= until }).await;
}

async fn all_arrive_once(store: &MemoryStore, script: &Arc<Script>) {
    until_empty(store).await;
    assert_eq!(script.seen().len(), 64, "nothing is delivered twice");
    assert_eq!(store.calls("suspect"), 0, "nobody has died");
}

#[tokio::test]
async fn a_look_around_while_shards_are_given_does_not_take_them_again() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let engine = start(&store, &script).await;
    let giving = about_to_give(&store).await;

    let before = store.calls("survey");
    eventually("the relay looks around", || async {
        store.calls("survey") > before
    })
    .await;
    rounds(&store).await;
    drop(giving);

    all_arrive_once(&store, &script).await;
    engine.stop().await;
}

#[tokio::test]
async fn what_was_seen_before_shards_were_given_does_not_take_them_again() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let engine = start(&store, &script).await;
    let giving = about_to_give(&store).await;

    let seen = store.hold("survey", Point::After);
    seen.reached().await;
    drop(giving);
    rounds(&store).await;
    drop(seen);

    all_arrive_once(&store, &script).await;
    engine.stop().await;
}
