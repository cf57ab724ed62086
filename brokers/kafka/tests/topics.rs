//! What is particular to Kafka: offsets, rebalances, limits of topics, and what they can lose.

#![allow(clippy::unwrap_used, reason = "a surprise ends the test")]

mod support;

use std::io;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use counterfoil_core::source::{
    Arrival, DeadLetter, Settle, Source as _, SourceError, Subscription,
};
use counterfoil_core::{Code, Delivery, Destination as _, Outcome};
use counterfoil_kafka::{Kafka, KafkaSource, Settings, SourceSettings};
use counterfoil_testkit::broker::fixture::{message, messages, opaque, until};
use counterfoil_testkit::server::{self, PrivateKafka};
use support::{make_topic, patiently};
use tokio::time::timeout;

/// A topic of the Kafka that all tests use.
struct Topic {
    url: String,
    name: String,
}

impl Topic {
    async fn make(name: &str, partitions: i32, settings: &[(&str, &str)]) -> Option<Self> {
        let url = server::kafka()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let name = format!("{name}-{}", now.as_nanos());
        make_topic(
            url.trim_start_matches("kafka://"),
            &name,
            partitions,
            settings,
        )
        .await;
        Some(Self { url, name })
    }

    fn destination(&self) -> Kafka {
        Kafka::new(Settings::new(&self.url, &self.name)).unwrap()
    }

    fn source(&self) -> KafkaSource {
        self.source_with(|settings| settings)
    }

    fn source_with(&self, with: impl FnOnce(SourceSettings) -> SourceSettings) -> KafkaSource {
        let group = format!("{}-stock", self.name);
        KafkaSource::new(with(SourceSettings::new(&self.url, &self.name, group))).unwrap()
    }

    async fn publish(&self, batch: &[Delivery]) {
        for outcome in self.destination().publish(batch).await {
            assert_eq!(outcome, Outcome::Stored);
        }
    }
}

async fn join(source: &KafkaSource) -> Box<dyn Subscription> {
    patiently(source.subscribe()).await.unwrap()
}

async fn take(member: &mut dyn Subscription, count: usize) -> Vec<Arrival> {
    let mut all = Vec::new();
    while all.len() < count {
        let received = patiently(member.receive(count - all.len())).await;
        all.extend(received.unwrap());
    }
    all
}

async fn settle(member: &mut dyn Subscription, arrivals: &[Arrival]) {
    let settled = arrivals.iter().map(|a| (a.tag, Settle::Done)).collect();
    patiently(member.settle(settled)).await.unwrap();
}

