//! What one peer may have of the gateway at one time.
//!
//! # Promise
//! One peer has so many connections and so many requests in progress, and no more: however slowly it
//! sends and reads, the rest is for others. A request that finds its peer at the limit waits for one of
//! that peer's own, for [`PATIENCE`] at most. A request is in progress until its answer was read.
//!
//! A peer is an address, of IPv6 a network of 64 bits: who has one address has them all. Proxies that
//! are trusted speak for many, and have no limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Problem;

/// How long a request waits for another one of its peer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one peer may have at one time.
///
/// | setting | default |
/// |---|---|
/// | `connections` | 1024 |
/// | `requests` | 256 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Connections; more are closed at once.
    pub connections: usize,
    /// Requests in progress; more wait, and are told 429 in the end.
    pub requests: usize,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            requests: 256,
        }
    }
}

/// The peers that have a connection.
#[derive(Clone, Default)]
pub(super) struct Peers(Arc<Mutex<HashMap<IpAddr, One>>>);

struct One {
    connections: usize,
    requests: Arc<Semaphore>,
}

impl Peers {
    fn all(&self) -> MutexGuard<'_, HashMap<IpAddr, One>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this peer, unless it has enough.
    pub(super) fn connect(&self, ip: IpAddr, limits: PeerLimits) -> Option<Ticket> {
        let ip = network(ip);
        let mut all = self.all();
        let one = all.entry(ip).or_insert_with(|| One {
            connections: 0,
            requests: Arc::new(Semaphore::new(limits.requests)),
        });
        if one.connections >= limits.connections {
            turned_away("connections");
            return None;
        }
        one.connections += 1;
        Some(Ticket {
            peers: self.clone(),
            ip,
            requests: Arc::clone(&one.requests),
        })
    }
}

fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        ip @ IpAddr::V4(_) => ip,
    }
}

fn turned_away(what: &'static str) {
    metrics::counter!("counterfoil_gateway_peer_limit_total", "for" => what).increment(1);
}

/// A connection of a peer.
pub(super) struct Ticket {
    peers: Peers,
    ip: IpAddr,
    requests: Arc<Semaphore>,
}

impl Ticket {
    /// A request on it, when there is room.
    pub(super) async fn request(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let room = Arc::clone(&self.requests).acquire_owned();
        match tokio::time::timeout(PATIENCE, room).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => {
                turned_away("requests");
                Err(Problem::too_many_requests())
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut all = self.peers.all();
        if let Some(one) = all.get_mut(&self.ip) {
            one.connections -= 1;
            if one.connections == 0 {
                all.remove(&self.ip);
            }
        }
    }
}

/// The same answer; its request is in progress until it was read.
pub(super) fn until_read(response: Response, permit: OwnedSemaphorePermit) -> Response {
    response.map(|body| match body.is_end_stream() {
        true => body,
        false => Body::new(Read {
            body,
            _permit: permit,
        }),
    })
}

/// The body of an answer, which hyper drops when it was read.
struct Read {
    body: Body,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for Read {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: PeerLimits = PeerLimits {
        connections: 2,
        requests: 1,
    };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_peer_has_so_many_connections_and_others_have_theirs() {
        let peers = Peers::default();

        let first = peers.connect(ip("192.0.2.1"), FEW).unwrap();
        let _second = peers.connect(ip("::ffff:192.0.2.1"), FEW).unwrap();

        assert!(peers.connect(ip("192.0.2.1"), FEW).is_none());
        assert!(peers.connect(ip("192.0.2.2"), FEW).is_some());
        drop(first);
        assert!(peers.connect(ip("192.0.2.1"), FEW).is_some());
    }

    #[test]
    fn a_network_of_64_bits_is_one_peer_and_who_has_gone_is_forgotten() {
        let peers = Peers::default();

        let held = [1, 2].map(|n| peers.connect(ip(&format!("2001:db8::{n}")), FEW));

        assert!(held.iter().all(Option::is_some));
        assert!(peers.connect(ip("2001:db8::3"), FEW).is_none());
        assert!(peers.connect(ip("2001:db8:0:1::3"), FEW).is_some());
        drop(held);
        assert!(peers.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_another_one_of_its_peer_until_its_answer_was_read() {
        let peers = Peers::default();
        let ticket = peers.connect(ip("192.0.2.1"), FEW).unwrap();
        let another = peers.connect(ip("192.0.2.1"), FEW).unwrap();

        let permit = ticket.request().await.unwrap();
        let answer = until_read(Response::new(Body::from("slow")), permit);
        let told = another.request().await.unwrap_err();
        assert_eq!(told.status(), 429);

        drop(answer);
        assert!(another.request().await.is_ok());
    }
}
