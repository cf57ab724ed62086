//! A Redis that is gone, comes back, or hangs.

use std::time::Duration;

use counterfoil_core::{Code, Delivery, Destination as _, Outcome};
use counterfoil_redis_streams::{RedisStreams, Settings};
use counterfoil_testkit::server::PrivateRedis;
use tokio::time::Instant;

use crate::{LONG, code, column, delivery, of_size, one, patient, until_stored};

/// A destination that does not wait long.
fn hasty(redis: &PrivateRedis) -> RedisStreams {
    let settings = Settings::new(redis.url(), "s")
        .timeout(Duration::from_secs(1))
        .connect_timeout(Duration::from_millis(500));
    RedisStreams::new(settings).unwrap()
}

/// As if nobody had published for a while.
async fn rest() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn where_nobody_listens_nothing_was_sent() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    redis.kill().await;
    let destination = patient(&redis.url(), "s");
    let batch = [delivery(1, 1), of_size(700_000), of_size(700_000)];

    let outcomes = destination.publish(&batch).await;

    let labels: Vec<&str> = outcomes.iter().map(Outcome::label).collect();
    assert_eq!(labels, ["unavailable"; 3]);
    let nowhere = Settings::new("redis://nowhere.invalid/", "s");
    let outcome = one(&crate::build(nowhere), &delivery(1, 1)).await;
    assert_eq!(outcome.label(), "unavailable");
}

#[tokio::test]
async fn a_killed_redis_is_used_again_when_it_is_back() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "s");
    assert_eq!(one(&destination, &delivery(1, 1)).await, Outcome::Stored);
    let next = delivery(1, 2);

    redis.kill().await;
    // The first one may meet the old connection; from then on it is known that nobody is there.
    let first = one(&destination, &next).await;
    let second = one(&destination, &next).await;
    redis.restart().await;
    until_stored(&destination, &next).await;

    assert!(first.label() == "unavailable" || code(&first) == Some(&Code::UNCONFIRMED));
    assert_eq!(second.label(), "unavailable");
    // After its restart that Redis was empty.
    let ids = column(&redis.url(), "s", "ce_id").await;
    assert_eq!(ids, [next.id.to_string()]);
}

#[tokio::test]
async fn a_connection_that_died_while_nobody_used_it_costs_no_attempt() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "s");
    assert_eq!(one(&destination, &delivery(1, 1)).await, Outcome::Stored);

    redis.restart().await;
    rest().await;

    assert_eq!(one(&destination, &delivery(1, 2)).await, Outcome::Stored);
}

#[tokio::test]
async fn a_redis_that_hangs_leaves_a_message_unconfirmed_and_gets_it_again() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = hasty(&redis);
    let message = delivery(1, 2);

    let unconfirmed = frozen_in_time(&redis, &destination, &message).await;
    let meanwhile = Instant::now();
    let again = one(&destination, &message).await;

    assert_eq!(code(&unconfirmed), Some(&Code::UNCONFIRMED));
    assert_eq!(
        again.label(),
        "unavailable",
        "nothing is sent before an answer"
    );
    assert!(meanwhile.elapsed() < LONG);
    redis.resume();
    until_stored(&destination, &message).await;
    let id = message.id.to_string();
    let ids = column(&redis.url(), "s", "ce_id").await;
    let copies = ids.iter().filter(|found| **found == id).count();
    assert!((1..=2).contains(&copies), "{copies} copies");
}

/// Publishes while Redis stands still, before anybody can have noticed. On a busy machine a moment
/// can be too long for that: then once more.
async fn frozen_in_time(
    redis: &PrivateRedis,
    destination: &RedisStreams,
    message: &Delivery,
) -> Outcome {
    for _ in 0..20 {
        until_stored(destination, &delivery(1, 1)).await;
        redis.pause().await;
        let outcome = one(destination, message).await;
        if outcome.label() != "unavailable" {
            return outcome;
        }
        redis.resume();
    }
    panic!("Redis never stood still in time");
}

#[tokio::test]
async fn what_stands_behind_an_unconfirmed_message_was_not_sent() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = hasty(&redis);
    let batch = [of_size(700_000), of_size(700_000), delivery(1, 1)];
    let mut outcomes = Vec::new();
    for _ in 0..20 {
        until_stored(&destination, &delivery(9, 9)).await;
        redis.pause().await;
        outcomes = destination.publish(&batch).await;
        if outcomes[0].label() != "unavailable" {
            break;
        }
        redis.resume();
    }

    assert_eq!(code(&outcomes[0]), Some(&Code::UNCONFIRMED));
    let labels: Vec<&str> = outcomes.iter().map(Outcome::label).collect();
    assert_eq!(labels, ["retry", "unavailable", "unavailable"]);
    redis.resume();
    // One that waits: what it offers is stored once.
    until_stored(&patient(&redis.url(), "s"), &batch[2]).await;
    let ids = column(&redis.url(), "s", "ce_id").await;
    let count = |i: usize| {
        ids.iter()
            .filter(|id| **id == batch[i].id.to_string())
            .count()
    };
    assert_eq!((count(1), count(2)), (0, 1));
}

#[tokio::test]
async fn to_a_redis_that_hangs_from_the_start_nothing_is_sent() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = hasty(&redis);
    redis.pause().await;
    let message = delivery(1, 1);

    let outcome = one(&destination, &message).await;

    assert_eq!(outcome.label(), "unavailable");
    redis.resume();
    until_stored(&patient(&redis.url(), "s"), &message).await;
    let ids = column(&redis.url(), "s", "ce_id").await;
    assert_eq!(ids, [message.id.to_string()], "stored once");
}

#[tokio::test]
async fn a_batch_that_is_cut_off_does_not_harm_the_next_one() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "s");
    let first = delivery(1, 1);
    assert_eq!(one(&destination, &first).await, Outcome::Stored);

    redis.pause().await;
    let batch = [delivery(2, 1)];
    let cut = tokio::time::timeout(Duration::from_millis(50), destination.publish(&batch)).await;
    redis.resume();

    assert!(cut.is_err(), "the relay gave up waiting");
    until_stored(&destination, &delivery(3, 1)).await;
}
