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

mod answer;
mod body;
mod header_key;
mod layer;
mod policy;
mod tx;

pub use answer::Recording;
pub use layer::{Caller, GuardLayer, GuardService, NeedsCaller};
pub use policy::{Policy, PolicyError};
pub use tx::{GuardedKey, Tx, TxRejection};
