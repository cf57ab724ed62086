//! The partner: receives signed webhooks, fails now and then, and applies each order once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use counterfoil::webhook::{Secret, verify};
use tokio::net::TcpListener;

use super::shop::SECRET;

/// What the partner has received.
#[derive(Default)]
pub(super) struct Received {
    ids: Mutex<HashSet<String>>,
    repeats: AtomicU64,
    failures: AtomicU64,
}

impl Received {
    /// Orders applied.
    pub(super) fn distinct(&self) -> usize {
        self.ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Webhooks that came again and changed nothing.
    pub(super) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// Webhooks that the partner failed to answer.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// Receives until it is aborted.
pub(super) async fn serve(listener: TcpListener, received: Arc<Received>) {
    let app = Router::new()
        .route("/orders", post(receive))
        .with_state(received);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the partner closed");
    }
}

async fn receive(
    State(received): State<Arc<Received>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let Ok(secret) = Secret::parse(SECRET) else {
        return StatusCode::INTERNAL_SERVER_ERROR;
    };
    let tolerance = Duration::from_secs(300);
    let Ok(id) = verify(&secret, &headers, &body, SystemTime::now(), tolerance) else {
        return StatusCode::UNAUTHORIZED;
    };
    let mood = fastrand::u8(0..20);
    if mood == 0 {
        received.failures.fetch_add(1, Ordering::Relaxed);
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    if !received
        .ids
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(id.to_owned())
    {
        received.repeats.fetch_add(1, Ordering::Relaxed);
    }
    if mood == 1 {
        // Applied, but the answer is lost: it will come again, and be recognised by its id.
        received.failures.fetch_add(1, Ordering::Relaxed);
        return StatusCode::BAD_GATEWAY;
    }
    StatusCode::NO_CONTENT
}
