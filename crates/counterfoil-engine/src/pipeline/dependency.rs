//! One dependency: its limits, and what is known about it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use counterfoil_core::policy::backoff::Backoff;
use counterfoil_core::policy::breaker::{
    self, Admission, Cause, Forced, Outage, Snapshot, State, Ticket,
};
use counterfoil_core::policy::budget::Taken;
use counterfoil_core::policy::bulkhead::{self, Entry, NoPlace, Waiter};
use counterfoil_core::policy::{Breaker, Budget, Bulkhead, Class, Moment, Shared, budget};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::error::CallError;
use super::meter::{self, Counts};
use super::stack::Stack;
use crate::metric::OftenSet;

/// The limits of the calls of one dependency.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | `backoff` | 200 ms, 500 ms, 1.2 s, 2.5 s, 5 s, full jitter | the waits between attempts |
/// | `write_attempts` | 5 | the most attempts of a write with a key or a condition |
/// | `deadline` | 3 s | the time for all attempts |
/// | `attempt` | 1.5 s | the time for one |
/// | `budget` | 10 % of successes + 10, at most 10,000 a minute | all retries together |
/// | `breaker` | 50 % of at least 20 calls in 10 s | when nobody calls |
/// | `bulkhead` | 100 calls, 100 waiting | calls at one time |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The waits between attempts.
    pub backoff: Backoff,
    /// The most attempts of a write with a key or a condition.
    pub write_attempts: u32,
    /// The time for all attempts.
    pub deadline: Duration,
    /// The time for one attempt.
    pub attempt: Duration,
    /// All retries together.
    pub budget: budget::Limits,
    /// When nobody calls.
    pub breaker: breaker::Settings,
    /// Calls at one time.
    pub bulkhead: bulkhead::Size,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            backoff: Backoff::CALL,
            write_attempts: Backoff::KEYED_WRITE.max_attempts(),
            deadline: Duration::from_secs(3),
            attempt: Duration::from_millis(1_500),
            budget: budget::Limits::DEFAULT,
            breaker: breaker::Settings::DEFAULT,
            bulkhead: bulkhead::Size::DEFAULT,
        }
    }
}

impl Limits {
    /// Refuses what cannot be.
    pub fn validate(&self) -> Result<(), LimitsError> {
        for (what, time) in [
            ("the deadline", self.deadline),
            ("the time for one attempt", self.attempt),
        ] {
            if time.is_zero() {
                return Err(LimitsError::NoTime(what));
            }
        }
        self.budget.validate()?;
        self.breaker.validate()?;
        if self.bulkhead.limit == 0 {
            return Err(NoPlace.into());
        }
        Ok(())
    }
}

