//! How a breaker stands in a store.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Forced, Snapshot};

/// What is remembered of a breaker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The name of its destination.
    pub destination: String,
    /// What of it survives a restart.
    pub snapshot: Snapshot,
    /// Who forced it.
    pub by: Option<String>,
}

impl Kept {
    /// From what stands in the table: a word, a name, a time of day and a duration, both in
    /// milliseconds. What cannot be read counts as absent.
    pub fn new(
        destination: String,
        forced: Option<&str>,
        by: Option<String>,
        open_until: Option<i64>,
        open_for: Option<i64>,
    ) -> Self {
        let open_for = open_for.and_then(|ms| u64::try_from(ms).ok());
        Self {
            destination,
            snapshot: Snapshot {
                forced: forced.and_then(Forced::parse),
                open_until: open_until.and_then(DateTime::from_timestamp_millis),
                open_for: open_for.map(Duration::from_millis),
            },
            by,
        }
    }
}

/// One thing to remember about a breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remember {
    /// What an operator wants; absent: nothing any more.
    Forced {
        /// It.
        forced: Option<Forced>,
        /// Who.
        by: String,
    },
    /// Whether it is open.
    Open {
        /// Until this time of day, by the clock of this process; absent: it is not open.
        until: Option<DateTime<Utc>>,
        /// How long it is open after the next failed probe.
        open_for: Option<Duration>,
    },
}

impl Remember {
    /// The time of day as it is stored.
    pub fn open_until(&self) -> Option<i64> {
        match self {
            Remember::Open { until, .. } => until.map(|at| at.timestamp_millis()),
            Remember::Forced { .. } => None,
        }
    }

    /// The duration as it is stored.
    pub fn open_for(&self) -> Option<i64> {
        match self {
            Remember::Open { open_for, .. } => {
                open_for.map(|d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
            }
            Remember::Forced { .. } => None,
        }
    }
}
