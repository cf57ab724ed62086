//! Claim, business rows and answer in one transaction.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Expect, Fingerprint, Key, Rules, State, Write};
use counterfoil_core::store::{Result as StoreResult, StoreError};
use counterfoil_engine::guard::alert;
use counterfoil_engine::guard::flight::Seat;
use counterfoil_engine::guard::lease::{End, Ended, recorded};
use counterfoil_engine::guard::{Claim, Entered, Entry, in_time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Transaction;

use super::{Begun, Context, Failure, Guard, GuardError, Outcome, fingerprint, pack, unpack};
use crate::database::Database;

/// A claimed key with its open transaction, below any notion of a result type.
///
/// # When it is dropped
/// Everything is rolled back, the claim too: the next request runs.
pub struct Open<D: Database> {
    tx: Option<Transaction<'static, D::Sqlx>>,
    guard: Guard<D>,
    key: Key,
    fingerprint: Fingerprint,
    expect: Expect,
    attempt: u32,
    seat: Option<Seat>,
}

struct ByTransaction<'a, D: Database>(&'a D::Guard);

#[async_trait]
impl<D: Database> Claim for ByTransaction<'_, D> {
    type Claimed = (Transaction<'static, D::Sqlx>, Expect, u32);

    async fn claim(
        &self,
        key: &Key,
        _fingerprint: &Fingerprint,
        expect: Expect,
        attempt: u32,
    ) -> StoreResult<Option<Self::Claimed>> {
        let begun = D::guard_begin(self.0, key, expect).await?;
        Ok(begun.map(|tx| (tx, expect, attempt)))
    }

    fn claims_are_visible(&self) -> bool {
        false
    }

    /// A claim is a lock until its transaction is over. On SQLite it is one lock for all keys, which
    /// the same key may hold as well.
    fn locks_keys(&self) -> bool {
        true
    }
}

impl<D: Database> Guard<D> {
    /// Lets a request in, in transactional mode.
    pub async fn enter(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
    ) -> Result<Entered<Open<D>>, GuardError> {
        let mode = ByTransaction::<D>(&self.records);
        Ok(match self.warden.enter(key, fingerprint, &mode).await? {
            Entered::Fresh(Entry {
                claimed: (tx, expect, attempt),
                seat,
            }) => Entered::Fresh(Open {
                tx: Some(tx),
                guard: self.clone(),
                key: key.clone(),
                fingerprint: *fingerprint,
                expect,
                attempt,
                seat: Some(seat),
            }),
            Entered::Replay(found) => Entered::Replay(found),
            Entered::InProgress(after) => Entered::InProgress(after),
            Entered::Conflict => Entered::Conflict,
            Entered::Uncertain(found) => Entered::Uncertain(found),
            Entered::Later(after) => Entered::Later(after),
        })
    }

    /// Begins a request in transactional mode. The payload decides whether a repeat asks for the
    /// same; the answer of the first one is given to every repeat.
    ///
    /// ```ignore
    /// match guard.begin::<Receipt, Refused>(&key, &payload).await? {
    ///     Begun::Fresh(mut run) => {
    ///         let answer = pay(run.tx(), &payload).await;
    ///         run.finish(answer).await
    ///     }
    ///     Begun::Replay(answer) => Ok(Outcome::Replayed(answer)),
    ///     other => tell(other),
    /// }
    /// ```
    pub async fn begin<T, E>(
        &self,
        key: &Key,
        payload: &(impl Serialize + ?Sized + Sync),
    ) -> Result<Begun<Run<D, T, E>, T, E>, GuardError>
    where
        T: DeserializeOwned,
        E: DeserializeOwned,
    {
        self.begin_asked(key, &fingerprint(payload)?).await
    }

    #[doc(hidden)]
    pub async fn begin_asked<T, E>(
        &self,
        key: &Key,
        asked: &Fingerprint,
    ) -> Result<Begun<Run<D, T, E>, T, E>, GuardError>
    where
        T: DeserializeOwned,
        E: DeserializeOwned,
    {
        Ok(match self.enter(key, asked).await? {
            Entered::Fresh(open) => Begun::Fresh(Run {
                open,
                answers: PhantomData,
            }),
            Entered::Replay(found) => match unpack(&found)? {
                Some(answer) => Begun::Replay(answer),
                None => Begun::NotKept,
            },
            Entered::InProgress(after) => Begun::InProgress(after),
            Entered::Conflict => Begun::Conflict,
            Entered::Uncertain(_) => Begun::Uncertain,
            Entered::Later(after) => Begun::Later(after),
        })
    }
}

impl<D: Database> Open<D> {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What the code that runs now belongs to.
    pub fn context(&self) -> Context {
        Context::new(self.key.clone(), 0, self.attempt)
    }

