//! The keys `breaker-…` and `retry-…`, which destinations and upstreams have alike.

use std::fmt::Display;
use std::time::Duration;

use counterfoil_core::policy::ratio::Ratio;
use counterfoil_core::policy::{breaker, budget};

/// What stands in the file.
pub(super) struct Figures {
    pub(super) failures: u32,
    pub(super) ratio: f64,
    pub(super) min_calls: u32,
    pub(super) open: Duration,
    pub(super) open_cap: Duration,
    pub(super) retry_ratio: f64,
    pub(super) retry_floor: u64,
    pub(super) retry_cap: u64,
}

/// Says what is wrong with a key.
pub(super) type Wrong<'a> = &'a mut dyn FnMut(&str, &dyn Display);

impl Figures {
    /// The breaker, unless something is wrong with it.
    pub(super) fn breaker(
        &self,
        usual: breaker::Settings,
        wrong: Wrong<'_>,
    ) -> Option<breaker::Settings> {
        let settings = breaker::Settings {
            consecutive: Some(self.failures).filter(|n| *n > 0),
            failure_ratio: ratio("breaker-ratio", self.ratio, wrong)?,
            min_calls: self.min_calls,
            open_for: self.open,
            open_cap: self.open_cap,
            ..usual
        };
        let Err(error) = settings.validate() else {
            return Some(settings);
        };
        let key = match error {
            breaker::SettingsError::Zero("min-calls") => "breaker-min-calls",
            breaker::SettingsError::Zero(_) => "breaker-open",
            breaker::SettingsError::Always(_) => "breaker-ratio",
            breaker::SettingsError::CapBelowOpen { .. } => "breaker-open-cap",
        };
        wrong(key, &error);
        None
    }

    /// The budget, unless something is wrong with it.
    pub(super) fn budget(&self, usual: budget::Limits, wrong: Wrong<'_>) -> Option<budget::Limits> {
        let limits = budget::Limits {
            ratio: ratio("retry-ratio", self.retry_ratio, wrong)?,
            floor: self.retry_floor,
            cap: self.retry_cap,
            ..usual
        };
        limits
            .validate()
            .map_err(|error| wrong("retry-cap", &error))
            .ok()?;
        Some(limits)
    }
}

/// A share, unless it cannot be one.
pub(super) fn ratio(key: &str, value: f64, wrong: Wrong<'_>) -> Option<Ratio> {
    Ratio::new(value).map_err(|error| wrong(key, &error)).ok()
}