/// Limits that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// Of the budget.
    #[error(transparent)]
    Budget(#[from] budget::LimitsError),
    /// Of the breaker.
    #[error(transparent)]
    Breaker(#[from] breaker::SettingsError),
    /// Of the bulkhead.
    #[error(transparent)]
    Bulkhead(#[from] NoPlace),
    /// No time.
    #[error("{0} must be longer than zero")]
    NoTime(&'static str),
}

/// What an operator sees of a dependency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub destination: String,
    /// What its breaker does.
    pub breaker: State,
    /// What an operator wants of it.
    pub forced: Option<Forced>,
    /// Who said so last.
    pub forced_by: Option<String>,
    /// Why the breaker changed last.
    pub cause: Cause,
    /// Milliseconds until the next call can be admitted; absent while an operator holds it open.
    pub wait_ms: Option<u64>,
    /// Whether the breaker is closed and nobody calls, because the destination asked for a pause.
    #[serde(default)]
    pub paused: bool,
    /// Retries that are left in this window.
    pub retries_left: u64,
    /// Retries that may be made in this window, as it is now.
    #[serde(default)]
    pub retries_allowance: u64,
    /// The most retries in a window.
    pub retries_cap: u64,
    /// Calls under way.
    pub in_use: usize,
    /// Callers that wait for a place.
    pub waiting: usize,
    /// Calls at one time.
    pub limit: usize,
    /// What has happened since the process began.
    #[serde(default)]
    pub counts: Counts,
}

struct Watched {
    breaker: Breaker,
    /// The state that was told last.
    told: State,
    /// Whether a pause was told last, or its end.
    paused: bool,
    /// Who has set it by hand last.
    by: Option<String>,
    /// What the destination said when it failed last.
    error: Option<String>,
    /// Since when the breaker is open, and why.
    outage: Option<Outage>,
    pace: Pace,
}

/// When a breaker that stays open is told again: after a minute, and then after twice as long each
/// time.
#[derive(Debug, Default)]
struct Pace(Option<(Moment, Duration)>);

impl Pace {
    const FIRST: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(3_600);

    /// It has opened, which is told.
    fn begin(&mut self, now: Moment) {
        self.0 = Some((now.saturating_add(Self::FIRST), Self::FIRST));
    }

    /// Whether to tell now that it is still open.
    fn is_due(&mut self, now: Moment) -> bool {
        match &mut self.0 {
            Some((at, pause)) if now >= *at => {
                *pause = (*pause * 2).min(Self::LONGEST);
                *at = now.saturating_add(*pause);
                true
            }
            Some(_) => false,
            None => {
                self.begin(now);
                true
            }
        }
    }
}

#[derive(Default)]
struct Calls(HashMap<Waiter, oneshot::Sender<()>>);

/// One dependency. Everybody who calls it shares this.
pub struct Dependency {
    name: String,
    limits: Limits,
    origin: Instant,
    breaker: Shared<Watched>,
    budget: Shared<Budget>,
    places: Shared<(Bulkhead, Calls)>,
    in_use: OftenSet,
    changed: Arc<Notify>,
}

impl Dependency {
    /// A dependency that nothing is known about; impossible limits are refused. Use a
    /// [`Registry`](super::Registry) to have it listed.
    pub fn new(name: &str, limits: Limits) -> Result<Arc<Self>, LimitsError> {
        Self::watched(name, limits, Arc::default())
    }

    pub(super) fn watched(
        name: &str,
        limits: Limits,
        changed: Arc<Notify>,
    ) -> Result<Arc<Self>, LimitsError> {
        limits.validate()?;
        let dependency = Self {
            name: name.to_owned(),
            limits,
            origin: Instant::now(),
            breaker: Shared::new(Watched {
                breaker: Breaker::new(limits.breaker)?,
                told: State::Closed,
                paused: false,
                by: None,
                error: None,
                outage: None,
                pace: Pace::default(),
            }),
            budget: Shared::new(Budget::new(limits.budget)?),
            places: Shared::new((Bulkhead::new(limits.bulkhead)?, Calls::default())),
            in_use: meter::in_use_of(name),
            changed,
        };
        dependency.measure();
        Ok(Arc::new(dependency))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The whole pipeline as one layer.
    pub fn stack<C>(self: &Arc<Self>, classify: C) -> Stack<C> {
        Stack::new(Arc::clone(self), classify)
    }

    /// The present time as policies see it.
    pub fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    fn step<R>(&self, step: impl FnOnce(&mut Breaker, Moment) -> R) -> R {
        self.breaker.with(|watched| {
            let now = self.now();
            let result = step(&mut watched.breaker, now);
            let state = watched.breaker.state(now);
            // Open becomes half open by time alone; it is told when somebody asks for the probe.
            if state != watched.told {
                let before = std::mem::replace(&mut watched.told, state);
                self.tell(watched, (before, state), now);
                self.changed.notify_one();
            }
            self.tell_pause(watched, now);
            result
        })
    }

    /// The state has changed: a breaker that opens is told with its reason, one that stays open now and
    /// then, and one that closes with how long it was open.
    fn tell(&self, watched: &mut Watched, change: (State, State), now: Moment) {
        meter::transition(&self.name, change, watched.breaker.cause());
        match change {
            (State::Closed, State::Open | State::HalfOpen) => {
                let error = watched.error.clone();
                watched.outage.get_or_insert_with(|| Outage {
                    since: Utc::now(),
                    error,
                });
                watched.pace.begin(now);
            }
            (State::HalfOpen, State::Open) => {
                if let Some(outage) = &mut watched.outage {
                    outage.error.clone_from(&watched.error);
                }
                if !watched.pace.is_due(now) {
                    return;
                }
            }
            (_, State::Closed) => {
                let outage = watched.outage.take();
                let open = outage.and_then(|outage| (Utc::now() - outage.since).to_std().ok());
                return meter::closed(&self.name, watched.breaker.cause(), open);
            }
            _ => return,
        }
        if let Some(outage) = &watched.outage {
            let wait = watched.breaker.wait(now);
            meter::opened(&self.name, watched.breaker.cause(), outage, wait);
        }
    }

    /// What the destination said when it failed: told when the breaker opens, and shown while it is
    /// open. Comes before the failure is recorded.
    pub fn failed_with(&self, error: &str) {
        let error: String = error
            .chars()
            .filter(|c| !c.is_control())
            .take(500)
            .collect();
        self.breaker.with(|w| w.error = Some(error));
    }

    /// Since when the breaker is open, and why.
    pub fn outage(&self) -> Option<Outage> {
        self.breaker.with(|w| w.outage.clone())
    }

    /// A pause ends by time alone: that is told when somebody looks.
    fn tell_pause(&self, watched: &mut Watched, now: Moment) {
        let pause = watched.breaker.pause(now);
        if pause.is_some() != watched.paused {
            watched.paused = pause.is_some();
            meter::pause(&self.name, pause);
        }
    }

    /// Asks the breaker for a call.
    pub fn admit(&self) -> Admission {
        self.step(Breaker::admit)
    }

    /// Why the breaker would not admit a call now; absent when it would.
    pub fn refusal<E>(&self) -> Option<CallError<E>> {
        let refusal = self.breaker.with(|watched| {
            let now = self.now();
            self.tell_pause(watched, now);
            watched.breaker.refusal(now)
        });
        CallError::admitted(refusal?).err()
    }

    /// Tells the breaker what came of a call that it admitted.
    pub fn record(&self, ticket: Ticket, class: Class) {
        self.step(|breaker, now| breaker.record(ticket, class, now));
    }

    /// What the breaker does now.
    pub fn state(&self) -> State {
        self.breaker.with(|w| w.breaker.state(self.now()))
    }

    /// How long until the breaker can admit a call; absent while an operator holds it open.
    pub fn wait(&self) -> Option<Duration> {
        self.breaker.with(|w| w.breaker.wait(self.now()))
    }

    /// An operator's word; absent gives the breaker back to the calls.
    /// `by` is for the record.
    pub fn force(&self, forced: Option<Forced>, by: &str) {
        self.breaker.with(|w| w.by = Some(by.to_owned()));
        let changed = self.step(|breaker, _| {
            let changed = breaker.forced() != forced;
            breaker.force(forced);
            changed
        });
        if changed {
            let word = forced.map_or("auto", Forced::as_str);
            tracing::warn!(
                destination = self.name,
                word,
                by,
                "the breaker was set by hand"
            );
            self.changed.notify_one();
        }
    }

    /// What of the breaker survives a restart.
    pub fn snapshot(&self) -> Snapshot {
        self.breaker
            .with(|w| w.breaker.snapshot(self.now(), Utc::now()))
    }

    /// Goes on where the snapshot was taken; `by` has set it by hand last.
    pub fn restore(&self, snapshot: Snapshot, by: Option<&str>, outage: Option<Outage>) {
        if !snapshot.is_empty() {
            self.breaker.with(|w| {
                w.by = by.map(str::to_owned);
                w.error = outage.as_ref().and_then(|outage| outage.error.clone());
                w.outage = outage;
            });
            self.step(|breaker, now| breaker.restore(snapshot, now, Utc::now()));
        }
    }

    /// A call has succeeded: the budget grows.
    pub fn succeeded(&self) {
        self.succeeded_times(1);
    }

    /// So many have succeeded.
    pub fn succeeded_times(&self, times: u64) {
        self.budget.with(|b| b.succeeded_times(times, self.now()));
    }

    /// Takes one retry from the budget, if there is one.
    pub fn take_retry(&self) -> Option<Taken> {
        let (taken, left) = self.budget.with(|b| {
            let now = self.now();
            (b.take(now), b.left(now))
        });
        if taken.is_some() {
            meter::retry_allowed(&self.name);
        } else {
            meter::retry_exhausted(&self.name);
        }
        meter::budget_left(&self.name, left);
        taken
    }

    /// Gives back a retry that was not made after all.
    pub fn give_back(&self, taken: Taken) {
        let left = self.budget.with(|b| {
            let now = self.now();
            b.give_back(taken, now);
            b.left(now)
        });
        meter::budget_left(&self.name, left);
    }

    /// Retries that the budget has left. When there is none this counts as one that was not made.
    pub(super) fn retry_in_sight(&self) -> bool {
        let left = self.retries_left();
        if left == 0 {
            meter::retry_exhausted(&self.name);
        }
        left > 0
    }

    /// Retries that the budget has left.
    pub fn retries_left(&self) -> u64 {
        self.budget.with(|b| b.left(self.now()))
    }

    /// Waits for a place in the bulkhead. Absent when the queue is full. The place is free again
    /// when it is dropped.
    pub async fn enter(self: &Arc<Self>) -> Option<Place> {
        let (entry, tell, in_use) = self.places.with(|(bulkhead, calls)| {
            let entry = bulkhead.enter();
            let tell = match entry {
                Entry::Wait(waiter) => {
                    let (told, tell) = oneshot::channel();
                    calls.0.insert(waiter, told);
                    Some(tell)
                }
                _ => None,
            };
            (entry, tell, bulkhead.in_use())
        });
        match (entry, tell) {
            (Entry::Wait(waiter), Some(tell)) => {
                let mut turn = Turn {
                    dependency: self,
                    waiter: Some(waiter),
                };
                // The sender is dropped only after it has been told.
                let _ = tell.await;
                turn.waiter = None;
                let place = Place(Arc::clone(self));
                meter::in_use(&self.in_use, self.in_use());
                Some(place)
            }
            (Entry::Go, _) => {
                meter::in_use(&self.in_use, in_use);
                Some(Place(Arc::clone(self)))
            }
            _ => {
                meter::bulkhead_rejected(&self.name);
                None
            }
        }
    }

    /// The same; absent also when there is no place within this time.
    pub async fn enter_within(self: &Arc<Self>, patience: Duration) -> Option<Place> {
        match tokio::time::timeout(patience, self.enter()).await {
            Ok(place) => place,
            Err(_) => {
                meter::bulkhead_rejected(&self.name);
                None
            }
        }
    }

    /// A place in the bulkhead, if there is one at once.
    pub fn try_enter(self: &Arc<Self>) -> Option<Place> {
        let free = |(bulkhead, _): &mut (Bulkhead, Calls)| {
            has_room(bulkhead) && bulkhead.enter() == Entry::Go
        };
        if !self.places.with(free) {
            meter::bulkhead_rejected(&self.name);
            return None;
        }
        meter::in_use(&self.in_use, self.in_use());
        Some(Place(Arc::clone(self)))
    }

    /// Whether there is a place at once.
    pub fn has_room(&self) -> bool {
        self.places.with(|(bulkhead, _)| has_room(bulkhead))
    }

    fn in_use(&self) -> usize {
        self.places.with(|(bulkhead, _)| bulkhead.in_use())
    }

    /// Answers how many places are taken afterwards.
    fn free(&self, step: impl FnOnce(&mut Bulkhead) -> Option<Waiter>) -> usize {
        self.places.with(|(bulkhead, calls)| {
            if let Some(next) = step(bulkhead)
                && let Some(told) = calls.0.remove(&next)
            {
                // If nobody listens any more, its `Turn` passes the place on.
                let _ = told.send(());
            }
            bulkhead.in_use()
        })
    }

    /// What an operator sees.
    pub fn status(&self) -> Status {
        let now = self.now();
        let (breaker, forced_by) = self.breaker.with(|w| (w.breaker.clone(), w.by.clone()));
        let wait = breaker.wait(now);
        let (in_use, waiting) = self.places.with(|(b, _)| (b.in_use(), b.waiting()));
        let (left, allowance) = self.budget.with(|b| (b.left(now), b.allowance(now)));
        Status {
            destination: self.name.clone(),
            breaker: breaker.state(now),
            forced: breaker.forced(),
            forced_by,
            cause: breaker.cause(),
            wait_ms: wait.map(|w| u64::try_from(w.as_millis()).unwrap_or(u64::MAX)),
            paused: breaker.pause(now).is_some(),
            retries_left: left,
            retries_allowance: allowance,
            retries_cap: self.limits.budget.cap,
            in_use,
            waiting,
            limit: self.limits.bulkhead.limit,
            counts: meter::counts(&self.name),
        }
    }

    /// Sets the gauges: some of them change by time alone.
    pub fn measure(&self) {
        let paused = self.breaker.with(|watched| {
            self.tell_pause(watched, self.now());
            watched.paused
        });
        meter::paused(&self.name, paused);
        meter::state(&self.name, self.state());
        meter::budget_left(&self.name, self.retries_left());
        meter::in_use(&self.in_use, self.in_use());
    }
}

fn has_room(bulkhead: &Bulkhead) -> bool {
    bulkhead.in_use() < bulkhead.size().limit
}

/// A caller that waits for its turn.
struct Turn<'a> {
    dependency: &'a Dependency,
    waiter: Option<Waiter>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.dependency
                .places
                .with(|(_, calls)| calls.0.remove(&waiter));
            self.dependency.free(|bulkhead| bulkhead.give_up(waiter));
        }
    }
}

/// A place in the bulkhead.
pub struct Place(Arc<Dependency>);

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.0.free(Bulkhead::leave);
        meter::in_use(&self.0.in_use, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_breaker_is_told_at_a_slower_and_slower_pace() {
        let mut pace = Pace::default();
        pace.begin(Duration::ZERO);

        let told = (0..25 * 60).filter(|m| pace.is_due(Duration::from_secs(m * 60)));

        let told: Vec<u64> = told.collect();
        assert_eq!(told[..6], [1, 3, 7, 15, 31, 63]);
        assert!(told.len() < 30, "{told:?}");
    }
}