    /// The open transaction. `None` after [`Open::take_tx`].
    pub fn tx(&mut self) -> Option<&mut Transaction<'static, D::Sqlx>> {
        self.tx.as_mut()
    }

    /// Lends the transaction to somebody who needs to own it for a while.
    pub fn take_tx(&mut self) -> Option<Transaction<'static, D::Sqlx>> {
        self.tx.take()
    }

    /// Takes a lent transaction back.
    pub fn give_back(&mut self, tx: Transaction<'static, D::Sqlx>) {
        self.tx = Some(tx);
    }

    /// Records how it came out and commits. A business error takes back what the business has
    /// written. After an error nothing has happened, or the next request with this key will be
    /// answered with what has.
    pub async fn end(mut self, end: End) -> Result<Ended, GuardError> {
        let Some(mut tx) = self.tx.take() else {
            let kept = "the handler has kept the transaction";
            return Err(StoreError::Doomed(kept.into()).into());
        };
        let rules = Arc::clone(self.guard.warden.the_rules());
        let needs_person = end.needs_person();
        let (state, snapshot, retry_in) = end.parts();
        let write = self.write(&rules, state, retry_in, snapshot);
        let records = &self.guard.records;
        let committed = in_time(async {
            if state != State::Succeeded {
                D::guard_undo(records, &mut tx).await?;
            }
            D::guard_commit(records, tx, &write).await
        });
        if !committed.await? {
            let digest = self.key.digest();
            let there = in_time(self.guard.records().look(&digest)).await?;
            return Ok(Ended::Lost(there.map(Arc::new)));
        }
        if let Some(nudge) = &self.guard.nudge {
            nudge.nudge();
        }
        if needs_person {
            alert::needs_person(&self.key);
        }
        let answer = (state, write.snapshot.unwrap_or_default(), retry_in);
        let found = recorded(&self.key, self.fingerprint, 0, self.attempt, &rules, answer);
        let found = Arc::new(found);
        if let Some(seat) = self.seat.take() {
            seat.land(Some(Arc::clone(&found)));
        }
        Ok(Ended::Recorded(found))
    }

    fn write(
        &self,
        rules: &Rules,
        state: State,
        retry_in: Option<Duration>,
        snapshot: counterfoil_core::guard::Snapshot,
    ) -> Write {
        Write {
            key: self.key.clone(),
            fingerprint: self.fingerprint,
            state,
            attempt: self.attempt,
            lease: None,
            keep: rules.keep_of(state),
            retry_in,
            snapshot: Some(snapshot),
            expect: self.expect,
        }
    }

    /// Rolls everything back, the claim too.
    pub async fn abandon(mut self) -> Result<(), GuardError> {
        if let Some(tx) = self.tx.take() {
            in_time(async { tx.rollback().await.map_err(D::classify) }).await?;
        }
        Ok(())
    }
}

/// A request that runs, with its open transaction.
///
/// # When it is dropped
/// Everything is rolled back, the claim too: the next request runs.
pub struct Run<D: Database, T, E> {
    open: Open<D>,
    answers: PhantomData<fn() -> (T, E)>,
}

impl<D: Database, T, E> std::fmt::Debug for Run<D, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Run({})", self.open.key.encoded())
    }
}

impl<D: Database, T, E> Run<D, T, E>
where
    T: Serialize + DeserializeOwned,
    E: Serialize + DeserializeOwned,
{
    /// The key.
    pub fn key(&self) -> &Key {
        self.open.key()
    }

    /// What the code that runs now belongs to: see [`Context::scope`].
    pub fn context(&self) -> Context {
        self.open.context()
    }

    /// The open transaction. Everything that is written here commits together with the answer.
    #[expect(
        clippy::expect_used,
        reason = "nothing here takes it out before the end"
    )]
    pub fn tx(&mut self) -> &mut Transaction<'static, D::Sqlx> {
        self.open
            .tx()
            .expect("the transaction is there until the end")
    }

    /// Records the answer and commits.
    pub async fn finish(self, answer: Result<T, Failure<E>>) -> Result<Outcome<T, E>, GuardError> {
        let (end, answer) = match answer {
            Ok(value) => (End::Succeeded(pack(&value)?), Ok(value)),
            Err(Failure::Business(error)) => (End::Failed(pack(&error)?), Err(error)),
            Err(Failure::NeedsPerson(error)) => (End::NeedsPerson(pack(&error)?), Err(error)),
            Err(Failure::Later { error, after }) => (End::Later(pack(&error)?, after), Err(error)),
            Err(Failure::System(error) | Failure::Unknown(error)) => {
                self.open.abandon().await?;
                return Ok(Outcome::Released(error.to_string()));
            }
        };
        Ok(match self.open.end(end).await? {
            Ended::Recorded(_) | Ended::Pending => Outcome::Executed(answer),
            Ended::Lost(there) => super::leased::instead(there)?,
        })
    }
}
