//! How much load can retries add? An outage, simulated with the real policies.
//!
//! # Promise
//! The same scenario gives the same result, to the last call. Nothing here decides by itself: the
//! backoff, the budget and the breaker are those of this module's siblings, and time is a number.
//!
//! # The scenario
//! Requests arrive at a steady rate. The upstream answers in 20 ms, and can take half as much again
//! as the rate; what is over that fails. After seventy seconds it fails every call, for the time of
//! the outage. Then it is well again. Every request may be sent up to six times.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::time::Duration;

use super::Moment;
use super::attempts::{Attempts, Next};
use super::backoff::{Backoff, Jitter};
use super::breaker::{self, Admission, Breaker, State, Ticket};
use super::budget::{self, Budget};
use super::class::{Class, Failure};
use super::ratio::Ratio;

const BEFORE: Duration = Duration::from_secs(70);
const AFTER: Duration = Duration::from_secs(60);
const LATENCY: Duration = Duration::from_millis(20);
const FAILS_IN: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_secs(3);
/// The upstream counts what it can take over this time.
const TICK: Duration = Duration::from_millis(100);

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Requests per second.
    pub rate: u32,
    /// How long every call fails.
    pub outage: Duration,
    /// The ratio of the budget.
    pub ratio: Ratio,
    /// Decides the jitter.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            rate: 1_000,
            outage: Duration::from_secs(60),
            ratio: Ratio::percent(10),
            seed: 1,
        }
    }
}

/// How failed calls are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Every second, five times.
    FixedInterval,
    /// The list with full jitter and a deadline, without limits.
    Listed,
    /// The same inside a budget.
    Budget,
    /// The same inside a budget and behind a breaker.
    BudgetAndBreaker,
}

impl Strategy {
    /// All of them, from the worst to the best.
    pub const ALL: [Strategy; 4] = [
        Strategy::FixedInterval,
        Strategy::Listed,
        Strategy::Budget,
        Strategy::BudgetAndBreaker,
    ];

    /// For people.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::FixedInterval => "fixed interval, no budget",
            Strategy::Listed => "jitter and deadline, no budget",
            Strategy::Budget => "jitter, deadline and budget",
            Strategy::BudgetAndBreaker => "jitter, deadline, budget and breaker",
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How failed calls were retried.
    pub strategy: Strategy,
    /// Requests that arrived during the outage.
    pub requests: u64,
    /// Calls of the upstream during the outage.
    pub calls: u64,
    /// Retries during the outage.
    pub retries: u64,
    /// The most calls in one second of the whole run.
    pub peak: u64,
    /// When each probe was sent.
    pub probes: Vec<Moment>,
    /// When each retry was sent; not kept where there is no budget to compare it with.
    pub retried: Vec<Moment>,
    /// How long after the outage the last request arrived that was not answered.
    pub recovery: Duration,
}

impl Outcome {
    /// Retries for each hundred requests, during the outage, in tenths.
    fn extra_permille(&self) -> u64 {
        (self.retries * 1_000)
            .checked_div(self.requests)
            .unwrap_or(0)
    }
}

enum Event {
    /// A request is sent again.
    Send(Request),
    /// The answer of a call.
    Answer(Request, Option<Ticket>, bool),
}

struct Request {
    arrived: Moment,
    attempts: Attempts,
    sent: u32,
}

/// What is due at a time; of several, what was planned first.
struct Due {
    at: Moment,
    number: u64,
    event: Event,
}

