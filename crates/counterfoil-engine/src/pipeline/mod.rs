//! Calls of a dependency that may be tried again, inside limits.
//!
//! # Promise
//! A call that goes through [`Stack`] ends by its deadline, unless its [`Classify`] says that what has
//! begun is never cut off. It is tried again only if its result can
//! pass later and repeating it is harmless, and only while the breaker is closed and the budget
//! of the dependency has a retry left. Retries happen in exactly one place, the [`RetryLayer`]: a caller
//! that retries on top of it multiplies load, unless it heeds what [`spent`] says.
//!
//! ```text
//! retry, budget ─▶ bulkhead ─▶ breaker ─▶ attempt timeout ─▶ call
//!   ▲                                                       │
//!   └────────────── classify ◀──────────────────────────────┘
//! ```
//!
//! The breaker stands behind the bulkhead: it is asked when the call is about to be made, so that
//! nobody who had to wait for a place calls what has broken meanwhile, and the wait is not
//! taken for slowness of the dependency. Nobody begins to wait for what nobody may call.
//!
//! ```
//! # use std::convert::Infallible;
//! use counterfoil_engine::pipeline::{Http, Limits, Registry};
//! use tower::{Layer, Service, service_fn, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Registry::new();
//! let stock = registry.dependency("stock", Limits::default())?;
//! let call = service_fn(|_: http::Request<String>| async {
//!     Ok::<_, Infallible>(http::Response::new("twelve"))
//! });
//!
//! let mut client = stock.stack(Http).layer(call);
//! let answer = client.ready().await?.call(http::Request::new(String::new())).await?;
//!
//! assert_eq!(*answer.body(), "twelve");
//! assert_eq!(registry.list()[0].destination, "stock");
//! # Ok(()) }
//! ```
//!
//! The layers work alone, too, on any tower service: [`BreakerLayer`], [`BulkheadLayer`],
//! [`AttemptTimeoutLayer`], [`RetryLayer`], [`CoalesceLayer`]. All but the attempt timeout want a
//! service whose error is a [`CallError`]; the attempt timeout makes one of any error.
//!
//! # When a call is dropped
//! Its place in the bulkhead is free at once. Its result counts for nothing.

mod attempt;
mod breaker;
mod bulkhead;
mod classify;
mod coalesce;
mod dependency;
mod error;
mod http;
pub(crate) mod keep;
pub(crate) mod meter;
mod registry;
mod retry;
pub mod spent;
mod stack;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;

pub use attempt::{AttemptTimeout, AttemptTimeoutLayer};
pub use breaker::{Break, BreakerLayer, Told};
pub use bulkhead::{BulkheadLayer, Confine};
pub use classify::Classify;
pub use coalesce::{Coalesce, CoalesceLayer};
/// The policies themselves.
pub use counterfoil_core::policy;
pub use counterfoil_core::policy::breaker::{Forced, State};
pub use counterfoil_core::policy::{Class, Effect};
pub use dependency::{Dependency, Limits, LimitsError, Place, Status};
pub use error::{CallError, Ended, Report};
pub use http::{Http, Within};
pub use meter::Counts;
pub use registry::{CLIENT, Registry, UPSTREAM, reserved};
pub use retry::{Retry, RetryLayer};
pub use stack::{Stack, Stacked};

/// The future of every layer here.
pub type CallFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;
