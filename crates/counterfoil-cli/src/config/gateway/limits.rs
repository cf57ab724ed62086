//! Retries, breaker, budget and places of `[upstream.NAME]`.

use std::fmt::Display;
use std::time::Duration;

use counterfoil_core::policy::backoff::Jitter;
use counterfoil_core::policy::breaker::Slow;
use counterfoil_core::policy::ratio::Ratio;
use counterfoil_core::policy::{breaker, budget, bulkhead};
use counterfoil_engine::pipeline::Limits;
use counterfoil_http::gateway::UpstreamSettings;

use super::super::figures::{Figures, Wrong, ratio};
use super::super::settings::Judge;
use super::file::{self, Upstream};

/// Retries cannot be counted in less.
const SHORTEST_WINDOW: Duration = Duration::from_millis(1);

/// The limits of an upstream, unless something is wrong with them.
pub(super) fn limits(name: &str, section: &Upstream, judge: &mut Judge<'_>) -> Option<Limits> {
    let mut wrong = |key: &str, error: &dyn Display| {
        let (path, shown) = (
            format!("upstream.{name}.{key}"),
            format!("[upstream.{name}]"),
        );
        super::refuse(judge, &path, key, &shown, error);
    };
    let usual = UpstreamSettings::default().limits;
    let figures = Figures {
        failures: section.breaker_failures,
        ratio: section.breaker_ratio,
        min_calls: section.breaker_min_calls,
        open: section.breaker_open.0,
        open_cap: section.breaker_open_cap.0,
        retry_ratio: section.retry_ratio,
        retry_floor: section.retry_floor,
        retry_cap: section.retry_cap,
    };
    // All are asked, so that what is wrong with one does not hide the other.
    let slow = slow(section, &mut wrong);
    let breaker = figures.breaker(usual.breaker, &mut wrong);
    let window = section.retry_window.0;
    let budget = budget::Limits {
        window,
        ..usual.budget
    };
    let budget = match window < SHORTEST_WINDOW {
        true => {
            wrong("retry-window", &"must be at least a millisecond");
            None
        }
        false => figures.budget(budget, &mut wrong),
    };
    let most = usual.backoff.max_attempts() - 1;
    if section.retries > most {
        wrong("retries", &format!("at most {most}"));
        return None;
    }
    let attempt = section.attempt_timeout.map(|span| span.0);
    for (key, time) in [
        ("retry-deadline", Some(section.retry_deadline.0)),
        ("attempt-timeout", attempt),
    ] {
        if time.is_some_and(|time| time.is_zero()) {
            wrong(key, &"must be greater than zero");
            return None;
        }
    }
    let jitter = match section.retry_jitter {
        file::Jitter::Full => Jitter::Full,
        file::Jitter::Decorrelated => Jitter::Decorrelated,
        file::Jitter::None => Jitter::None,
    };
    let backoff = usual.backoff.with_max_attempts(section.retries + 1);
    Some(Limits {
        backoff: backoff.with_jitter(jitter),
        deadline: section.retry_deadline.0,
        attempt: attempt.unwrap_or(Duration::MAX),
        breaker: breaker::Settings {
            slow: slow?,
            ..breaker?
        },
        budget: budget?,
        bulkhead: bulkhead::Size {
            // Zero is refused under the name that it has in the file.
            limit: section.connections.max(1),
            queue: section.waiting,
        },
        ..usual
    })
}

/// When a call is slow, and how many of them open the breaker. Nothing: something is wrong with it.
fn slow(section: &Upstream, wrong: Wrong<'_>) -> Option<Option<Slow>> {
    let share = ratio("breaker-slow-ratio", section.breaker_slow_ratio, wrong)?;
    let Some(after) = section.breaker_slow_after else {
        return Some(None);
    };
    if share == Ratio::ZERO {
        let text = "must be greater than zero: the breaker would open on the first call";
        wrong("breaker-slow-ratio", &text);
        return None;
    }
    if after.0.is_zero() {
        wrong("breaker-slow-after", &"must be greater than zero");
        return None;
    }
    Some(Some(Slow {
        longer_than: after.0,
        ratio: share,
    }))
}
