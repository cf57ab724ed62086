//! The fast gate in front of the records.
//!
//! # Promise
//! A gate saves work and decides nothing: whoever it lets in still has to claim the key in the
//! database, and whoever it keeps out is answered from the database only. A gate that is slow or
//! gone steps aside within a bounded time.

use async_trait::async_trait;

use super::key::Digest;

/// What the gate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gated {
    /// Go on to the database; this is the number to come back with.
    Open(u64),
    /// Another one is under way.
    Busy,
    /// The gate does not answer: the database decides alone.
    Aside,
}

/// Turns duplicates away before they reach the database.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// Asks to be let in.
    async fn enter(&self, digest: &Digest) -> Gated;

    /// Opens the gate again, if it is still held under this number.
    async fn leave(&self, digest: &Digest, number: u64);

    /// Opens the gate, whoever holds it: the key was forgotten.
    async fn forget(&self, digest: &Digest);
}
