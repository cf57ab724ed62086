//! The locks in a real Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this is test code: a surprise ends the test"
)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::Locks;
use counterfoil_core::store::StoreError;
use counterfoil_redis_gate::{LockOptions, OptionsError, RedisLocks};
use counterfoil_testkit::guard::locking::LockFixture;
use counterfoil_testkit::server::PrivateRedis;
use tokio::time::timeout;

/// Long enough for a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(20);
/// Between two looks at something that only Redis can change.
const POLL: Duration = Duration::from_millis(5);
/// No test takes so long.
const DAY: Duration = Duration::from_secs(86_400);
/// How long a number is kept that nobody holds, in milliseconds.
const KEPT: i64 = 3_600_000;

/// Makes every lock older by so many milliseconds, and removes the names that would be gone.
const AGE: &str = "for _, name in ipairs(redis.call('KEYS', '*')) do \
    local fence, till = string.match(redis.call('GET', name), '^(%d+) (%d+)$') \
    local left = redis.call('PTTL', name) - ARGV[1] \
    till = string.format('%.0f', till - ARGV[1] * 1000) \
    if left < 1 then redis.call('DEL', name) \
    else redis.call('SET', name, fence .. ' ' .. till, 'PX', string.format('%.0f', left)) end \
    end return 0";

/// Locks that wait for Redis however busy the machine is.
fn patient(url: &str) -> RedisLocks {
    with_patience(url, LONG)
}

fn with_patience(url: &str, patience: Duration) -> RedisLocks {
    let options = LockOptions {
        patience,
        ..LockOptions::default()
    };
    RedisLocks::new(url, options).unwrap()
}

/// Asks until Redis answers, without taking anything.
async fn until_it_answers(locks: &RedisLocks) {
    let answers = async {
        while locks.release("nobody's", 1).await.is_err() {
            tokio::time::sleep(POLL).await;
        }
    };
    timeout(LONG, answers).await.expect("Redis stays silent");
}

/// A Redis of a test's own, and the locks in it.
struct OwnRedis {
    redis: PrivateRedis,
    locks: Arc<RedisLocks>,
}

impl OwnRedis {
    async fn start() -> Option<Self> {
        let redis = PrivateRedis::start().await?;
        let locks = Arc::new(patient(&redis.url()));
        Some(Self { redis, locks })
    }

    /// For how many milliseconds Redis keeps a name.
    async fn left(&self, name: &str) -> i64 {
        let left = self.redis.say(&format!("PTTL {name}")).await;
        left.strip_prefix(':').unwrap().parse().unwrap()
    }
}

#[async_trait]
impl LockFixture for OwnRedis {
    fn locks(&self) -> Arc<dyn Locks> {
        Arc::clone(&self.locks) as _
    }

    async fn advance(&self, by: Duration) {
        let age = format!("EVAL \"{AGE}\" 0 {}", by.as_millis());
        assert_eq!(self.redis.say(&age).await, ":0");
    }
}

/// Runs one case on a Redis of its own.
fn on_redis<C, F>(case: C)
where
    C: FnOnce(OwnRedis) -> F,
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        if let Some(t) = OwnRedis::start().await {
            case(t).await;
        }
    });
}

counterfoil_testkit::lock_suite!(on_redis);

#[tokio::test]
async fn a_lease_runs_out_by_itself() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };
    let short = Duration::from_millis(50);
    let first = t.locks.acquire("l", short).await.unwrap().unwrap();

    let taken = async {
        loop {
            match t.locks.acquire("l", DAY).await.unwrap() {
                Some(fence) => return fence,
                None => tokio::time::sleep(POLL).await,
            }
        }
    };
    let second = timeout(LONG, taken).await.expect("the lock stays taken");

    assert!(second > first);
    assert!(!t.locks.renew("l", first, DAY).await.unwrap());
    assert!(!t.locks.release("l", first).await.unwrap());
    assert!(t.locks.renew("l", second, DAY).await.unwrap());
}

#[tokio::test]
async fn numbers_grow_after_redis_has_forgotten_everything() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };
    let first = t.locks.acquire("l", DAY).await.unwrap().unwrap();

    t.redis.flush().await;

    assert!(!t.locks.renew("l", first, DAY).await.unwrap());
    let second = t.locks.acquire("l", DAY).await.unwrap().unwrap();
    assert!(second > first);
    assert!(!t.locks.release("l", first).await.unwrap());
    assert!(t.locks.release("l", second).await.unwrap());
}

#[tokio::test]
async fn numbers_grow_also_when_the_clock_is_behind_them() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };
    let (behind, slack) = (2_000_000, 1_000_000);
    let first = t.locks.acquire("l", DAY).await.unwrap().unwrap();
    // As if it had been taken by a clock that has been set back since.
    let ahead = first + behind * 1_000;
    t.redis.say(&format!("SET cf:lock:l \"{ahead} 1\"")).await;

    for fence in [ahead + 1, ahead + 2] {
        let taken = t.locks.acquire("l", Duration::ZERO).await.unwrap();
        assert_eq!(taken, Some(fence));
    }

    // Kept until the clock is past it, and an hour.
    assert!(t.left("cf:lock:l").await > behind - slack + KEPT);
}

