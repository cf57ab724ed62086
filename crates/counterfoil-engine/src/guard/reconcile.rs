//! What is uncertain is settled, what is over is purged.
//!
//! # Promise
//! A record is settled only by what a check of the real world says, and only if nobody else has
//! touched it since it was read. A check that fails, panics, takes too long or cannot say changes
//! nothing, and is no other record's harm: each round goes through all that are stuck, several at a
//! time. Records that are not over are never purged.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Change, Found, Record, Records, Rules, State, Verdict};
use counterfoil_core::store::Result;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior};

use super::tidy;

/// Records read in one go.
const AT_ONCE: u32 = 100;
/// Checks at one time.
const CHECKS: usize = 16;
/// How long a check may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Records that are told one by one in the log of a round: the figure tells of all.
const TOLD: u32 = 100;
/// Records purged in one statement.
const PURGED_AT_ONCE: u32 = 1_000;

/// Finds out whether a request took effect.
#[async_trait]
pub trait Reconciler: Send + Sync + 'static {
    /// Did it happen? An error counts as [`Verdict::Unknown`], and so does no answer for a minute.
    /// Several are asked at one time.
    async fn did_it_happen(&self, record: &Record) -> Result<Verdict, BoxError>;
}

/// What one round has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// Settled as "it happened" or "it failed".
    pub settled: u32,
    /// Released as "it did not happen".
    pub released: u32,
    /// Nobody can say yet.
    pub left: u32,
    /// Older than the alert age.
    pub alarming: u32,
}

/// Which checks there are, for which business.
#[derive(Clone)]
pub struct Reconcile {
    records: Arc<dyn Records>,
    checks: HashMap<String, (Arc<dyn Reconciler>, Rules)>,
    rules: Rules,
    stuck: Arc<Stuck>,
}

/// What the last round has found. The figure is the sum over all tables that are looked after.
#[derive(Default)]
struct Stuck(AtomicU32);

impl Stuck {
    fn told(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn tell(&self, now: u32) {
        let before = self.0.swap(now, Ordering::Relaxed);
        let more = f64::from(now) - f64::from(before);
        metrics::gauge!("counterfoil_guard_stuck").increment(more);
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.tell(0);
    }
}

impl Reconcile {
    /// No checks yet. The rules are those of business types that have no check.
    pub fn new(records: Arc<dyn Records>, rules: Rules) -> Self {
        Self {
            records,
            checks: HashMap::new(),
            rules,
            stuck: Arc::default(),
        }
    }

    /// The check of one business type.
    #[must_use]
    pub fn check(
        mut self,
        business_type: impl Into<String>,
        rules: Rules,
        check: Arc<dyn Reconciler>,
    ) -> Self {
        self.checks.insert(business_type.into(), (check, rules));
        self
    }

    /// One round: everything that has been stuck for long enough.
    pub async fn round(&self) -> Result<Round> {
        let ages = self
            .checks
            .values()
            .map(|(_, r)| r)
            .chain([&self.rules])
            .flat_map(|r| [r.alert_age, r.reconcile_age]);
        let youngest = ages.min().unwrap_or(self.rules.alert_age);
        let mut round = Round::default();
        let mut last = None;
        loop {
            let page = self.records.stuck(youngest, last.as_ref(), AT_ONCE).await?;
            for found in &page {
                self.alert(found, &mut round);
            }
            // Checks may take long: what is known so far is told before.
            self.stuck.tell(round.alarming.max(self.stuck.told()));
            let settling: Vec<_> = page.iter().map(|found| self.settle(found)).collect();
            let mut settled = futures_util::stream::iter(settling).buffer_unordered(CHECKS);
            while let Some(one) = settled.next().await {
                round = round.with(one.unwrap_or_else(|error| {
                    tracing::warn!(error = error.one_line(), "cannot settle a request");
                    Settled::Left
                }));
            }
            drop(settled);
            last = page.last().cloned();
            if last.is_none() || page.len() < AT_ONCE as usize {
                break;
            }
        }
        self.stuck.tell(round.alarming);
        Ok(round)
    }

    fn rules_of(&self, record: &Record) -> (Option<&dyn Reconciler>, &Rules) {
        match self.checks.get(record.key.business_type()) {
            Some((check, rules)) => (Some(&**check), rules),
            None => (None, &self.rules),
        }
    }

