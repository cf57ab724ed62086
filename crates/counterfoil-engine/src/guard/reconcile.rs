//! What is uncertain is settled, what is over is purged.
//!
//! # Promise
//! A record is settled only by what a check of the real world says, and only if nobody else has
//! touched it since it was read. A check that fails, or cannot say, changes nothing. Records that
//! are not over are never purged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Change, Found, Record, Records, Rules, State, Verdict};
use counterfoil_core::store::Result;
use tokio::task::JoinHandle;

/// Records looked at in one go.
const AT_ONCE: u32 = 100;
/// Records purged in one statement.
const PURGED_AT_ONCE: u32 = 1_000;

/// Finds out whether a request took effect.
#[async_trait]
pub trait Reconciler: Send + Sync + 'static {
    /// Did it happen? An error counts as [`Verdict::Unknown`].
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
}

impl Reconcile {
    /// No checks yet. The rules are those of business types that have no check.
    pub fn new(records: Arc<dyn Records>, rules: Rules) -> Self {
        Self {
            records,
            checks: HashMap::new(),
            rules,
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
        for found in self.records.stuck(youngest, AT_ONCE).await? {
            self.settle(&found, &mut round).await?;
        }
        metrics::gauge!("counterfoil_guard_stuck").set(f64::from(round.alarming));
        Ok(round)
    }

    async fn settle(&self, found: &Found, round: &mut Round) -> Result<()> {
        let record = &found.record;
        let (check, rules) = match self.checks.get(record.key.business_type()) {
            Some((check, rules)) => (Some(check), rules),
            None => (None, &self.rules),
        };
        if found.idle() >= rules.alert_age {
            round.alarming += 1;
            tracing::warn!(
                business_type = record.key.business_type(),
                key = record.key.encoded(),
                idle_seconds = found.idle().as_secs(),
                "a request is stuck: nobody knows whether it took effect"
            );
        }
        let Some(check) = check.filter(|_| found.idle() >= rules.reconcile_age) else {
            round.left += 1;
            return Ok(());
        };
        let verdict = check.did_it_happen(record).await.unwrap_or_else(|error| {
            tracing::warn!(
                error,
                key = record.key.encoded(),
                "cannot find out whether a request took effect"
            );
            Verdict::Unknown
        });
        self.apply(found, verdict, rules, round).await
    }

    async fn apply(
        &self,
        found: &Found,
        verdict: Verdict,
        rules: &Rules,
        round: &mut Round,
    ) -> Result<()> {
        let changed = apply(&*self.records, found, verdict.clone(), rules.keep).await?;
        match verdict {
            Verdict::Happened(_) | Verdict::Failed(_) if changed => round.settled += 1,
            Verdict::DidNotHappen if changed => round.released += 1,
            _ => round.left += 1,
        }
        Ok(())
    }

    /// Runs for ever: a round and a purge at every interval.
    pub fn run(self, every: Duration) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = self.round().await {
                    tracing::warn!(error = error.one_line(), "cannot look for stuck requests");
                }
                if let Err(error) = purge(&*self.records).await {
                    tracing::warn!(
                        error = error.one_line(),
                        "cannot purge records of the guard"
                    );
                }
            }
        })
    }
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
    let record = &found.record;
    records
        .change(&record.key.digest(), record.fence, &change)
        .await
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
