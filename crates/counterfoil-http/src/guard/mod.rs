//! The guard as a tower layer.
//!
//! # The way of a request
//! | step | what may end it |
//! |---|---|
//! | method, key | not guarded; 400 |
//! | caller | 401 |
//! | body, up to the limit | 413; 400 |
//! | fingerprint over method, path, query and body | 400 |
//! | record | replay; 409; 422; 503 |
//! | handler, to its end even if the caller goes away | its answer |
//!
//! Nothing is claimed before the body is complete.

pub(crate) mod answer;
pub(crate) mod body;
mod front;
mod header_key;
mod layer;
mod leased;
mod policy;
mod quota;
mod tx;

use std::future::Future;
use std::pin::Pin;

use axum::response::{IntoResponse as _, Response};
use tracing::Instrument as _;

use crate::Problem;

pub use answer::Recording;
pub use layer::{Caller, GuardLayer, GuardService, NeedsCaller};
pub use leased::{LeasedLayer, LeasedService};
pub use policy::{Policy, PolicyError};
pub use tx::{GuardedKey, Tx, TxRejection};

/// Runs to the end even if the caller goes away, which is bounded by the time that a duplicate
/// waits and by the time that a handler takes. A panic is an error of the server; what the
/// request held is given up as it unwinds.
async fn to_the_end(work: Pin<Box<dyn Future<Output = Response> + Send>>) -> Response {
    // In a box before it is handed on: it is large, and would be copied at every step.
    match tokio::spawn(work.in_current_span()).await {
        Ok(response) => response,
        Err(_) => Problem::internal("The handler ended badly.").into_response(),
    }
}
