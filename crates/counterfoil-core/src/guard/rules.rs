//! How long, how strict: the rules of one kind of business.
//!
//! | rule | default | what it is |
//! |---|---|---|
//! | `mode` | strict | what another payload under a known key does |
//! | `lease` | 30 s | leased mode: an owner that is silent for so long is believed dead |
//! | `keep` | 7 days | how long the answer can be replayed |
//! | `keep_failures` | 1 day | how long a business error can be replayed, if that is shorter |
//! | `wait` | 5 s | how long a duplicate waits for the first one's answer |
//! | `record_within` | 5 min | leased mode: how long an answer that cannot be recorded is tried again |
//! | `attempts` | 5 | how often an error that may pass later is tried |
//! | `timeout` | none | how long the business may take |
//! | `rerun_uncertain` | no | whether what may have happened can be done again |
//! | `alert_age` | 5 min | a record that is stuck for so long is reported |
//! | `reconcile_age` | 10 min | a record that is stuck for so long is reconciled |

use std::time::Duration;

use super::record::State;

const DAY: Duration = Duration::from_secs(86_400);

/// What another payload under a known key does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is refused.
    #[default]
    Strict,
    /// It replaces the earlier one, which is fenced off if it is still running.
    Overwrite,
}

/// The rules of one kind of business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// What another payload under a known key does.
    pub mode: Mode,
    /// Leased mode: an owner that is silent for so long is believed dead.
    pub lease: Duration,
    /// How long the answer can be replayed.
    pub keep: Duration,
    /// How long a business error can be replayed, if that is shorter: they cost nothing to make.
    pub keep_failures: Duration,
    /// How long a duplicate waits for the first one's answer.
    pub wait: Duration,
    /// Leased mode: how long it is tried again to record how a request came out, while the database
    /// is away or locked. Then the request is uncertain.
    pub record_within: Duration,
    /// How often an error that may pass later is tried.
    pub attempts: u32,
    /// How long the business may take.
    pub timeout: Option<Duration>,
    /// Whether what may have happened can be done again, because the effect itself is idempotent.
    pub rerun_uncertain: bool,
    /// A record that is stuck for so long is reported.
    pub alert_age: Duration,
    /// A record that is stuck for so long is reconciled.
    pub reconcile_age: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            mode: Mode::Strict,
            lease: Duration::from_secs(30),
            keep: 7 * DAY,
            keep_failures: DAY,
            wait: Duration::from_secs(5),
            record_within: Duration::from_secs(300),
            attempts: 5,
            timeout: None,
            rerun_uncertain: false,
            alert_age: Duration::from_secs(300),
            reconcile_age: Duration::from_secs(600),
        }
    }
}

impl Rules {
    /// Payments: remembered for 3 days.
    pub fn payments() -> Self {
        Self {
            keep: 3 * DAY,
            ..Self::default()
        }
    }

    /// Coupons and the like: remembered for 7 days.
    pub fn coupons() -> Self {
        Self {
            keep: 7 * DAY,
            ..Self::default()
        }
    }

    /// Consumption of messages: remembered for 30 days.
    pub fn messages() -> Self {
        Self {
            keep: 30 * DAY,
            ..Self::default()
        }
    }

    /// Changed parameters replace the earlier request.
    #[must_use]
    pub fn overwrite(mut self) -> Self {
        self.mode = Mode::Overwrite;
        self
    }

    /// How long a record in this state can be replayed.
    pub fn keep_of(&self, state: State) -> Duration {
        match state {
            State::Failed | State::Retryable => self.keep.min(self.keep_failures),
            State::Processing | State::Succeeded | State::Uncertain => self.keep,
        }
    }

    /// Refuses rules that cannot work.
    pub fn check(&self) -> Result<(), RulesError> {
        for (name, value) in [
            ("lease", self.lease),
            ("keep", self.keep),
            ("keep_failures", self.keep_failures),
            ("alert_age", self.alert_age),
            ("reconcile_age", self.reconcile_age),
        ] {
            if value.is_zero() {
                return Err(RulesError::Zero(name));
            }
        }
        if self.attempts == 0 {
            return Err(RulesError::Zero("attempts"));
        }
        if let Some(timeout) = self.timeout
            && self.lease < timeout
        {
            return Err(RulesError::LeaseTooShort {
                lease: self.lease,
                timeout,
            });
        }
        let keep = self.keep.min(self.keep_failures);
        if keep < self.lease {
            return Err(RulesError::KeptTooShort {
                keep,
                lease: self.lease,
            });
        }
        if self.reconcile_age < self.lease {
            return Err(RulesError::ReconciledTooSoon {
                age: self.reconcile_age,
                lease: self.lease,
            });
        }
        Ok(())
    }
}

/// Rules that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// A duration or a number is zero.
    #[error("{0} must be greater than zero")]
    Zero(&'static str),
    /// An owner would lose its claim while the business still runs.
    #[error(
        "the lease ({lease:?}) must not be shorter than the handler's timeout ({timeout:?}): raise `lease` or lower `timeout`"
    )]
    LeaseTooShort {
        /// The lease.
        lease: Duration,
        /// The timeout.
        timeout: Duration,
    },
    /// An answer would be forgotten while a duplicate may still be under way.
    #[error(
        "results are kept for {keep:?}, which is shorter than the lease ({lease:?}): raise `keep` or `keep_failures`"
    )]
    KeptTooShort {
        /// How long results are kept.
        keep: Duration,
        /// The lease.
        lease: Duration,
    },
    /// A live owner would be reconciled away.
    #[error(
        "records are reconciled after {age:?}, which is shorter than the lease ({lease:?}): raise `reconcile_age`"
    )]
    ReconciledTooSoon {
        /// The age.
        age: Duration,
        /// The lease.
        lease: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_work() {
        for rules in [Rules::default(), Rules::payments(), Rules::messages()] {
            assert_eq!(rules.check(), Ok(()));
        }
    }

    #[test]
    fn case_37_impossible_rules_are_refused_with_the_reason() {
        let second = Duration::from_secs(1);
        let short = Rules {
            timeout: Some(60 * second),
            ..Rules::default()
        };
        let forgetful = Rules {
            keep: second,
            ..Rules::default()
        };
        let careless = Rules {
            keep_failures: second,
            ..Rules::default()
        };
        let hasty = Rules {
            reconcile_age: second,
            ..Rules::default()
        };
        let never = Rules {
            attempts: 0,
            ..Rules::default()
        };

        assert!(matches!(
            short.check(),
            Err(RulesError::LeaseTooShort { .. })
        ));
        assert!(matches!(
            forgetful.check(),
            Err(RulesError::KeptTooShort { .. })
        ));
        assert!(matches!(
            careless.check(),
            Err(RulesError::KeptTooShort { .. })
        ));
        assert!(matches!(
            hasty.check(),
            Err(RulesError::ReconciledTooSoon { .. })
        ));
        assert_eq!(never.check(), Err(RulesError::Zero("attempts")));
        assert!(short.check().unwrap_err().to_string().contains("raise"));
    }
}
