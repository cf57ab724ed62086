//! What an error of the client or the broker means.
//!
//! # Promise
//! Every error has exactly one meaning. What was perhaps written is never called unavailable, and
//! what was certainly not written is never called unconfirmed. An error that stands for everything
//! is the destination's fault, not the message's. Error texts are bounded and on one line.

use counterfoil_core::source::SourceError;
use counterfoil_core::{Code, Outcome};
use krafka::error::ErrorCode;
use krafka::{KrafkaError, ProtocolErrorKind};

const LONGEST_TEXT: usize = 300;

/// What an error means that came before the record was handed over: it is not written.
pub(crate) fn before(error: &KrafkaError) -> Outcome {
    if let Some(outcome) = answer(error) {
        return outcome;
    }
    Outcome::Unavailable { error: why(error) }
}

/// What an error means that came instead of the confirmation.
pub(crate) fn after(error: &KrafkaError) -> Outcome {
    if let Some(outcome) = answer(error) {
        return outcome;
    }
    match error {
        KrafkaError::DeliveryTimeout {
            possibly_written: false,
            ..
        } => Outcome::Unavailable { error: why(error) },
        _ => Outcome::retry(Code::UNCONFIRMED, why(error)),
    }
}

/// What somebody said who knows that nothing was written.
fn answer(error: &KrafkaError) -> Option<Outcome> {
    Some(match error {
        error if is_refusal(error) => Outcome::DestinationRefused {
            code: Code::DESTINATION_REFUSED,
            error: why(error),
        },
        KrafkaError::Broker { code, .. } => match code {
            ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => {
                Outcome::refused(Code::TOO_LARGE, why(error))
            }
            ErrorCode::InvalidTimestamp | ErrorCode::InvalidRecord => {
                Outcome::refused(Code::VALIDATION_ERROR, why(error))
            }
            // Written by the leader, and not by enough others.
            ErrorCode::NotEnoughReplicasAfterAppend
            | ErrorCode::RequestTimedOut
            | ErrorCode::NetworkException
            | ErrorCode::UnknownServerError => return None,
            _ => Outcome::retry(Code::UPSTREAM_5XX, why(error)),
        },
        // Larger than one request may be.
        KrafkaError::Config { .. } => Outcome::refused(Code::TOO_LARGE, why(error)),
        _ => return None,
    })
}

/// Credentials, rights, a missing topic, a broker that does not know the protocol.
fn is_refusal(error: &KrafkaError) -> bool {
    match error {
        KrafkaError::Auth { .. } | KrafkaError::UnknownTopic { .. } => true,
        KrafkaError::Protocol { kind, .. } => *kind == ProtocolErrorKind::UnknownApiVersion,
        KrafkaError::Broker { code, .. } => matches!(
            code,
            ErrorCode::UnknownTopicOrPartition
                | ErrorCode::InvalidTopic
                | ErrorCode::TopicAuthorizationFailed
                | ErrorCode::GroupAuthorizationFailed
                | ErrorCode::ClusterAuthorizationFailed
                | ErrorCode::TransactionalIdAuthorizationFailed
                | ErrorCode::SaslAuthenticationFailed
                | ErrorCode::UnsupportedSaslMechanism
                | ErrorCode::IllegalSaslState
                | ErrorCode::InvalidRequiredAcks
                | ErrorCode::InvalidGroupId
                | ErrorCode::PolicyViolation
                | ErrorCode::UnsupportedVersion
                | ErrorCode::UnsupportedForMessageFormat
        ),
        _ => false,
    }
}

/// Whether the client is of no more use.
pub(crate) fn is_over(error: &KrafkaError) -> bool {
    error.is_fatal() || matches!(error, KrafkaError::IllegalState { .. })
}

/// Whether the group is changing its members, and the same may go well in a moment.
pub(crate) fn is_rebalance(error: &KrafkaError) -> bool {
    match error {
        KrafkaError::IllegalState { .. } => true,
        KrafkaError::Broker { code, .. } => matches!(
            code,
            ErrorCode::RebalanceInProgress
                | ErrorCode::IllegalGeneration
                | ErrorCode::UnknownMemberId
                | ErrorCode::FencedMemberEpoch
                | ErrorCode::StaleMemberEpoch
        ),
        _ => false,
    }
}

