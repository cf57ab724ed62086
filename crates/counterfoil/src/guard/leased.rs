//! Claim, run anything, record how it came out.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::{Fingerprint, Found, Key, State};
use counterfoil_engine::guard::Entered;
use counterfoil_engine::guard::lease::{End, Ended, Lease};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Context, Failure, Guard, GuardError, Outcome, fingerprint, pack, unpack};
use crate::database::Database;

/// What the running business may know about its claim.
#[derive(Debug, Clone)]
pub struct Claimed {
    key: Key,
    fence: i64,
    attempt: u32,
}

impl Claimed {
    /// The key: pass it on, derived for each step.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number of the claim: pass it on to whoever can tell a late call by it.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Which run of this request it is.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl<D: Database> Guard<D> {
    /// Lets a request in, in leased mode, below any notion of a result type.
    pub async fn enter_leased(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
    ) -> Result<Entered<Lease>, GuardError> {
        Ok(self.warden.enter_leased(key, fingerprint).await?)
    }

    /// Runs something once for its key, in leased mode. A panic, a caller that goes away in the
    /// middle, or a business that takes longer than the rules allow leaves the request uncertain.
    pub async fn leased<T, E, F, Fut>(
        &self,
        key: &Key,
        payload: &(impl Serialize + ?Sized + Sync),
        business: F,
    ) -> Result<Outcome<T, E>, GuardError>
    where
        T: Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
        F: FnOnce(Claimed) -> Fut,
        Fut: Future<Output = Result<T, Failure<E>>>,
    {
        self.leased_asked(key, &fingerprint(payload)?, business)
            .await
    }

    #[doc(hidden)]
    pub async fn leased_asked<T, E, F, Fut>(
        &self,
        key: &Key,
        asked: &Fingerprint,
        business: F,
    ) -> Result<Outcome<T, E>, GuardError>
    where
        T: Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
        F: FnOnce(Claimed) -> Fut,
        Fut: Future<Output = Result<T, Failure<E>>>,
    {
        let lease = match self.enter_leased(key, asked).await? {
            Entered::Fresh(lease) => lease,
            Entered::Replay(found) => return instead(Some(found)),
            Entered::InProgress(after) => return Ok(Outcome::InProgress(after)),
            Entered::Conflict => return Ok(Outcome::Conflict),
            Entered::Uncertain(_) => return Ok(Outcome::Uncertain),
            Entered::Later(after) => return Ok(Outcome::Later(after)),
        };
        let claimed = Claimed {
            key: key.clone(),
            fence: lease.fence(),
            attempt: lease.attempt(),
        };
        let context = Context::new(key.clone(), lease.fence(), lease.attempt());
        let answer = self.limited(context.scope(business(claimed))).await;
        finish(lease, answer).await
    }
}

async fn finish<T, E>(
    lease: Lease,
    answer: Result<T, Failure<E>>,
) -> Result<Outcome<T, E>, GuardError>
where
    T: Serialize + DeserializeOwned,
    E: Serialize + DeserializeOwned,
{
    let (end, answer) = match answer {
        Ok(value) => (End::Succeeded(pack(&value)?), Ok(value)),
        Err(Failure::Business(error)) => (End::Failed(pack(&error)?), Err(error)),
        Err(Failure::NeedsPerson(error)) => (End::NeedsPerson(pack(&error)?), Err(error)),
        Err(Failure::Later { error, after }) => (End::Later(pack(&error)?, after), Err(error)),
        Err(Failure::System(error)) => {
            lease.release().await?;
            return Ok(Outcome::Released(error.to_string()));
        }
        Err(Failure::Unknown(error)) => {
            tracing::warn!(error, "nobody knows whether a request took effect");
            lease.doubt().await?;
            return Ok(Outcome::Uncertain);
        }
    };
    match lease.end(end).await {
        Ok(Ended::Recorded(_) | Ended::Pending) => Ok(Outcome::Executed(answer)),
        Ok(Ended::Lost(there)) => instead(there),
        // It has happened, and the caller shall know. The record becomes uncertain.
        Err(error) => {
            tracing::error!(
                error = error.one_line(),
                "cannot record that a request took effect"
            );
            Ok(Outcome::Executed(answer))
        }
    }
}

/// What somebody is told who does not run, or whose run does not count.
pub(super) fn instead<T, E>(there: Option<Arc<Found>>) -> Result<Outcome<T, E>, GuardError>
where
    T: DeserializeOwned,
    E: DeserializeOwned,
{
    let Some(found) = there else {
        return Ok(Outcome::InProgress(Duration::from_secs(1)));
    };
    Ok(match found.state() {
        State::Processing => Outcome::InProgress(Duration::from_secs(1)),
        State::Uncertain => Outcome::Uncertain,
        State::Succeeded | State::Failed | State::Retryable => match unpack(&found)? {
            Some(answer) => Outcome::Replayed(answer),
            None => Outcome::NotKept,
        },
    })
}
