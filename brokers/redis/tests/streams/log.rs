//! What the log says about a Redis that can lose data.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use counterfoil_core::Outcome;
use counterfoil_redis_streams::Settings;
use counterfoil_testkit::server::PrivateRedis;

use crate::{LONG, build, delivery, ok, one, patient, until_stored};

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
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(|| Log)
            .init();
    });
}

fn logged() -> String {
    LOG.with_borrow(|log| String::from_utf8_lossy(log).into_owned())
}

async fn until_logged(words: &str) -> String {
    let found = async {
        while !logged().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(LONG, found).await;
    found.unwrap_or_else(|_| panic!("not logged: {words}\n{}", logged()));
    logged()
}

#[tokio::test]
async fn a_redis_that_can_lose_entries_is_warned_about_once() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    listen();
    let destination = patient(&redis.url().replace("//", "//:pw@"), "s");
    for _ in 0..2 {
        ok(&redis, "CONFIG SET maxmemory-policy allkeys-lru").await;
        ok(&redis, "CONFIG SET requirepass pw").await;
        until_stored(&destination, &delivery(1, 1)).await;
        until_logged("can lose entries").await;
        // A second look would be over by then: it takes fewer questions.
        for version in 2..20 {
            assert_eq!(
                one(&destination, &delivery(1, version)).await,
                Outcome::Stored
            );
        }
        redis.restart().await;
    }

    let log = logged();

    assert_eq!(log.matches("can lose entries").count(), 1, "{log}");
    for words in ["WARN", "nothing on disk", "allkeys-lru"] {
        assert!(log.contains(words), "{log}");
    }
    assert!(!log.contains(":pw@"), "{log}");
}

#[tokio::test]
async fn a_redis_that_hides_its_settings_is_not_talked_about() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    listen();
    ok(&redis, "ACL SETUSER relay on >pw ~* +xadd +ping").await;
    let url = redis.url().replace("//", "//relay:pw@");

    let outcome = one(&build(Settings::new(url, "s")), &delivery(1, 1)).await;

    assert_eq!(outcome, Outcome::Stored);
    let log = until_logged("does not show its settings").await;
    assert!(log.contains("DEBUG") && !log.contains("WARN"), "{log}");
}
