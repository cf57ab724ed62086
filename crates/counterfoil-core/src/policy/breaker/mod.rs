//! Whether a destination may be called at all.
//!
//! # Promise
//! - It opens on failures in a row, on the share of failures, or on the share of slow calls; shares
//!   count only when there were enough calls in the window.
//! - While it is open nobody calls. When the open time is over it is half open: one probe for each
//!   interval, and nobody else. A good probe closes it, a bad one opens it for longer, up to a cap.
//! - A probe that never answers holds up nothing: the next interval has its own.
//! - An answer counts only in the period in which its call began. So a late answer from before the
//!   opening neither closes it nor makes the open time grow.
//! - Throttling (429) is not failure: the server is alive. It never opens the breaker; several in a
//!   row make everybody pause for as long as the server asked for, within a limit.
//! - A failure that asks for time (503 with `Retry-After`) is a failure. If it opens the breaker, that
//!   stays open at least as long as it asked for, within the same limit.
//! - What an operator forces outranks all of this until it is taken back, and survives a restart, as
//!   an open state does ([`Snapshot`]).

mod kept;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Moment;
use super::class::Class;
use super::window::Window;

pub use kept::{Kept, Opened, Outage, Remember};
pub use settings::{Settings, SettingsError, Slow};
pub use snapshot::Snapshot;

const BUCKETS: u32 = 10;
const CALLS: usize = 0;
const FAILURES: usize = 1;
const SLOW: usize = 2;

/// What a breaker does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Everybody may call.
    Closed,
    /// One probe for each interval may call.
    HalfOpen,
    /// Nobody may call.
    Open,
}

impl State {
    /// The word for people and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::HalfOpen => "half-open",
            State::Open => "open",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an operator wants, whatever the calls say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forced {
    /// Nobody calls.
    Open,
    /// Everybody calls.
    Closed,
}

impl Forced {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Forced::Open => "open",
            Forced::Closed => "closed",
        }
    }

    /// Reads the stored word. Any other is nobody's will.
    pub fn parse(word: &str) -> Option<Self> {
        [Forced::Open, Forced::Closed]
            .into_iter()
            .find(|forced| forced.as_str() == word)
    }
}

/// Why the state changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Nothing has happened yet.
    Start,
    /// Too many failures in a row.
    Consecutive,
    /// Too large a share of failures.
    FailureRatio,
    /// Too large a share of slow calls.
    SlowRatio,
    /// The open time is over.
    TimeToProbe,
    /// A probe failed.
    ProbeFailed,
    /// Probes were answered well.
    ProbePassed,
    /// An operator decided.
    Operator,
    /// It was so before the restart.
    Restored,
}

impl Cause {
    /// The word for people and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Consecutive => "consecutive",
            Cause::FailureRatio => "failure-ratio",
            Cause::SlowRatio => "slow-ratio",
            Cause::TimeToProbe => "time-to-probe",
            Cause::ProbeFailed => "probe-failed",
            Cause::ProbePassed => "probe-passed",
            Cause::Operator => "operator",
            Cause::Restored => "restored",
        }
    }
}

/// The right to make one call. Its result is told with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "tell the breaker what came of the call"]
pub struct Ticket {
    period: u64,
    probe: bool,
    begun: Moment,
}

impl Ticket {
    /// Whether the call is a probe.
    pub fn is_probe(&self) -> bool {
        self.probe
    }

    /// The same for a call whose time says nothing about the other side: it is never a slow one.
    pub fn untimed(self) -> Self {
        Self {
            begun: Moment::MAX,
            ..self
        }
    }
}