impl Due {
    fn key(&self) -> Reverse<(Moment, u64)> {
        Reverse((self.at, self.number))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

struct Run {
    scenario: Scenario,
    strategy: Strategy,
    breaker: Option<Breaker>,
    budget: Option<Budget>,
    due: BinaryHeap<Due>,
    planned: u64,
    /// Calls in the present second and in the present tick of the upstream.
    second: (u128, u64),
    tick: (u128, u64),
    outcome: Outcome,
}

/// Runs one strategy. A rate of zero is simulated as one request per second.
pub fn run(scenario: Scenario, strategy: Strategy) -> Outcome {
    let limits = budget::Limits {
        ratio: scenario.ratio,
        ..budget::Limits::DEFAULT
    };
    let budgeted = matches!(strategy, Strategy::Budget | Strategy::BudgetAndBreaker);
    let broken = strategy == Strategy::BudgetAndBreaker;
    let run = Run {
        scenario: Scenario {
            rate: scenario.rate.max(1),
            ..scenario
        },
        strategy,
        // The default limits and settings can be built.
        breaker: Breaker::new(breaker::Settings::DEFAULT)
            .ok()
            .filter(|_| broken),
        budget: Budget::new(limits).ok().filter(|_| budgeted),
        due: BinaryHeap::new(),
        planned: 0,
        second: (0, 0),
        tick: (0, 0),
        outcome: Outcome {
            strategy,
            requests: 0,
            calls: 0,
            retries: 0,
            peak: 0,
            probes: Vec::new(),
            retried: Vec::new(),
            recovery: Duration::ZERO,
        },
    };
    run.finish()
}

/// Runs every strategy.
pub fn all(scenario: Scenario) -> Vec<Outcome> {
    Strategy::ALL.map(|s| run(scenario, s)).into()
}

impl Run {
    fn finish(mut self) -> Outcome {
        let gap = Duration::from_secs(1) / self.scenario.rate;
        let (backoff, within) = self.schedule();
        let mut seeds = fastrand::Rng::with_seed(self.scenario.seed);
        let mut now = Duration::ZERO;
        while now < self.ends() + AFTER {
            while self.due.peek().is_some_and(|due| due.at <= now) {
                self.next();
            }
            if self.down(now) {
                self.outcome.requests += 1;
            }
            let attempts = Attempts::begin(backoff, within, seeds.u64(..), now);
            let request = Request {
                arrived: now,
                attempts,
                sent: 0,
            };
            self.send(request, now);
            now += gap;
        }
        while !self.due.is_empty() {
            self.next();
        }
        self.outcome
    }

    fn next(&mut self) {
        if let Some(due) = self.due.pop() {
            match due.event {
                Event::Send(request) => self.send(request, due.at),
                Event::Answer(request, ticket, good) => self.answer(request, ticket, good, due.at),
            }
        }
    }

    fn schedule(&self) -> (Backoff, Duration) {
        if self.strategy != Strategy::FixedInterval {
            return (Backoff::CALL, DEADLINE);
        }
        let second = Duration::from_secs(1);
        let fixed = Backoff::new(second, second, 6).unwrap_or(Backoff::CALL);
        (fixed.with_jitter(Jitter::None), Duration::from_secs(3_600))
    }

    fn at(&mut self, at: Moment, event: Event) {
        let number = self.planned;
        self.planned += 1;
        self.due.push(Due { at, number, event });
    }

    fn ends(&self) -> Moment {
        BEFORE + self.scenario.outage
    }

    fn down(&self, now: Moment) -> bool {
        now >= BEFORE && now < self.ends()
    }

    fn send(&mut self, mut request: Request, now: Moment) {
        let again = request.sent > 0;
        if again && !self.may_retry(now) {
            return self.unanswered(&request);
        }
        let ticket = match self.breaker.as_mut().map(|b| b.admit(now)) {
            None => None,
            Some(Admission::Go(ticket)) => Some(ticket),
            Some(_) => return self.unanswered(&request),
        };
        if ticket.is_some_and(|t| t.is_probe()) {
            self.outcome.probes.push(now);
        }
        request.sent += 1;
        if again && self.budget.is_some() {
            self.outcome.retried.push(now);
        }
        if self.down(now) {
            self.outcome.calls += 1;
            self.outcome.retries += u64::from(again);
        }
        let load = count(&mut self.second, now, Duration::from_secs(1));
        self.outcome.peak = self.outcome.peak.max(load);
        let capacity = (u64::from(self.scenario.rate) * 3).div_ceil(20).max(2);
        let good = count(&mut self.tick, now, TICK) <= capacity && !self.down(now);
        let takes = if good { LATENCY } else { FAILS_IN };
        self.at(now + takes, Event::Answer(request, ticket, good));
    }

    fn may_retry(&mut self, now: Moment) -> bool {
        let closed = |b: &Breaker| b.state(now) == State::Closed;
        self.breaker.as_ref().is_none_or(closed)
            && self.budget.as_mut().is_none_or(|b| b.take(now).is_some())
    }

    fn answer(&mut self, mut request: Request, ticket: Option<Ticket>, good: bool, now: Moment) {
        let class = if good {
            Class::Success
        } else {
            Class::Failed(Failure::Upstream)
        };
        if let (Some(breaker), Some(ticket)) = (&mut self.breaker, ticket) {
            breaker.record(ticket, class, now);
        }
        if good {
            if let Some(budget) = &mut self.budget {
                budget.succeeded(now);
            }
            return;
        }
        let in_sight = self.budget.as_mut().is_none_or(|b| b.left(now) > 0);
        match request.attempts.failed_at(None, now) {
            Next::Wait(wait) if in_sight => self.at(now + wait, Event::Send(request)),
            _ => self.unanswered(&request),
        }
    }

    fn unanswered(&mut self, request: &Request) {
        let late = request.arrived.saturating_sub(self.ends());
        self.outcome.recovery = self.outcome.recovery.max(late);
    }
}

/// Counts one more in the present stretch of time. Answers how many there are.
fn count(counted: &mut (u128, u64), now: Moment, stretch: Duration) -> u64 {
    let present = now.as_nanos() / stretch.as_nanos();
    if counted.0 != present {
        *counted = (present, 0);
    }
    counted.1 += 1;
    counted.1
}

/// The outcomes as a table in Markdown.
pub fn table(outcomes: &[Outcome]) -> String {
    let head = [
        "retries",
        "requests",
        "calls",
        "extra load",
        "peak calls/s",
        "probes",
        "well again after",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for o in outcomes {
        let extra = o.extra_permille();
        rows.push(vec![
            o.strategy.as_str().to_owned(),
            o.requests.to_string(),
            o.calls.to_string(),
            format!("{}.{} %", extra / 10, extra % 10),
            o.peak.to_string(),
            match o.strategy {
                Strategy::BudgetAndBreaker => o.probes.len().to_string(),
                _ => "-".to_owned(),
            },
            format!(
                "{}.{} s",
                o.recovery.as_secs(),
                o.recovery.subsec_millis() / 100
            ),
        ]);
    }
    let width = |column: usize| rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Names to the left, numbers to the right.
            let _ = match i {
                0 => write!(text, "| {cell:<width$} "),
                _ => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
        if n == 0 {
            for (i, width) in widths.iter().enumerate() {
                let line = "-".repeat(width + 1);
                text.push_str(&if i == 0 {
                    format!("|:{line}")
                } else {
                    format!("|{line}:")
                });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Strategy, *};
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_same_scenario_gives_the_same_outcome() {
        let small = Scenario {
            rate: 200,
            ..Scenario::default()
        };
        assert_eq!(all(small), all(small));
        let other = Scenario { seed: 2, ..small };
        let retried = |s| run(s, Strategy::Budget).retried;
        assert_ne!(retried(small), retried(other));
    }

    #[test]
    fn a_minute_without_upstream_at_a_thousand_requests_a_second() {
        let scenario = Scenario::default();

        let [fixed, listed, budget, breaker] = &all(scenario)[..] else {
            panic!();
        };

        assert_eq!(fixed.requests, 60_000);
        assert!(fixed.extra_permille() > 4_000, "five retries for each");
        assert!(listed.extra_permille() > 1_000);
        // Never more than the ratio of the successes of the minute before, and the floor.
        assert!(budget.retries <= 60_000 / 10 + 10, "{}", budget.retries);
        // The breaker saves nearly all of the calls.
        assert!(breaker.calls < 1_000, "{}", breaker.calls);
        assert!(breaker.retries <= budget.retries);
        assert!(breaker.recovery <= breaker::Settings::DEFAULT.open_cap + S);
        assert!(!breaker.probes.is_empty());
    }

    #[test]
    fn the_page_shows_what_the_command_prints() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/retries.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = table(&all(Scenario::default()));

        assert!(
            page.contains(&table),
            "docs/book/retries.md should have\n{table}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn no_outage_makes_more_retries_than_budgeted_or_more_probes_than_one_a_second(
            rate in 50u32..200, outage in 0u64..120, percent in 0u32..=100, seed: u64,
        ) {
            let scenario = Scenario {
                rate,
                outage: Duration::from_secs(outage),
                ratio: Ratio::percent(percent),
                seed,
            };
            let limits = budget::Limits::DEFAULT;
            for strategy in [Strategy::Budget, Strategy::BudgetAndBreaker] {
                let outcome = run(scenario, strategy);

                // At most as many successes in a window as requests.
                let most = Ratio::percent(percent).of(u64::from(rate) * 61) + limits.floor;
                for (n, last) in outcome.retried.iter().enumerate() {
                    let begin = last.saturating_sub(limits.window);
                    let window = &outcome.retried[..=n];
                    let first = window.partition_point(|t| *t <= begin);
                    prop_assert!((n + 1 - first) as u64 <= most.min(limits.cap));
                }
                for pair in outcome.probes.windows(2) {
                    prop_assert!(pair[1] - pair[0] >= S);
                }
                let settings = breaker::Settings::DEFAULT;
                prop_assert!(outcome.recovery <= settings.open_cap + 2 * S, "{:?}", outcome.recovery);
            }
        }
    }
}
