//! A Redis gate in front of the records: it saves work and decides nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::{Key, Rules};
use counterfoil_core::guard::{Gate as _, Gated};
use counterfoil_http::Policy;
use counterfoil_redis_gate::{Options, RedisGate};
use counterfoil_testkit::server::PrivateRedis;
use serde_json::json;

use crate::app::{App, pay, quick};
use crate::database::{Scratch, TestDb};

/// A gate that waits for Redis however busy the machine is.
fn gate(redis: &PrivateRedis, ttl: Duration) -> Arc<RedisGate> {
    let options = Options {
        ttl,
        patience: Duration::from_secs(20),
        ..Options::default()
    };
    Arc::new(RedisGate::new(&redis.url(), options).unwrap())
}

const MINUTE: Duration = Duration::from_secs(60);

/// Until so many gates are shut.
async fn shut(redis: &PrivateRedis, n: usize) {
    let shut = async {
        while redis.say("DBSIZE").await != format!(":{n}") {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shut)
        .await
        .expect("the gate was never asked");
}

pub(crate) async fn case_27_a_gate_that_is_flushed_lets_nothing_run_twice<D: TestDb>(
    scratch: Scratch<D>,
) {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let app = App::transactional(scratch, quick(), Policy::new());
    let here = app.elsewhere(quick(), gate(&redis, MINUTE));
    let there = app.elsewhere(quick(), gate(&redis, MINUTE));
    let body = json!({"amount": 7, "do": "wait"});

    let first = here.spawn(pay("k", body.clone()));
    app.arrived(1).await;
    redis.flush().await;
    let second = there.spawn(pay("k", body.clone()));
    // The gate has let it in.
    shut(&redis, 1).await;
    app.shared.go.add_permits(2);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    redis.flush().await;
    let third = there.pay("k", body).await;

    assert_eq!((first.status, first.replayed()), (200, false));
    for repeat in [second, third] {
        assert_eq!((repeat.status, repeat.replayed()), (200, true));
        assert_eq!(repeat.body, first.body);
    }
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_42_many_duplicates_while_redis_dies<D: TestDb>(scratch: Scratch<D>) {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let rules = Rules {
        wait: MINUTE,
        ..quick()
    };
    let app = App::transactional(scratch, quick(), Policy::new());
    let processes: Vec<_> = (0..4)
        .map(|_| app.elsewhere(rules.clone(), gate(&redis, MINUTE)))
        .collect();
    let body = json!({"amount": 7, "do": "wait"});

    let many: Vec<_> = (0..200)
        .map(|n| processes[n % processes.len()].spawn(pay("k", body.clone())))
        .collect();
    app.arrived(1).await;
    redis.kill().await;
    app.shared.go.add_permits(200);

    let mut bodies = HashSet::new();
    for one in many {
        let answer = one.await.unwrap();
        assert_eq!(answer.status, 200);
        bodies.insert(answer.body);
    }
    assert_eq!((bodies.len(), app.runs(), app.effects().await), (1, 1, 1));
}

pub(crate) async fn behind_an_owner_that_died_the_database_decides<D: TestDb>(scratch: Scratch<D>) {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let app = App::transactional(scratch, quick(), Policy::new());
    let hour = Duration::from_secs(3_600);
    let hasty = Rules {
        wait: Duration::ZERO,
        ..quick()
    };

    for (key, rules) in [("patient", quick()), ("hasty", hasty)] {
        let digest = Key::new("alice", "http", key).unwrap().digest();
        let dead = gate(&redis, hour);
        assert!(matches!(dead.enter(&digest).await, Gated::Open(_)));

        let answer = app
            .elsewhere(rules, gate(&redis, hour))
            .pay(key, json!({"amount": 7}))
            .await;

        assert_eq!((answer.status, answer.replayed()), (200, false), "{key}");
        // Nobody has opened what was not his.
        assert_eq!(dead.enter(&digest).await, Gated::Busy, "{key}");
    }
    assert_eq!((app.runs(), app.effects().await), (2, 2));
}

pub(crate) async fn without_redis_the_guard_works_as_ever<D: TestDb>(scratch: Scratch<D>) {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let app = App::transactional(scratch, quick(), Policy::new());
    let gated = app.elsewhere(quick(), gate(&redis, MINUTE));
    let before = gated.pay("before", json!({"amount": 1})).await;

    redis.kill().await;
    let again = gated.pay("before", json!({"amount": 1})).await;
    let other = gated.pay("before", json!({"amount": 2})).await;
    let fresh = gated.pay("meanwhile", json!({"amount": 3})).await;
    redis.restart().await;
    let later = gated.pay("meanwhile", json!({"amount": 3})).await;

    assert_eq!((again.replayed(), &again.body), (true, &before.body));
    assert_eq!(other.status, 422);
    assert_eq!((fresh.status, fresh.replayed()), (200, false));
    assert_eq!((later.replayed(), &later.body), (true, &fresh.body));
    assert_eq!((app.runs(), app.effects().await), (2, 2));
}
