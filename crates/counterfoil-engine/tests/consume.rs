//! The loop of a consumer, without a database.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a surprise ends the test"
)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::StoreError;
use counterfoil_core::desk::Desk as _;
use counterfoil_core::presence::ConsumerEntry;
use counterfoil_core::source::{Features, Source, SourceError, Subscription};
use counterfoil_core::store::Result;
use counterfoil_engine::consume::{Applied, Apply, Consumer, ConsumerSettings, Received, Reporter};
use counterfoil_testkit::memory::{MemoryStore, Topic};

/// What to do with the next batches; then everything succeeds.
#[derive(Default)]
struct Script {
    next: Mutex<VecDeque<Act>>,
    /// The ids of each batch that came.
    seen: Mutex<Vec<Vec<String>>>,
    /// The ids that took effect.
    applied: Mutex<Vec<String>>,
    /// Aggregates in whose way something stands, so many times.
    blocked: Mutex<HashMap<String, u32>>,
}

enum Act {
    Fail,
    Panic,
}

#[async_trait]
impl Apply for Script {
    async fn apply(&self, batch: &[&Received]) -> Result<Vec<Applied>> {
        let ids: Vec<String> = batch.iter().map(|r| r.incoming.key.clone()).collect();
        self.seen.lock().unwrap().push(ids.clone());
        let act = self.next.lock().unwrap().pop_front();
        match act {
            Some(Act::Fail) => return Err(StoreError::Unreachable("gone".into())),
            Some(Act::Panic) => std::panic::panic_any("on purpose"),
            None => {}
        }
        let mut answers = Vec::new();
        let mut blocked = self.blocked.lock().unwrap();
        let mut postponed = HashSet::new();
        for received in batch {
            let lane = received.incoming.aggregate.as_ref().unwrap().id.clone();
            let times = blocked.get_mut(&lane).filter(|times| **times > 0);
            if let Some(times) = times {
                if postponed.insert(lane) {
                    *times -= 1;
                }
                answers.push(Applied::Postponed("locked".into()));
            } else if postponed.contains(&lane) {
                answers.push(Applied::Postponed("behind".into()));
            } else {
                let key = received.incoming.key.clone();
                self.applied.lock().unwrap().push(key);
                answers.push(Applied::Done);
            }
        }
        Ok(answers)
    }

    async fn is_full(&self) -> Result<bool> {
        Ok(false)
    }
}

fn send(topic: &Topic, id: &str, subject: &str) -> u64 {
    topic.send(&[("ce_id", id), ("ce_subject", subject)], b"{}")
}

fn start(topic: &Topic, script: &Arc<Script>, change: fn(&mut ConsumerSettings)) -> Consumer {
    let mut settings = ConsumerSettings::new("stock");
    change(&mut settings);
    let apply = Arc::clone(script) as Arc<dyn Apply>;
    Consumer::start(Arc::new(topic.clone()), apply, settings)
}

fn script(acts: impl IntoIterator<Item = Act>) -> Arc<Script> {
    Arc::new(Script {
        next: Mutex::new(acts.into_iter().collect()),
        ..Script::default()
    })
}

#[tokio::test(start_paused = true)]
async fn nothing_is_settled_before_it_is_committed_and_failures_are_tried_again_in_order() {
    let topic = Topic::new();
    let numbers: Vec<u64> = ["1", "2", "3"].map(|id| send(&topic, id, "a")).into();
    let script = script([Act::Fail, Act::Panic, Act::Fail]);

    let consumer = start(&topic, &script, |_| {});
    topic.drained().await;
    consumer.stop().await;

    assert_eq!(topic.done(), numbers);
    assert_eq!(*script.applied.lock().unwrap(), ["1", "2", "3"]);
    assert!(script.seen.lock().unwrap().len() > 3);
    assert_eq!(topic.received(), 3, "they stayed with us meanwhile");
}

#[tokio::test(start_paused = true)]
async fn what_stands_in_the_way_of_one_aggregate_holds_back_nobody_else() {
    let topic = Topic::new();
    let script = script([]);
    let blocked = HashMap::from([("a".to_owned(), u32::MAX)]);
    *script.blocked.lock().unwrap() = blocked;
    for (id, subject) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")] {
        send(&topic, id, subject);
    }

    let consumer = start(&topic, &script, |s| s.workers = 1);
    while topic.done().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // For as long as it takes, others that come go on.
    for id in ["5", "6"] {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        send(&topic, id, "b");
        let goes_on = async {
            while !script.applied.lock().unwrap().iter().any(|a| a == id) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), goes_on)
            .await
            .unwrap();
    }
    script.blocked.lock().unwrap().clear();
    topic.drained().await;
    consumer.stop().await;

    assert_eq!(
        *script.applied.lock().unwrap(),
        ["2", "4", "5", "6", "1", "3"]
    );
    assert_eq!(topic.received(), 6, "they stayed with us meanwhile");
}

/// A broker that can be away.
struct Sometimes {
    topic: Topic,
    away: AtomicBool,
}

