//! How a breaker stands in a store.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

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
    /// Since when it is open, and why.
    pub outage: Option<Outage>,
}

/// Since when a breaker is open, and what its destination said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// By the clock of the process that wrote it.
    pub since: DateTime<Utc>,
    /// A code and the error in words.
    pub error: Option<String>,
}

/// An open breaker, as operators see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Since when.
    pub since: Option<DateTime<Utc>>,
    /// The last error of the destination: a code and words.
    pub error: Option<String>,
    /// When the destination is tried next; absent while an operator holds the breaker open.
    pub next_probe: Option<DateTime<Utc>>,
    /// The operator who holds it open.
    pub held_by: Option<String>,
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("open")?;
        if let Some(since) = self.since {
            write!(f, " since {}", since.format("%Y-%m-%d %H:%M:%S UTC"))?;
        }
        if let Some(error) = &self.error {
            write!(f, " after {error}")?;
        }
        match (&self.held_by, self.next_probe) {
            (Some(by), _) => write!(f, "; held open by {by}"),
            (None, Some(at)) => write!(f, "; next probe at {}", at.format("%H:%M:%S UTC")),
            (None, None) => Ok(()),
        }
    }
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
            outage: None,
        }
    }

    /// The same with what stands in the table about its outage.
    pub fn with_outage(mut self, since: Option<i64>, error: Option<String>) -> Self {
        let since = since.and_then(DateTime::from_timestamp_millis);
        self.outage = since.map(|since| Outage { since, error });
        self
    }

    /// What operators see of it while it is open.
    pub fn opened(&self) -> Option<Opened> {
        let held = self.snapshot.forced == Some(Forced::Open);
        let open = match self.snapshot.forced {
            Some(forced) => forced == Forced::Open,
            None => self.snapshot.open_until.is_some(),
        };
        open.then(|| Opened {
            since: self.outage.as_ref().map(|outage| outage.since),
            error: self.outage.as_ref().and_then(|outage| outage.error.clone()),
            next_probe: self.snapshot.open_until.filter(|_| !held),
            held_by: held.then(|| self.by.clone().unwrap_or_else(|| "somebody".into())),
        })
    }

    /// The open breaker of this destination, if it has one.
    pub fn find_open(all: &[Kept], destination: &str) -> Option<Opened> {
        let kept = all.iter().find(|kept| kept.destination == destination);
        kept.and_then(Kept::opened)
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
        /// Since when, and why; absent: it is not open.
        outage: Option<Outage>,
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
