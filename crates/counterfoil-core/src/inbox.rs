//! The inbox: which message takes effect, and which waits, is a repeat, or came too late.
//!
//! # Promise
//! One ledger row for each (consumer, key). It is inserted first, in the transaction of the
//! business writes, and committed before the broker is told. Of two transactions with the same key
//! one waits for the other, and then sees a repeat. Of two with the same aggregate one waits for the
//! other, too: an aggregate is processed by one at a time, on however many machines.
//!
//! Dedup comes before the version: what was processed is acknowledged, however old it is. What was
//! never processed and is older than something applied is a conflict. What is newer than the next
//! one is no concern, unless [`Versions::Gapless`] says so.
//!
//! # What is put off
//! What fails, and what comes behind it in its aggregate, becomes a row of the outbox in the queue
//! [`queue_of`] the consumer. There the relay has it: retries with backoff, order, the limit, the
//! parking lot and every tool of the operator are those of the outbox.
//!
//! The drivers implement three steps on the open transaction: admit, defer, finish.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;

use crate::code::Code;
use crate::message::{Aggregate, Message, MessageError, check_name};

/// Stands before the name of a consumer in the name of its queue.
pub const QUEUE_PREFIX: &str = "inbox:";

/// The queue in which what a consumer has put off waits.
pub fn queue_of(consumer: &str) -> String {
    format!("{QUEUE_PREFIX}{consumer}")
}

/// How a message comes to be processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// From the broker: a key that is in the ledger is a repeat, whatever became of it.
    Arrival,
    /// From the outbox, where it was put off: a key that waits is not a repeat, and the relay has
    /// seen to the order.
    Retry,
}

/// What is expected of the versions of an aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Versions {
    /// They do not go back. Gaps are no error: a consumer may see only some of the events.
    #[default]
    Rising,
    /// One after the other, none left out and none twice: a version that comes too early waits.
    Gapless {
        /// The first one of an aggregate.
        first: i64,
    },
}

/// How long what is over is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// What was processed.
    pub processed: Duration,
    /// The versions of aggregates that nobody has touched. Absent: for ever.
    pub aggregates: Option<Duration>,
}

/// What is known of an aggregate, while its row is locked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lane {
    /// The highest version that was applied.
    pub applied: Option<i64>,
    /// Something of this aggregate is put off, or is parked and holds: later ones wait behind it.
    /// Always false in [`Mode::Retry`].
    pub taken: bool,
}

/// What a store says of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admitted {
    /// The keys whose ledger rows were written now: these are no repeats.
    pub fresh: HashSet<String>,
    /// The aggregates, all locked until the transaction ends.
    pub lanes: HashMap<Aggregate, Lane>,
}

/// A message that is put off, as one row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferred {
    /// Its key in the ledger: the row there waits from now on.
    pub key: String,
    /// The row. Its queue is that of the consumer.
    pub message: Message,
    /// Waits behind an earlier one of its aggregate, instead of for a time.
    pub held: bool,
    /// From now, by the database's clock. Zero: it is due at once.
    pub delay: Duration,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Why it is put off.
    pub code: Option<Code>,
    /// The error in words.
    pub error: Option<String>,
}

/// What an operator has overruled by putting a parked message back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redriven {
    /// Why it was parked.
    pub code: Code,
    /// Whether it needed a confirmation, and got it.
    pub confirmed: bool,
}

impl Redriven {
    /// Whether this reason no longer counts.
    pub fn forces(&self, code: &Code) -> bool {
        self.confirmed && self.code == *code
    }
}

/// What is to be done with one message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It takes effect now.
    Apply,
    /// It was processed before, is waiting, or is parked: nothing is to be done.
    Repeat,
    /// Something earlier of its aggregate waits: it is stored behind that.
    Behind,
    /// Never processed, and older than this version, which was applied.
    Stale(i64),
    /// This version has to be applied before it.
    Gap(i64),
}

