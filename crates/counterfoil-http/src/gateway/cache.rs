//! Answers that are over, copied into memory, so that their replays need no database.
//!
//! # Promise
//! Only what the database has said is committed is copied; whatever is written or forgotten here is
//! first removed. Scope and fingerprint are checked as ever, because they are checked against the
//! copy of the whole record. Size and age are bounded: another process that forgets a key is
//! noticed after the age at the latest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{
    Change, Digest, Found, GuardStats, Mark, RecordFilter, Records, State, Write,
};
use counterfoil_core::store::Result;
use tokio::time::Instant;

use super::shelf::{self, Bounds, Shelf};

/// Counters of changes.
const COUNTERS: usize = 256;

/// Records with a copy of finished ones in memory.
pub struct ReplayCache {
    records: Arc<dyn Records>,
    copies: Mutex<Copies>,
    age: Duration,
}

struct Copies {
    shelf: Shelf<Digest, Found>,
    /// Grow with everything that is written or forgotten: what was read before is not copied. Keys
    /// share them, which costs a copy now and then.
    changes: [u64; COUNTERS],
}

impl ReplayCache {
    /// Copies of at most so many bytes together, each believed for so long.
    pub fn new(records: Arc<dyn Records>, bytes: usize, age: Duration) -> Self {
        let bounds = Bounds {
            bytes,
            copies: usize::MAX,
        };
        Self {
            records,
            copies: Mutex::new(Copies {
                shelf: Shelf::new(bounds),
                changes: [0; COUNTERS],
            }),
            age,
        }
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, digest: &Digest) {
        let mut copies = self.copies();
        copies.changes[counter(digest)] += 1;
        copies.shelf.remove(digest);
    }

    /// A copy, with the time moved on.
    fn copy(&self, digest: &Digest) -> Option<Found> {
        // The copy of a copy is made without the lock.
        let (found, age) = self.copies().shelf.get(digest, self.age)?;
        let mut found = Found::clone(&found);
        found.now += age;
        Some(found)
    }

    fn insert(&self, digest: Digest, found: &Found, changes: u64) {
        if !matches!(found.state(), State::Succeeded | State::Failed) || found.expired() {
            return;
        }
        let snapshot = found.record.snapshot.as_ref();
        let body = snapshot
            .and_then(|s| s.body.as_ref())
            .map_or(0, |b| b.len());
        let lines = snapshot.map_or(0, |s| {
            shelf::lines(s.headers.iter().map(|(n, v)| (n.len(), v.len())))
        });
        let mut copies = self.copies();
        if copies.changes[counter(&digest)] == changes {
            let copy = Arc::new(found.clone());
            let size = shelf::OVERHEAD + body + lines;
            copies.shelf.put(digest, copy, size, Instant::now());
        }
    }
}

fn counter(digest: &Digest) -> usize {
    usize::from(digest.0[0]) % COUNTERS
}

#[async_trait]
impl Records for ReplayCache {
    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        if let Some(found) = self.copy(digest) {
            metrics::counter!("counterfoil_gateway_cached_total").increment(1);
            return Ok(Some(found));
        }
        let changes = self.copies().changes[counter(digest)];
        let found = self.records.look(digest).await?;
        if let Some(found) = &found {
            self.insert(*digest, found, changes);
        }
        Ok(found)
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        let digest = write.key.digest();
        self.remove(&digest);
        let put = self.records.put(write).await;
        self.remove(&digest);
        put
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        if !matches!(change, Change::Heartbeat { .. }) {
            self.remove(&mark.digest);
        }
        self.records.change_if(mark, change).await
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        self.remove(digest);
        let forgotten = self.records.forget(digest).await;
        self.remove(digest);
        forgotten
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        self.records.list(filter).await
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        self.records.stuck(idle, after, limit).await
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        self.records.stats().await
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        self.records.purge(batch).await
    }
}
