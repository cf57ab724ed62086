//! Retries, breaker, budget and places of `[upstream.NAME]`.

use std::fmt::Display;
use std::time::Duration;

use counterfoil_core::policy::bulkhead;
use counterfoil_engine::pipeline::Limits;
use counterfoil_http::gateway::UpstreamSettings;

use super::super::figures::Figures;
use super::super::settings::Judge;
use super::file::Upstream;

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
    let breaker = figures.breaker(usual.breaker, &mut wrong);
    let budget = figures.budget(usual.budget, &mut wrong);
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