/// Judges the messages of a batch one after the other.
///
/// ```
/// use counterfoil_core::inbox::{Admitted, Judge, Verdict, Versions};
///
/// let admitted = Admitted { fresh: ["a".to_owned()].into(), ..Admitted::default() };
/// let mut judge = Judge::new(admitted, Versions::Rising);
/// assert_eq!(judge.judge("a", None, None), Verdict::Apply);
/// assert_eq!(judge.judge("a", None, None), Verdict::Repeat);
/// ```
#[derive(Debug)]
pub struct Judge {
    admitted: Admitted,
    versions: Versions,
    /// Aggregates whose version was told.
    risen: BTreeSet<Aggregate>,
}

impl Judge {
    /// On what the store has said.
    pub fn new(admitted: Admitted, versions: Versions) -> Self {
        Self {
            admitted,
            versions,
            risen: BTreeSet::new(),
        }
    }

    /// The next message of the batch. What was done with those before it has been told.
    pub fn judge(
        &mut self,
        key: &str,
        aggregate: Option<&Aggregate>,
        version: Option<i64>,
    ) -> Verdict {
        if !self.admitted.fresh.remove(key) {
            return Verdict::Repeat;
        }
        let Some(lane) = aggregate.and_then(|a| self.admitted.lanes.get(a)) else {
            return Verdict::Apply;
        };
        if let (Versions::Gapless { first }, Some(version)) = (self.versions, version) {
            // What waits of this aggregate waits for this one, or for one after it.
            let next = lane.applied.map_or(first, |a| a.saturating_add(1));
            return match version.cmp(&next) {
                Ordering::Less => Verdict::Stale(next.saturating_sub(1)),
                Ordering::Equal => Verdict::Apply,
                Ordering::Greater => Verdict::Gap(next),
            };
        }
        match (version, lane.applied) {
            // It will never be in order: nothing is gained by waiting.
            (Some(version), Some(applied)) if version < applied => Verdict::Stale(applied),
            _ if lane.taken => Verdict::Behind,
            _ => Verdict::Apply,
        }
    }

    /// A message of this aggregate was applied.
    pub fn applied(&mut self, aggregate: Option<&Aggregate>, version: Option<i64>) {
        if let (Some(aggregate), Some(version)) = (aggregate, version)
            && let Some(lane) = self.admitted.lanes.get_mut(aggregate)
        {
            lane.applied = Some(lane.applied.unwrap_or(version).max(version));
            self.risen.insert(aggregate.clone());
        }
    }

    /// The versions that have to be remembered, by aggregate in ascending order.
    pub fn risen(&self) -> Vec<(&Aggregate, i64)> {
        let known = |a: &Aggregate| self.admitted.lanes.get(a).and_then(|l| l.applied);
        let risen = self.risen.iter();
        risen.filter_map(|a| Some((a, known(a)?))).collect()
    }

    /// A message of this aggregate is put off: later ones wait behind it.
    pub fn take(&mut self, aggregate: Option<&Aggregate>) {
        if let Some(lane) = aggregate.and_then(|a| self.admitted.lanes.get_mut(a)) {
            lane.taken = true;
        }
    }
}

/// Checks what a driver is about to store, before it stores anything.
pub fn check_names(
    consumer: &str,
    keys: &[&str],
    aggregates: &[&Aggregate],
) -> Result<(), MessageError> {
    check_name("consumer", &queue_of(consumer))?;
    for key in keys {
        check_name("key", key)?;
    }
    for aggregate in aggregates {
        if !aggregate.kind.is_empty() {
            check_name("aggregate type", &aggregate.kind)?;
        }
        check_name("aggregate id", &aggregate.id)?;
    }
    Ok(())
}

/// Each aggregate once, with the highest of its versions, in ascending order.
pub fn highest<'a>(applied: &[(&'a Aggregate, i64)]) -> BTreeMap<&'a Aggregate, i64> {
    let mut versions = BTreeMap::new();
    for (aggregate, version) in applied {
        let most = versions.entry(*aggregate).or_insert(*version);
        *most = (*version).max(*most);
    }
    versions
}

