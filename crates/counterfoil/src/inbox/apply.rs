//! Ledger first, then the handlers, then the commit.
//!
//! # Promise
//! What the answers say is committed. A transaction in which anything failed leaves nothing behind.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::Code;
use counterfoil_core::error_text;
use counterfoil_core::inbox::{Deferred, Gate, Judge, Mode, Verdict, Versions};
use counterfoil_core::incoming::{Defect, Incoming};
use counterfoil_core::message::Aggregate;
use counterfoil_core::policy::Backoff;
use counterfoil_core::source::DeadLetter;
use counterfoil_core::store::{Disposition, Result, StoreError};
use counterfoil_engine::Nudge;
use counterfoil_engine::consume::{Applied, Apply, Received};
use sqlx::{Pool, Transaction};

use super::Poison;
use super::handlers::{Called, Failure, Handlers, Way, call};
use crate::database::Database;
use crate::tx::Slot;

/// After so many receptions a message may be what kills the process: it is stored untried, and the
/// relay counts.
const SUSPECT: u32 = 4;
/// How often one message is tried again at once when a lock stood in its way.
const BUSY_TRIES: u32 = 5;

pub(super) struct Inbox<D: Database> {
    pub(super) pool: Pool<D::Sqlx>,
    pub(super) name: Arc<str>,
    pub(super) queue: String,
    pub(super) handlers: Handlers<D>,
    pub(super) backoff: Backoff,
    pub(super) versions: Versions,
    pub(super) poison: Poison,
    pub(super) timeout: Duration,
    pub(super) most_waiting: u32,
    pub(super) gate: Option<Arc<dyn Gate>>,
    /// Wakes the relay that has what is put off.
    pub(super) retries: OnceLock<Nudge>,
    /// Wakes the relay that has what handlers enqueue.
    pub(super) outbox: Nudge,
}

/// Why a transaction was rolled back.
enum Trouble {
    Store(StoreError),
    /// The handler of one message failed.
    Handler(Failure),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Trouble::Store(error)
    }
}

/// A transaction under way.
struct Run<D: Database> {
    slot: Slot<D>,
    judge: Judge,
    deferred: Vec<Deferred>,
    answers: Vec<Applied>,
}

impl<D: Database> Run<D> {
    fn tx(&self) -> Result<Transaction<'static, D::Sqlx>> {
        let kept = || StoreError::Doomed("a handler has kept the transaction".into());
        self.slot.take().ok_or_else(kept)
    }
}

#[async_trait]
impl<D: Database> Apply for Inbox<D> {
    async fn apply(&self, batch: &[&Received]) -> Result<Vec<Applied>> {
        let seen = self.seen(batch).await;
        let fresh: Vec<&Received> = batch
            .iter()
            .copied()
            .zip(&seen)
            .filter(|(_, seen)| !**seen)
            .map(|(received, _)| received)
            .collect();
        let mut answers = self.apply_fresh(&fresh).await?.into_iter();
        let answer = |seen| match seen {
            true => Some(Applied::Repeat),
            false => answers.next(),
        };
        Ok(seen.into_iter().filter_map(answer).collect())
    }

    async fn is_full(&self) -> Result<bool> {
        let waiting = D::inbox_waiting(&self.pool, &self.name, self.most_waiting).await?;
        Ok(waiting >= u64::from(self.most_waiting))
    }
}

impl<D: Database> Inbox<D> {
    async fn seen(&self, batch: &[&Received]) -> Vec<bool> {
        let mut seen = match &self.gate {
            Some(gate) => {
                let keys: Vec<&str> = batch.iter().map(|r| r.incoming.key.as_str()).collect();
                gate.seen(&self.name, &keys).await
            }
            None => Vec::new(),
        };
        seen.resize(batch.len(), false);
        seen
    }

