//! What of a breaker survives a restart.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Auto, Breaker, Cause, Forced};
use crate::policy::Moment;

/// The part of a breaker that survives a restart: an operator's word, and an open state with the
/// time of day at which it ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What an operator wants.
    pub forced: Option<Forced>,
    /// Open until this time of day. A half-open breaker was open until now.
    pub open_until: Option<DateTime<Utc>>,
    /// How long it is open after the next failed probe.
    pub open_for: Option<Duration>,
}

impl Snapshot {
    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.forced.is_none() && self.open_until.is_none()
    }
}

impl Breaker {
    /// What survives a restart; `wall` is the time of day at the moment `now`.
    pub fn snapshot(&self, now: Moment, wall: DateTime<Utc>) -> Snapshot {
        let until = match self.auto {
            Auto::Closed { .. } => None,
            Auto::Open { until } => Some(until),
            Auto::HalfOpen { .. } => Some(now),
        };
        let open_until = until.map(|until| {
            let left = chrono::TimeDelta::from_std(until.saturating_sub(now)).unwrap_or_default();
            wall.checked_add_signed(left).unwrap_or(wall)
        });
        Snapshot {
            forced: self.forced,
            open_until,
            open_for: open_until.map(|_| self.open_for),
        }
    }

    /// Goes on where the snapshot was taken. A clock that was set in between can lengthen the open
    /// time at most to the cap.
    pub fn restore(&mut self, snapshot: Snapshot, now: Moment, wall: DateTime<Utc>) {
        self.open_for = snapshot
            .open_for
            .unwrap_or(self.settings.open_for)
            .clamp(self.settings.open_for, self.settings.open_cap);
        let auto = match snapshot.open_until {
            None => Auto::Closed { in_a_row: 0 },
            Some(until) => {
                let left = (until - wall).to_std().unwrap_or_default();
                let left = left.min(self.settings.open_cap);
                Auto::Open {
                    until: now.saturating_add(left),
                }
            }
        };
        self.forced = snapshot.forced;
        self.enter(auto, Cause::Restored);
    }
}
