//! The guard of Counterfoil for HTTP services.
//!
//! # Promise
//! Add one layer to a router, and a double click, a retrying client, a crash in the middle or two
//! servers at once cannot run a handler's effect twice; the duplicate gets the first one's answer,
//! byte for byte. When the records cannot be read or written, the handler does not run.
//!
//! ```ignore
//! let guard = cf.guard(Rules::payments())?;
//! let app = Router::new()
//!     .route("/pay", post(pay))
//!     .route_layer(GuardLayer::transactional(guard).caller(principal));
//!
//! async fn pay(mut tx: Tx<Postgres>, Json(order): Json<Pay>) -> Result<Json<Receipt>, Problem> { /* … */ }
//! ```
//!
//! Authorisation belongs outside: add its layer after this one, so that it runs first, on replays
//! too.
//!
//! The feature `client` brings the caller's side, a client that carries keys and tries again inside
//! limits; the feature `gateway` the guard in front of a service in any language.

mod around;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "gateway")]
pub mod gateway;
pub mod guard;
pub mod problem;
pub mod token;

#[cfg(feature = "client")]
pub use client::Client;
pub use guard::{Caller, GuardLayer, GuardedKey, LeasedLayer, Policy, PolicyError, Recording, Tx};
pub use problem::Problem;
pub use token::TokenLayer;
