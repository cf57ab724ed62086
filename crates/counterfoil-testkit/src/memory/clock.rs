//! The clock of the memory store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// A clock that a test can move forward. Clones show the same time.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Mutex<Hands>>);

#[derive(Debug)]
struct Hands {
    frozen_at: Option<DateTime<Utc>>,
    ahead: TimeDelta,
}

impl Clock {
    /// A clock that runs with the machine's, plus what it was advanced.
    pub fn running() -> Self {
        Self(Arc::new(Mutex::new(Hands {
            frozen_at: None,
            ahead: TimeDelta::zero(),
        })))
    }

    /// A clock that stands still at the present time until it is advanced.
    pub fn frozen() -> Self {
        let frozen_at = Some(Utc::now());
        Self(Arc::new(Mutex::new(Hands {
            frozen_at,
            ahead: TimeDelta::zero(),
        })))
    }

    /// The time that it shows.
    pub fn now(&self) -> DateTime<Utc> {
        let hands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hands.frozen_at.unwrap_or_else(Utc::now) + hands.ahead
    }

    /// Moves it forward: leases run out and due times come.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hands.ahead += span(by);
    }
}

/// A duration in the calendar's units; endless ones become a thousand years.
pub(super) fn span(duration: Duration) -> TimeDelta {
    let thousand_years = TimeDelta::days(365_250);
    TimeDelta::from_std(duration).map_or(thousand_years, |d| d.min(thousand_years))
}