/// The fast gate in front of the ledger. It saves work and decides nothing but "seen".
///
/// # Promise
/// A key is noted after its transaction has committed, and not before. Whoever forgets, or does not
/// answer, answers "not seen": the ledger decides.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// Which of these were noted, in their order.
    async fn seen(&self, consumer: &str, keys: &[&str]) -> Vec<bool>;

    /// Notes that these are committed.
    async fn note(&self, consumer: &str, keys: &[&str]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(fresh: &[&str], lane: Lane) -> (Judge, Aggregate) {
        let order = Aggregate::new("order", 1);
        let admitted = Admitted {
            fresh: fresh.iter().map(|k| (*k).to_owned()).collect(),
            lanes: [(order.clone(), lane)].into(),
        };
        (Judge::new(admitted, Versions::Rising), order)
    }

    #[test]
    fn without_gaps_a_version_waits_for_the_one_before_it_and_for_nothing_else() {
        let lane = Lane {
            applied: None,
            taken: true,
        };
        let (mut judge, order) = judge(&["a", "b", "c", "d", "e"], lane);
        judge.versions = Versions::Gapless { first: 1 };

        assert_eq!(judge.judge("a", Some(&order), Some(2)), Verdict::Gap(1));
        assert_eq!(judge.judge("b", Some(&order), Some(1)), Verdict::Apply);
        judge.applied(Some(&order), Some(1));
        assert_eq!(judge.judge("c", Some(&order), Some(1)), Verdict::Stale(1));
        assert_eq!(judge.judge("d", Some(&order), Some(3)), Verdict::Gap(2));
        // It has no place among them: it keeps the order in which it came.
        assert_eq!(judge.judge("e", Some(&order), None), Verdict::Behind);
    }

    #[test]
    fn a_repeat_is_a_repeat_however_old_it_is() {
        let lane = Lane {
            applied: Some(9),
            taken: true,
        };
        let (mut judge, order) = judge(&[], lane);

        assert_eq!(judge.judge("a", Some(&order), Some(1)), Verdict::Repeat);
    }

    #[test]
    fn versions_rise_within_a_batch_and_may_skip_and_tie() {
        let (mut judge, order) = judge(&["a", "b", "c", "d"], Lane::default());

        for (key, version) in [("a", 3), ("b", 7), ("c", 7)] {
            let verdict = judge.judge(key, Some(&order), Some(version));
            assert_eq!(verdict, Verdict::Apply);
            judge.applied(Some(&order), Some(version));
        }
        assert_eq!(judge.judge("d", Some(&order), Some(6)), Verdict::Stale(7));
        assert_eq!(judge.risen(), [(&order, 7)]);
    }

    #[test]
    fn what_is_put_off_lets_the_others_of_its_aggregate_wait() {
        let (mut judge, order) = judge(&["a", "b", "c"], Lane::default());

        assert_eq!(judge.judge("a", Some(&order), None), Verdict::Apply);
        judge.take(Some(&order));

        assert_eq!(judge.judge("b", Some(&order), Some(4)), Verdict::Behind);
        assert_eq!(judge.risen(), []);
        assert_eq!(judge.judge("c", None, Some(4)), Verdict::Apply);
    }

    #[test]
    fn a_name_that_cannot_be_stored_is_refused() {
        let order = Aggregate::new("", "7 \u{1f4b6} ");
        let long = "x".repeat(256);

        assert!(check_names("stock", &["A ", "a", &long[..255]], &[&order]).is_ok());
        assert!(check_names("stock", &[&long], &[]).is_err());
        assert!(check_names("stock", &["a\0"], &[]).is_err());
        assert!(check_names("stock", &[""], &[]).is_err());
        assert!(check_names("stock", &[], &[&Aggregate::new("order", "")]).is_err());
        // The name of its queue would be too long.
        assert!(check_names(&long[..250], &[], &[]).is_err());
    }

    #[test]
    fn of_several_versions_the_highest_counts() {
        let (one, two) = (Aggregate::new("order", 1), Aggregate::new("order", 2));

        let versions = highest(&[(&two, 4), (&one, 9), (&two, -4), (&one, 10)]);

        assert_eq!(
            versions.into_iter().collect::<Vec<_>>(),
            [(&one, 10), (&two, 4)]
        );
    }

    #[test]
    fn a_conflict_does_not_wait() {
        let lane = Lane {
            applied: Some(5),
            taken: true,
        };
        let (mut judge, order) = judge(&["a"], lane);

        assert_eq!(judge.judge("a", Some(&order), Some(4)), Verdict::Stale(5));
    }
}
