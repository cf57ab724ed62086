//! What a receiver sees.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use counterfoil_core::{Aggregate, Destination, Outcome, Payload};
use counterfoil_webhook::{Settings, WebhookDestination, verify};

use crate::receiver::{Received, Receiver, Reply, answer};
use crate::{SECRET, delivery, offer, secret, settings, webhook};

const TOLERANCE: Duration = Duration::from_secs(300);

fn value<'r>(request: &'r Received, name: &str) -> &'r str {
    let mut all = request.headers.get_all(name).iter();
    let first = all.next().map_or("", |v| v.to_str().unwrap());
    assert!(all.next().is_none(), "{name} came twice");
    first
}

#[tokio::test]
async fn a_message_arrives_to_the_letter_and_described() {
    let mut receiver = Receiver::answering([]).await;
    let mut message = delivery();
    for (name, text) in [
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "vendor=a b"),
        ("correlation-id", "c-1"),
        ("causation-id", "c-0"),
        ("idempotency-key", "the-request"),
        ("internal-note", "not for receivers"),
    ] {
        message.headers.set(name, text);
    }

    let outcome = offer(&webhook(&receiver), &message).await;

    assert_eq!(outcome, Outcome::Stored);
    let request = receiver.request().await;
    assert_eq!(request.first_line, "POST /hook?a=b HTTP/1.1");
    assert_eq!(request.body, br#"{"total":  12}"#);
    let id = message.id.to_string();
    let host = receiver.address.to_string();
    for (name, expected) in [
        ("host", host.as_str()),
        ("content-type", "application/json"),
        ("webhook-id", &id),
        ("idempotency-key", &id),
        ("counterfoil-event-type", "OrderPaid"),
        ("counterfoil-aggregate-type", "order"),
        ("counterfoil-aggregate-id", "7"),
        ("counterfoil-version", "3"),
        ("counterfoil-attempt", "1"),
        ("counterfoil-epoch", "42"),
        ("counterfoil-idempotency-key", "the-request"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "vendor=a b"),
        ("correlation-id", "c-1"),
        ("causation-id", "c-0"),
        (
            "user-agent",
            concat!("counterfoil/", env!("CARGO_PKG_VERSION")),
        ),
    ] {
        assert_eq!(value(&request, name), expected, "{name}");
    }
    assert!(!format!("{:?}", request.headers).contains("not for receivers"));
}

#[tokio::test]
async fn a_receiver_can_verify_the_signature() {
    let mut receiver = Receiver::answering([]).await;
    let message = delivery();

    offer(&webhook(&receiver), &message).await;

    let request = receiver.request().await;
    let now = SystemTime::now();
    let verified = verify(&secret(), &request.headers, &request.body, now, TOLERANCE);
    assert_eq!(verified, Ok(message.id.to_string().as_str()));
    assert!(verify(&secret(), &request.headers, b"{}", now, TOLERANCE).is_err());
}

#[tokio::test]
async fn an_unsigned_webhook_has_an_id_and_no_signature() {
    let mut receiver = Receiver::answering([]).await;
    let settings = Settings::unsigned(receiver.url()).allow_private(true);
    let webhook = WebhookDestination::new(settings).unwrap();

    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);

    let request = receiver.request().await;
    assert!(!value(&request, "webhook-id").is_empty());
    assert!(request.headers.get("webhook-signature").is_none());
}

#[tokio::test]
async fn a_retry_keeps_its_id_and_says_which_attempt_it_is() {
    let mut receiver = Receiver::answering([Reply::Raw(answer(500, "", ""))]).await;
    let webhook = webhook(&receiver);
    let mut message = delivery();
    message.headers.set("idempotency-key", "the-request");

    assert_eq!(offer(&webhook, &message).await.label(), "retry");
    message.attempt = 2;
    assert_eq!(offer(&webhook, &message).await, Outcome::Stored);

    let (first, second) = (receiver.request().await, receiver.request().await);
    for name in ["webhook-id", "idempotency-key"] {
        assert_eq!(value(&first, name), message.id.to_string());
        assert_eq!(value(&second, name), message.id.to_string());
    }
    assert_eq!(value(&first, "counterfoil-attempt"), "1");
    assert_eq!(value(&second, "counterfoil-attempt"), "2");
}

