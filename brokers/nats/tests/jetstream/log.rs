//! What the log says about streams that can lose messages.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use async_nats::jetstream::stream::StorageType;
use counterfoil_core::Outcome;
use counterfoil_nats::Settings;
use counterfoil_testkit::server::PrivateNats;

use crate::{LONG, build, delivery, join, make, one, stream};

const RISK: &str = "can lose messages";

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

async fn until_logged(words: &str) {
    let found = async {
        while !logged().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(LONG, found).await;
    found.unwrap_or_else(|_| panic!("not logged: {words}\n{}", logged()));
}

#[tokio::test]
async fn a_stream_that_can_lose_messages_is_warned_about_once_by_each_side() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    listen();
    let mut config = stream("orders", "orders");
    config.storage = StorageType::Memory;
    make(&nats, config).await;
    let destination = build(Settings::new(nats.url(), "orders"));

    for version in 1..10 {
        assert_eq!(
            one(&destination, &delivery(1, version)).await,
            Outcome::Stored
        );
    }
    until_logged(RISK).await;
    let published = logged();
    join(&nats, "orders", 1).await.close().await.unwrap();

    assert_eq!(published.matches(RISK).count(), 1, "{published}");
    assert!(published.contains("storage: memory"), "{published}");
    assert!(published.contains("num_replicas: 1"), "{published}");
    assert_eq!(logged().matches(RISK).count(), 2);
}
