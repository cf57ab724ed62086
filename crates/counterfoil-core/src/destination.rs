//! Where deliveries go, and what may come back.
//!
//! # Promise
//! A destination answers for every message that it was given, and says for each whether it is
//! stored, may be stored, or can never be. The relay marks nothing before that answer.

use std::time::Duration;

use async_trait::async_trait;

use crate::code::Code;
use crate::error_text;
use crate::policy::Backoff;
use crate::row::Delivery;

/// What came of offering one message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Durably stored, or done. The message is settled.
    Stored,
    /// Failed, or perhaps stored: offer it again under the same id.
    Retry {
        /// Why.
        code: Code,
        /// The last error in words.
        error: String,
        /// Not before this much time has passed, as the destination asked.
        after: Option<Duration>,
    },
    /// Nobody answered and nothing was stored. Attempts are not used up.
    Unavailable {
        /// The last error in words.
        error: String,
    },
    /// The destination is there, and what this one message needs is not. It waits by itself, others
    /// go on. Attempts are not used up while the relay has patience with the message.
    Postponed {
        /// Why.
        code: Code,
        /// The last error in words.
        error: String,
    },
    /// The destination refuses everything (credentials, address). After several aggregates its
    /// breaker opens, and it is probed, instead of parking thousands.
    DestinationRefused {
        /// Why.
        code: Code,
        /// The answer in words.
        error: String,
    },
    /// Can never pass: park it now.
    Refused {
        /// Why.
        code: Code,
        /// The answer in words.
        error: String,
        /// A redrive needs a person's confirmation.
        confirm: bool,
    },
}

impl Outcome {
    /// Failed, offered again after the usual backoff.
    pub fn retry(code: Code, error: impl Into<String>) -> Self {
        Outcome::Retry {
            code,
            error: error.into(),
            after: None,
        }
    }

    /// Can never pass.
    pub fn refused(code: Code, error: impl Into<String>) -> Self {
        Outcome::Refused {
            code,
            error: error.into(),
            confirm: false,
        }
    }

    /// What went wrong: a code and words.
    pub fn error(&self) -> Option<String> {
        match self {
            Outcome::Stored => None,
            Outcome::Unavailable { error } => Some(format!("{}: {error}", Code::UNAVAILABLE)),
            Outcome::Retry { code, error, .. }
            | Outcome::Postponed { code, error }
            | Outcome::DestinationRefused { code, error }
            | Outcome::Refused { code, error, .. } => Some(format!("{code}: {error}")),
        }
    }

    /// The same with an error that is not too long to be stored.
    pub fn bounded(mut self) -> Self {
        if let Outcome::Retry { error, .. }
        | Outcome::Unavailable { error }
        | Outcome::Postponed { error, .. }
        | Outcome::DestinationRefused { error, .. }
        | Outcome::Refused { error, .. } = &mut self
        {
            *error = error_text::bounded(std::mem::take(error));
        }
        self
    }

    /// The label under which it is counted.
    pub fn label(&self) -> &'static str {
        match self {
            Outcome::Stored => "stored",
            Outcome::Retry { .. } => "retry",
            Outcome::Unavailable { .. } => "unavailable",
            Outcome::Postponed { .. } => "postponed",
            Outcome::DestinationRefused { .. } => "destination-refused",
            Outcome::Refused { .. } => "refused",
        }
    }
}

/// What a destination declares about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The most messages in one call of `publish`.
    pub max_batch: usize,
    /// The most calls of `publish` at one time.
    pub concurrency: usize,
    /// One call is cut off after this time; absent means that the destination bounds itself.
    pub timeout: Option<Duration>,
}

impl Capabilities {
    /// One message a call, `concurrency` calls at a time.
    pub const fn single(concurrency: usize, timeout: Option<Duration>) -> Self {
        Self {
            max_batch: 1,
            concurrency,
            timeout,
        }
    }
}

/// A place that messages of a queue are delivered to.
#[async_trait]
pub trait Destination: Send + Sync + 'static {
    /// A short text for people, for example `webhook https://example.com/hook`.
    fn describe(&self) -> String;

    /// What this destination can do.
    fn capabilities(&self) -> Capabilities;

    /// When its messages are tried again, unless told otherwise.
    fn backoff(&self) -> Backoff {
        Backoff::DEFAULT
    }

    /// Offers a batch; answers one outcome per message, in the order of the batch.
    ///
    /// When fewer outcomes come back than messages went in, the rest counts as unconfirmed.
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome>;
}
