//! What Redis can do for the guard and the inbox: fast gates in front of the database, one-time
//! tokens, and locks with a lease.
//!
//! # Promise
//! A gate saves work and decides nothing. A token is used by one, once, and a lock has one holder,
//! as long as Redis keeps what it was told.
//!
//! | | needs Redis to | when Redis is gone | when Redis forgets |
//! |---|---|---|---|
//! | [`RedisGate`] | be fast | the database decides alone | the database decides |
//! | [`RedisSeen`] | be fast | the ledger decides alone | the ledger decides |
//! | [`RedisTokens`] | keep what it was told | no token is issued or used | forms have to be sent again |
//! | [`RedisLocks`] | keep what it was told | no lock is taken or prolonged | a lock may have two holders: compare their numbers |

mod gate;
mod link;
mod locks;
mod seen;
mod tokens;

use counterfoil_core::BoxError;

pub use gate::{Options, RedisGate};
pub use locks::{LockOptions, RedisLocks};
pub use seen::{RedisSeen, SeenOptions};
pub use tokens::{RedisTokens, TokenOptions};

/// Settings that cannot work. Nothing was opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// An address that cannot be used.
    #[error("the address of Redis cannot be used")]
    Address(#[source] BoxError),
    /// Authorities that cannot be used.
    #[error("the certificates to trust cannot be used")]
    Ca(#[source] BoxError),
    /// Authorities for a connection that is not encrypted.
    #[error("the certificates to trust are for rediss://, and the address says redis://")]
    Plain,
    /// A gate that never shuts, or does not open again in time.
    #[error("the gate's ttl is {0:?}; it must be from 1 ms to 1 hour")]
    Ttl(std::time::Duration),
    /// Messages that are not remembered, or for longer than anybody needs.
    #[error("the gate remembers for {0:?}; it must be from 1 s to 30 days")]
    SeenTtl(std::time::Duration),
    /// No time to answer.
    #[error("patience must be greater than zero")]
    Patience,
}
