//! Breaker, budget and ceiling of each destination.

use std::time::Duration;

use counterfoil_engine::pipeline::policy::Backoff;
use counterfoil_engine::pipeline::policy::breaker::Cause;
use counterfoil_engine::pipeline::{Registry, State};
use counterfoil_http::client::{Ended, Error};

use crate::server::{Does, Service, builder, limited, nobody, quick};

#[tokio::test]
async fn a_service_that_always_fails_gets_as_many_calls_as_the_budget_allows() {
    let service = Service::always(Does::Says(500)).await;
    let client = limited(|limits| limits.budget.floor = 10);

    for n in 0..20 {
        let request = client.post(service.url("/")).key(format!("k-{n}"));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 500, "the last answer stands");
        if n >= 2 {
            assert_eq!(answer.ended(), Ended::BudgetSpent);
        }
    }

    assert_eq!(service.calls(), 20 + 10);
    assert_eq!(service.dependency(&client).retries_left(), 0);
}

#[tokio::test]
async fn without_an_answer_a_spent_budget_is_an_error() {
    let url = nobody().await;
    let client = limited(|limits| limits.budget.floor = 2);

    let error = client.get(&url).send().await.unwrap_err();

    assert!(matches!(error, Error::BudgetSpent { .. }), "{error:?}");
    assert!(error.certainly_not_sent());
    assert_eq!(error.call().unwrap().attempts, 3);
}

#[tokio::test]
async fn successes_earn_retries() {
    let service = Service::start(vec![Does::Says(200); 20], Does::Says(500)).await;
    let client = limited(|limits| limits.budget.floor = 0);

    for _ in 0..20 {
        client.get(service.url("/")).send().await.unwrap();
    }
    let answer = client.get(service.url("/")).send().await.unwrap();

    assert_eq!(answer.attempts(), 3, "ten percent of twenty");
}

#[tokio::test]
async fn a_service_in_trouble_is_left_alone() {
    let service = Service::always(Does::Says(500)).await;
    let client = limited(|limits| {
        limits.backoff = Backoff::CALL.with_max_attempts(1);
        limits.breaker.consecutive = Some(3);
        limits.breaker.open_for = Duration::from_secs(600);
        limits.breaker.open_cap = Duration::from_secs(600);
    });

    for _ in 0..3 {
        let answer = client.get(service.url("/")).send().await.unwrap();
        assert_eq!(answer.status(), 500);
    }
    let error = client.get(service.url("/")).send().await.unwrap_err();

    assert!(matches!(error, Error::Open { .. }), "{error:?}");
    assert!(error.retry_after().is_some() && error.certainly_not_sent());
    assert_eq!(error.call().unwrap().attempts, 0);
    assert_eq!(service.calls(), 3);
    let status = &client.registry().list()[0];
    assert_eq!(status.destination, format!("client:{}", service.address));
    assert_eq!(status.breaker, State::Open);
    assert_eq!(status.cause, Cause::Consecutive);
}

#[tokio::test]
async fn there_are_no_retries_once_the_breaker_has_opened() {
    let service = Service::always(Does::Says(500)).await;
    let client = limited(|limits| {
        limits.breaker.consecutive = Some(2);
        limits.breaker.open_for = Duration::from_secs(600);
        limits.breaker.open_cap = Duration::from_secs(600);
    });

    let answer = client.get(service.url("/")).send().await.unwrap();

    assert_eq!(answer.ended(), Ended::TurnedAway);
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn a_service_that_asks_everybody_for_less_is_left_alone() {
    let wait = Does::With(429, "retry-after", "600".into());
    let service = Service::always(wait).await;
    let client = limited(|limits| limits.breaker.throttles = 2);

    for _ in 0..2 {
        let answer = client.get(service.url("/")).send().await.unwrap();
        assert_eq!(answer.ended(), Ended::AskedTooMuch);
    }
    let error = client.get(service.url("/")).send().await.unwrap_err();

    assert!(matches!(error, Error::Paused { .. }), "{error:?}");
    assert!(error.retry_after().is_some() && error.certainly_not_sent());
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn one_destination_in_trouble_does_not_touch_another() {
    let bad = Service::always(Does::Says(500)).await;
    let good = Service::always(Does::Says(200)).await;
    let client = limited(|limits| {
        limits.breaker.consecutive = Some(1);
        limits.breaker.open_for = Duration::from_secs(600);
        limits.breaker.open_cap = Duration::from_secs(600);
        limits.budget.floor = 0;
    });

    client.get(bad.url("/")).send().await.unwrap();

    assert!(client.get(bad.url("/")).send().await.is_err());
    assert!(client.get(good.url("/")).send().await.is_ok());
}

#[tokio::test]
async fn destinations_can_be_named_and_have_limits_of_their_own() {
    let one = Service::always(Does::Says(500)).await;
    let two = Service::always(Does::Says(500)).await;
    let registry = Registry::new();
    let mut payments = quick();
    payments.budget.floor = 3;
    let client = builder()
        .destination("payments", payments)
        .registry(registry.clone())
        .build()
        .unwrap();

    for service in [&one, &two] {
        let request = client.get(service.url("/")).destination("payments");
        request.send().await.unwrap();
    }

    assert_eq!(one.calls() + two.calls(), 2 + 3, "one budget for both");
    let names: Vec<String> = registry.list().into_iter().map(|s| s.destination).collect();
    assert_eq!(names, ["client:payments"]);
}

#[tokio::test]
async fn addresses_without_end_do_not_fill_the_memory() {
    let service = Service::always(Does::Says(200)).await;
    let client = limited(|_| ());

    for n in 0..1_100 {
        let request = client.get(service.url("/")).destination(format!("d-{n}"));
        request.send().await.unwrap();
    }

    let names = client.registry().list();
    assert_eq!(names.len(), 1_001);
    assert!(names.iter().any(|s| s.destination == "client:others"));
}
