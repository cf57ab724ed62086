//! The gate and the tokens in a real Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::cell::RefCell;
use std::time::Duration;

use counterfoil_core::guard::{Consumed, Digest, Gate as _, Gated, Key, Token, Tokens as _};
use counterfoil_core::store::StoreError;
use counterfoil_redis_gate::{Options, OptionsError, RedisGate, RedisTokens, TokenOptions};
use counterfoil_testkit::server::{self, PrivateRedis};
use tokio::time::timeout;

/// Long enough for a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(20);
/// Between two looks at something that only Redis' clock, or the gate's, can change.
const POLL: Duration = Duration::from_millis(5);

/// A gate that waits for Redis however busy the machine is.
fn patient(url: &str) -> RedisGate {
    RedisGate::new(
        url,
        Options {
            patience: LONG,
            ..Options::default()
        },
    )
    .unwrap()
}

/// The same with a lifetime of its own.
fn patient_with_ttl(url: &str, ttl: Duration) -> RedisGate {
    RedisGate::new(
        url,
        Options {
            ttl,
            patience: LONG,
            ..Options::default()
        },
    )
    .unwrap()
}

/// A digest that no other test uses.
fn digest() -> Digest {
    Key::new("", "test", format!("{:x}", fastrand::u128(..)))
        .unwrap()
        .digest()
}

/// The number behind which the gate was entered.
fn open(gated: Gated) -> u64 {
    match gated {
        Gated::Open(number) => number,
        other => panic!("not open: {other:?}"),
    }
}

/// Asks until the gate answers again: after a failure it is left alone for a second.
async fn until_it_answers(gate: &RedisGate, digest: &Digest) -> Gated {
    let answers = async {
        loop {
            match gate.enter(digest).await {
                Gated::Aside => tokio::time::sleep(POLL).await,
                answer => return answer,
            }
        }
    };
    timeout(LONG, answers).await.expect("the gate stays aside")
}

#[tokio::test]
async fn one_is_let_in_and_the_next_one_when_it_has_left() {
    let Some(url) = server::redis() else { return };
    let (gate, digest) = (patient(&url), digest());

    let first = open(gate.enter(&digest).await);
    assert_eq!(gate.enter(&digest).await, Gated::Busy);
    assert_eq!(patient(&url).enter(&digest).await, Gated::Busy);
    gate.leave(&digest, first).await;

    let second = open(gate.enter(&digest).await);
    assert_ne!(first, second);
}

#[tokio::test]
async fn of_many_at_once_one_is_let_in() {
    let Some(url) = server::redis() else { return };
    let (gate, digest) = (patient(&url), digest());

    let answers = futures_util::future::join_all((0..200).map(|_| gate.enter(&digest))).await;

    let let_in = answers.iter().filter(|a| matches!(a, Gated::Open(_)));
    assert_eq!(let_in.count(), 1);
    assert!(!answers.contains(&Gated::Aside));
}

#[tokio::test]
async fn keys_do_not_shut_each_others_gates() {
    let Some(url) = server::redis() else { return };
    let gate = patient(&url);

    open(gate.enter(&digest()).await);
    open(gate.enter(&digest()).await);
}

#[tokio::test]
async fn a_slow_owner_does_not_open_anothers_gate() {
    let Some(url) = server::redis() else { return };
    let (gate, digest) = (patient(&url), digest());
    let slow = open(gate.enter(&digest).await);
    // As if its time had run out.
    gate.forget(&digest).await;
    let present = open(gate.enter(&digest).await);

    gate.leave(&digest, slow).await;

    assert_eq!(gate.enter(&digest).await, Gated::Busy);
    gate.leave(&digest, present).await;
    open(gate.enter(&digest).await);
}

#[tokio::test]
async fn behind_an_owner_that_died_the_gate_opens_by_itself() {
    let Some(url) = server::redis() else { return };
    let (gate, digest) = (patient_with_ttl(&url, Duration::from_millis(200)), digest());
    open(gate.enter(&digest).await);

    let opens = async {
        while gate.enter(&digest).await == Gated::Busy {
            tokio::time::sleep(POLL).await;
        }
    };

    timeout(LONG, opens).await.expect("the gate stays shut");
}

#[tokio::test]
async fn forgetting_opens_whoever_holds_it() {
    let Some(url) = server::redis() else { return };
    let (gate, digest) = (patient(&url), digest());
    open(gate.enter(&digest).await);

    patient(&url).forget(&digest).await;

    open(gate.enter(&digest).await);
}

