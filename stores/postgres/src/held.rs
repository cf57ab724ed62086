//! Connections that go from one guarded request straight to the next.
//!
//! # Promise
//! A connection that has committed a guarded request waits a moment for the next one, and is spared
//! the way through its pool, where the driver asks the server whether it is still there. Others are
//! not forgotten over it: about half of the pool may wait here, nobody waits for longer than two
//! moments, and of every few connections that commit one goes back to the pool at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use sqlx::{Postgres, Transaction};

/// A connection outside of any transaction, of which the driver believes that it is in one: a
/// message of ours has ended it.
type Session = Transaction<'static, Postgres>;

/// How long a connection waits for its next request.
const MOMENT: Duration = Duration::from_millis(5);
/// One of so many commits gives its connection back.
const TURNS: u32 = 8;

pub(crate) struct Held {
    pool: PgPool,
    most: usize,
    commits: AtomicU32,
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    waiting: Vec<(Instant, Session)>,
    /// Somebody looks after them. There is nobody only while nothing waits.
    swept: bool,
}

impl Held {
    pub(crate) fn new(pool: PgPool) -> Self {
        let size = pool.options().get_max_connections();
        Self {
            most: usize::try_from(size / 2).unwrap_or(usize::MAX),
            pool,
            commits: AtomicU32::new(0),
            waiting: Arc::default(),
        }
    }

    /// Whether a connection that is about to commit may stay. Ask once for each commit.
    pub(crate) fn has_room(&self) -> bool {
        let turn = self.commits.fetch_add(1, Ordering::Relaxed) % TURNS;
        turn != 0 && !self.pool.is_closed() && self.waiting.lock().waiting.len() < self.most
    }

    /// A connection for the next request.
    pub(crate) fn take(&self) -> Option<Session> {
        self.waiting
            .lock()
            .waiting
            .pop()
            .map(|(_, session)| session)
    }

    /// Keeps a connection that is outside of any transaction.
    pub(crate) fn keep(&self, session: Session) {
        let mut sessions = self.waiting.lock();
        sessions.waiting.push((Instant::now(), session));
        if !std::mem::replace(&mut sessions.swept, true) {
            tokio::spawn(sweep(Sweeper(Arc::clone(&self.waiting))));
        }
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks after those that wait. When it ends with its runtime, they end with it: without one they
/// could not go back to their pool.
struct Sweeper(Arc<Waiting>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        let mut sessions = self.0.lock();
        sessions.swept = false;
        let left = std::mem::take(&mut sessions.waiting);
        drop(sessions);
        drop(left);
    }
}

impl Sweeper {
    /// Those whose moment is over. `None` when nothing waits any more.
    fn over(&self) -> Option<Vec<Session>> {
        let mut sessions = self.0.lock();
        if sessions.waiting.is_empty() {
            sessions.swept = false;
            return None;
        }
        let over = |(since, _): &mut (Instant, Session)| since.elapsed() >= MOMENT;
        let over = sessions.waiting.extract_if(.., over);
        Some(over.map(|(_, session)| session).collect())
    }
}

async fn sweep(sweeper: Sweeper) {
    loop {
        tokio::time::sleep(MOMENT).await;
        let Some(over) = sweeper.over() else {
            return;
        };
        for mut session in over {
            // The driver rolls back when it gets it: without a transaction the server would warn.
            // When it fails the connection is gone, and the pool finds that out.
            let begun = sqlx::raw_sql("BEGIN").execute(&mut *session).await;
            if let Err(error) = begun {
                tracing::debug!(%error, "a connection of the guard is gone");
            }
        }
    }
}
