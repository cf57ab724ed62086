//! Many callers, one call.

use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use counterfoil_http::client::Error;
use futures_util::future::join_all;

use crate::server::{Does, Service, client, limited};

#[tokio::test]
async fn fifty_equal_calls_at_once_are_one_call_and_only_that_one_is_retried() {
    let service = Service::start([Does::Says(503)], Does::Says(201)).await;
    let client = client();
    let ask = || client.post(service.url("/")).key("k").body("hello").send();

    let answers = join_all((0..50).map(|_| ask())).await;

    assert_eq!(service.calls(), 2, "one call, and its retry");
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!((answer.status().as_u16(), &*answer.text()), (201, "201"));
    }
    ask().await.unwrap();
    assert_eq!(service.calls(), 3, "what comes later is a call of its own");
}

#[tokio::test]
async fn an_error_is_shared_too() {
    let url = crate::server::nobody().await;
    let client = limited(|limits| limits.budget.floor = 3);

    let all = join_all((0..20).map(|_| client.post(&url).key("k").send())).await;

    for error in all {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::BudgetSpent { .. }), "{error:?}");
        assert_eq!(error.call().unwrap().attempts, 4, "all of them together");
    }
}

#[tokio::test]
async fn calls_that_differ_are_not_shared() {
    let service = Service::always(Does::Says(200)).await;
    let client = client();
    let post = |path: &str| client.post(service.url(path));

    let all = [
        post("/").key("k").body("hello"),
        post("/").key("k").body("other"),
        post("/").key("other").body("hello"),
        post("/x").key("k").body("hello"),
        client.put(service.url("/")).key("k").body("hello"),
        post("/")
            .key("k")
            .body("hello")
            .header("authorization", "bob"),
        post("/").body("hello"),
        post("/").body("hello"),
    ];
    let sent = all.len();
    for answer in join_all(all.map(|request| request.send())).await {
        answer.unwrap();
    }

    assert_eq!(service.calls(), sent);
}

#[tokio::test]
async fn the_call_goes_on_when_the_one_that_began_it_goes_away() {
    let service = Service::always(Does::Waits).await;
    let client = client();
    let ask = || client.post(service.url("/")).key("k").send();
    let first = tokio::spawn(ask());
    service.asked(1).await;
    let mut second = Box::pin(ask());
    let joined = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending()));
    assert!(joined.await);

    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    service.go(1);

    assert_eq!(second.await.unwrap().status(), 200);
    assert_eq!(service.calls(), 1);
}

#[tokio::test]
async fn everybody_has_a_deadline_of_his_own() {
    let service = Service::always(Does::Waits).await;
    let client = client();
    let ask = || client.post(service.url("/")).key("k");
    let patient = tokio::spawn(ask().send());
    service.asked(1).await;

    let hasty = ask().deadline(Duration::from_millis(20)).send().await;

    let error = hasty.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    assert!(!error.certainly_not_sent(), "the other one has sent it");
    service.go(1);
    assert_eq!(patient.await.unwrap().unwrap().status(), 200);
    assert_eq!(service.calls(), 1);
}
