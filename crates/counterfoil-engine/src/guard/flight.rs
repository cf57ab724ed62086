//! Duplicates in one process wait for the first, before they take a connection.
//!
//! # Promise
//! Of the requests with one key in this process, one goes on; the others wait until it ends, share
//! its answer if it has one, and otherwise exactly one of them goes on next.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use counterfoil_core::guard::{Digest, Fingerprint, Found};
use tokio::sync::watch;

use super::Pass;

/// What a flight has brought: a record, or nothing to share.
type Landed = Option<Arc<Found>>;

type Board = Arc<Mutex<HashMap<Digest, Arc<Flight>>>>;

/// The requests of this process that are under way.
#[derive(Clone, Default)]
pub struct Flights(Board);

/// One request that is under way.
#[derive(Debug)]
pub struct Flight {
    fingerprint: Fingerprint,
    landed: watch::Sender<Option<Landed>>,
}

/// Whether a request is the first with its key.
#[derive(Debug)]
pub enum Boarding {
    /// It is.
    First(Seat),
    /// Another one is before it.
    Behind(Arc<Flight>),
}

impl Flights {
    pub(super) fn board(&self, digest: Digest, fingerprint: Fingerprint) -> Boarding {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match board.entry(digest) {
            Entry::Occupied(there) => Boarding::Behind(Arc::clone(there.get())),
            Entry::Vacant(free) => {
                let flight = Arc::new(Flight {
                    fingerprint,
                    landed: watch::Sender::new(None),
                });
                free.insert(Arc::clone(&flight));
                Boarding::First(Seat {
                    place: Some(Place {
                        board: Arc::clone(&self.0),
                        digest,
                        flight,
                    }),
                    pass: Pass::None,
                })
            }
        }
    }
}

impl Flight {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Waits until the first one has ended. `None` when that takes too long.
    pub(super) async fn landed(&self, until: Instant) -> Option<Landed> {
        let mut landed = self.landed.subscribe();
        let end = landed.wait_for(Option::is_some);
        match tokio::time::timeout_at(until.into(), end).await {
            Ok(Ok(there)) => there.clone(),
            // The sender lives as long as this flight: the error cannot happen.
            Ok(Err(_)) => Some(None),
            Err(_) => None,
        }
    }
}

#[derive(Debug)]
struct Place {
    board: Board,
    digest: Digest,
    flight: Arc<Flight>,
}

/// The place of the one that goes on. When it is given up, the next one goes on.
#[derive(Debug)]
pub struct Seat {
    place: Option<Place>,
    pub(super) pass: Pass,
}

impl Seat {
    /// A place that nobody waits behind.
    pub(super) fn alone() -> Self {
        Self {
            place: None,
            pass: Pass::None,
        }
    }

    /// Gives the place up, and shares what was brought.
    pub fn land(mut self, found: Landed) {
        self.clear(found);
    }

    fn clear(&mut self, found: Landed) {
        if let Some(place) = self.place.take() {
            let mut board = place.board.lock().unwrap_or_else(PoisonError::into_inner);
            board.remove(&place.digest);
            drop(board);
            place.flight.landed.send_replace(Some(found));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clear(None);
    }
}