#[tokio::test]
async fn names_in_redis_begin_with_the_prefix_and_run_out() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let digest = digest();
    let with = |prefix: &str| {
        let options = Options {
            prefix: prefix.into(),
            patience: LONG,
            ..Options::default()
        };
        RedisGate::new(&redis.url(), options).unwrap()
    };

    open(with("shop:").enter(&digest).await);
    open(with("bank:").enter(&digest).await);

    for prefix in ["shop:", "bank:"] {
        let left = redis.say(&format!("PTTL {prefix}{digest}")).await;
        let left: i64 = left.strip_prefix(':').unwrap().parse().unwrap();
        assert!((1..=15_000).contains(&left), "{left}");
    }
    assert_eq!(redis.say("DBSIZE").await, ":2");
}

#[tokio::test]
async fn many_share_one_connection() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = patient(&redis.url());
    let digests: Vec<_> = (0..100).map(|_| digest()).collect();
    let connections = async || -> i64 {
        let number = redis.say("CLIENT ID").await;
        number.strip_prefix(':').unwrap().parse().unwrap()
    };
    let before = connections().await;

    futures_util::future::join_all(digests.iter().map(|d| gate.enter(d))).await;

    // The gate's, and the one that asks.
    assert_eq!(connections().await, before + 2);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let made = |url: &str, options| RedisGate::new(url, options).map(|_| ());
    let good = "redis://127.0.0.1/";
    let no_time = Options {
        patience: Duration::ZERO,
        ..Options::default()
    };

    for url in ["", "nonsense", "http://127.0.0.1/", "redis://[::1/"] {
        let refused = made(url, Options::default());
        assert!(matches!(refused, Err(OptionsError::Address(_))), "{url}");
    }
    for ttl in [
        Duration::ZERO,
        Duration::from_micros(1),
        Duration::from_secs(86_400),
    ] {
        let options = Options {
            ttl,
            ..Options::default()
        };
        assert!(matches!(made(good, options), Err(OptionsError::Ttl(_))));
    }
    assert!(matches!(made(good, no_time), Err(OptionsError::Patience)));
    assert!(made(good, Options::default()).is_ok());
}

#[tokio::test]
async fn where_nobody_listens_the_gate_steps_aside() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    redis.kill().await;
    let (gate, digest) = (patient(&redis.url()), digest());

    let answer = timeout(LONG, async {
        gate.leave(&digest, 1).await;
        gate.forget(&digest).await;
        gate.enter(&digest).await
    });

    assert_eq!(answer.await, Ok(Gated::Aside));
}

#[tokio::test]
async fn a_frozen_redis_is_not_waited_for() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let (known, fresh) = (
        RedisGate::new(&redis.url(), Options::default()).unwrap(),
        RedisGate::new(&redis.url(), Options::default()).unwrap(),
    );
    let digest = digest();
    until_it_answers(&known, &digest).await;

    redis.pause().await;
    // The one has a connection; to the other the system gives one in the name of Redis.
    let answers = timeout(Duration::from_secs(10), async {
        (known.enter(&digest).await, fresh.enter(&digest).await)
    });

    assert_eq!(answers.await, Ok((Gated::Aside, Gated::Aside)));
    redis.resume();
    until_it_answers(&known, &digest).await;
    until_it_answers(&fresh, &digest).await;
}

#[tokio::test]
async fn after_a_failure_redis_is_left_alone_for_a_while() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = RedisGate::new(&redis.url(), Options::default()).unwrap();
    until_it_answers(&gate, &digest()).await;
    redis.pause().await;
    assert_eq!(gate.enter(&digest()).await, Gated::Aside);

    // Would take ten minutes if each one waited.
    let many = timeout(LONG, async {
        for _ in 0..12_000 {
            assert_eq!(gate.enter(&digest()).await, Gated::Aside);
        }
    });

    many.await.expect("everybody waited");
}

#[tokio::test]
async fn a_killed_redis_is_used_again_when_it_is_back() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let (gate, digest) = (patient(&redis.url()), digest());
    let number = open(gate.enter(&digest).await);

    redis.kill().await;
    assert_eq!(gate.enter(&digest).await, Gated::Aside);
    gate.leave(&digest, number).await;
    redis.restart().await;

    open(until_it_answers(&gate, &digest).await);
    assert_eq!(gate.enter(&digest).await, Gated::Busy);
}

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

fn logged(words: &str) -> usize {
    LOG.with_borrow(|log| String::from_utf8_lossy(log).matches(words).count())
}