#[tokio::test]
async fn nothing_is_left_of_a_lock_an_hour_after_its_end() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };
    let first = t.locks.acquire("l", DAY).await.unwrap().unwrap();
    let lost = t.locks.acquire("lost", DAY).await.unwrap();

    assert!(lost.is_some());
    assert!(t.left("cf:lock:l").await > i64::try_from(DAY.as_millis()).unwrap());
    assert!(t.locks.release("l", first).await.unwrap());
    assert!((1..=KEPT).contains(&t.left("cf:lock:l").await));
    assert_eq!(t.redis.say("DBSIZE").await, ":2");

    t.advance(DAY + Duration::from_millis(KEPT.unsigned_abs()))
        .await;

    assert_eq!(t.redis.say("DBSIZE").await, ":0");
    assert!(t.locks.acquire("l", DAY).await.unwrap() > Some(first));
}

#[tokio::test]
async fn locks_under_another_prefix_are_others() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };
    let with = |prefix: &str| {
        let options = LockOptions {
            prefix: prefix.into(),
            patience: LONG,
            ..LockOptions::default()
        };
        RedisLocks::new(&t.redis.url(), options).unwrap()
    };
    let (shop, bank) = (with("shop:"), with("bank:"));

    let fence = shop.acquire("l", DAY).await.unwrap().unwrap();
    assert!(bank.acquire("l", DAY).await.unwrap().is_some());
    let second = with("shop:").acquire("l", DAY).await.unwrap();

    assert_eq!(second, None);
    assert!(with("shop:").release("l", fence).await.unwrap());
    assert_eq!(t.redis.say("EXISTS shop:l bank:l").await, ":2");
}

#[tokio::test]
async fn the_longest_lease_is_one() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };

    let fence = t.locks.acquire("l", Duration::MAX).await.unwrap().unwrap();

    assert!(t.locks.renew("l", fence, Duration::MAX).await.unwrap());
    assert_eq!(t.locks.acquire("l", DAY).await.unwrap(), None);
}

#[tokio::test]
async fn a_frozen_redis_gives_nothing_and_is_not_waited_for() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let patience = Duration::from_millis(50);
    let (known, fresh) = (
        with_patience(&redis.url(), patience),
        with_patience(&redis.url(), patience),
    );
    until_it_answers(&known).await;

    redis.pause().await;
    // The one has a connection; to the other the system gives one in the name of Redis.
    for locks in [&known, &fresh] {
        let answers = timeout(LONG, async {
            (
                locks.acquire("l", DAY).await,
                locks.renew("l", 1, DAY).await,
                locks.release("l", 1).await,
            )
        });
        let answers = answers.await.expect("Redis is waited for");
        assert!(
            matches!(
                answers,
                (
                    Err(StoreError::Unreachable(_)),
                    Err(StoreError::Unreachable(_)),
                    Err(StoreError::Unreachable(_)),
                )
            ),
            "{answers:?}"
        );
    }

    redis.resume();
    until_it_answers(&known).await;
    until_it_answers(&fresh).await;
}

#[tokio::test]
async fn without_redis_nobody_holds_a_lock_and_afterwards_numbers_go_on() {
    let Some(mut t) = OwnRedis::start().await else {
        return;
    };
    let first = t.locks.acquire("l", DAY).await.unwrap().unwrap();

    t.redis.kill().await;
    let taken = t.locks.acquire("other", DAY).await.map(|_| ());
    let renewed = t.locks.renew("l", first, DAY).await.map(|_| ());
    let released = t.locks.release("l", first).await.map(|_| ());
    t.redis.restart().await;

    for down in [taken, renewed, released] {
        assert!(matches!(down, Err(StoreError::Unreachable(_))), "{down:?}");
    }
    assert!(!t.locks.renew("l", first, DAY).await.unwrap());
    assert!(t.locks.acquire("l", DAY).await.unwrap() > Some(first));
}

#[tokio::test]
async fn a_redis_that_cannot_write_gives_nothing() {
    let Some(t) = OwnRedis::start().await else {
        return;
    };
    for (spoil, mend) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
        ),
    ] {
        assert_eq!(t.redis.say(spoil).await, "+OK");
        let refused = t.locks.acquire("l", DAY).await;
        assert_eq!(t.redis.say(mend).await, "+OK");

        assert!(
            matches!(refused, Err(StoreError::NotWritable(..))),
            "{spoil}: {refused:?}"
        );
        let fence = t.locks.acquire("l", DAY).await.unwrap().unwrap();
        assert!(t.locks.release("l", fence).await.unwrap());
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let made = |url: &str, options| RedisLocks::new(url, options).map(|_| ());
    let no_time = LockOptions {
        patience: Duration::ZERO,
        ..LockOptions::default()
    };

    let nowhere = made("nonsense", LockOptions::default());
    let impatient = made("redis://127.0.0.1/", no_time);

    assert!(matches!(nowhere, Err(OptionsError::Address(_))));
    assert!(matches!(impatient, Err(OptionsError::Patience)));
    assert!(made("redis://127.0.0.1/", LockOptions::default()).is_ok());
}
