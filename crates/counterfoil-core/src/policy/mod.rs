//! Policies: pure decisions about when to try again, and when not to.
//!
//! # Promise
//! A policy is state; it is told an event and the time, and answers with a decision. None does
//! I/O, none has a clock, none waits. The same events at the same times, with the same seed,
//! give the same decisions, so that the simulation in [`simulate`] runs the code that production runs.
//!
//! | module | the question that it answers |
//! |---|---|
//! | [`class`] | what came of a call, and may it be made again? |
//! | [`backoff`] | how long is the wait before the next attempt? |
//! | [`attempts`] | is there a next attempt before the deadline? |
//! | [`budget`] | may there be one more retry in this window? |
//! | [`breaker`] | may the destination be called at all? |
//! | [`bulkhead`] | is there a place for one more call? |
//! | [`retry_after`] | how long did the server ask to wait? |
//! | [`simulate`] | how much load can retries add? |
//!
//! [`Shared`] is the one place where a policy is used by several threads.

pub mod attempts;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod bulkhead;
pub mod class;
pub mod ratio;
pub mod retry_after;
mod shared;
pub mod simulate;
mod window;

use std::time::Duration;

pub use attempts::Attempts;
pub use backoff::Backoff;
pub use breaker::Breaker;
pub use budget::Budget;
pub use bulkhead::Bulkhead;
pub use class::{Class, Effect};
pub use ratio::Ratio;
pub use shared::Shared;

/// A time: how long after an origin that the owner of the policy has chosen, and never changes.
///
/// A time that lies before one that was told earlier counts as that earlier one.
pub type Moment = Duration;