/// Whether the broker does not know the newer way of forming groups.
pub(crate) fn is_old_broker(error: &KrafkaError) -> bool {
    match error {
        KrafkaError::Protocol { kind, .. } => *kind == ProtocolErrorKind::UnknownApiVersion,
        KrafkaError::Broker { code, .. } => *code == ErrorCode::UnsupportedVersion,
        _ => false,
    }
}

/// What an error means to somebody who receives.
pub(crate) fn received(error: KrafkaError) -> SourceError {
    match &error {
        error if is_refusal(error) => SourceError::Refused(why(error)),
        KrafkaError::Network(_)
        | KrafkaError::Timeout { .. }
        | KrafkaError::DeliveryTimeout { .. }
        | KrafkaError::Closed { .. } => SourceError::Unavailable(why(&error)),
        KrafkaError::Broker { code, .. } if code.is_retriable() => {
            SourceError::Unavailable(why(&error))
        }
        _ => SourceError::Failed(Box::new(error)),
    }
}

/// The error in words.
pub(crate) fn why(error: &KrafkaError) -> String {
    let text = match error {
        KrafkaError::Broker { code, message } => format!("Kafka answered {code:?}: {message}"),
        other => other.to_string(),
    };
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_TEXT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(code: ErrorCode) -> KrafkaError {
        KrafkaError::broker(code, "said so")
    }

    #[test]
    fn every_answer_has_its_outcome() {
        for (code, expected) in [
            (ErrorCode::UnknownTopicOrPartition, "destination-refused"),
            (ErrorCode::TopicAuthorizationFailed, "destination-refused"),
            (ErrorCode::ClusterAuthorizationFailed, "destination-refused"),
            (ErrorCode::SaslAuthenticationFailed, "destination-refused"),
            (ErrorCode::MessageTooLarge, "refused"),
            (ErrorCode::RecordListTooLarge, "refused"),
            (ErrorCode::InvalidRecord, "refused"),
            (ErrorCode::NotEnoughReplicas, "retry"),
            (ErrorCode::KafkaStorageException, "retry"),
            (ErrorCode::OutOfOrderSequenceNumber, "retry"),
        ] {
            assert_eq!(after(&broker(code)).label(), expected, "{code:?}");
            assert_eq!(before(&broker(code)).label(), expected, "{code:?}");
        }
        let login = KrafkaError::auth("no");
        assert_eq!(after(&login).label(), "destination-refused");
        assert_eq!(
            before(&KrafkaError::unknown_topic("t")).label(),
            "destination-refused"
        );
    }

    #[test]
    fn what_is_perhaps_written_is_unconfirmed_and_what_is_not_is_unavailable() {
        let unconfirmed = |outcome: &Outcome| matches!(outcome, Outcome::Retry { code, .. } if *code == Code::UNCONFIRMED);
        let gone = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        for doubtful in [
            KrafkaError::delivery_timeout(true, "late"),
            KrafkaError::network(gone()),
            KrafkaError::timeout("produce"),
            KrafkaError::closed("over"),
            broker(ErrorCode::NotEnoughReplicasAfterAppend),
            broker(ErrorCode::RequestTimedOut),
        ] {
            let outcome = after(&doubtful);
            assert!(unconfirmed(&outcome), "{doubtful:?}: {outcome:?}");
        }
        let never = KrafkaError::delivery_timeout(false, "late");
        assert_eq!(after(&never).label(), "unavailable");
        assert_eq!(before(&KrafkaError::network(gone())).label(), "unavailable");
        assert_eq!(
            before(&KrafkaError::timeout("connect")).label(),
            "unavailable"
        );
    }

    #[test]
    fn who_receives_learns_what_helps() {
        let refused = received(broker(ErrorCode::GroupAuthorizationFailed));
        assert!(matches!(refused, SourceError::Refused(_)));
        let gone = received(KrafkaError::timeout("fetch"));
        assert!(matches!(gone, SourceError::Unavailable(_)));
        let odd = received(KrafkaError::compression("broken"));
        assert!(matches!(odd, SourceError::Failed(_)));
    }

    #[test]
    fn a_text_is_short_and_on_one_line() {
        let long = format!("a\r\nb{}", "x".repeat(1_000));

        let text = why(&KrafkaError::broker(ErrorCode::MessageTooLarge, long));

        assert!(
            text.starts_with("Kafka answered MessageTooLarge: a  bx"),
            "{text}"
        );
        assert_eq!(text.chars().count(), LONGEST_TEXT);
    }
}
