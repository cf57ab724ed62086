//! The open transaction of a guarded request, as an extractor.

use std::ops::{Deref, DerefMut};

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use counterfoil::{Database, Slot};
use counterfoil_core::guard::Key;
use http::request::Parts;
use sqlx::Transaction;

use crate::Problem;

/// The transaction in which a guarded request runs. What is written here commits together with
/// the answer, and is rolled back with an error. It goes back to the layer when it is dropped: do
/// not commit it, and do not keep it after the handler has returned.
pub struct Tx<D: Database>(counterfoil::Tx<D>);

impl<D: Database> Deref for Tx<D> {
    type Target = Transaction<'static, D::Sqlx>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<D: Database> DerefMut for Tx<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// There is no transaction to be had.
#[derive(Debug)]
pub struct TxRejection(&'static str);

impl IntoResponse for TxRejection {
    fn into_response(self) -> Response {
        Problem::internal(self.0).into_response()
    }
}

impl<S: Send + Sync, D: Database> FromRequestParts<S> for Tx<D> {
    type Rejection = TxRejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, TxRejection> {
        let slot = parts.extensions.get::<Slot<D>>().cloned().ok_or(TxRejection(
            "This handler wants the transaction of the guard: add a GuardLayer in transactional mode for the same database.",
        ))?;
        let lent = slot.lend().ok_or(TxRejection(
            "The transaction of the guard is in use: take it once in a handler.",
        ))?;
        Ok(Self(lent))
    }
}

/// The key of the guarded request, as an extractor. Absent when the request came without one.
#[derive(Debug, Clone)]
pub struct GuardedKey(pub Option<Key>);

impl<S: Send + Sync> FromRequestParts<S> for GuardedKey {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.extensions.get::<Key>().cloned()))
    }
}
