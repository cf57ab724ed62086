//! A receiver of webhooks: the same book, behind HTTP.
//!
//! A request says who it is from in its own headers; what the wire of webhooks does not tell (the
//! number of the row, the shard) is made up so that the checker's rules still hold.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use counterfoil_core::MessageId;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::book::Book;
use crate::wire::{Item, Verdict};

/// The header that names the relay.
pub const RELAY: &str = "e2e-relay";
/// The header that names the queue.
pub const QUEUE: &str = "e2e-queue";

/// A listening receiver of webhooks.
pub struct WebhookReceiver {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl WebhookReceiver {
    /// Starts to listen on a free port of this machine, and writes into this book.
    pub async fn start(book: Arc<Book>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("no port to listen on");
        let address = listener.local_addr().expect("a listener has an address");
        let router = Router::new().fallback(receive).with_state(book);
        let serving = tokio::spawn(async move {
            // Ends with the test.
            let _ = axum::serve(listener, router).await;
        });
        Self { address, serving }
    }

    /// Where relays find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(State(book): State<Arc<Book>>, headers: HeaderMap) -> StatusCode {
    let Some(item) = item(&headers) else {
        return StatusCode::BAD_REQUEST;
    };
    let relay = text(&headers, RELAY).unwrap_or_default().to_owned();
    let (number, verdict) = book.offer(&relay, item).await;
    book.replied(&[number]);
    match verdict {
        Verdict::Stored => StatusCode::NO_CONTENT,
        Verdict::Refused => StatusCode::UNPROCESSABLE_ENTITY,
        Verdict::Failed | Verdict::Away | Verdict::HungUp => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn item(headers: &HeaderMap) -> Option<Item> {
    let id = text(headers, "webhook-id")?;
    assert_eq!(
        Some(id),
        text(headers, "idempotency-key"),
        "one id under both names"
    );
    let aggregate = text(headers, "counterfoil-aggregate-id")?.to_owned();
    let mut hasher = DefaultHasher::new();
    aggregate.hash(&mut hasher);
    Some(Item {
        seq: 0,
        // A lane is in one shard; more than that is not needed.
        shard: u16::try_from(hasher.finish() % 60_000).unwrap_or(0),
        epoch: text(headers, "counterfoil-epoch")?.parse().ok()?,
        id: MessageId::parse(id)?,
        queue: text(headers, QUEUE)?.to_owned(),
        aggregate,
        version: text(headers, "counterfoil-version")?.parse().ok()?,
        event: text(headers, "counterfoil-event-type")?.to_owned(),
        attempt: text(headers, "counterfoil-attempt")?.parse().ok()?,
    })
}
