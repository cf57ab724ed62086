//! Retries, breaker, budget and places of `[upstream.NAME]`.

use std::fmt::Display;
use std::time::Duration;

use counterfoil_core::policy::ratio::Ratio;
use counterfoil_core::policy::{breaker, budget, bulkhead};
use counterfoil_engine::pipeline::Limits;
use counterfoil_http::gateway::UpstreamSettings;

use super::super::settings::Judge;
use super::file::Upstream;

/// The limits of an upstream, unless something is wrong with them.
pub(super) fn limits(name: &str, section: &Upstream, judge: &mut Judge<'_>) -> Option<Limits> {
    let mut reader = Reader {
        name,
        section,
        judge,
    };
    let usual = UpstreamSettings::default().limits;
    // All are asked, so that what is wrong with one does not hide the other.
    let breaker = reader.breaker(usual.breaker);
    let budget = reader.budget(usual.budget);
    let most = usual.backoff.max_attempts() - 1;
    if section.retries > most {
        reader.wrong("retries", format!("at most {most}"));
        return None;
    }
    let attempt = section.attempt_timeout.map(|span| span.0);
    for (key, time) in [
        ("retry-deadline", Some(section.retry_deadline.0)),
        ("attempt-timeout", attempt),
    ] {
        if time.is_some_and(|time| time.is_zero()) {
            reader.wrong(key, "must be greater than zero");
            return None;
        }
    }
    Some(Limits {
        backoff: usual.backoff.with_max_attempts(section.retries + 1),
        deadline: section.retry_deadline.0,
        attempt: attempt.unwrap_or(Duration::MAX),
        breaker: breaker?,
        budget: budget?,
        bulkhead: bulkhead::Size {
            // Zero is refused under the name that it has in the file.
            limit: section.connections.max(1),
            queue: section.waiting,
        },
        ..usual
    })
}

struct Reader<'a, 'j> {
    name: &'a str,
    section: &'a Upstream,
    judge: &'a mut Judge<'j>,
}

impl Reader<'_, '_> {
    fn wrong(&mut self, key: &str, error: impl Display) {
        let (path, shown) = (
            format!("upstream.{}.{key}", self.name),
            format!("[upstream.{}]", self.name),
        );
        super::refuse(self.judge, &path, key, &shown, error);
    }

    fn ratio(&mut self, key: &str, value: f64) -> Option<Ratio> {
        Ratio::new(value).map_err(|e| self.wrong(key, e)).ok()
    }

    fn breaker(&mut self, usual: breaker::Settings) -> Option<breaker::Settings> {
        let section = self.section;
        let settings = breaker::Settings {
            consecutive: Some(section.breaker_failures).filter(|n| *n > 0),
            failure_ratio: self.ratio("breaker-ratio", section.breaker_ratio)?,
            min_calls: section.breaker_min_calls,
            open_for: section.breaker_open.0,
            open_cap: section.breaker_open_cap.0,
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
        self.wrong(key, error);
        None
    }

    fn budget(&mut self, usual: budget::Limits) -> Option<budget::Limits> {
        let limits = budget::Limits {
            ratio: self.ratio("retry-ratio", self.section.retry_ratio)?,
            floor: self.section.retry_floor,
            cap: self.section.retry_cap,
            ..usual
        };
        let checked = limits.validate();
        checked.map_err(|e| self.wrong("retry-cap", e)).ok()?;
        Some(limits)
    }
}
