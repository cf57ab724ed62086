//! What an answer of Redis means.
//!
//! # Promise
//! Every answer to `XADD` has exactly one outcome, and only the number of an entry is `Stored`. An
//! error that Redis gives for everything is the destination's fault, not the message's. Error texts
//! are bounded and on one line.

use counterfoil_core::source::SourceError;
use counterfoil_core::{Code, Outcome};
use redis::{ErrorKind, RedisError, ServerError, Value};

const LONGEST_TEXT: usize = 300;

/// What came of one `XADD`.
pub(crate) fn answer(value: &Value) -> Outcome {
    match value {
        Value::BulkString(_) | Value::SimpleString(_) => Outcome::Stored,
        Value::ServerError(error) => refusal(error),
        _ => Outcome::retry(
            Code::UNCONFIRMED,
            "Redis answered with something that is no number of an entry",
        ),
    }
}

/// What an error means that Redis gave as its answer. Nothing was stored.
pub(crate) fn refusal(error: &ServerError) -> Outcome {
    let text = words(error);
    let detail = error.details().unwrap_or_default();
    match error.code() {
        // Credentials and rights; a key that is no stream; a node that is not for this key.
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" | "WRONGTYPE" | "MOVED" | "ASK" => {
            Outcome::DestinationRefused {
                code: Code::DESTINATION_REFUSED,
                error: text,
            }
        }
        "ERR" if detail.starts_with("unknown command") => Outcome::DestinationRefused {
            code: Code::DESTINATION_REFUSED,
            error: text,
        },
        // The server's own limit is below ours.
        "ERR" if detail.contains("invalid bulk length") => Outcome::refused(Code::TOO_LARGE, text),
        // LOADING, OOM, READONLY, MASTERDOWN, BUSY, MISCONF, NOREPLICAS, and what a later version
        // or a proxy may say: it failed now, and nothing says that it will for ever.
        _ => Outcome::retry(Code::UPSTREAM_5XX, text),
    }
}

/// What an error means for somebody who receives.
pub(crate) fn failure(error: &RedisError) -> SourceError {
    match error.code() {
        Some(code) => by_code(code, error.detail().unwrap_or_default(), why(error)),
        None if error.kind() == ErrorKind::Parse => SourceError::Failed(why(error).into()),
        None => SourceError::Unavailable(why(error)),
    }
}

/// The same for an error that is one of several answers.
pub(crate) fn refused(error: &ServerError) -> SourceError {
    by_code(
        error.code(),
        error.details().unwrap_or_default(),
        words(error),
    )
}

fn by_code(code: &str, detail: &str, text: String) -> SourceError {
    match code {
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" | "WRONGTYPE" | "MOVED" | "ASK"
        | "CROSSSLOT" => SourceError::Refused(text),
        "ERR" if detail.starts_with("unknown command") => SourceError::Refused(text),
        "LOADING" | "READONLY" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" => {
            SourceError::Unavailable(text)
        }
        // Among them NOGROUP: the stream or the group is gone, and a new subscription makes it.
        _ => SourceError::Failed(text.into()),
    }
}

/// Whether the connection is of no more use. The server became a replica, and the name in the address
/// may stand for another one by now; or it did not understand us, and hangs up.
pub(crate) fn is_over(value: &Value) -> bool {
    let Value::ServerError(error) = value else {
        return false;
    };
    let detail = error.details().unwrap_or_default();
    match error.code() {
        "READONLY" | "MASTERDOWN" => true,
        "ERR" => detail.starts_with("Protocol error"),
        _ => false,
    }
}

/// The error as Redis said it.
fn words(error: &ServerError) -> String {
    let text = match error.details() {
        Some(detail) => format!("Redis answered {}: {detail}", error.code()),
        None => format!("Redis answered {}", error.code()),
    };
    one_line(&text)
}

/// Why there was no answer, in words.
pub(crate) fn why(error: &RedisError) -> String {
    one_line(&error.to_string())
}

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_TEXT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Redis says it.
    fn said(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn every_error_has_its_outcome() {
        for (line, expected) in [
            ("NOAUTH Authentication required.", "destination-refused"),
            (
                "WRONGPASS invalid username-password pair",
                "destination-refused",
            ),
            ("NOPERM this user has no permissions", "destination-refused"),
            ("WRONGTYPE Operation against a key", "destination-refused"),
            ("MOVED 3999 127.0.0.1:6381", "destination-refused"),
            (
                "ERR unknown command 'XADD', with args",
                "destination-refused",
            ),
            ("LOADING Redis is loading the dataset", "retry"),
            ("OOM command not allowed when used memory", "retry"),
            ("READONLY You can't write against a replica", "retry"),
            ("MASTERDOWN Link with MASTER is down", "retry"),
            ("BUSY Redis is busy running a script", "retry"),
            ("MISCONF Redis is configured to save", "retry"),
            ("NOREPLICAS Not enough good replicas", "retry"),
            ("CLUSTERDOWN The cluster is down", "retry"),
            ("ERR something else", "retry"),
            ("WHAT", "retry"),
            ("ERR Protocol error: invalid bulk length", "refused"),
        ] {
            assert_eq!(answer(&said(line)).label(), expected, "{line}");
        }
    }

    #[test]
    fn only_the_number_of_an_entry_is_stored() {
        assert_eq!(answer(&Value::BulkString(b"1-1".to_vec())), Outcome::Stored);
        for odd in [Value::Nil, Value::Int(1), Value::Okay, Value::Array(vec![])] {
            let unknown = answer(&odd);
            assert!(
                matches!(&unknown, Outcome::Retry { code, .. } if *code == Code::UNCONFIRMED),
                "{unknown:?}"
            );
        }
    }

    #[test]
    fn a_connection_that_leads_nowhere_is_left() {
        assert!(is_over(&said("READONLY You can't write")));
        assert!(is_over(&said("MASTERDOWN Link is down")));
        assert!(is_over(&said("ERR Protocol error: invalid bulk length")));
        assert!(!is_over(&said("OOM command not allowed")));
        assert!(!is_over(&said("ERR other")));
        assert!(!is_over(&Value::Nil));
    }

    #[test]
    fn a_text_is_short_and_on_one_line() {
        let Value::ServerError(error) = said(&format!("OOM a\tb{}", "x".repeat(1_000))) else {
            panic!("no error");
        };

        let text = words(&error);

        assert!(text.starts_with("Redis answered OOM: a bx"), "{text}");
        assert_eq!(text.chars().count(), LONGEST_TEXT);
    }
}