#[tokio::test]
async fn each_time_redis_goes_and_comes_is_logged_once() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = patient(&redis.url());
    // For all threads: a logger of one thread misses what another one saw first.
    tracing_subscriber::fmt().with_writer(|| Log).init();

    for times in 1..=2 {
        redis.kill().await;
        for _ in 0..3 {
            assert_eq!(gate.enter(&digest()).await, Gated::Aside);
        }
        redis.restart().await;
        open(until_it_answers(&gate, &digest()).await);

        assert_eq!(logged("does not answer"), times);
        assert_eq!(logged("has its gate again"), times);
    }
}

#[tokio::test]
async fn a_flushed_gate_is_open() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let (gate, digest) = (patient(&redis.url()), digest());
    let before = open(gate.enter(&digest).await);

    redis.flush().await;

    let after = open(gate.enter(&digest).await);
    gate.leave(&digest, before).await;
    assert_ne!(before, after);
    assert_eq!(gate.enter(&digest).await, Gated::Busy);
}

#[tokio::test]
async fn a_redis_that_is_full_steps_aside() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let gate = patient(&redis.url());
    assert_eq!(redis.say("CONFIG SET maxmemory 1").await, "+OK");

    assert_eq!(gate.enter(&digest()).await, Gated::Aside);

    assert_eq!(redis.say("CONFIG SET maxmemory 0").await, "+OK");
    open(until_it_answers(&gate, &digest()).await);
}

/// Tokens under names that no other test uses.
fn tokens(url: &str) -> RedisTokens {
    let options = TokenOptions {
        prefix: format!("cf:token:{:x}:", fastrand::u64(..)),
        patience: LONG,
        ..TokenOptions::default()
    };
    RedisTokens::new(url, options).unwrap()
}

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_token_is_used_once_and_by_its_owner_only() {
    let Some(url) = server::redis() else { return };
    let tokens = tokens(&url);
    let token = tokens.issue("alice", HOUR).await.unwrap();

    for other in ["bob", "", "Alice", "alice "] {
        let stolen = tokens.consume(&token, other).await.unwrap();
        assert_eq!(stolen, Consumed::Refused, "{other:?}");
    }

    assert_eq!(
        tokens.consume(&token, "alice").await.unwrap(),
        Consumed::Won
    );
    assert_eq!(
        tokens.consume(&token, "alice").await.unwrap(),
        Consumed::Refused
    );
    let never = Token::random().unwrap();
    assert_eq!(
        tokens.consume(&never, "alice").await.unwrap(),
        Consumed::Refused
    );
    assert_eq!(tokens.purge(10).await.unwrap(), 0);
}

#[tokio::test]
async fn case_35_of_many_uses_one_wins() {
    let Some(url) = server::redis() else { return };
    let tokens = tokens(&url);
    let token = tokens.issue("alice", HOUR).await.unwrap();

    let uses = (0..100).map(|_| tokens.consume(&token, "alice"));
    let outcomes = futures_util::future::join_all(uses).await;

    let won = outcomes
        .iter()
        .filter(|o| *o.as_ref().unwrap() == Consumed::Won);
    assert_eq!(won.count(), 1);
}

#[tokio::test]
async fn a_token_runs_out() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let tokens = tokens(&redis.url());

    let token = tokens
        .issue("alice", Duration::from_millis(1))
        .await
        .unwrap();
    timeout(LONG, async {
        while redis.say("DBSIZE").await != ":0" {
            tokio::time::sleep(POLL).await;
        }
    })
    .await
    .expect("the token stays");

    assert_eq!(
        tokens.consume(&token, "alice").await.unwrap(),
        Consumed::Refused
    );
}

#[tokio::test]
async fn an_owner_needs_a_name() {
    let Some(url) = server::redis() else { return };

    let nobody = tokens(&url).issue("", HOUR).await;

    assert!(matches!(nobody, Err(StoreError::Message(_))));
}

#[tokio::test]
async fn without_redis_no_token_is_good_and_afterwards_all_are_used_or_gone() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let tokens = tokens(&redis.url());
    let token = tokens.issue("alice", HOUR).await.unwrap();

    redis.kill().await;
    let down = tokens.consume(&token, "alice").await;
    let none = tokens.issue("alice", HOUR).await;
    redis.restart().await;

    assert!(matches!(down, Err(StoreError::Unreachable(_))), "{down:?}");
    assert!(matches!(none, Err(StoreError::Unreachable(_))), "{none:?}");
    assert_eq!(
        tokens.consume(&token, "alice").await.unwrap(),
        Consumed::Refused
    );
    let fresh = tokens.issue("alice", HOUR).await.unwrap();
    assert_eq!(
        tokens.consume(&fresh, "alice").await.unwrap(),
        Consumed::Won
    );
}
