//! How a call can end without an answer.

use std::time::Duration;

use counterfoil_core::policy::breaker::{Admission, Ticket};

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// The breaker is open: the dependency was not called.
    #[error("the breaker is open")]
    Open {
        /// Asking again before this time is useless. Absent while an operator holds it open.
        retry_after: Option<Duration>,
    },
    /// The dependency asked for a pause: it was not called.
    #[error("the dependency asked for a pause of {retry_after:?}")]
    Throttled {
        /// The rest of the pause.
        retry_after: Duration,
    },
    /// All places are taken and the queue is full: the dependency was not called.
    #[error("too many calls at a time")]
    Full,
    /// One attempt took too long. The dependency may have done what it was asked for.
    #[error("no answer within {after:?}")]
    Timeout {
        /// The limit.
        after: Duration,
    },
    /// The time for all attempts is over. The dependency may have done what it was asked for.
    #[error("no answer before the deadline of {within:?}")]
    Deadline {
        /// The time for all attempts.
        within: Duration,
    },
    /// The call that others waited for ended without a result.
    #[error("the call that this one waited for came to nothing")]
    Abandoned,
    /// The call failed.
    #[error(transparent)]
    Call(E),
}

impl<E> CallError<E> {
    /// The right to a call, or why there is none.
    pub(super) fn admitted(admission: Admission) -> Result<Ticket, Self> {
        match admission {
            Admission::Go(ticket) => Ok(ticket),
            Admission::Open { retry_after } => Err(CallError::Open { retry_after }),
            Admission::Throttled { retry_after } => Err(CallError::Throttled { retry_after }),
        }
    }

    /// Whether the dependency was certainly not called, in no attempt. Then repeating is harmless,
    /// and a degraded answer is honest.
    pub fn not_called(&self) -> bool {
        matches!(
            self,
            CallError::Open { .. } | CallError::Throttled { .. } | CallError::Full
        )
    }

    /// How long a caller should wait before it asks again, as far as is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            CallError::Open { retry_after } => *retry_after,
            CallError::Throttled { retry_after } => Some(*retry_after),
            _ => None,
        }
    }
}

/// What a call with retries cost, and why it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Attempts that were made, the first included. One that the breaker or the bulkhead turned
    /// away was not.
    pub attempts: u32,
    /// Why there was no further one.
    pub ended: Ended,
}

/// Why there was no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The last one brought an answer that stands.
    Answered,
    /// Repeating it could have a second effect, or the request cannot be copied.
    NotRepeatable,
    /// The next one would begin after the deadline.
    Deadline,
    /// The dependency asked for a longer wait than the deadline allows.
    AskedTooMuch,
    /// All attempts were made.
    Attempts,
    /// The budget of the dependency is spent.
    BudgetSpent,
    /// The breaker is not closed, or the bulkhead is full. The result is that of the attempt
    /// before, if there was one.
    TurnedAway,
    /// Somebody nearer to the dependency has tried again already; see [`spent`](super::spent).
    Elsewhere,
}