#[async_trait]
impl Source for Sometimes {
    fn describe(&self) -> String {
        "a broker that can be away".into()
    }

    fn features(&self) -> Features {
        self.topic.features()
    }

    async fn subscribe(&self) -> std::result::Result<Box<dyn Subscription>, SourceError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(SourceError::Unavailable("nobody\nlistens".into())),
            false => self.topic.subscribe().await,
        }
    }
}

/// The only consumer that the store knows, once this is so.
async fn listed(store: &MemoryStore, what: impl Fn(&ConsumerEntry) -> bool) -> ConsumerEntry {
    let found = async {
        loop {
            let mut all = store.consumers().await.unwrap();
            if let Some(one) = all.pop().filter(&what) {
                assert!(all.is_empty());
                return one;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let minute = Duration::from_secs(60);
    tokio::time::timeout(minute, found).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_consumer_says_how_it_is() {
    let (topic, store) = (Topic::new(), MemoryStore::new());
    let source = Arc::new(Sometimes {
        topic: topic.clone(),
        away: AtomicBool::new(true),
    });
    let script = script([Act::Fail, Act::Fail, Act::Fail]);
    let apply = Arc::clone(&script) as Arc<dyn Apply>;
    let mut settings = ConsumerSettings::new("stock");
    settings.lag_every = Duration::from_secs(1);
    let consumer = Consumer::start(Arc::clone(&source) as Arc<dyn Source>, apply, settings);
    let reporter = Reporter::start(Arc::new(store.clone()), "host", consumer.monitor());

    let away = listed(&store, |c| c.status.last_error.is_some()).await;
    assert_eq!(away.consumer, "stock");
    assert!(away.alive && away.member.starts_with("host:"));
    assert!(!away.status.connected && away.status.since.is_some());
    assert_eq!(away.status.source, "a broker that can be away");
    let error = away.status.last_error.unwrap();
    assert!(error.contains("nobody listens"), "{error}");

    source.away.store(false, Ordering::SeqCst);
    send(&topic, "1", "a");
    let paused = listed(&store, |c| c.status.resume_at.is_some()).await;
    assert!(paused.status.connected && !paused.status.is_consuming());
    assert_eq!(paused.status.in_progress, 1);
    assert!(paused.status.last_error.unwrap().contains("gone"));

    topic.drained().await;
    let well = listed(&store, |c| c.status.is_consuming()).await;
    assert_eq!(well.words(), "ok");
    assert!(well.status.last_message_at.is_some() && well.status.lag.is_some());

    source.away.store(true, Ordering::SeqCst);
    topic.break_off();
    let lost = listed(&store, |c| !c.status.connected).await;
    assert!(lost.words().starts_with("not connected since"));

    consumer.stop().await;
    reporter.stop().await;
    assert_eq!(store.consumers().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn no_more_is_received_than_may_be_held() {
    let topic = Topic::new();
    for n in 0..100 {
        send(&topic, &n.to_string(), &n.to_string());
    }
    let script = script(std::iter::repeat_with(|| Act::Fail).take(50));

    let consumer = start(&topic, &script, |s| s.held = 10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(topic.received(), 10);

    topic.drained().await;
    assert_eq!(topic.done().len(), 100);
    consumer.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_broken_connection_what_was_not_settled_comes_again() {
    let topic = Topic::new();
    for n in 0..20 {
        send(&topic, &n.to_string(), "a");
    }
    let script = script([Act::Fail, Act::Fail]);

    let consumer = start(&topic, &script, |s| s.batch = 3);
    tokio::time::sleep(Duration::from_millis(50)).await;
    topic.break_off();
    topic.drained().await;
    consumer.stop().await;

    assert_eq!(topic.done(), (1..=20).collect::<Vec<u64>>());
    assert!(topic.received() >= 40);
    // Repeats are the inbox's business; first effects are in order.
    let mut first = script.applied.lock().unwrap().clone();
    let mut known = std::collections::HashSet::new();
    first.retain(|id| known.insert(id.clone()));
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(first, expected);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_dropped_settles_nothing_more() {
    let topic = Topic::new();
    send(&topic, "1", "a");
    let script = script([Act::Fail]);

    let consumer = start(&topic, &script, |_| {});
    tokio::time::sleep(Duration::from_millis(10)).await;
    drop(consumer);
    tokio::time::sleep(Duration::from_secs(60)).await;

    assert_eq!(topic.done(), [] as [u64; 0]);
    let mut next = topic.subscribe().await.unwrap();
    assert_eq!(next.receive(9).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn messages_of_several_aggregates_share_a_batch_and_spread_over_the_workers() {
    let topic = Topic::new();
    for n in 0..80 {
        send(&topic, &n.to_string(), &(n % 40).to_string());
    }
    let script = script([]);

    let consumer = start(&topic, &script, |s| (s.workers, s.batch) = (4, 15));
    topic.drained().await;
    consumer.stop().await;

    let seen = script.seen.lock().unwrap();
    assert!(seen.iter().all(|batch| batch.len() <= 15));
    assert!(seen.iter().any(|batch| batch.len() > 5), "{seen:?}");
}
