//! What the log says about a queue that can lose data.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use counterfoil_core::Destination as _;
use counterfoil_core::source::Source as _;
use counterfoil_sqs::{Sqs, SqsSource};
use counterfoil_testkit::broker::fixture::messages;

use crate::harness::{settings, source_settings};
use crate::service::{Answer, Service, error, says};

const LONG: Duration = Duration::from_secs(20);

thread_local! {
    /// What was logged here. A test has a thread of its own, and all of it runs there.
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

/// For all threads: a logger of one thread misses what another one saw first.
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

fn logged() -> String {
    LOG.with_borrow(|log| String::from_utf8_lossy(log).into_owned())
}

fn careless(action: &str, _: &str) -> Answer {
    match action {
        "GetQueueUrl" => error(400, "QueueDoesNotExist"),
        _ => says(
            r#"{"Attributes":{"MessageRetentionPeriod":"60","MaximumMessageSize":"1024",
                "VisibilityTimeout":"1"},"Successful":[],"Failed":[]}"#,
        ),
    }
}

#[tokio::test]
async fn a_consumer_is_warned_about_a_careless_queue() {
    listen();
    let service = Service::start(careless).await;
    let queue = format!("{}/1/orders", service.url);
    let source = SqsSource::new(source_settings(&service.url, &queue)).unwrap();

    let member = source.subscribe().await.unwrap();

    let log = logged();
    for words in [
        "no redrive policy",
        "within 60 s",
        "silent for 5 s",
        "dead letters have nowhere to go",
        "orders-DLQ",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    drop(member);
}

#[tokio::test]
async fn a_relay_is_warned_about_a_careless_queue_once() {
    listen();
    let service = Service::start(careless).await;
    let queue = format!("{}/1/orders", service.url);
    let destination = Sqs::new(settings(&service.url, &queue)).unwrap();

    let warned = async {
        while logged().is_empty() {
            destination.publish(&messages(1)).await;
        }
    };
    tokio::time::timeout(LONG, warned)
        .await
        .expect("no warning");
    for _ in 0..20 {
        destination.publish(&messages(1)).await;
    }

    let log = logged();
    assert_eq!(log.matches("can lose messages").count(), 1, "{log}");
    assert!(
        log.contains("within 60 s") && log.contains("1024 bytes"),
        "{log}"
    );
}
