//! The seam between the guard and a database.
//!
//! # Contract
//! Every method is one statement and commits by itself; the transactional mode runs the same
//! statements inside the application's transaction. All times are the database's. Keys are
//! compared by their digest only. A write names the record that it expects to find, and changes
//! nothing when there is another.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::fingerprint::Fingerprint;
use super::key::{Digest, Key};
use super::record::{Found, Snapshot, State};
use crate::store::Result;

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No record of this key.
    Absent,
    /// The record with this fencing number.
    Fence(i64),
}

/// A record to be written whole.
#[derive(Debug, Clone)]
pub struct Write {
    /// Its key.
    pub key: Key,
    /// What is asked for.
    pub fingerprint: Fingerprint,
    /// How it stands.
    pub state: State,
    /// Which run it is.
    pub attempt: u32,
    /// Leased mode: how long the owner may be silent.
    pub lease: Option<Duration>,
    /// How long it is remembered when it is over.
    pub keep: Duration,
    /// Not again before so much time has passed.
    pub retry_in: Option<Duration>,
    /// The answer.
    pub snapshot: Option<Snapshot>,
    /// What must be there for the write to happen.
    pub expect: Expect,
}

/// Which record is meant.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// Its key.
    pub digest: Digest,
    /// The number of its present claim.
    pub fence: i64,
    /// When it was last changed, if that matters.
    pub seen: Option<DateTime<Utc>>,
}

/// What an owner, or whoever settles an uncertain record, does to it.
#[derive(Debug, Clone)]
pub enum Change {
    /// The owner lives.
    Heartbeat {
        /// How long it may be silent from now on.
        lease: Duration,
    },
    /// It is over.
    End {
        /// How.
        state: State,
        /// The answer.
        snapshot: Option<Snapshot>,
        /// How long it is remembered.
        keep: Duration,
        /// Not again before so much time has passed.
        retry_in: Option<Duration>,
    },
    /// Nobody knows whether it happened.
    Doubt,
    /// It did not happen: the record goes away, and the next request runs.
    Release,
}

/// Which records to list.
#[derive(Debug, Clone, Default)]
pub struct RecordFilter {
    /// Only of this business type.
    pub business_type: Option<String>,
    /// Only of this caller.
    pub scope: Option<String>,
    /// Only with this key.
    pub key: Option<String>,
    /// Only in this state, as [`Found::state`] says it.
    pub state: Option<State>,
    /// At most so many, the most recently changed first; zero means 100.
    pub limit: u32,
}

impl RecordFilter {
    /// The number of records to return.
    pub fn page(&self) -> u32 {
        match self.limit {
            0 => 100,
            n => n.min(crate::desk::MAX_PAGE),
        }
    }
}

/// Figures of one business type.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GuardStats {
    /// The business type.
    pub business_type: String,
    /// Somebody works on them.
    pub processing: u64,
    /// They took effect.
    pub succeeded: u64,
    /// They may run again.
    pub retryable: u64,
    /// Business errors.
    pub failed: u64,
    /// Nobody knows: marked so, or their owner's lease is over.
    pub uncertain: u64,
    /// Seconds since something happened to the oldest that is not over.
    pub oldest_open_seconds: Option<f64>,
}

/// Where records are kept.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// The record of this key.
    async fn look(&self, digest: &Digest) -> Result<Option<Found>>;

    /// Whether a claim that finds a record costs little more than a look, and keeps nobody waiting:
    /// then, where repeats are rare, a key is claimed without a look before.
    fn claims_look(&self) -> bool {
        false
    }

    /// Puts a record where the expected one is. Answers the new fencing number, which is greater
    /// than every earlier one of this key; `None` when something else was there.
    async fn put(&self, write: &Write) -> Result<Option<i64>>;

    /// Changes this record, if it is processing or uncertain. Answers whether it was there.
    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool>;

    /// Changes a record as its owner.
    async fn change(&self, digest: &Digest, fence: i64, change: &Change) -> Result<bool> {
        let mark = Mark {
            digest: *digest,
            fence,
            seen: None,
        };
        self.change_if(&mark, change).await
    }

    /// Changes a record as somebody else, if nothing has happened to it since it was found: an owner
    /// that was believed dead may have come back.
    async fn settle(&self, found: &Found, change: &Change) -> Result<bool> {
        let record = &found.record;
        let mark = Mark {
            digest: record.key.digest(),
            fence: record.fence,
            seen: Some(record.updated_at),
        };
        self.change_if(&mark, change).await
    }

    /// Removes a record, whatever its state. Answers whether it was there.
    async fn forget(&self, digest: &Digest) -> Result<bool>;

    /// Records, the most recently changed first.
    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>>;

    /// Records that are uncertain, or whose lease is over, and to which nothing has happened for
    /// so long; the oldest first. A list that is longer goes on after its last record.
    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>>;

    /// Figures of every business type.
    async fn stats(&self) -> Result<Vec<GuardStats>>;

    /// Removes at most so many records that are over and expired. Answers how many.
    async fn purge(&self, batch: u32) -> Result<u64>;
}
