//! Policies: pure decisions about when to try again.

pub mod backoff;

pub use backoff::Backoff;