    fn alert(&self, found: &Found, round: &mut Round) {
        let record = &found.record;
        if found.idle() < self.rules_of(record).1.alert_age {
            return;
        }
        round.alarming += 1;
        if round.alarming <= TOLD {
            tracing::warn!(
                business_type = record.key.business_type(),
                key = record.key.encoded(),
                idle_seconds = found.idle().as_secs(),
                "a request is stuck: nobody knows whether it took effect"
            );
        }
    }

    async fn settle(&self, found: &Found) -> Result<Settled> {
        let (check, rules) = self.rules_of(&found.record);
        let Some(check) = check.filter(|_| found.idle() >= rules.reconcile_age) else {
            return Ok(Settled::Left);
        };
        let verdict = ask(check, &found.record).await;
        let as_what = match &verdict {
            Verdict::DidNotHappen => Settled::Released,
            _ => Settled::Ended,
        };
        let changed = apply(&*self.records, found, verdict, rules.keep).await?;
        Ok(if changed { as_what } else { Settled::Left })
    }

    /// Runs for ever: a round at every interval, and a purge. They do not wait for each other.
    pub fn run(self, every: Duration) -> JoinHandle<()> {
        tokio::spawn(async move {
            tokio::join!(self.rounds(ticks(every)), self.purges(ticks(every)));
        })
    }

    async fn rounds(&self, mut ticks: Interval) {
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                tracing::warn!(error = error.one_line(), "cannot look for stuck requests");
            }
        }
    }

    async fn purges(&self, mut ticks: Interval) {
        loop {
            ticks.tick().await;
            tidy::purged(&*self.records).await;
        }
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// What became of one record.
#[derive(Clone, Copy)]
enum Settled {
    Ended,
    Released,
    Left,
}

impl Round {
    fn with(mut self, settled: Settled) -> Self {
        *match settled {
            Settled::Ended => &mut self.settled,
            Settled::Released => &mut self.released,
            Settled::Left => &mut self.left,
        } += 1;
        self
    }
}

async fn ask(check: &dyn Reconciler, record: &Record) -> Verdict {
    let asked = AssertUnwindSafe(check.did_it_happen(record)).catch_unwind();
    let error: BoxError = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Ok(verdict))) => return verdict,
        Ok(Ok(Err(error))) => error,
        Ok(Err(_)) => "the check has panicked".into(),
        Err(late) => late.into(),
    };
    tracing::warn!(
        error,
        key = record.key.encoded(),
        "cannot find out whether a request took effect"
    );
    Verdict::Unknown
}

/// Settles one record as somebody has found out, if nobody else has touched it since. Answers
/// whether it was changed.
pub async fn apply(
    records: &dyn Records,
    found: &Found,
    verdict: Verdict,
    keep: Duration,
) -> Result<bool> {
    let end = |state, snapshot| Change::End {
        state,
        snapshot: Some(snapshot),
        keep,
        retry_in: None,
    };
    let change = match verdict {
        Verdict::Happened(snapshot) => end(State::Succeeded, snapshot),
        Verdict::Failed(snapshot) => end(State::Failed, snapshot),
        Verdict::DidNotHappen => Change::Release,
        Verdict::Unknown => return Ok(false),
    };
    records.settle(found, &change).await
}

/// Removes all that is over and expired, in small batches.
pub async fn purge(records: &dyn Records) -> Result<u64> {
    let mut total = 0;
    loop {
        let gone = records.purge(PURGED_AT_ONCE).await?;
        total += gone;
        if gone < u64::from(PURGED_AT_ONCE) {
            return Ok(total);
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// Two tables, and one that nobody looks after any more.
    #[test]
    fn the_figure_is_the_sum_over_all_who_look() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = || {
            let text = recorder.handle().render();
            let line = text
                .lines()
                .find(|l| l.starts_with("counterfoil_guard_stuck "));
            line.map(str::to_owned).unwrap_or_default()
        };
        metrics::with_local_recorder(&recorder, || {
            let (one, other) = (Stuck::default(), Stuck::default());
            one.tell(3);
            other.tell(2);
            assert_eq!(shown(), "counterfoil_guard_stuck 5");
            one.tell(1);
            assert_eq!(shown(), "counterfoil_guard_stuck 3");
            drop(other);
            assert_eq!(shown(), "counterfoil_guard_stuck 1");
        });
    }
}
