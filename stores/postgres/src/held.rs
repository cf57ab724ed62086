//! Connections that go from one guarded request straight to the next.
//!
//! # Promise
//! A connection that has committed a guarded request waits a moment for the next one, and is spared
//! the way through its pool, where the driver asks the server whether it is still there. Others are
//! not forgotten over it: half of the pool at most waits here, nobody waits for longer than two
//! moments, and of every few connections that are done one goes back to the pool at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use sqlx::{Postgres, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A connection outside of any transaction, of which the driver believes that it is in one: a
/// message of ours has ended it.
type Session = Transaction<'static, Postgres>;

/// How long a connection waits for its next request.
const MOMENT: Duration = Duration::from_millis(5);
/// One of so many goes back at once.
const TURNS: u32 = 8;

pub(crate) struct Held {
    pool: PgPool,
    room: Arc<Semaphore>,
    turns: AtomicU32,
    waiting: Arc<Waiting>,
}

/// Leave for one connection to wait.
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Waiting(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    waiting: Vec<Kept>,
    /// Somebody looks after them. There is nobody only while nothing waits.
    swept: bool,
}

struct Kept {
    since: Instant,
    session: Session,
    _place: Place,
}

impl Held {
    pub(crate) fn new(pool: PgPool) -> Self {
        let size = pool.options().get_max_connections();
        let most = usize::try_from(size / 2).unwrap_or(usize::MAX);
        Self {
            room: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            pool,
            turns: AtomicU32::new(0),
            waiting: Arc::default(),
        }
    }

    /// A place for a connection that is about to be done, if it may wait.
    pub(crate) fn place(&self) -> Option<Place> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) % TURNS;
        if turn == 0 || self.pool.is_closed() {
            return None;
        }
        let permit = Arc::clone(&self.room).try_acquire_owned();
        permit.ok().map(|_permit| Place { _permit })
    }

    /// A connection for the next request.
    pub(crate) fn take(&self) -> Option<Session> {
        self.waiting.lock().waiting.pop().map(|kept| kept.session)
    }

    /// Keeps a connection that is outside of any transaction.
    pub(crate) fn keep(&self, session: Session, place: Place) {
        let mut sessions = self.waiting.lock();
        sessions.waiting.push(Kept {
            since: Instant::now(),
            session,
            _place: place,
        });
        let first = !std::mem::replace(&mut sessions.swept, true);
        // A runtime that ends drops the sweeper at once, which looks at them, too.
        drop(sessions);
        if first {
            tokio::spawn(sweep(Sweeper {
                waiting: Arc::clone(&self.waiting),
                done: false,
            }));
        }
    }
}

/// Gives a connection that is outside of any transaction back to its pool.
pub(crate) async fn give_back(mut session: Session) {
    // The driver rolls back when it gets it: without a transaction the server would warn. When this
    // fails the connection is gone, and the pool finds that out.
    if let Err(error) = sqlx::raw_sql("BEGIN").execute(&mut *session).await {
        tracing::debug!(%error, "a connection of the guard is gone");
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks after those that wait. When it ends with its runtime, they end with it: without one they
/// could not go back to their pool.
struct Sweeper {
    waiting: Arc<Waiting>,
    done: bool,
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut sessions = self.waiting.lock();
        sessions.swept = false;
        let left = std::mem::take(&mut sessions.waiting);
        drop(sessions);
        drop(left);
    }
}

impl Sweeper {
    /// Those whose moment is over. `None` when nothing waits any more.
    fn over(&mut self) -> Option<Vec<Kept>> {
        let mut sessions = self.waiting.lock();
        if sessions.waiting.is_empty() {
            sessions.swept = false;
            self.done = true;
            return None;
        }
        let over = |kept: &mut Kept| kept.since.elapsed() >= MOMENT;
        Some(sessions.waiting.extract_if(.., over).collect())
    }
}

async fn sweep(mut sweeper: Sweeper) {
    loop {
        tokio::time::sleep(MOMENT).await;
        let Some(over) = sweeper.over() else {
            return;
        };
        for kept in over {
            // Each by itself: one that does not answer must not keep the others waiting.
            tokio::spawn(give_back(kept.session));
        }
    }
}
