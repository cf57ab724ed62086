//! What is tried again, how often, and when.

use std::time::{Duration, SystemTime};

use counterfoil_http::client::{Client, Ended};
use http::Method;

use crate::server::{Does, Raw, Service, client, limited};

#[tokio::test]
async fn what_can_pass_is_tried_again_and_a_no_is_not() {
    for status in [500, 502, 503, 504, 408, 425, 429] {
        let service = Service::start([Does::Says(status)], Does::Says(200)).await;

        let answer = client().get(service.url("/")).send().await.unwrap();

        assert_eq!((answer.status().as_u16(), answer.attempts()), (200, 2));
        assert_eq!(service.calls(), 2, "{status}");
    }
    for status in [200, 204, 304, 400, 401, 403, 404, 409, 412, 422] {
        let service = Service::start([Does::Says(status)], Does::Says(200)).await;

        let answer = client().get(service.url("/")).send().await.unwrap();

        assert_eq!(answer.status().as_u16(), status);
        assert_eq!(answer.ended(), Ended::Answered);
        assert_eq!(service.calls(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_write_without_key_and_condition_is_sent_once() {
    let service = Service::always(Does::Says(503)).await;

    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let before = service.calls();
        let request = client().request(method.clone(), service.url("/"));
        let answer = request.body("hello").send().await.unwrap();

        assert_eq!(answer.ended(), Ended::NotRepeatable, "{method}");
        assert_eq!(service.calls(), before + 1, "{method}");
    }
}

#[tokio::test]
async fn a_write_with_a_key_is_repeated_with_the_same_key_and_content() {
    let service = Service::start(vec![Does::Says(503); 3], Does::Says(201)).await;

    let request = client().post(service.url("/pay?a=1")).key("order-7");
    let answer = request.json(&serde_json::json!({"cents": 1250})).send();
    let answer = answer.await.unwrap();

    assert_eq!((answer.status().as_u16(), answer.attempts()), (201, 4));
    let seen = service.seen();
    assert_eq!(seen.len(), 4);
    for one in &seen {
        assert_eq!(one.key(), "\"order-7\"");
        assert_eq!((&*one.method, &*one.path), ("POST", "/pay?a=1"));
        assert_eq!(one.body, r#"{"cents":1250}"#);
        assert_eq!(one.header("content-type"), Some("application/json"));
    }
}

#[tokio::test]
async fn a_generated_key_is_one_for_all_attempts_and_another_for_each_call() {
    let service = Service::start(vec![Does::Says(503); 2], Does::Says(200)).await;
    let client = client();

    let ask = || client.post(service.url("/")).generated_key().send();
    let first = ask().await.unwrap();
    let second = ask().await.unwrap();

    let keys: Vec<String> = service.seen().iter().map(|s| s.key().to_owned()).collect();
    let quoted = |key: Option<&str>| format!("\"{}\"", key.unwrap());
    assert_eq!(keys[..3], [(); 3].map(|()| quoted(first.key())));
    assert_eq!(keys[3..], [quoted(second.key())]);
    assert_ne!(first.key(), second.key());
}

#[tokio::test]
async fn a_write_under_a_condition_is_repeated() {
    for condition in ["if-match", "if-none-match", "if-unmodified-since"] {
        let service = Service::start([Does::Says(500)], Does::Says(204)).await;

        let request = client().put(service.url("/")).header(condition, "\"7\"");
        let answer = request.body("hello").send().await.unwrap();

        assert_eq!(answer.status(), 204);
        assert_eq!(service.calls(), 2, "{condition}");
    }
}

#[tokio::test]
async fn the_most_attempts_are_six() {
    let service = Service::always(Does::Says(500)).await;

    let read = client().get(service.url("/")).send().await.unwrap();
    assert_eq!((service.calls(), read.attempts()), (6, 6));
    assert_eq!(read.ended(), Ended::Attempts);
    let write = client().post(service.url("/")).key("k").send();
    assert_eq!(write.await.unwrap().attempts(), 6);
    assert_eq!(service.calls(), 12);
}

#[tokio::test]
async fn a_wait_that_the_service_asks_for_is_honoured() {
    let service = Service::start(
        [
            Does::With(503, "retry-after", "1".into()),
            // It refuses who comes too early.
            Does::NotBefore(SystemTime::now() + Duration::from_secs(1)),
        ],
        Does::Says(404),
    )
    .await;

    let answer = client().post(service.url("/")).key("k").send().await;

    assert_eq!(answer.unwrap().status(), 200);
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn a_date_that_the_service_asks_for_is_honoured() {
    let moment = SystemTime::now() + Duration::from_secs(3);
    let date = httpdate::fmt_http_date(moment);
    let moment = httpdate::parse_http_date(&date).unwrap();
    let wait = Does::With(429, "retry-after", date);
    let service = Service::start([wait, Does::NotBefore(moment)], Does::Says(404)).await;

    let answer = client().get(service.url("/")).send().await.unwrap();

    assert_eq!(answer.status(), 200);
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn a_wait_that_does_not_fit_into_the_deadline_is_not_begun() {
    let wait = Does::With(503, "retry-after", "3600".into());
    let service = Service::start([wait], Does::Says(200)).await;

    let answer = client().get(service.url("/")).send().await.unwrap();

    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "3600");
    assert_eq!(answer.ended(), Ended::AskedTooMuch);
    assert_eq!(service.calls(), 1);
}

#[tokio::test]
async fn a_request_in_progress_elsewhere_is_asked_for_again_and_holds_nobody_up() {
    let busy = || Does::With(409, "retry-after", "1".into());
    let service = Service::start([busy()], Does::Says(201)).await;
    let client = limited(|limits| limits.breaker.throttles = 1);

    let answer = client.post(service.url("/")).key("k").send().await;
    assert_eq!(answer.unwrap().status(), 201);
    assert_eq!(service.calls(), 2);

    let long = Does::With(409, "retry-after", "600".into());
    let service = Service::start([long], Does::Says(200)).await;
    let busy_one = client.post(service.url("/")).key("k").send().await;
    assert_eq!(busy_one.unwrap().ended(), Ended::AskedTooMuch);
    let another = client.post(service.url("/")).key("other").send().await;
    assert_eq!(another.unwrap().status(), 200, "it concerns one key only");

    let service = Service::always(busy()).await;
    let bare = client.post(service.url("/")).send().await.unwrap();
    assert_eq!(bare.status(), 409);
    assert_eq!(service.calls(), 1, "no key, no repeat");
    client.get(service.url("/")).send().await.unwrap();
    assert_eq!(
        service.calls(),
        2,
        "what is read is not in progress elsewhere"
    );

    let service = Service::always(Does::Says(409)).await;
    let business = client.post(service.url("/")).key("k").send();
    assert_eq!(business.await.unwrap().status(), 409);
    assert_eq!(service.calls(), 1, "a conflict that says no time is a no");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_none() {
    let half: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha";
    let whole: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhalf";
    let service = Raw::start(vec![half, whole]).await;

    let answer = client().get(service.url()).send().await.unwrap();

    assert_eq!(answer.text(), "half");
    assert_eq!(answer.attempts(), 2);
}

#[tokio::test]
async fn redirects_are_answers() {
    let moved = Does::With(307, "location", "/elsewhere".into());
    let service = Service::always(moved).await;

    let answer = client().post(service.url("/")).key("k").send().await;

    assert_eq!(answer.unwrap().status(), 307);
    assert_eq!(service.calls(), 1);
}

#[tokio::test]
async fn a_stream_is_sent_once() {
    let service = Service::always(Does::Says(503)).await;
    let parts = ["he", "l", "lo"].map(|part| Ok::<_, std::io::Error>(bytes::Bytes::from(part)));
    let stream = axum::body::Body::from_stream(futures_util::stream::iter(parts));

    let request = client().post(service.url("/")).key("k").stream(stream);
    let answer = request.send().await.unwrap();

    assert_eq!(answer.ended(), Ended::NotRepeatable);
    let seen = service.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].body, "hello");
}

#[tokio::test]
async fn the_usual_settings_are_those_of_the_table() {
    let service = Service::always(Does::Says(200)).await;
    let client = Client::builder().build().unwrap();

    client.get(service.url("/")).send().await.unwrap();

    let limits = *service.dependency(&client).limits();
    assert_eq!(limits.deadline, Duration::from_secs(3));
    assert_eq!(limits.attempt, Duration::from_millis(1_500));
    assert_eq!(
        (limits.backoff.max_attempts(), limits.write_attempts),
        (6, 6)
    );
    let waits = [1, 2, 3, 4, 5].map(|n| limits.backoff.ceiling(n).as_millis());
    assert_eq!(waits, [200, 500, 1_200, 2_500, 5_000]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/client.md");
    let page = std::fs::read_to_string(page).unwrap();
    for row in [
        format!("| `deadline` | {:?} |", limits.deadline).replace("3s", "3 s"),
        format!("| `attempt` | {:?} |", limits.attempt).replace("1.5s", "1.5 s"),
        format!("| retries | {} |", limits.backoff.max_attempts() - 1),
        format!(
            "| ceiling | {} calls, {} waiting |",
            limits.bulkhead.limit, limits.bulkhead.queue
        ),
    ] {
        assert!(page.contains(&row), "the book should have {row}");
    }
    let agent = service.seen()[0].header("user-agent").unwrap().to_owned();
    assert!(agent.starts_with("counterfoil/"), "{agent}");
}
