//! What an error says: whether anything was sent.

use std::time::Duration;

use counterfoil_engine::pipeline::{Forced, State};
use counterfoil_http::client::Error;

use crate::server::{Does, LIMIT, Raw, Service, builder, client, limited, nobody};

#[tokio::test]
async fn a_refused_connection_has_certainly_sent_nothing() {
    let url = nobody().await;

    let error = client().post(&url).key("k").send().await.unwrap_err();

    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
    assert!(error.certainly_not_sent());
    assert_eq!(error.call().unwrap().attempts, 6);
    assert_eq!(error.key(), Some("k"));
    let bare = client().post(&url).send().await.unwrap_err();
    assert!(matches!(bare, Error::NotSent { .. }), "{bare:?}");
    assert_eq!(bare.call().unwrap().attempts, 1);
}

#[tokio::test]
async fn a_connection_that_is_cut_after_the_request_leaves_a_doubt() {
    let service = Raw::start(vec![b"", b"", b"", b"", b"", b""]).await;

    let request = client().post(service.url()).key("k").body("hello");
    let error = request.send().await.unwrap_err();

    assert!(matches!(error, Error::PossiblySent { .. }), "{error:?}");
    assert!(!error.certainly_not_sent());
    let requests = service.requests();
    assert_eq!(requests.len(), 6);
    assert!(
        requests
            .iter()
            .all(|r| r.contains("idempotency-key: \"k\""))
    );
}

#[tokio::test]
async fn a_write_without_a_key_that_is_cut_is_not_sent_again() {
    let service = Raw::start(vec![b"", b""]).await;

    let request = client().post(service.url()).body("hello");
    let error = request.send().await.unwrap_err();

    assert!(matches!(error, Error::PossiblySent { .. }), "{error:?}");
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test]
async fn one_doubtful_attempt_makes_the_whole_call_doubtful() {
    let service = Raw::start(vec![b""]).await;

    let request = client().post(service.url()).key("k").body("hello");
    let error = request.send().await.unwrap_err();

    assert!(matches!(error, Error::PossiblySent { .. }), "{error:?}");
    assert_eq!(error.call().unwrap().attempts, 6, "the last ones refused");
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test]
async fn a_silent_service_is_cut_off_and_asked_again() {
    let service = Service::start([Does::Hangs], Does::Says(200)).await;
    let client = limited(|limits| limits.attempt = Duration::from_secs(1));

    let answer = client.post(service.url("/")).key("k").send().await;

    let answer = answer.unwrap();
    assert_eq!((answer.status().as_u16(), answer.attempts()), (200, 2));
    let seen = service.seen();
    assert_eq!(seen[0].key(), seen[1].key());
}

#[tokio::test]
async fn who_is_cut_off_after_sending_is_told_so() {
    let service = Service::always(Does::Hangs).await;

    let request = client().post(service.url("/"));
    let cut = request.attempt(Duration::from_secs(1)).send().await;
    assert!(matches!(cut, Err(Error::PossiblySent { .. })), "{cut:?}");
    let request = client().post(service.url("/")).key("k");
    let late = request.deadline(Duration::from_secs(1)).send().await;

    let Err(Error::Deadline { call, within, .. }) = late else {
        panic!("{late:?}");
    };
    assert_eq!((call.attempts, within), (1, Duration::from_secs(1)));
    assert!(call.possibly_sent);
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn an_endless_deadline_is_none() {
    let service = Service::always(Does::Says(200)).await;

    let request = client().get(service.url("/")).attempt(Duration::MAX);
    let answer = request.deadline(Duration::MAX).send().await.unwrap();

    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn who_never_agrees_on_encryption_was_sent_nothing() {
    // The system takes the connection, and nobody says a word.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let client = builder()
        .connect_timeout(Duration::from_millis(100))
        .build()
        .unwrap();

    let error = client.post(&url).send().await.unwrap_err();
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");

    let request = client.post(&url).deadline(Duration::from_millis(10));
    let error = request.send().await.unwrap_err();
    assert!(
        error.certainly_not_sent(),
        "cut off before it had a connection: {error:?}"
    );
}

#[tokio::test]
async fn an_answer_over_the_limit_is_an_error_and_not_asked_for_again() {
    let service = Service::start([Does::Brings(10)], Does::Brings(11)).await;
    let client = builder().max_answer(10).build().unwrap();

    assert_eq!(
        client.get(service.url("/")).send().await.unwrap().text(),
        "xxxxxxxxxx"
    );
    let error = client.get(service.url("/")).send().await.unwrap_err();

    assert!(
        matches!(error, Error::TooLarge { limit: 10, .. }),
        "{error:?}"
    );
    assert!(!error.certainly_not_sent());
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn an_upload_that_fails_says_nothing_about_the_service() {
    let service = Service::start([Does::Says(200), Does::Says(500)], Does::Says(200)).await;
    let client = limited(|limits| {
        limits.breaker.consecutive = Some(1);
        limits.breaker.open_for = Duration::from_millis(1);
    });
    let upload = || {
        let parts = [
            Ok(bytes::Bytes::from("hello")),
            Err(std::io::Error::other("the disk is gone")),
        ];
        let stream = axum::body::Body::from_stream(futures_util::stream::iter(parts));
        client.post(service.url("/")).stream(stream).send()
    };
    client.get(service.url("/")).send().await.unwrap();
    let dependency = service.dependency(&client);

    let error = upload().await.unwrap_err();
    assert!(matches!(error, Error::Upload { .. }), "{error:?}");
    assert_eq!(dependency.state(), State::Closed, "no failure");

    client.post(service.url("/")).send().await.unwrap();
    let probe = async {
        while dependency.state() != State::HalfOpen {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, probe).await.unwrap();
    let error = upload().await.unwrap_err();
    assert!(matches!(error, Error::Upload { .. }), "{error:?}");
    assert_eq!(dependency.state(), State::HalfOpen, "no success");
}

#[tokio::test]
async fn who_waits_for_a_place_until_the_deadline_has_sent_nothing() {
    let service = Service::always(Does::Hangs).await;
    let client = limited(|limits| {
        limits.bulkhead.limit = 1;
        limits.bulkhead.queue = 1;
    });
    let first = tokio::spawn(client.post(service.url("/")).send());
    service.asked(1).await;

    let waiting = client.post(service.url("/"));
    let waiting = waiting.deadline(Duration::from_millis(50)).send().await;
    let error = waiting.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    assert!(error.certainly_not_sent());
    assert_eq!(error.call().unwrap().attempts, 0);

    let second = tokio::spawn(client.post(service.url("/")).send());
    let dependency = service.dependency(&client);
    let queued = async {
        while dependency.status().waiting == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, queued).await.unwrap();
    let error = client.post(service.url("/")).send().await.unwrap_err();
    assert!(matches!(error, Error::Crowded { .. }), "{error:?}");
    assert!(error.certainly_not_sent());
    assert_eq!(service.calls(), 1);
    first.abort();
    second.abort();
}

#[tokio::test]
async fn an_operator_can_stop_all_calls() {
    let service = Service::always(Does::Says(200)).await;
    let client = client();
    client.get(service.url("/")).send().await.unwrap();

    let dependency = service.dependency(&client);
    dependency.force(Some(Forced::Open), "test");

    let error = client.get(service.url("/")).send().await.unwrap_err();
    assert!(matches!(
        error,
        Error::Open {
            retry_after: None,
            ..
        }
    ));
    assert!(error.certainly_not_sent());
    assert_eq!(service.calls(), 1);
}
