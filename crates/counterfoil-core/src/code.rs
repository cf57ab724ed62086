//! Codes: the short, stable words under which operators find a reason.
//!
//! Every code of ours has a page in `docs/errors/`, and a test holds the two lists together.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a delivery failed, in one word that can be counted, filtered and looked up.
///
/// Handlers may use words of their own; ours are the constants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(Cow<'static, str>);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code(Cow::Borrowed(stringify!($name)));)*
            /// Every code that Counterfoil itself gives.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];
        }
    };
}

codes! {
    /// The row or its content cannot be understood: wrong JSON, wrong id, undecodable content.
    VALIDATION_ERROR,
    /// An older version came after a newer one.
    VERSION_CONFLICT,
    /// A version came, and the one before it has not.
    VERSION_GAP,
    /// The broker had given up on the message: it comes from its dead letters.
    DEAD_LETTER,
    /// A dead letter that is older than what recognises repeats.
    DEDUP_EXPIRED,
    /// The destination answered that it will never take this message.
    UPSTREAM_4XX,
    /// The destination answered that it failed.
    UPSTREAM_5XX,
    /// The destination answered with a redirect, which is never followed.
    UPSTREAM_REDIRECT,
    /// No answer in time: the message may have been stored.
    TIMEOUT,
    /// The connection broke after the message was sent: it may have been stored.
    UNCONFIRMED,
    /// Nobody answered: the message was certainly not stored.
    UNAVAILABLE,
    /// The destination refuses everything: wrong credentials, wrong address.
    DESTINATION_REFUSED,
    /// The destination's address is private and private addresses are not allowed.
    ADDRESS_REFUSED,
    /// The message is larger than the destination takes.
    TOO_LARGE,
    /// No handler of the consumer wants events of this type.
    UNKNOWN_TYPE,
    /// A task handler answered that it failed.
    TASK_FAILED,
    /// A task handler ended with an error.
    TASK_ERROR,
    /// A task handler or a destination panicked.
    PANIC,
    /// A task handler asked to park the message at once.
    PARKED_BY_HANDLER,
    /// The process died several times while it delivered this message.
    CRASH_SUSPECT,
    /// The database refused for good to store what came of the delivery.
    STORE_REFUSED,
    /// No route matches the event type: the message waits and is looked at again.
    NO_ROUTE,
    /// The retries of its destination are used up for the moment: the message waits.
    RETRY_BUDGET,
}

impl Code {
    /// A code of the application's own. Anything but ASCII letters, digits, `_` and `-` becomes `_`.
    pub fn custom(word: &str) -> Code {
        let clean: String = word
            .chars()
            .take(64)
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '-' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        match Code::ALL.iter().find(|c| c.as_str() == clean) {
            Some(known) => known.clone(),
            None if clean.is_empty() => Code::TASK_ERROR,
            None => Code(Cow::Owned(clean)),
        }
    }

    /// Whether a message that is parked for this leaves the others of its aggregate alone: they have
    /// passed it already, or do not look at it.
    pub fn holds_nobody(&self) -> bool {
        [
            Code::VERSION_CONFLICT,
            Code::DEAD_LETTER,
            Code::DEDUP_EXPIRED,
        ]
        .contains(self)
    }

    /// The word itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_code_cannot_smuggle_odd_characters() {
        assert_eq!(Code::custom("card declined\n").as_str(), "card_declined_");
        assert_eq!(Code::custom("TIMEOUT"), Code::TIMEOUT);
        assert_eq!(Code::custom(""), Code::TASK_ERROR);
    }

    #[test]
    fn every_code_has_a_page() {
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        for code in Code::ALL {
            let page = std::path::Path::new(pages).join(format!("{code}.md"));
            assert!(page.is_file(), "docs/errors/{code}.md is missing");
        }
    }
}
