//! Queues of others.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use counterfoil_core::Code;
use counterfoil_core::source::{DeadLetter, Settle, Source as _, SourceError};
use counterfoil_rabbitmq::{RabbitMqSource, Settings, SourceSettings};
use counterfoil_testkit::server;
use lapin::types::FieldTable;

use crate::{LONG, build, channel, delivery, one, own_name, passing_queue};

thread_local! {
    /// What was logged here. A test has a thread of its own, and its tasks run there.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(|| Log)
            .init();
    });
}

async fn until_logged(words: &str) {
    let log = || LOG.with_borrow(|log| String::from_utf8_lossy(log).into_owned());
    let found = async {
        while !log().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(LONG, found).await;
    found.unwrap_or_else(|_| panic!("not logged: {words}\n{}", log()));
}

#[tokio::test]
async fn a_queue_of_others_is_read_as_it_is_and_its_risks_are_told() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    listen();
    let (_connection, channel) = channel(&url).await;
    let name = own_name();
    passing_queue(&channel, &name, FieldTable::default()).await;
    let destination = build(Settings::queue(&url, &name));
    one(&destination, &delivery(1)).await;
    until_logged("this queue can lose messages").await;

    let source = SourceSettings::queue(&url, &name).passive();
    let source = RabbitMqSource::new(source).unwrap();
    let mut subscription = source.subscribe().await.unwrap();
    let held = subscription.receive(10).await.unwrap();

    assert_eq!(held.len(), 1);
    let features = source.features();
    assert!(!features.ordering_key && !features.delay && !features.dead_letters);
    let tag = held[0].tag;
    let delay = Some(Duration::from_secs(1));
    let why = DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "no".into(),
        attempts: 1,
    };
    for how in [Settle::Release { delay }, Settle::Dead(why)] {
        let refused = subscription.settle(vec![(tag, how)]).await;
        assert!(
            matches!(refused, Err(SourceError::Unsupported(_))),
            "{refused:?}"
        );
    }
    subscription
        .settle(vec![(tag, Settle::Done)])
        .await
        .unwrap();
    subscription.close().await.unwrap();
}

#[tokio::test]
async fn a_delay_that_is_too_long_is_unsupported_and_nothing_happens() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (topic, group) = (own_name(), "stock");
    let source = SourceSettings::new(&url, &topic, group);
    let source = RabbitMqSource::new(source).unwrap();
    let mut subscription = source.subscribe().await.unwrap();
    one(&build(Settings::new(&url, &topic)), &delivery(1)).await;
    let held = subscription.receive(1).await.unwrap();

    let delay = Some(Duration::from_secs(40 * 24 * 3600));
    let how = Settle::Release { delay };
    let refused = subscription.settle(vec![(held[0].tag, how)]).await;

    assert!(
        matches!(refused, Err(SourceError::Unsupported(_))),
        "{refused:?}"
    );
    let done = vec![(held[0].tag, Settle::Done)];
    subscription.settle(done).await.unwrap();
    assert_eq!(subscription.lag().await.unwrap(), Some(0));
    subscription.close().await.unwrap();
    let (_connection, channel) = channel(&url).await;
    for queue in [format!("{topic}.{group}"), format!("{topic}.{group}.DLQ")] {
        channel
            .queue_delete(queue.into(), Default::default())
            .await
            .unwrap();
    }
    channel
        .exchange_delete(topic.into(), Default::default())
        .await
        .unwrap();
}