fn positions(arrivals: &[Arrival]) -> Vec<&str> {
    arrivals.iter().map(|a| a.position.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_behind_an_unsettled_message_counts_as_read() {
    let Some(topic) = Topic::make("prefix", 1, &[]).await else {
        return;
    };
    topic.publish(&messages(4)).await;
    let source = topic.source();
    let mut first = join(&source).await;
    let arrivals = take(&mut *first, 4).await;
    assert_eq!(arrivals[1].position, format!("{}/0@1", topic.name));

    settle(&mut *first, &arrivals[2..]).await;
    settle(&mut *first, &arrivals[..1]).await;
    patiently(first.close()).await.unwrap();

    let mut second = join(&source).await;
    let again = take(&mut *second, 3).await;
    assert_eq!(positions(&again), positions(&arrivals[1..]));
    settle(&mut *second, &again).await;
    patiently(second.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_comes_after_a_rebalance_is_passed_over() {
    let Some(topic) = Topic::make("late", 2, &[]).await else {
        return;
    };
    let source = topic.source();
    let mut slow = join(&source).await;
    topic.publish(&messages(40)).await;
    let held = take(&mut *slow, 40).await;

    // The newcomer gets one of the partitions, with everything that is not settled.
    let mut newcomer = join(&source).await;
    let first = take(&mut *newcomer, 1).await;
    let partition = first[0].position.rsplit_once('@').unwrap().0.to_owned();
    let moved = held.iter().filter(|a| a.position.starts_with(&partition));
    let mut given = first;
    given.extend(take(&mut *newcomer, moved.count() - 1).await);
    settle(&mut *newcomer, &given).await;
    // Later ones of both partitions are settled before the slow one comes to the end of its work.
    topic.publish(&messages(40)).await;
    let mut left = 40;
    while left > 0 {
        for member in [&mut slow, &mut newcomer] {
            let some = timeout(Duration::from_millis(200), member.receive(40)).await;
            let some = some.map_or_else(|_| Vec::new(), Result::unwrap);
            settle(&mut **member, &some).await;
            left -= some.len();
        }
    }
    settle(&mut *slow, &held).await;
    patiently(slow.close()).await.unwrap();
    patiently(newcomer.close()).await.unwrap();

    let end = message("order", 1, 2);
    topic.publish(std::slice::from_ref(&end)).await;
    let mut last = join(&source).await;
    let came = take(&mut *last, 1).await;
    assert_eq!(came[0].text("ce_id"), Some(&*end.id.to_string()));
    patiently(last.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_little_memory_everything_comes_all_the_same() {
    let Some(topic) = Topic::make("little", 3, &[]).await else {
        return;
    };
    for _ in 0..3 {
        topic.publish(&messages(400)).await;
    }
    let source = topic.source_with(|settings| settings.prefetch(1));
    let mut member = join(&source).await;

    // Somebody who does not ask is not flooded: the rest waits at the broker.
    let one = take(&mut *member, 1).await;
    let waiting = patiently(member.lag()).await.unwrap().unwrap();
    assert_eq!(waiting, 1_199);
    let rest = take(&mut *member, 1_199).await;

    let mut all = positions(&one);
    all.extend(positions(&rest));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1_200);
    patiently(member.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_finds_too_large_is_refused_alone() {
    let Some(topic) = Topic::make("small", 1, &[("max.message.bytes", "3000")]).await else {
        return;
    };
    let mut batch = messages(40);
    batch[4] = opaque(4, Bytes::from(vec![b'x'; 4_000]));

    let outcomes = topic.destination().publish(&batch).await;

    for (place, outcome) in outcomes.iter().enumerate() {
        match place {
            4 => assert!(
                matches!(outcome, Outcome::Refused { code, .. } if *code == Code::TOO_LARGE),
                "{outcome:?}"
            ),
            _ => assert_eq!(outcome, &Outcome::Stored, "{place}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_topic_for_dead_letters_a_message_stays_where_it_is() {
    let Some(topic) = Topic::make("undertaker", 1, &[]).await else {
        return;
    };
    topic.publish(&messages(1)).await;
    let source = topic.source();
    let mut first = join(&source).await;
    let held = take(&mut *first, 1).await;

    let dead = Settle::Dead(DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "bad".into(),
        attempts: 1,
    });
    let refused = patiently(first.settle(vec![(held[0].tag, dead)])).await;

    assert!(
        matches!(refused, Err(SourceError::Refused(_))),
        "{refused:?}"
    );
    patiently(first.close()).await.unwrap();
    let mut second = join(&source).await;
    let again = take(&mut *second, 1).await;
    assert_eq!(again[0].position, held[0].position);
    patiently(second.close()).await.unwrap();
}

#[tokio::test]
async fn the_retention_is_that_of_the_topic() {
    let hour = [("retention.ms", "3600000"), ("segment.ms", "60000")];
    let Some(topic) = Topic::make("hour", 1, &hour).await else {
        return;
    };
    let Some(eternal) = Topic::make("eternal", 1, &[("retention.ms", "-1")]).await else {
        return;
    };

    let kept = patiently(topic.source().retention()).await.unwrap();
    let for_ever = patiently(eternal.source().retention()).await.unwrap();

    assert_eq!(kept, Some(Duration::from_secs(3_660)));
    assert_eq!(for_ever, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stays_away_ends_the_subscription_and_a_short_absence_does_not() {
    let Some(mut kafka) = PrivateKafka::start().await else {
        return;
    };
    make_topic(&kafka.address(), "orders", 2, &[]).await;
    let topic = Topic {
        url: kafka.url(),
        name: "orders".into(),
    };
    // A busy machine needs a while for a restart.
    let patient = topic.source_with(|settings| settings.timeout(Duration::from_secs(120)));
    let mut member = join(&patient).await;

    kafka.restart().await;
    topic.publish(&messages(10)).await;
    let arrivals = take(&mut *member, 10).await;
    settle(&mut *member, &arrivals).await;
    patiently(member.close()).await.unwrap();

    let hasty = topic.source_with(|settings| settings.timeout(Duration::from_secs(10)));
    let mut member = join(&hasty).await;
    topic.publish(&messages(10)).await;
    let arrivals = take(&mut *member, 10).await;
    kafka.kill().await;
    let end = patiently(member.receive(1)).await;

    assert!(matches!(end, Err(SourceError::Unavailable(_))), "{end:?}");
    let late = patiently(member.settle(vec![(arrivals[0].tag, Settle::Done)])).await;
    assert!(matches!(late, Err(SourceError::Unavailable(_))), "{late:?}");
}

/// What was logged, by all tests of this file.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many lines have all of these words.
fn logged(words: &[&str]) -> usize {
    let text = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    text.lines().filter(has_all).count()
}

#[tokio::test]
async fn whoever_uses_a_topic_that_can_lose_messages_is_told() {
    let settings = [
        ("cleanup.policy", "compact"),
        ("unclean.leader.election.enable", "true"),
    ];
    let Some(topic) = Topic::make("forgetful", 1, &settings).await else {
        return;
    };
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .with_writer(|| Log)
        .init();
    let risks = [
        &topic.name,
        "can lose messages",
        "replication factor",
        "unclean",
        "cleanup.policy",
    ];

    topic.publish(&messages(1)).await;
    until("the writer is told", || async { logged(&risks) == 1 }).await;
    let source = topic.source();
    let member = join(&source).await;
    until("the reader is told", || async { logged(&risks) == 2 }).await;
    until("letters have no place", || async {
        logged(&[&topic.name, "for dead letters"]) == 1
    })
    .await;
    patiently(member.close()).await.unwrap();
}
