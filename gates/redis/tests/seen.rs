//! The gate of the inbox in a real Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this is test code: a surprise ends the test"
)]

use std::time::Duration;

use counterfoil_core::inbox::Gate as _;
use counterfoil_redis_gate::{OptionsError, RedisSeen, SeenOptions};
use counterfoil_testkit::server::{self, PrivateRedis};
use tokio::time::timeout;

/// Long enough for a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(20);
/// Between two looks at something that only Redis' clock, or the gate's, can change.
const POLL: Duration = Duration::from_millis(5);

/// A gate that waits for Redis however busy the machine is.
fn patient(url: &str) -> RedisSeen {
    let options = SeenOptions {
        patience: LONG,
        ..SeenOptions::default()
    };
    RedisSeen::new(url, options).unwrap()
}

fn consumer() -> String {
    format!("c-{:x}", fastrand::u128(..))
}

/// Notes until it was noted: after a failure Redis is left alone for a second.
async fn note_until_seen(gate: &RedisSeen, consumer: &str, key: &str) {
    let noted = async {
        while gate.seen(consumer, &[key]).await != [true] {
            gate.note(consumer, &[key]).await;
            tokio::time::sleep(POLL).await;
        }
    };
    timeout(LONG, noted).await.expect("nothing is noted");
}

#[tokio::test]
async fn what_was_noted_is_seen_by_everybody_and_the_rest_is_not() {
    let Some(url) = server::redis() else { return };
    let (gate, consumer) = (patient(&url), consumer());
    let long = "k".repeat(1_000);

    assert_eq!(gate.seen(&consumer, &["a", &long]).await, [false, false]);
    gate.note(&consumer, &["a", &long]).await;

    let seen = patient(&url)
        .seen(&consumer, &["b", "a", &long, &long[1..], ""])
        .await;
    assert_eq!(seen, [false, true, true, false, false]);
    assert_eq!(gate.seen("another", &["a"]).await, [false]);
    assert_eq!(gate.seen(&consumer, &[]).await, [] as [bool; 0]);
    gate.note(&consumer, &[]).await;
}

#[tokio::test]
async fn names_in_redis_begin_with_the_prefix_and_run_out() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let options = SeenOptions {
        prefix: "shop:".into(),
        patience: LONG,
        ..SeenOptions::default()
    };
    let gate = RedisSeen::new(&redis.url(), options).unwrap();

    gate.note("stock", &["a"]).await;

    let left = redis.say("TTL shop:stock:a").await;
    let left: i64 = left.strip_prefix(':').unwrap().parse().unwrap();
    assert!((86_000..=86_400).contains(&left), "{left}");
    assert_eq!(patient(&redis.url()).seen("stock", &["a"]).await, [false]);
}

#[tokio::test]
async fn a_frozen_redis_has_seen_nothing_and_is_not_waited_for() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = RedisSeen::new(&redis.url(), SeenOptions::default()).unwrap();
    note_until_seen(&gate, "stock", "a").await;

    redis.pause().await;
    // Would take ten minutes if each one waited.
    let many = timeout(LONG, async {
        for _ in 0..6_000 {
            assert_eq!(gate.seen("stock", &["a", "b"]).await, [false, false]);
            gate.note("stock", &["b"]).await;
        }
    });
    many.await.expect("everybody waited");

    redis.resume();
    note_until_seen(&gate, "stock", "a").await;
}

#[tokio::test]
async fn a_flushed_or_killed_redis_has_seen_nothing() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = patient(&redis.url());
    gate.note("stock", &["a"]).await;
    assert_eq!(gate.seen("stock", &["a"]).await, [true]);

    redis.flush().await;
    assert_eq!(gate.seen("stock", &["a"]).await, [false]);

    gate.note("stock", &["a"]).await;
    redis.kill().await;
    assert_eq!(gate.seen("stock", &["a"]).await, [false]);
    redis.restart().await;
    note_until_seen(&gate, "stock", "b").await;
    assert_eq!(gate.seen("stock", &["a"]).await, [false]);
}

#[tokio::test]
async fn a_redis_that_is_full_still_tells_what_it_has_seen() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = patient(&redis.url());
    gate.note("stock", &["a"]).await;
    assert_eq!(redis.say("CONFIG SET maxmemory 1").await, "+OK");

    gate.note("stock", &["b"]).await;

    assert_eq!(redis.say("CONFIG SET maxmemory 0").await, "+OK");
    note_until_seen(&gate, "stock", "c").await;
    assert_eq!(gate.seen("stock", &["a", "b"]).await, [true, false]);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let made = |url: &str, ttl, patience| {
        let options = SeenOptions {
            ttl,
            patience,
            ..SeenOptions::default()
        };
        RedisSeen::new(url, options).map(|_| ())
    };
    let (good, hour) = ("redis://127.0.0.1/", Duration::from_secs(3_600));

    assert!(made(good, hour, hour).is_ok());
    for ttl in [Duration::from_millis(999), hour * 24 * 31] {
        let refused = made(good, ttl, hour);
        assert!(matches!(refused, Err(OptionsError::SeenTtl(_))), "{ttl:?}");
    }
    let no_time = made(good, hour, Duration::ZERO);
    assert!(matches!(no_time, Err(OptionsError::Patience)));
}
