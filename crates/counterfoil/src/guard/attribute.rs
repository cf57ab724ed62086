//! What the attribute [`macro@crate::guarded`] stands on.

use std::future::Future;

use counterfoil_core::guard::Fingerprint;
use serde::Serialize;

use super::{Failure, Guard, GuardError, Outcome, fingerprint};
use crate::database::Database;

/// What a guarded function answers: `Result<T, Failure<E>>`.
#[diagnostic::on_unimplemented(
    message = "a guarded function answers `Result<T, Failure<E>>`",
    label = "this is not a `Result<T, Failure<E>>`"
)]
pub trait Answer {
    /// What it answers when it took effect.
    type Value;
    /// The business error.
    type Error;
}

impl<T, E> Answer for Result<T, Failure<E>> {
    type Value = T;
    type Error = E;
}

/// What callers of a guarded function get: `Result<Outcome<T, E>, GuardError>`.
pub type Guarded<A> = Result<Outcome<<A as Answer>::Value, <A as Answer>::Error>, GuardError>;

/// What a request asks for.
#[doc(hidden)]
pub fn asked<P: Serialize + ?Sized>(payload: &P) -> Result<Fingerprint, GuardError> {
    fingerprint(payload)
}

impl<D: Database> Guard<D> {
    /// The business, for no longer than the rules allow. After that nobody knows whether it
    /// happened; in transactional mode it did not.
    #[doc(hidden)]
    pub async fn limited<T, E>(
        &self,
        work: impl Future<Output = Result<T, Failure<E>>>,
    ) -> Result<T, Failure<E>> {
        let Some(limit) = self.rules().timeout else {
            return work.await;
        };
        match tokio::time::timeout(limit, work).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Unknown(
                format!("it took longer than {limit:?}").into(),
            )),
        }
    }
}
