//! The guard: a request takes effect once for its key.
//!
//! # Two modes
//! *Transactional* ([`Guard::begin`]): claim, business rows and answer commit in one transaction of
//! yours. A crash leaves nothing behind, so nothing can be stuck. For everything whose effect is in
//! this database.
//!
//! *Leased* ([`Guard::leased`]): claim, then do anything, then record how it came out. For effects
//! outside the database. After a crash nobody knows whether it happened; the record is *uncertain*,
//! and does not run again before a [`Reconciler`] or an operator has settled it.
//!
//! # When the database does not answer
//! The request fails and the business does not run.

mod attribute;
mod context;
mod leased;
mod transactional;

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::BoxError;
use counterfoil_core::guard::{
    Fingerprint, Gate, Key, KeyError, Locks, Records, Rules, RulesError, Snapshot, Tokens,
};
use counterfoil_core::store::StoreError;
use counterfoil_engine::Nudge;
use counterfoil_engine::guard::{Warden, in_time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Pool, Transaction};

use crate::database::Database;

#[doc(hidden)]
pub use attribute::asked;
pub use attribute::{Answer, Guarded};
pub use context::Context;
pub use counterfoil_core::guard as core;
pub use counterfoil_core::guard::{Found, Mode, Record, State, Verdict};
pub use counterfoil_engine::guard::Entered;
pub use counterfoil_engine::guard::lease::{End, Ended, Lease};
pub use counterfoil_engine::guard::reconcile::{Reconcile, Reconciler};
pub use leased::Claimed;
pub use transactional::{Open, Run};

/// What may go wrong in the guard itself. The business did not run, or was rolled back, unless
/// [`GuardError::Store`] came from the commit: then ask again with the same key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The database. Try again with the same key.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A key that cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Rules that cannot work.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The payload or the result cannot be written as JSON, or read back.
    #[error("the {what} cannot be kept as JSON")]
    Json {
        /// What it was.
        what: &'static str,
        /// Why.
        #[source]
        source: BoxError,
    },
}

/// Why the business did not succeed. The developer says which it is.
#[derive(Debug)]
pub enum Failure<E> {
    /// A business error: it is recorded, and a repeat gets the same error.
    Business(E),
    /// A business error that a person has to look at: recorded like the others, and told once, as an
    /// error in the log and in `counterfoil_guard_needs_person_total`.
    NeedsPerson(E),
    /// A business error that may pass later: a repeat runs again after this time, as often as the
    /// rules allow; then the error stays.
    Later {
        /// The error.
        error: E,
        /// Not before.
        after: Duration,
    },
    /// Something broke and nothing happened: the key is free again.
    System(BoxError),
    /// Something broke and it may have happened. Leased mode: the record is uncertain.
    /// Transactional mode: everything is rolled back, as for [`Failure::System`].
    Unknown(BoxError),
}

impl<E> Failure<E> {
    /// Something broke and nothing happened.
    pub fn system(error: impl Into<BoxError>) -> Self {
        Failure::System(error.into())
    }
}

/// What a request with a key is told.
#[derive(Debug)]
pub enum Begun<R, T, E> {
    /// It runs.
    Fresh(R),
    /// It took effect before: this is the answer.
    Replay(Result<T, E>),
    /// It took effect before, and the answer was not kept.
    NotKept,
    /// Another one is under way: come again after this time.
    InProgress(Duration),
    /// The key was used for something else.
    Conflict,
    /// It may have happened: nobody knows yet.
    Uncertain,
    /// It may be tried again, after this time.
    Later(Duration),
}

impl<R, T, E> Begun<R, T, E> {
    /// The run of a request that runs, or what any other is told.
    pub fn fresh(self) -> Result<R, Outcome<T, E>> {
        Err(match self {
            Begun::Fresh(run) => return Ok(run),
            Begun::Replay(answer) => Outcome::Replayed(answer),
            Begun::NotKept => Outcome::NotKept,
            Begun::InProgress(after) => Outcome::InProgress(after),
            Begun::Conflict => Outcome::Conflict,
            Begun::Uncertain => Outcome::Uncertain,
            Begun::Later(after) => Outcome::Later(after),
        })
    }
}

/// How a request came out.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<T, E> {
    /// It ran now.
    Executed(Result<T, E>),
    /// It had taken effect before.
    Replayed(Result<T, E>),
    /// It had taken effect before, and the answer was not kept.
    NotKept,
    /// Another one is under way: come again after this time.
    InProgress(Duration),
    /// The key was used for something else.
    Conflict,
    /// It may have happened: nobody knows yet.
    Uncertain,
    /// It may be tried again, after this time.
    Later(Duration),
    /// Something broke and nothing happened: the same request may be sent again.
    Released(String),
}

/// Request idempotency on one database.
pub struct Guard<D: Database> {
    pub(crate) warden: Warden,
    pub(crate) records: D::Guard,
    pub(crate) nudge: Option<Nudge>,
    pool: Pool<D::Sqlx>,
}