/// Whether a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Go(Ticket),
    /// It may not: the breaker is open, or its probe is under way.
    Open {
        /// Asking again before this time is useless. Absent while an operator holds it open.
        retry_after: Option<Duration>,
    },
    /// It may not: the server asked for a pause.
    Throttled {
        /// Until then.
        retry_after: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Auto {
    Closed { in_a_row: u32 },
    Open { until: Moment },
    HalfOpen { next_probe: Moment, passed: u32 },
}

/// A circuit breaker.
#[derive(Debug, Clone)]
pub struct Breaker {
    settings: Settings,
    auto: Auto,
    forced: Option<Forced>,
    /// Grows with every change: results of earlier periods do not count.
    period: u64,
    cause: Cause,
    window: Window<3>,
    /// How long it is open the next time.
    open_for: Duration,
    throttled_in_a_row: u32,
    throttled_until: Option<Moment>,
}

impl Breaker {
    /// A closed breaker; impossible settings are refused.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            settings,
            auto: Auto::Closed { in_a_row: 0 },
            forced: None,
            period: 0,
            cause: Cause::Start,
            window: Window::new(settings.window / BUCKETS, BUCKETS as usize),
            open_for: settings.open_for,
            throttled_in_a_row: 0,
            throttled_until: None,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it does now.
    pub fn state(&self, now: Moment) -> State {
        match (self.forced, self.auto) {
            (Some(Forced::Open), _) => State::Open,
            (Some(Forced::Closed), _) => State::Closed,
            (None, Auto::Closed { .. }) => State::Closed,
            (None, Auto::Open { until }) if now < until => State::Open,
            (None, _) => State::HalfOpen,
        }
    }

    /// What an operator wants.
    pub fn forced(&self) -> Option<Forced> {
        self.forced
    }

    /// Why the state changed last.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// How long until the next call can be admitted; zero when one can be admitted now, absent
    /// while an operator holds it open.
    pub fn wait(&self, now: Moment) -> Option<Duration> {
        match self.forced {
            Some(Forced::Open) => return None,
            Some(Forced::Closed) => return Some(Duration::ZERO),
            None => {}
        }
        let until = match self.auto {
            Auto::Closed { .. } => self.throttled_until.unwrap_or_default(),
            Auto::Open { until } => until,
            Auto::HalfOpen { next_probe, .. } => next_probe,
        };
        Some(until.saturating_sub(now))
    }

    /// Asks for a call.
    pub fn admit(&mut self, now: Moment) -> Admission {
        match self.refusal(now) {
            Some(refusal) => refusal,
            None => Admission::Go(self.ticket(now)),
        }
    }

    /// Why a call would not be admitted now; absent when it would be. Nothing is changed by asking.
    pub fn refusal(&self, now: Moment) -> Option<Admission> {
        let retry_after = match self.wait(now) {
            Some(wait) if wait.is_zero() => return None,
            other => other,
        };
        Some(match (self.forced, self.auto, retry_after) {
            (None, Auto::Closed { .. }, Some(retry_after)) => Admission::Throttled { retry_after },
            _ => Admission::Open { retry_after },
        })
    }

    /// The rest of the pause that the server asked for; absent when there is none.
    pub fn pause(&self, now: Moment) -> Option<Duration> {
        match self.refusal(now) {
            Some(Admission::Throttled { retry_after }) => Some(retry_after),
            _ => None,
        }
    }

    fn ticket(&mut self, now: Moment) -> Ticket {
        let mut probe = false;
        if self.forced.is_none() {
            if let Auto::Open { .. } = self.auto {
                self.enter(
                    Auto::HalfOpen {
                        next_probe: now,
                        passed: 0,
                    },
                    Cause::TimeToProbe,
                );
            }
            if let Auto::HalfOpen { next_probe, .. } = &mut self.auto {
                *next_probe = now.saturating_add(self.settings.probe_every);
                probe = true;
            }
        }
        Ticket {
            period: self.period,
            probe,
            begun: now,
        }
    }

    /// Tells what came of a call that was admitted.
    pub fn record(&mut self, ticket: Ticket, class: Class, now: Moment) {
        if ticket.period != self.period || self.forced.is_some() {
            return;
        }
        if let Class::Throttled { after } = class {
            self.throttled(after, now);
        } else {
            self.throttled_in_a_row = 0;
            self.throttled_until = None;
        }
        let took = now.saturating_sub(ticket.begun);
        let slow = self.settings.slow.is_some_and(|s| took >= s.longer_than);
        match self.auto {
            Auto::Closed { in_a_row } => self.answered(in_a_row, class, slow, now),
            Auto::HalfOpen { next_probe, passed } => {
                let failed = matches!(class, Class::Failed(_)) || slow;
                match failed {
                    true => self.open(Cause::ProbeFailed, class.asked(), now),
                    false => self.passed(next_probe, passed),
                }
            }
            // Calls are not admitted while it is open.
            Auto::Open { .. } => {}
        }
    }

    fn throttled(&mut self, after: Option<Duration>, now: Moment) {
        self.throttled_in_a_row = self.throttled_in_a_row.saturating_add(1);
        if self.throttled_in_a_row < self.settings.throttles {
            return;
        }
        let asked = after.unwrap_or(self.settings.probe_every);
        let until = now.saturating_add(asked.min(self.settings.throttle_cap));
        self.throttled_until = self.throttled_until.max(Some(until));
    }

    fn answered(&mut self, in_a_row: u32, class: Class, slow: bool, now: Moment) {
        let failed = matches!(class, Class::Failed(_));
        // What is throttled says nothing about how the server does its work.
        if !matches!(class, Class::Throttled { .. }) {
            self.window.add(CALLS, now);
        }
        if failed {
            self.window.add(FAILURES, now);
        }
        if slow {
            self.window.add(SLOW, now);
        }
        let in_a_row = match class {
            Class::Failed(_) => in_a_row.saturating_add(1),
            Class::Throttled { .. } => in_a_row,
            Class::Success | Class::Refused => 0,
        };
        self.auto = Auto::Closed { in_a_row };
        if let Some(cause) = self.verdict(in_a_row, failed, slow, now) {
            self.open(cause, class.asked(), now);
        }
    }

    fn verdict(&mut self, in_a_row: u32, failed: bool, slow: bool, now: Moment) -> Option<Cause> {
        let s = self.settings;
        if failed && s.consecutive.is_some_and(|n| in_a_row >= n) {
            return Some(Cause::Consecutive);
        }
        let totals = self.window.totals(now);
        let calls = totals[CALLS];
        if calls < u64::from(s.min_calls) {
            return None;
        }
        if failed && s.failure_ratio.reached(totals[FAILURES], calls) {
            return Some(Cause::FailureRatio);
        }
        let too_slow = s.slow.is_some_and(|s| s.ratio.reached(totals[SLOW], calls));
        (slow && too_slow).then_some(Cause::SlowRatio)
    }

    fn passed(&mut self, next_probe: Moment, passed: u32) {
        if passed + 1 >= self.settings.probes {
            self.open_for = self.settings.open_for;
            self.enter(Auto::Closed { in_a_row: 0 }, Cause::ProbePassed);
        } else {
            let passed = passed + 1;
            self.auto = Auto::HalfOpen { next_probe, passed };
        }
    }

    fn open(&mut self, cause: Cause, asked: Option<Duration>, now: Moment) {
        let asked = asked.unwrap_or_default().min(self.settings.throttle_cap);
        let until = now.saturating_add(self.open_for.max(asked));
        self.open_for = self.open_for.saturating_mul(2).min(self.settings.open_cap);
        self.enter(Auto::Open { until }, cause);
    }

    fn enter(&mut self, auto: Auto, cause: Cause) {
        self.auto = auto;
        self.cause = cause;
        self.period += 1;
        self.window.clear();
        self.throttled_in_a_row = 0;
        self.throttled_until = None;
    }

    /// An operator's word; absent gives the breaker back to the calls, closed and with nothing
    /// counted.
    pub fn force(&mut self, forced: Option<Forced>) {
        if self.forced == forced {
            return;
        }
        self.forced = forced;
        self.open_for = self.settings.open_for;
        self.enter(Auto::Closed { in_a_row: 0 }, Cause::Operator);
    }
}
