//! What an answer of SQS means.
//!
//! # Promise
//! Every answer, and every way of getting none, is one [`Problem`] that says whether anything may
//! have happened and whose fault it is. What was certainly not sent is never called unconfirmed,
//! and what may have been sent is never called unavailable. Error texts are bounded and on one line.

use std::error::Error;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use counterfoil_core::source::SourceError;
use counterfoil_core::{Code, Outcome};

const LONGEST_TEXT: usize = 300;
/// What who is throttled waits at least.
const BREATH: Duration = Duration::from_secs(1);

/// Why a request, or one entry of it, did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Nobody answered, and nothing was sent.
    Unreachable(String),
    /// Sent, and no answer that can be understood: it may have happened.
    Unconfirmed(String),
    /// Credentials, rights, keys, a missing queue: everything would be refused.
    Denied(String),
    /// Not now.
    Throttled { error: String, after: Duration },
    /// The service failed.
    Failed(String),
    /// More than the queue takes.
    TooLarge(String),
    /// The server does not know the operation, or not for this queue.
    Unsupported(String),
    /// The receipt is no longer good: somebody else has the message, or it is gone.
    Stale(String),
    /// Something else is wrong with what was asked.
    Invalid(String),
}

impl Problem {
    /// What it means for a message that was to be sent.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::Unreachable(error) => Outcome::Unavailable { error },
            Self::Unconfirmed(error) => Outcome::retry(Code::UNCONFIRMED, error),
            Self::Denied(error) | Self::Unsupported(error) => Outcome::DestinationRefused {
                code: Code::DESTINATION_REFUSED,
                error,
            },
            Self::Throttled { error, after } => Outcome::Retry {
                code: Code::UPSTREAM_4XX,
                error,
                after: Some(after),
            },
            Self::Failed(error) => Outcome::retry(Code::UPSTREAM_5XX, error),
            Self::TooLarge(error) => Outcome::refused(Code::TOO_LARGE, error),
            Self::Stale(error) | Self::Invalid(error) => {
                Outcome::refused(Code::UPSTREAM_4XX, error)
            }
        }
    }

    /// What it means for who receives.
    pub(crate) fn source_error(self) -> SourceError {
        match self {
            Self::Unreachable(error) | Self::Unconfirmed(error) => SourceError::Unavailable(error),
            Self::Throttled { error, .. } | Self::Failed(error) => SourceError::Unavailable(error),
            Self::Denied(error) => SourceError::Refused(error),
            Self::TooLarge(error)
            | Self::Unsupported(error)
            | Self::Stale(error)
            | Self::Invalid(error) => SourceError::Failed(error.into()),
        }
    }

    /// Whether the same may succeed in a moment.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Failed(_))
    }
}

/// Why a request failed.
pub(crate) fn problem<E>(error: &SdkError<E, HttpResponse>) -> Problem
where
    E: Error + ProvideErrorMetadata + 'static,
{
    match error {
        SdkError::ConstructionFailure(_) => Problem::Denied(words(error)),
        SdkError::DispatchFailure(failure) => match before_sending(error, failure.is_timeout()) {
            Some(problem) => problem,
            None => Problem::Unconfirmed(words(error)),
        },
        SdkError::ServiceError(answer) => {
            let status = answer.raw().status().as_u16();
            let after = answer.raw().headers().get("retry-after");
            let after = after.and_then(|seconds| seconds.trim().parse().ok());
            let said = answer.err().message().unwrap_or_default();
            let code = answer.err().code().unwrap_or_default();
            judge(code, said, Some(status), after.map(Duration::from_secs))
        }
        _ => Problem::Unconfirmed(words(error)),
    }
}

/// Why one entry of a request failed.
pub(crate) fn entry_problem(entry: &BatchResultErrorEntry) -> Problem {
    let status = match entry.sender_fault {
        true => 400,
        false => 500,
    };
    let said = entry.message.as_deref().unwrap_or_default();
    judge(&entry.code, said, Some(status), None)
}