    async fn apply_fresh(&self, fresh: &[&Received]) -> Result<Vec<Applied>> {
        match fresh {
            [] => return Ok(Vec::new()),
            [_] => {}
            several => match self.together(several).await {
                Ok(answers) => return Ok(answers),
                Err(Trouble::Store(error @ StoreError::Unreachable(_))) => return Err(error),
                // One of them is in the way of the others.
                Err(_) => {}
            },
        }
        let mut answers = Vec::with_capacity(fresh.len());
        // Later ones of these aggregates must not overtake what is postponed.
        let mut postponed: HashMap<&Aggregate, String> = HashMap::new();
        for received in fresh {
            let lane = received.incoming.aggregate.as_ref();
            if let Some(why) = lane.and_then(|lane| postponed.get(lane)) {
                answers.push(Applied::Postponed(why.clone()));
                continue;
            }
            let answer = match self.alone(received).await {
                // A lock stands in the way of this one, or of its aggregate.
                Err(error @ StoreError::Busy(_)) => Applied::Postponed(error.one_line()),
                answer => answer?,
            };
            if let (Some(lane), Applied::Postponed(why)) = (lane, &answer) {
                postponed.insert(lane, why.clone());
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn alone(&self, received: &Received) -> Result<Applied> {
        let mut tries = 0;
        loop {
            let failure = match self.together(&[received]).await {
                Ok(answers) => return Ok(answers.into_iter().next().unwrap_or(Applied::Repeat)),
                Err(
                    Trouble::Handler(Failure::Store(StoreError::Busy(_)))
                    | Trouble::Store(StoreError::Busy(_)),
                ) if tries + 1 < BUSY_TRIES => {
                    tries += 1;
                    continue;
                }
                Err(Trouble::Store(error)) => return Err(error),
                // When it is the database that is away, it cannot be put off either.
                Err(Trouble::Handler(failure)) => failure,
            };
            match self.put_off(received, &failure).await {
                Err(StoreError::Busy(_)) if tries < BUSY_TRIES => tries += 1,
                done => return done,
            }
        }
    }

    /// All of them in one transaction.
    async fn together(&self, batch: &[&Received]) -> std::result::Result<Vec<Applied>, Trouble> {
        let mut run = self.begin(batch).await?;
        for received in batch {
            let answer = self.one(&mut run, received).await;
            run.answers.push(answer.map_err(Trouble::Handler)?);
        }
        let answers = self.commit(run).await.map_err(spoiled)?;
        let keys = batch.iter().zip(&answers);
        // The broker still has a dead letter, and the ledger does not.
        let noted = keys.filter(|(_, answer)| !matches!(answer, Applied::Dead(_)));
        let keys: Vec<&str> = noted.map(|(r, _)| r.incoming.key.as_str()).collect();
        if let Some(gate) = &self.gate {
            gate.note(&self.name, &keys).await;
        }
        Ok(answers)
    }

    async fn begin(&self, batch: &[&Received]) -> Result<Run<D>> {
        let all = || batch.iter().map(|r| &r.incoming);
        let keys: BTreeSet<&str> = all()
            .filter(|incoming| !self.goes_to_dead_letters(incoming))
            .map(|incoming| incoming.key.as_str())
            .collect();
        let keys: Vec<&str> = keys.into_iter().collect();
        let lanes: BTreeSet<&Aggregate> = all().filter_map(|i| i.aggregate.as_ref()).collect();
        let lanes: Vec<&Aggregate> = lanes.into_iter().collect();
        let mut tx = D::inbox_begin(&self.pool).await?;
        let admitted = D::inbox_admit(&mut tx, &self.name, Mode::Arrival, &keys, &lanes).await?;
        Ok(Run {
            slot: Slot::new(Some(tx)),
            judge: Judge::new(admitted, self.versions),
            deferred: Vec::new(),
            answers: Vec::with_capacity(batch.len()),
        })
    }

    fn goes_to_dead_letters(&self, incoming: &Incoming) -> bool {
        // What a person may let pass is parked, so that there is one who sees it.
        self.poison == Poison::DeadLetter
            && matches!(self.handlers.way(incoming), Way::Wrong(d) if !d.can_be_forced())
    }

    async fn one(
        &self,
        run: &mut Run<D>,
        received: &Received,
    ) -> std::result::Result<Applied, Failure> {
        let incoming = &received.incoming;
        let way = self.handlers.way(incoming);
        if let (Way::Wrong(defect), true) = (&way, self.goes_to_dead_letters(incoming)) {
            return Ok(Applied::Dead(letter(defect, received)));
        }
        let lane = incoming.aggregate.as_ref();
        match run.judge.judge(&incoming.key, lane, incoming.version) {
            Verdict::Repeat => return Ok(Applied::Repeat),
            // The relay parks it, and nobody waits for it.
            _ if incoming.defect.as_ref().is_some_and(Defect::can_be_forced) => {
                run.deferred.push(self.deferred(incoming, false));
                return Ok(Applied::Parked);
            }
            Verdict::Gap(missing) => {
                let mut early = self.deferred(incoming, false);
                self.put_back(&mut early, Code::VERSION_GAP, &gap(missing), None);
                run.deferred.push(early);
                return Ok(Applied::Deferred);
            }
            Verdict::Behind => {
                run.deferred.push(self.deferred(incoming, true));
                return Ok(Applied::Deferred);
            }
            Verdict::Stale(_) => {
                // The relay judges it again, and parks it.
                run.deferred.push(self.deferred(incoming, false));
                return Ok(Applied::Parked);
            }
            Verdict::Apply => {}
        }
        let handler = match way {
            Way::To(_) if received.deliveries.is_some_and(|n| n >= SUSPECT) => {
                run.judge.take(lane);
                run.deferred.push(self.deferred(incoming, false));
                return Ok(Applied::Deferred);
            }
            Way::To(handler) => handler,
            Way::Nowhere => {
                run.judge.applied(lane, incoming.version);
                return Ok(Applied::Done);
            }
            Way::Wrong(_) => return Ok(self.wrong(run, incoming)),
        };
        match call(handler, &run.slot, incoming, self.timeout).await {
            Called::Done => {
                run.judge.applied(lane, incoming.version);
                Ok(Applied::Done)
            }
            Called::Wrong(_) => Ok(self.wrong(run, incoming)),
            Called::Failed(failure) => Err(failure),
        }
    }

    /// It can never pass: it is stored, and the relay parks it.
    fn wrong(&self, run: &mut Run<D>, incoming: &Incoming) -> Applied {
        run.judge.take(incoming.aggregate.as_ref());
        run.deferred.push(self.deferred(incoming, false));
        Applied::Parked
    }

    fn deferred(&self, incoming: &Incoming, held: bool) -> Deferred {
        let message = match self.versions {
            Versions::Rising => incoming.to_message(&self.queue),
            // Its version says when its time has come, not its place.
            Versions::Gapless { .. } => incoming.to_message_apart(&self.queue),
        };
        Deferred {
            key: incoming.key.clone(),
            message,
            held,
            delay: Duration::ZERO,
            attempts: 0,
            code: None,
            error: None,
        }
    }

    async fn commit(&self, run: Run<D>) -> Result<Vec<Applied>> {
        let mut tx = run.tx()?;
        if !run.deferred.is_empty() {
            D::inbox_defer(&mut tx, &self.name, &run.deferred).await?;
        }
        D::inbox_finish(&mut tx, &self.name, &run.judge.risen()).await?;
        tx.commit().await.map_err(D::classify)?;
        self.outbox.nudge();
        if !run.deferred.is_empty() {
            self.wake_retries();
        }
        Ok(run.answers)
    }

    /// Stores a message whose handler has failed, to be tried again.
    async fn put_off(&self, received: &Received, failure: &Failure) -> Result<Applied> {
        let incoming = &received.incoming;
        let mut run = self.begin(&[received]).await?;
        let lane = incoming.aggregate.as_ref();
        let held = match run.judge.judge(&incoming.key, lane, incoming.version) {
            // Somebody else was faster.
            Verdict::Repeat => return Ok(Applied::Repeat),
            verdict => verdict == Verdict::Behind,
        };
        let mut deferred = self.deferred(incoming, held);
        match failure {
            Failure::Again { code, error, after } => {
                self.put_back(&mut deferred, code.clone(), error, *after);
            }
            // The relay asks the handler again, at once, and parks it.
            Failure::Park(reason) => {
                deferred.attempts = 1;
                deferred.code = Some(Code::PARKED_BY_HANDLER);
                deferred.error = Some(reason.clone());
            }
            // Nothing is known of the message: this was no attempt.
            Failure::Store(error) => {
                self.put_back(&mut deferred, Code::UNAVAILABLE, &error.one_line(), None);
                deferred.attempts = 0;
            }
        }
        let code = deferred.code.as_ref().map(Code::as_str);
        let (consumer, error) = (&*self.name, deferred.error.as_deref());
        match failure {
            // The relay says so when it parks it.
            Failure::Park(_) => tracing::debug!(
                consumer, id = %incoming.id, code, error,
                "a handler refused a message for good: it will be parked"
            ),
            _ => tracing::warn!(
                consumer, id = %incoming.id, code, error,
                "a handler failed: the message is stored and will be tried again"
            ),
        }
        run.deferred.push(deferred);
        run.answers.push(Applied::Deferred);
        let answers = self.commit(run).await?;
        Ok(answers.into_iter().next().unwrap_or(Applied::Deferred))
    }

    /// After the first attempt, which has failed.
    fn put_back(&self, deferred: &mut Deferred, code: Code, error: &str, after: Option<Duration>) {
        let delay = self.backoff.next(1, after, &mut fastrand::Rng::new());
        deferred.attempts = 1;
        deferred.delay = delay.unwrap_or_default();
        deferred.code = Some(code);
        deferred.error = Some(error_text::bounded(error.to_owned()));
    }

    fn wake_retries(&self) {
        if let Some(nudge) = self.retries.get() {
            nudge.nudge();
        }
    }
}

/// A transaction that cannot be committed although the database is well was spoiled by a handler: it
/// has swallowed an error, kept the transaction, or broken a rule that is checked at the end.
fn spoiled(error: StoreError) -> Trouble {
    match error.disposition() {
        Disposition::Retry => Trouble::Store(error),
        Disposition::Fail => Trouble::Handler(Failure::Again {
            code: Code::TASK_ERROR,
            error: error.one_line(),
            after: None,
        }),
    }
}

/// Why a version waits.
pub(super) fn gap(missing: i64) -> String {
    format!("version {missing} has to be applied before it, and has not come")
}

fn letter(defect: &Defect, received: &Received) -> DeadLetter {
    DeadLetter {
        code: defect.code.clone(),
        error: defect.error.clone(),
        // This reception is one of them, also where the broker does not count.
        attempts: received.deliveries.unwrap_or(1).max(1),
    }
}
