//! The metrics of the pipeline, all in one place.
//!
//! # Promise
//! What is counted for the exporter is counted for people, too ([`Counts`]): by destination, since
//! the process began.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_core::policy::breaker::{Cause, Outage, State};
use metrics::{Key, Label, counter, gauge};
use serde::{Deserialize, Serialize};

use crate::metric::OftenSet;

/// What has happened at a destination since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Retries that the budget allowed.
    pub retries_allowed: u64,
    /// Retries that were not made because the budget was spent.
    pub retries_exhausted: u64,
    /// Retries that waited as long as the destination asked for.
    pub retry_after_honored: u64,
    /// Changes of the state of the breaker.
    pub transitions: u64,
    /// Calls that found no place.
    pub rejected: u64,
    /// Requests that shared the call of an earlier one with the same key.
    pub coalesced: u64,
}

static COUNTS: LazyLock<Mutex<HashMap<String, Counts>>> = LazyLock::new(Mutex::default);

fn count(destination: &str, change: impl FnOnce(&mut Counts)) {
    let mut all = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    match all.get_mut(destination) {
        Some(counts) => change(counts),
        None => change(all.entry(destination.to_owned()).or_default()),
    }
}

/// What has happened at a destination.
pub(super) fn counts(destination: &str) -> Counts {
    let all = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(destination).copied().unwrap_or_default()
}

/// Name and meaning of every counter here.
pub(crate) const COUNTERS: &[(&str, &str)] = &[
    (
        "counterfoil_retry_allowed_total",
        "Retries that the budget of a destination allowed",
    ),
    (
        "counterfoil_retry_exhausted_total",
        "Retries that were not made because the budget of the destination was spent",
    ),
    (
        "counterfoil_retry_after_honored_total",
        "Retries that waited as long as the destination asked for",
    ),
    (
        "counterfoil_breaker_transitions_total",
        "Changes of the state of a breaker, by new state and cause",
    ),
    (
        "counterfoil_bulkhead_rejected_total",
        "Calls that were turned away because all places were taken, and the queue was full or took too long",
    ),
    (
        "counterfoil_coalesced_total",
        "Requests that shared the call of an earlier one with the same key",
    ),
];

/// Name and meaning of every gauge here.
pub(crate) const GAUGES: &[(&str, &str)] = &[
    (
        "counterfoil_retry_budget_left",
        "Retries that the budget of a destination has left",
    ),
    (
        "counterfoil_breaker_state",
        "0 when the breaker of a destination is closed, 1 when it is half open, 2 when it is open",
    ),
    (
        "counterfoil_breaker_paused",
        "1 while nobody calls a destination because it asked for a pause, else 0",
    ),
    (
        "counterfoil_bulkhead_in_use",
        "Calls of a destination that are under way",
    ),
];

/// Tells the exporter what the names mean.
pub(crate) fn describe() {
    for (name, meaning) in COUNTERS {
        metrics::describe_counter!(*name, *meaning);
    }
    for (name, meaning) in GAUGES {
        metrics::describe_gauge!(*name, *meaning);
    }
}

pub(super) fn retry_allowed(destination: &str) {
    count(destination, |counts| counts.retries_allowed += 1);
    counter!("counterfoil_retry_allowed_total", "destination" => destination.to_owned())
        .increment(1);
}

pub(super) fn retry_exhausted(destination: &str) {
    count(destination, |counts| counts.retries_exhausted += 1);
    counter!("counterfoil_retry_exhausted_total", "destination" => destination.to_owned())
        .increment(1);
}

pub(super) fn retry_after_honored(destination: &str) {
    count(destination, |counts| counts.retry_after_honored += 1);
    counter!("counterfoil_retry_after_honored_total", "destination" => destination.to_owned())
        .increment(1);
}

pub(super) fn bulkhead_rejected(destination: &str) {
    count(destination, |counts| counts.rejected += 1);
    counter!("counterfoil_bulkhead_rejected_total", "destination" => destination.to_owned())
        .increment(1);
}

pub(crate) fn coalesced(destination: &str) {
    count(destination, |counts| counts.coalesced += 1);
    counter!("counterfoil_coalesced_total", "destination" => destination.to_owned()).increment(1);
}

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
pub(super) fn budget_left(destination: &str, left: u64) {
    gauge!("counterfoil_retry_budget_left", "destination" => destination.to_owned())
        .set(left as f64);
}

/// The gauge of the calls under way. It is set with every call.
pub(super) fn in_use_of(destination: &str) -> OftenSet {
    let labels = vec![Label::new("destination", destination.to_owned())];
    OftenSet::new(Key::from_parts("counterfoil_bulkhead_in_use", labels))
}

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
pub(super) fn in_use(gauge: &OftenSet, calls: usize) {
    gauge.set(calls as f64);
}

pub(super) fn state(destination: &str, state: State) {
    let value = match state {
        State::Closed => 0.0,
        State::HalfOpen => 1.0,
        State::Open => 2.0,
    };
    gauge!("counterfoil_breaker_state", "destination" => destination.to_owned()).set(value);
}

pub(super) fn paused(destination: &str, paused: bool) {
    gauge!("counterfoil_breaker_paused", "destination" => destination.to_owned())
        .set(f64::from(u8::from(paused)));
}

/// A pause begins, with this much of it left, or is over: one line in the log.
pub(super) fn pause(destination: &str, left: Option<Duration>) {
    paused(destination, left.is_some());
    match left {
        Some(left) => tracing::warn!(
            destination,
            pause_ms = left.as_millis(),
            "the destination asked for a pause: nobody calls it"
        ),
        None => tracing::info!(destination, "the pause is over"),
    }
}

/// The state of a breaker has changed.
pub(super) fn transition(destination: &str, (from, to): (State, State), cause: Cause) {
    count(destination, |counts| counts.transitions += 1);
    counter!(
        "counterfoil_breaker_transitions_total",
        "destination" => destination.to_owned(), "to" => to.as_str(), "cause" => cause.as_str()
    )
    .increment(1);
    state(destination, to);
    let (from, to, cause) = (from.as_str(), to.as_str(), cause.as_str());
    tracing::debug!(destination, from, to, cause, "breaker");
}

/// A breaker has opened, or is still open.
pub(super) fn opened(destination: &str, cause: Cause, outage: &Outage, wait: Option<Duration>) {
    tracing::warn!(
        destination,
        cause = cause.as_str(),
        error = outage.error.as_deref(),
        since = %outage.since.format("%Y-%m-%d %H:%M:%S UTC"),
        next_probe_ms = wait.map(|wait| wait.as_millis()),
        "the breaker is open: the destination gets probes only"
    );
}

/// A breaker has closed.
pub(super) fn closed(destination: &str, cause: Cause, open: Option<Duration>) {
    tracing::info!(
        destination,
        cause = cause.as_str(),
        open_seconds = open.map(|open| open.as_secs()),
        "the breaker has closed"
    );
}