impl<D: Database> Clone for Guard<D> {
    fn clone(&self) -> Self {
        Self {
            warden: self.warden.clone(),
            records: self.records.clone(),
            nudge: self.nudge.clone(),
            pool: self.pool.clone(),
        }
    }
}

impl<D: Database> Guard<D> {
    /// A guard in the central table, over the application's own pool.
    pub fn new(pool: &Pool<D::Sqlx>, rules: Rules) -> Result<Self, GuardError> {
        Self::over(pool, D::guard(pool, None)?, rules)
    }

    /// A guard in a table of its own. `counterfoil guard table <name>` prints its statements; it
    /// may have more columns.
    pub fn in_table(pool: &Pool<D::Sqlx>, table: &str, rules: Rules) -> Result<Self, GuardError> {
        Self::over(pool, D::guard(pool, Some(table))?, rules)
    }

    fn over(pool: &Pool<D::Sqlx>, records: D::Guard, rules: Rules) -> Result<Self, GuardError> {
        rules.check()?;
        Ok(Self {
            warden: Warden::new(Arc::new(records.clone()), rules),
            records,
            nudge: None,
            pool: pool.clone(),
        })
    }

    /// A fast gate in front of the table.
    #[must_use]
    pub fn gate(mut self, gate: Arc<dyn Gate>) -> Self {
        self.warden = self.warden.gate(gate);
        self
    }

    /// The same records under other rules: one guard for each kind of business.
    pub fn with_rules(&self, rules: Rules) -> Result<Self, GuardError> {
        rules.check()?;
        let mut other = self.clone();
        other.warden = other.warden.rules(rules);
        Ok(other)
    }

    pub(crate) fn nudging(mut self, nudge: Nudge) -> Self {
        self.nudge = Some(nudge);
        self
    }

    /// The guard below any type of database: for layers in leased mode.
    pub fn warden(&self) -> &Warden {
        &self.warden
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        self.warden.the_rules()
    }

    /// The records, for tools.
    pub fn records(&self) -> &Arc<dyn Records> {
        self.warden.records()
    }

    /// One-time tokens in the same database: for forms that a person sends.
    pub fn tokens(&self) -> Arc<dyn Tokens> {
        Arc::new(self.records.clone())
    }

    /// Locks with a lease and a fencing number in the same database.
    pub fn locks(&self) -> Arc<dyn Locks> {
        Arc::new(self.records.clone())
    }

    /// Forgets a key: the next request with it runs. Answers whether it was known.
    pub async fn forget(&self, key: &Key) -> Result<bool, GuardError> {
        Ok(self.warden.forget(key).await?)
    }

    /// A transaction for a request without a key. Nothing guards it.
    pub async fn unguarded(&self) -> Result<Transaction<'static, D::Sqlx>, GuardError> {
        Ok(in_time(D::begin(&self.pool)).await?)
    }

    /// Commits what [`Guard::unguarded`] began, with the check of [`crate::Counterfoil::commit`].
    pub async fn commit(&self, tx: Transaction<'static, D::Sqlx>) -> Result<(), GuardError> {
        in_time(D::commit(tx)).await?;
        if let Some(nudge) = &self.nudge {
            nudge.nudge();
        }
        Ok(())
    }

    /// Settles uncertain requests on schedule. Add a check for each business type, then
    /// [`Reconcile::run`] it.
    pub fn reconcile(&self) -> Reconcile {
        Reconcile::new(Arc::clone(self.records()), self.rules().clone())
    }
}

#[cfg(feature = "postgres")]
impl Guard<crate::Postgres> {
    /// Lets a connection that has committed a request begin the next one without the way through the
    /// pool in between. What the pool was told to do there is left out: see
    /// [`counterfoil_postgres::PostgresGuard::back_to_back`].
    #[must_use]
    pub fn back_to_back(mut self) -> Self {
        self.records = self.records.back_to_back();
        self
    }
}

fn fingerprint<P: Serialize + ?Sized>(payload: &P) -> Result<Fingerprint, GuardError> {
    Fingerprint::of(payload).map_err(|e| GuardError::Json {
        what: "payload",
        source: e.into(),
    })
}

fn pack<T: Serialize + ?Sized>(value: &T) -> Result<Snapshot, GuardError> {
    Snapshot::json(value).map_err(|e| GuardError::Json {
        what: "result",
        source: e.into(),
    })
}

/// Reads a stored answer. `None`: it was not kept.
fn unpack<T: DeserializeOwned, E: DeserializeOwned>(
    found: &Found,
) -> Result<Option<Result<T, E>>, GuardError> {
    let Some(body) = found.record.snapshot.as_ref().and_then(|s| s.body.as_ref()) else {
        return Ok(None);
    };
    let read = |e: serde_json::Error| GuardError::Json {
        what: "stored result",
        source: e.into(),
    };
    Ok(Some(match found.record.state {
        State::Failed | State::Retryable => Err(serde_json::from_slice(body).map_err(read)?),
        _ => Ok(serde_json::from_slice(body).map_err(read)?),
    }))
}
