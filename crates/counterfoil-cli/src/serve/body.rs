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
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
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

/// Reads a body. It takes room as it arrives: whoever only announces much keeps nobody out. The room is
/// free again when the second part is dropped.
pub(super) async fn read(
    request: Request,
    room: &Room,
) -> Result<(Bytes, OwnedSemaphorePermit), Problem> {
    if announced(&request).is_some_and(|size| size > LARGEST) {
        return Err(over_limit());
    }
    let body = collect(request.into_body(), room);
    tokio::time::timeout(PATIENCE, body)
        .await
        .map_err(|_| Problem::too_slow())?
}

fn announced(request: &Request) -> Option<usize> {
    let length = request.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

async fn collect(mut body: Body, room: &Room) -> Result<(Bytes, OwnedSemaphorePermit), Problem> {
    let mut bytes = BytesMut::new();
    let mut taken = take(room, 1).await?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid_json("the body broke off"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let size = bytes.len() + data.len();
        if size > LARGEST {
            return Err(over_limit());
        }
        let needed = size.div_ceil(1024).saturating_sub(taken.num_permits());
        if needed > 0 {
            taken.merge(take(room, needed).await?);
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), taken))
}

/// So many KiB.
async fn take(room: &Room, kib: usize) -> Result<OwnedSemaphorePermit, Problem> {
    let permits = u32::try_from(kib).unwrap_or(u32::MAX);
    let taken = Arc::clone(&room.0).acquire_many_owned(permits);
    match tokio::time::timeout(WAIT, taken).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(Problem::unavailable("too many large requests at once")),
    }
}

fn over_limit() -> Problem {
    Problem::too_large(format!("a request's body has at most {LARGEST} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcing(size: usize) -> Request {
        let request = Request::builder().header(header::CONTENT_LENGTH, size);
        // Nothing of it has come yet.
        let stream = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        request.body(Body::from_stream(stream)).unwrap()
    }

    #[tokio::test]
    async fn who_only_announces_much_keeps_nobody_out() {
        let room = Room::default();
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let (request, room) = (announcing(LARGEST), room.clone());
                tokio::spawn(async move { read(request, &room).await.map(|_| ()) })
            })
            .collect();
        while room.0.available_permits() > Room::TOTAL / 1024 - 100 {
            tokio::task::yield_now().await;
        }

        let body = vec![b'a'; 3 * 1024 * 1024];
        let (bytes, taken) = read(Request::new(Body::from(body)), &room).await.unwrap();

        assert_eq!(bytes.len(), 3 * 1024 * 1024);
        assert_eq!(taken.num_permits(), 3 * 1024);
        assert_eq!(
            room.0.available_permits(),
            Room::TOTAL / 1024 - 3 * 1024 - 100
        );
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn what_finds_no_room_gives_back_what_it_took() {
        let room = Room::default();
        let rest = u32::try_from(Room::TOTAL / 1024 - 2).unwrap();
        let held = Arc::clone(&room.0).acquire_many_owned(rest).await.unwrap();

        let refused = read(Request::new(Body::from(vec![0; 4096])), &room).await;

        assert!(refused.is_err());
        assert_eq!(room.0.available_permits(), 2);
        drop(held);
        let large = Request::new(Body::from(vec![0; LARGEST + 1]));
        assert!(read(large, &room).await.is_err());
    }
}
