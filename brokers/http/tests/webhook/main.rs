//! What receivers see, and what the relay is told, over real sockets.

// Clippy does not count the functions that tests share as tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod answers;
mod broken;
mod receiver;
mod refused;
mod requests;

use std::sync::Arc;

use counterfoil_core::row::RowState;
use counterfoil_core::{
    Aggregate, Code, Delivery, Destination, Headers, MessageId, Outcome, Payload,
};
use counterfoil_webhook::{Secret, Settings, WebhookDestination};
use receiver::Receiver;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn secret() -> Secret {
    Secret::parse(SECRET).unwrap()
}

/// Settings for a receiver of these tests, which all have a private address.
fn settings(receiver: &Receiver) -> Settings {
    Settings::signed(receiver.url(), [secret()]).allow_private(true)
}

fn webhook(receiver: &Receiver) -> WebhookDestination {
    WebhookDestination::new(settings(receiver)).unwrap()
}

fn delivery() -> Delivery {
    Delivery {
        seq: 1,
        shard: 0,
        epoch: 42,
        id: MessageId::new(),
        queue: Arc::from("hooks"),
        aggregate: Some(Aggregate::new("order", 7)),
        version: Some(3),
        event_type: "OrderPaid".into(),
        payload: Payload::Json(r#"{"total":  12}"#.into()),
        headers: Headers::new(),
        attempt: 1,
        crashes: 0,
        created_at: chrono::Utc::now(),
        state: RowState::New,
        defect: None,
    }
}

async fn offer(webhook: &WebhookDestination, delivery: &Delivery) -> Outcome {
    let mut outcomes = webhook.publish(std::slice::from_ref(delivery)).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// The code and the words of an outcome that is no success.
fn reason(outcome: &Outcome) -> (&'static str, Option<Code>, &str) {
    match outcome {
        Outcome::Retry { code, error, .. }
        | Outcome::DestinationRefused { code, error }
        | Outcome::Refused { code, error, .. } => (outcome.label(), Some(code.clone()), error),
        Outcome::Unavailable { error } => (outcome.label(), None, error),
        _ => (outcome.label(), None, ""),
    }
}

/// A listener that nobody serves. The kernel completes connections to it all the same, so that
/// `accept` tells for sure whether anybody came.
fn unattended() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

fn nobody_came(listener: &std::net::TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    listener
        .accept()
        .is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
}
