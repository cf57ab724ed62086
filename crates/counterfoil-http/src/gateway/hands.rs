//! Threads that serve callers, one for each core.
//!
//! # Promise
//! A caller's connection stays on one thread, with all that is done for its requests and, where one is
//! at hand, with a connection to the service that was opened on the same thread. Handing work from
//! thread to thread costs a gateway more than the work. A new caller goes to the thread that has the
//! fewest.
//!
//! The threads are made when the first gateway of the process begins, and stay: what was begun there
//! (a connection to the database, a request whose caller has gone away) may outlive the gateway.
//! Without them, if the system gives no more threads, callers are served where the gateway runs.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};

/// More would not be faster at what one gateway does.
const MOST: usize = 64;

static HANDS: OnceLock<Vec<Hand>> = OnceLock::new();

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(0) };
}

struct Hand {
    runtime: Handle,
    callers: AtomicUsize,
}

/// How many different numbers [`mine`] may give.
pub(super) fn numbers() -> usize {
    many() + 1
}

/// The number of this thread; zero for all that are no hands.
pub(super) fn mine() -> usize {
    MINE.get()
}

fn many() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST))
}

fn hands() -> &'static [Hand] {
    HANDS.get_or_init(|| (1..=many()).map_while(hand).collect())
}

fn hand(number: usize) -> Option<Hand> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let made = runtime.and_then(|runtime| {
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name(format!("gateway-{number}"))
            .spawn(move || {
                MINE.set(number);
                runtime.block_on(std::future::pending::<()>());
            })?;
        Ok(handle)
    });
    match made {
        Ok(runtime) => Some(Hand {
            runtime,
            callers: AtomicUsize::new(0),
        }),
        Err(error) => {
            tracing::warn!(%error, "the gateway has fewer threads than there are cores");
            None
        }
    }
}

/// A caller's place on a thread.
pub(super) struct Place {
    runtime: Handle,
    hand: Option<&'static Hand>,
}

impl Place {
    /// Where the next caller is served.
    pub(super) fn next() -> Self {
        let hand = hands()
            .iter()
            .min_by_key(|hand| hand.callers.load(Ordering::Relaxed));
        if let Some(hand) = hand {
            hand.callers.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            runtime: hand.map_or_else(Handle::current, |hand| hand.runtime.clone()),
            hand,
        }
    }

    /// The thread's own.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(hand) = self.hand {
            hand.callers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_stays_on_one_thread_and_that_is_none_of_ours() {
        let place = Place::next();

        let first = place.runtime().spawn(async { mine() }).await.unwrap();
        let seen = place.runtime().spawn(async move {
            for _ in 0..100 {
                tokio::task::yield_now().await;
                assert_eq!(mine(), first);
            }
            first
        });

        let seen = seen.await.unwrap();
        assert!(seen > 0 && seen < numbers());
        assert_eq!(mine(), 0);
    }
}
