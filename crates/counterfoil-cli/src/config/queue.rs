//! The keys that every kind of destination has: what happens to its messages when it fails.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::Destination;
use counterfoil_core::policy::backoff::{Backoff, BackoffError};
use counterfoil_core::policy::{breaker, budget};
use counterfoil_engine::{OnPark, QueueSpec};

use super::at::At;
use super::figures::Figures;
use super::file;
use super::settings::Judge;
use super::value::Span;

/// What stands in the file.
pub(super) struct Keys {
    pub(super) on_park: file::OnPark,
    pub(super) max_attempts: Option<u32>,
    pub(super) backoff_base: Option<Span>,
    pub(super) backoff_cap: Option<Span>,
    pub(super) figures: Figures,
}

/// How the messages of a queue are treated.
pub(super) struct Policies {
    /// Absent: as is usual for this kind of destination.
    backoff: Option<Backoff>,
    breaker: breaker::Settings,
    budget: budget::Limits,
    on_park: OnPark,
}

impl Keys {
    /// Whether the file says when to try again.
    pub(super) fn says_when(&self) -> bool {
        self.max_attempts.is_some() || self.backoff_base.is_some() || self.backoff_cap.is_some()
    }

    fn doubling(&self, wrong: super::figures::Wrong<'_>) -> Option<Backoff> {
        let usual = Backoff::DEFAULT;
        // The ceiling after one failure is the base, after very many it is the cap.
        let base = self.backoff_base.map_or(usual.ceiling(1), |base| base.0);
        let cap = self.backoff_cap.map_or(usual.cap(), |cap| cap.0);
        let attempts = self.max_attempts.unwrap_or(usual.max_attempts());
        backoff(base, cap, attempts, wrong)
    }

    /// The policies of this destination, unless something is wrong with them.
    pub(super) fn judge(&self, name: &str, judge: &mut Judge<'_>) -> Option<Policies> {
        // All are asked, so that what is wrong with one does not hide the others.
        let mut at = At::destination(name, judge);
        let mut wrong = |key: &str, error: &dyn Display| at.wrong(key, error);
        let backoff = match self.says_when() {
            true => self.doubling(&mut wrong).map(Some),
            false => Some(None),
        };
        let breaker = self.figures.breaker(QueueSpec::BREAKER, &mut wrong);
        let budget = self.figures.budget(QueueSpec::BUDGET, &mut wrong);
        Some(Policies {
            backoff: backoff?,
            breaker: breaker?,
            budget: budget?,
            on_park: match self.on_park {
                file::OnPark::Hold => OnPark::Hold,
                file::OnPark::Skip => OnPark::Skip,
            },
        })
    }
}

/// When to try again, unless something is wrong with it.
pub(super) fn backoff(
    base: Duration,
    cap: Duration,
    attempts: u32,
    wrong: super::figures::Wrong<'_>,
) -> Option<Backoff> {
    let error = match Backoff::new(base, cap, attempts) {
        Ok(backoff) => return Some(backoff),
        Err(error) => error,
    };
    let key = match error {
        BackoffError::ZeroBase | BackoffError::BadList => "backoff-base",
        BackoffError::CapBelowBase { .. } => "backoff-cap",
        BackoffError::NoAttempts => "max-attempts",
    };
    wrong(key, &error);
    None
}

impl Policies {
    /// The queue of this destination.
    pub(super) fn queue(self, name: &str, destination: Arc<dyn Destination>) -> QueueSpec {
        let usual = QueueSpec::new(name, destination);
        QueueSpec {
            backoff: self.backoff.unwrap_or(usual.backoff),
            breaker: self.breaker,
            budget: self.budget,
            on_park: self.on_park,
            ..usual
        }
    }
}
