//! Settlements that the store has not taken yet.
//!
//! # Why not simply try again
//! A settlement speaks of many rows in one transaction. If the store refuses one of them for good (a
//! text that a column does not take, a statement that is larger than the server reads), the same
//! settlement fails for ever, and with it every delivery of its queue.
//!
//! # Promise
//! A settlement that is refused is halved until the row is found. That row alone waits, beside the
//! others, and is parked with the reason when it is refused again and again while the store takes
//! others. Where the store takes nothing at all, nothing is parked: then the row is not to blame.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use counterfoil_core::StoreError;
use counterfoil_core::store::ShardSet;

use crate::lanes::Batch;

/// Failures to reach a store that answers everybody else: then the settlement is to blame.
const SUSPICIOUS: u32 = 3;
/// Refusals of one row before it is parked.
const REFUSALS_BEFORE_PARKING: u32 = 3;
/// So many rows may be odd ones although the store has taken nothing else meanwhile.
const A_FEW: usize = 3;
/// The first pause before a refused row is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A settlement on its way to the store.
pub(crate) struct Trial {
    pub(crate) batch: Batch,
    at: Instant,
    /// Failures to reach a store that has answered others in between.
    unreached: u32,
    /// What the store had answered at the last failure.
    answers: u64,
    /// How often the store refused it, and how many settlements it had taken at the first time.
    refusals: u32,
    taken: u64,
}

impl Trial {
    pub(crate) fn new(batch: Batch, now: Instant, answers: u64) -> Self {
        Self {
            batch,
            at: now,
            unreached: 0,
            answers,
            refusals: 0,
            taken: 0,
        }
    }

    /// Whether the store's answer is about the rows, and not about the store.
    fn is_to_blame(&mut self, error: &StoreError, answers: u64) -> bool {
        let answered = std::mem::replace(&mut self.answers, answers) < answers;
        match error {
            StoreError::Database(_) | StoreError::Message(_) | StoreError::Doomed(_) => true,
            // A server that is sent more than it reads hangs up.
            StoreError::Unreachable(_) => {
                self.unreached += u32::from(answered);
                answered && self.unreached >= SUSPICIOUS
            }
            _ => {
                self.unreached = 0;
                false
            }
        }
    }
}

/// What a failed settlement says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The store is in trouble: everything waits.
    Store,
    /// The store refuses these rows.
    Rows,
}

/// The settlements of one queue that failed.
#[derive(Default)]
pub(crate) struct Unsettled {
    /// In order: the first is tried again before anything new is settled.
    in_order: VecDeque<Trial>,
    /// Single rows that the store refuses. They wait beside the others.
    odd: Vec<Trial>,
    /// Settlements that the store has taken.
    taken: u64,
}

impl Unsettled {
    /// Whether nothing has to be settled before what is new.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Whether something may be settled now: what failed before, or what is new.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.in_order.front().is_none_or(|trial| trial.at <= now)
    }

    /// Whether a row that was refused is due again.
    pub(crate) fn has_odd(&self, now: Instant) -> bool {
        self.odd.iter().any(|trial| trial.at <= now)
    }

    /// When the next one is due.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let odd = self.odd.iter().map(|trial| trial.at);
        self.in_order
            .front()
            .map(|t| t.at)
            .into_iter()
            .chain(odd)
            .min()
    }

    /// The next that is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Trial> {
        if self.in_order.front().is_some_and(|trial| trial.at <= now) {
            return self.in_order.pop_front();
        }
        let due = self.odd.iter().position(|trial| trial.at <= now)?;
        Some(self.odd.swap_remove(due))
    }

    /// Takes out what is said about rows of these shards.
    pub(crate) fn take_shards(&mut self, gone: ShardSet) -> Vec<Batch> {
        let trials = self.in_order.iter_mut().chain(&mut self.odd);
        let taken = trials.map(|trial| trial.batch.take_shards(gone)).collect();
        self.odd.retain(|trial| !trial.batch.settlement.is_empty());
        taken
    }

    /// The store has taken a settlement.
    pub(crate) fn settled(&mut self) {
        self.taken += 1;
    }

    /// The store has not taken a settlement. `answers` counts what it has answered to anybody; `hold`
    /// is whether later messages wait for a parked one.
    pub(crate) fn failed(
        &mut self,
        mut trial: Trial,
        error: &StoreError,
        pause_until: Instant,
        answers: u64,
        hold: bool,
    ) -> Blame {
        if !trial.is_to_blame(error, answers) {
            trial.at = pause_until;
            self.in_order.push_front(trial);
            return Blame::Store;
        }
        let now = Instant::now();
        if trial.batch.settlement.len() > 1 {
            let (first, rest) = trial.batch.split();
            // The first half goes first: nothing is settled before what was delivered earlier.
            for half in [rest, first] {
                self.in_order.push_front(Trial {
                    unreached: trial.unreached.saturating_sub(1),
                    ..Trial::new(half, now, answers)
                });
            }
        } else {
            self.set_aside(trial, error, now, hold);
        }
        Blame::Rows
    }

    fn set_aside(&mut self, mut trial: Trial, error: &StoreError, now: Instant, hold: bool) {
        if trial.refusals == 0 {
            trial.taken = self.taken;
        }
        trial.refusals += 1;
        let only_this = self.taken > trial.taken || self.odd.len() < A_FEW;
        if trial.refusals >= REFUSALS_BEFORE_PARKING && only_this {
            trial.batch.give_up(&error.one_line(), hold);
        }
        let pause = PAUSE.saturating_mul(1 << trial.refusals.min(16));
        trial.at = now + pause.min(PAUSE_MAX);
        self.odd.push(trial);
    }
}