#[tokio::test]
async fn hostile_names_cannot_break_out_of_their_header() {
    let mut receiver = Receiver::answering([]).await;
    let mut message = delivery();
    message.event_type = "Paid\r\nx-evil: 1\r\n\r\n{}".into();
    message.aggregate = Some(Aggregate::new("Größe\0", "\u{7f} 7\n"));
    message.headers.set("correlation-id", "a\r\nx-evil: 1");
    message.headers.set("idempotency-key", "日本");
    message.headers.set("traceparent", "00\r\nx-evil: 1");
    message
        .headers
        .set("content-type", "text/plain\r\nx-evil: 1");
    message.payload = Payload::Opaque(Bytes::from_static(b"\0\xff"));

    let outcome = offer(&webhook(&receiver), &message).await;

    assert_eq!(outcome, Outcome::Stored);
    let request = receiver.request().await;
    assert!(request.headers.get("x-evil").is_none());
    assert_eq!(request.body, b"\0\xff");
    for (name, expected) in [
        (
            "counterfoil-event-type",
            "Paid%0D%0Ax-evil:%201%0D%0A%0D%0A{}",
        ),
        ("counterfoil-aggregate-type", "Gr%C3%B6%C3%9Fe%00"),
        ("counterfoil-aggregate-id", "%7F%207%0A"),
        ("correlation-id", "a%0D%0Ax-evil:%201"),
        ("counterfoil-idempotency-key", "%E6%97%A5%E6%9C%AC"),
        ("traceparent", ""),
        ("content-type", "application/octet-stream"),
    ] {
        assert_eq!(value(&request, name), expected, "{name}");
    }
}

#[tokio::test]
async fn an_opaque_payload_keeps_its_media_type() {
    let mut receiver = Receiver::answering([]).await;
    let mut message = delivery();
    message.payload = Payload::Opaque(Bytes::new());
    message
        .headers
        .set("content-type", "text/plain; charset=\"utf-8\"");

    assert_eq!(offer(&webhook(&receiver), &message).await, Outcome::Stored);

    let request = receiver.request().await;
    assert_eq!(
        value(&request, "content-type"),
        "text/plain; charset=\"utf-8\""
    );
    assert_eq!(value(&request, "content-length"), "0");
}

#[tokio::test]
async fn extra_headers_are_sent_with_every_request() {
    let mut receiver = Receiver::answering([]).await;
    let settings = settings(&receiver)
        .header("Authorization", "Bearer 1")
        .header("user-agent", "us");
    let webhook = WebhookDestination::new(settings).unwrap();

    offer(&webhook, &delivery()).await;

    let request = receiver.request().await;
    assert_eq!(value(&request, "authorization"), "Bearer 1");
    assert_eq!(value(&request, "user-agent"), "us");
}

#[tokio::test]
async fn messages_share_a_connection_and_survive_its_end() {
    let closing = Reply::Close(answer(200, "", "bye"));
    let mut receiver = Receiver::answering([Reply::Raw(answer(200, "", "ok")), closing]).await;
    let webhook = webhook(&receiver);

    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);
    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);
    receiver.end().await;
    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);

    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(receiver.request().await.connection);
    }
    assert_eq!(connections, [0, 0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_offered_at_one_time_all_arrive_once() {
    let mut receiver = Receiver::answering([]).await;
    let webhook = Arc::new(webhook(&receiver));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let webhook = Arc::clone(&webhook);
        running.spawn(async move { offer(&webhook, &delivery()).await });
    }

    let outcomes = running.join_all().await;

    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Stored));
    let mut ids = HashSet::new();
    for _ in 0..64 {
        ids.insert(value(&receiver.request().await, "webhook-id").to_owned());
    }
    assert_eq!(ids.len(), 64);
}

#[tokio::test]
async fn the_destination_describes_itself_without_secrets() {
    let receiver = Receiver::answering([]).await;
    let webhook = webhook(&receiver);

    let shown = format!("{} {webhook:?}", webhook.describe());

    assert_eq!(
        webhook.describe(),
        format!("webhook http://{}/hook", receiver.address)
    );
    assert!(!shown.contains("a=b") && !shown.contains(SECRET), "{shown}");
    assert_eq!(webhook.capabilities().max_batch, 1);
    assert_eq!(webhook.capabilities().concurrency, 16);
}
