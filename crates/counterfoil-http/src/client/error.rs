//! Why there is no answer, and what the caller may do.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_engine::pipeline::{CallError, Ended, LimitsError};

/// What went wrong underneath.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why there is no answer. Every status that the other side sends is an answer, also 500.
///
/// | error | was it sent? | what to do |
/// |---|---|---|
/// | [`Invalid`](Error::Invalid) | no | change the request |
/// | [`Open`](Error::Open), [`Paused`](Error::Paused), [`Crowded`](Error::Crowded) | no | come later, or answer without it |
/// | [`NotSent`](Error::NotSent) | no | send it again freely |
/// | [`PossiblySent`](Error::PossiblySent) | perhaps | send it again with the same [key](Error::key), never with a new one |
/// | [`BudgetSpent`](Error::BudgetSpent) | [look](Error::certainly_not_sent) | come later: retries now would make it worse |
/// | [`Deadline`](Error::Deadline) | [look](Error::certainly_not_sent) | as above |
/// | [`Upload`](Error::Upload), [`Abandoned`](Error::Abandoned) | perhaps | as above |
/// | [`TooLarge`](Error::TooLarge) | yes | raise the limit |
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be sent as it is. Nothing was sent.
    #[error("the request cannot be sent")]
    Invalid(#[from] Invalid),
    /// Certainly not sent: send it again freely.
    #[error("{call}: it cannot be reached")]
    NotSent {
        /// What is known about the call.
        call: Failed,
        /// What the last attempt brought.
        #[source]
        source: Cause,
    },
    /// Possibly sent: it may have taken effect. Send it again only with the same key.
    #[error("{call}: it has not answered")]
    PossiblySent {
        /// What is known about the call.
        call: Failed,
        /// What the last attempt brought.
        #[source]
        source: Cause,
    },
    /// It would have been tried again, but all retries of this destination are used up for now.
    #[error("{call}: the budget for retries is spent")]
    BudgetSpent {
        /// What is known about the call.
        call: Failed,
        /// What the last attempt brought.
        #[source]
        source: Cause,
    },
    /// The breaker is open: too many calls of this destination have failed.
    #[error("{call}: the breaker is open")]
    Open {
        /// What is known about the call.
        call: Failed,
        /// Before this time it is useless to come again. Absent while an operator holds it open.
        retry_after: Option<Duration>,
    },
    /// The destination has asked everybody for a pause.
    #[error("{call}: it has asked for a pause")]
    Paused {
        /// What is known about the call.
        call: Failed,
        /// The rest of the pause.
        retry_after: Duration,
    },
    /// Too many calls of this destination are under way.
    #[error("{call}: too many calls at a time")]
    Crowded {
        /// What is known about the call.
        call: Failed,
    },
    /// The time for all attempts is over, or the next one would begin too late.
    #[error("{call}: no answer within {within:?}")]
    Deadline {
        /// What is known about the call.
        call: Failed,
        /// The time for all attempts.
        within: Duration,
        /// What the last attempt brought, if it ended.
        #[source]
        source: Option<Cause>,
    },
    /// The answer is larger than what is kept in memory. The request was sent and answered.
    #[error("{call}: its answer has more than {limit} bytes")]
    TooLarge {
        /// What is known about the call.
        call: Failed,
        /// The limit.
        limit: usize,
    },
    /// The stream that the request's body was read from has failed.
    #[error("{call}: the body of the request could not be read")]
    Upload {
        /// What is known about the call.
        call: Failed,
    },
    /// The call of another one, which this one shared, came to nothing.
    #[error("{call}: the call that this one shared came to nothing")]
    Abandoned {
        /// What is known about the call.
        call: Failed,
    },
}

/// What is known about a call that brought no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Whom it was for.
    pub destination: String,
    /// The key that it carried.
    pub key: Option<String>,
    /// Attempts that were made; those that breaker or ceiling stopped do not count.
    pub attempts: u32,
    /// Whether any of them may have reached the destination.
    pub possibly_sent: bool,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (attempts: {})", self.destination, self.attempts)
    }
}

impl Error {
    /// What is known about the call; absent when there was none.
    pub fn call(&self) -> Option<&Failed> {
        match self {
            Error::Invalid(_) => None,
            Error::NotSent { call, .. }
            | Error::PossiblySent { call, .. }
            | Error::BudgetSpent { call, .. }
            | Error::Open { call, .. }
            | Error::Paused { call, .. }
            | Error::Crowded { call }
            | Error::Deadline { call, .. }
            | Error::TooLarge { call, .. }
            | Error::Upload { call }
            | Error::Abandoned { call } => Some(call),
        }
    }

    /// Whether it is certain that no attempt has reached the destination. Then nothing has
    /// happened there, and the request may be sent again freely, also without a key.
    pub fn certainly_not_sent(&self) -> bool {
        self.call().is_none_or(|call| !call.possibly_sent)
    }

    /// The key that the request carried, also one that was generated: use it to send it again.
    pub fn key(&self) -> Option<&str> {
        self.call()?.key.as_deref()
    }

    /// How long to wait before it is sent again, as far as is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Open { retry_after, .. } => *retry_after,
            Error::Paused { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The error of a call that ended in this way.
    pub(super) fn of(
        error: CallError<Lost>,
        call: Failed,
        ended: Option<Ended>,
        within: Duration,
    ) -> Self {
        let source: Cause = match error {
            CallError::Open { retry_after } => return Error::Open { call, retry_after },
            CallError::Throttled { retry_after } => return Error::Paused { call, retry_after },
            CallError::Full => return Error::Crowded { call },
            CallError::Deadline { within } => {
                return Error::Deadline {
                    call,
                    within,
                    source: None,
                };
            }
            CallError::Call(Lost::TooLarge { limit }) => return Error::TooLarge { call, limit },
            // Nothing else gives up a call inside.
            CallError::Call(Lost::Upload) | CallError::Abandoned => return Error::Upload { call },
            CallError::Call(Lost::Broken(source)) => source,
            CallError::Timeout { after } => Arc::new(CallError::<Lost>::Timeout { after }),
            _ => return Error::Abandoned { call },
        };
        match ended {
            Some(Ended::BudgetSpent) => Error::BudgetSpent { call, source },
            Some(Ended::Deadline) => Error::Deadline {
                call,
                within,
                source: Some(source),
            },
            _ if call.possibly_sent => Error::PossiblySent { call, source },
            _ => Error::NotSent { call, source },
        }
    }
}

/// Why one attempt brought no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Lost {
    #[error(transparent)]
    Broken(Cause),
    #[error("the answer has more than {limit} bytes")]
    TooLarge { limit: usize },
    /// Not the fault of the destination.
    #[error("the body of the request could not be read")]
    Upload,
}

/// A request that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Not a URL that can be called.
    #[error("`{0}` is not an address such as https://example.com/pay")]
    Url(String),
    /// A name and a password in the URL.
    #[error("an address must not hold a user name: send an Authorization header")]
    User,
    /// A header that HTTP does not allow, or that is not for callers to set.
    #[error("the header `{0}` cannot be set like this")]
    Header(String),
    /// A key that cannot be sent.
    #[error("`{0}` cannot be a key: {1}")]
    Key(String, &'static str),
    /// There is nothing to derive a key from.
    #[error("there is no guarded request and no task to derive the key of `{0}` from")]
    NoRequest(String),
    /// The content is no JSON.
    #[error("the content cannot be written as JSON: {0}")]
    Json(String),
    /// Limits that cannot be.
    #[error(transparent)]
    Limits(#[from] LimitsError),
}
