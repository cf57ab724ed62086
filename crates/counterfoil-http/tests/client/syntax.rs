//! Requests and settings that cannot be.

use std::time::Duration;

use counterfoil_http::client::{BuildError, Client, Error, Invalid, Request};

use crate::server::{Does, Service, builder, client};

async fn wrong(request: Request) -> Invalid {
    match request.send().await {
        Err(Error::Invalid(wrong)) => wrong,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_with_its_reason() {
    let service = Service::always(Does::Says(200)).await;
    let client = client();
    let post = || client.post(service.url("/"));

    assert!(matches!(wrong(client.get("/pay")).await, Invalid::Url(_)));
    assert_eq!(wrong(client.get("http://a:b@shop/")).await, Invalid::User);
    for key in ["", "a\r\nb", "schlüssel", &"x".repeat(256)] {
        assert!(matches!(wrong(post().key(key)).await, Invalid::Key(..)));
    }
    for (name, value) in [
        ("content-length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("connection", "close"),
        ("a b", "c"),
        ("a", "b\r\nc: d"),
        ("idempotency-key", ""),
    ] {
        let invalid = wrong(post().header(name, value)).await;
        assert_eq!(invalid, Invalid::Header(name.into()));
    }
    let step = wrong(post().step("charge-card")).await;
    assert_eq!(step, Invalid::NoRequest("charge-card".into()));
    let map = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(wrong(post().json(&map)).await, Invalid::Json(_)));
    let first = wrong(client.get("nowhere").key("")).await;
    assert!(matches!(first, Invalid::Url(_)), "the first reason stands");

    assert_eq!(service.calls(), 0);
    assert!(client.registry().list().is_empty());
    let text = wrong(client.get("http://a:secret@shop/")).await.to_string();
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn a_key_goes_where_it_is_wanted() {
    let service = Service::start([Does::Says(503)], Does::Says(200)).await;
    let client = builder().key_header("X-Request-Key").build().unwrap();

    let request = client.post(service.url("/")).key(r#"a "b" \c"#);
    request.send().await.unwrap();
    let raw = client
        .post(service.url("/"))
        .header("x-request-key", "bare");
    assert_eq!(raw.send().await.unwrap().key(), Some("bare"));

    let seen = service.seen();
    assert_eq!(seen[1].header("x-request-key"), Some(r#""a \"b\" \\c""#));
    assert_eq!(seen[2].header("x-request-key"), Some("bare"));
    assert_eq!(seen[2].header("idempotency-key"), None);
}

#[tokio::test]
async fn a_bare_key_in_a_header_counts_as_one() {
    let service = Service::start([Does::Says(503)], Does::Says(200)).await;

    let request = client().post(service.url("/"));
    let answer = request.header("Idempotency-Key", "bare").send().await;

    assert_eq!(answer.unwrap().attempts(), 2);
    assert!(service.seen().iter().all(|s| s.key() == "bare"));
}

#[tokio::test]
async fn headers_of_the_client_go_with_every_request() {
    let service = Service::always(Does::Says(200)).await;
    let client = builder().header("authorization", "Bearer x").build();
    let client = client.unwrap();

    client.get(service.url("/")).send().await.unwrap();
    let other = client.get(service.url("/")).header("authorization", "y");
    other.send().await.unwrap();

    let seen = service.seen();
    assert_eq!(seen[0].header("authorization"), Some("Bearer x"));
    assert_eq!(seen[1].header("authorization"), Some("y"));
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let zero = Duration::ZERO;
    let new = Client::builder;
    for (builder, sort) in [
        (new().deadline(zero), "limits"),
        (new().attempt(zero), "limits"),
        (new().connect_timeout(zero), "zero"),
        (new().max_answer(0), "zero"),
        (new().header("a b", "c"), "header"),
        (new().header("content-length", "1"), "header"),
        (new().header("idempotency-key", "k"), "header"),
        (new().key_header("a b"), "header"),
        (new().trust("hello"), "authority"),
    ] {
        let found = match builder.build().err().expect("it was refused") {
            BuildError::Limits(_) => "limits",
            BuildError::Zero(_) => "zero",
            BuildError::Header(_) => "header",
            BuildError::Authority(_) => "authority",
            other => panic!("{other}"),
        };
        assert_eq!(found, sort);
    }
}
