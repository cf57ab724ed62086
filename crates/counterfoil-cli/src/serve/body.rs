//! Reading a request's body within bounds.
//!
//! # Promise
//! A body takes at most so much memory and so much time, and all bodies together at most
//! [`Room::TOTAL`]: who finds no room is told to come back.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use counterfoil_core::message::MAX_PAYLOAD;

/// The largest body: the largest payload in base64, and room for the rest of the message.
pub(super) const LARGEST: usize = MAX_PAYLOAD / 3 * 4 + 1024 * 1024;
/// A body has arrived by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for room.
const WAIT: Duration = Duration::from_secs(2);

/// The memory that bodies may take together, in KiB.
#[derive(Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    /// All bodies together.
    pub(super) const TOTAL: usize = 256 * 1024 * 1024;
}

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(Room::TOTAL / 1024)))
    }
}

/// Reads a body. The room that it takes is free again when the second part is dropped.
pub(super) async fn read(
    request: Request,
    room: &Room,
) -> Result<(Bytes, OwnedSemaphorePermit), Problem> {
    let size = announced(&request);
    if size.is_some_and(|size| size > LARGEST) {
        return Err(over_limit());
    }
    let kib = size.unwrap_or(LARGEST).div_ceil(1024).max(1);
    let permits = u32::try_from(kib).unwrap_or(u32::MAX);
    let taken = Arc::clone(&room.0).acquire_many_owned(permits);
    let Ok(Ok(permit)) = tokio::time::timeout(WAIT, taken).await else {
        return Err(Problem::unavailable("too many large requests at once"));
    };
    let body = collect(request.into_body());
    let bytes = tokio::time::timeout(PATIENCE, body)
        .await
        .map_err(|_| Problem::too_slow())??;
    Ok((bytes, permit))
}

fn announced(request: &Request) -> Option<usize> {
    let length = request.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

async fn collect(body: Body) -> Result<Bytes, Problem> {
    match Limited::new(body, LARGEST).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(over_limit()),
        Err(_) => Err(Problem::invalid_json("the body broke off")),
    }
}

fn over_limit() -> Problem {
    Problem::too_large(format!("a request's body has at most {LARGEST} bytes"))
}