/// Whether it failed before anything was sent. Only connecting has a timeout inside the client, so
/// that a timeout is one of connecting.
fn before_sending(error: &(dyn Error + 'static), timed_out: bool) -> Option<Problem> {
    if let Some(credentials) = find::<CredentialsError>(error) {
        let text = words(error);
        return Some(match credentials {
            CredentialsError::CredentialsNotLoaded(_)
            | CredentialsError::InvalidConfiguration(_) => Problem::Denied(text),
            // The place that gives them out may be back soon.
            _ => Problem::Unreachable(text),
        });
    }
    let connecting =
        find::<hyper_util::client::legacy::Error>(error).is_some_and(|e| e.is_connect());
    (timed_out || connecting).then(|| Problem::Unreachable(words(error)))
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// What a code of the service means. Codes come in two dialects: `QueueDoesNotExist` and
/// `AWS.SimpleQueueService.NonExistentQueue`.
fn judge(code: &str, said: &str, status: Option<u16>, after: Option<Duration>) -> Problem {
    let code = code.rsplit(['.', '#']).next().unwrap_or_default();
    let shown = match code.is_empty() {
        true => format!("status {}", status.unwrap_or_default()),
        false => code.to_owned(),
    };
    let error = one_line(&format!("SQS answered {shown}: {said}"));
    let throttled = |error| Problem::Throttled {
        error,
        after: after.unwrap_or(BREATH),
    };
    match code {
        "QueueDoesNotExist" | "NonExistentQueue" | "QueueDeletedRecently" | "InvalidAddress" => {
            Problem::Denied(error)
        }
        "KmsThrottled"
        | "RequestThrottled"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "RequestLimitExceeded"
        | "RequestThrottledException"
        | "SlowDown"
        | "OverLimit" => throttled(error),
        _ if code.starts_with("Kms") => Problem::Denied(error),
        "AccessDenied"
        | "AccessDeniedException"
        | "InvalidClientTokenId"
        | "InvalidSecurity"
        | "SignatureDoesNotMatch"
        | "UnrecognizedClientException"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "IncompleteSignature"
        | "OptInRequired"
        | "InvalidAccessKeyId"
        | "NotAuthorized"
        | "RequestExpired" => Problem::Denied(error),
        "BatchRequestTooLong" | "MessageTooLong" => Problem::TooLarge(error),
        "ReceiptHandleIsInvalid" | "MessageNotInflight" => Problem::Stale(error),
        "UnsupportedOperation" | "InvalidAction" | "UnknownOperationException" => {
            Problem::Unsupported(error)
        }
        _ if too_long(said) => Problem::TooLarge(error),
        _ => by_status(status, error, throttled),
    }
}

/// A message over the limit has a general code, and words of its own.
fn too_long(said: &str) -> bool {
    said.contains("MessageTooLong") || said.contains("must be shorter than")
}

fn by_status(status: Option<u16>, error: String, throttled: impl Fn(String) -> Problem) -> Problem {
    match status.unwrap_or_default() {
        401 | 403 => Problem::Denied(error),
        429 => throttled(error),
        500..=599 => Problem::Failed(error),
        400..=499 => Problem::Invalid(error),
        _ => Problem::Unconfirmed(error),
    }
}

/// The error and its causes.
fn words(error: &(dyn Error + 'static)) -> String {
    let all = DisplayErrorContext(error).to_string();
    // Behind the causes stands the whole error in the form of the debugger.
    one_line(all.split(" (").next().unwrap_or_default())
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

    fn label(code: &str, said: &str, status: u16) -> &'static str {
        judge(code, said, Some(status), None).outcome().label()
    }

    #[test]
    fn every_code_has_its_outcome() {
        for (code, status, expected) in [
            ("QueueDoesNotExist", 400, "destination-refused"),
            (
                "AWS.SimpleQueueService.NonExistentQueue",
                400,
                "destination-refused",
            ),
            ("AccessDenied", 403, "destination-refused"),
            ("InvalidClientTokenId", 403, "destination-refused"),
            ("SignatureDoesNotMatch", 403, "destination-refused"),
            ("ExpiredToken", 403, "destination-refused"),
            ("KmsDisabled", 400, "destination-refused"),
            ("KmsThrottled", 400, "retry"),
            ("RequestThrottled", 403, "retry"),
            ("ThrottlingException", 400, "retry"),
            ("AWS.SimpleQueueService.BatchRequestTooLong", 400, "refused"),
            ("InvalidMessageContents", 400, "refused"),
            ("InternalError", 500, "retry"),
            ("ServiceUnavailable", 503, "retry"),
            ("", 429, "retry"),
            ("", 403, "destination-refused"),
            ("Whatever", 418, "refused"),
            ("Whatever", 302, "retry"),
        ] {
            assert_eq!(label(code, "", status), expected, "{code} {status}");
        }
    }

    #[test]
    fn who_is_throttled_waits() {
        let asked = judge("Throttling", "", Some(400), Some(Duration::from_secs(7)));
        let plain = judge("Throttling", "", Some(400), None);

        for (problem, seconds) in [(asked, 7), (plain, 1)] {
            let Outcome::Retry { after, .. } = problem.outcome() else {
                panic!("not tried again");
            };
            assert_eq!(after, Some(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn a_message_over_the_limit_is_too_large_whatever_the_code() {
        let said = "Reason: Message must be shorter than 262144 bytes.";
        let problem = judge("InvalidParameterValue", said, Some(400), None);
        assert!(matches!(problem, Problem::TooLarge(_)), "{problem:?}");
    }

    #[test]
    fn a_text_is_short_and_on_one_line() {
        let text = one_line(&format!("a\tb{}", "x".repeat(1_000)));
        assert!(text.starts_with("a bx"));
        assert_eq!(text.chars().count(), LONGEST_TEXT);
    }
}
