//! What an answer of RabbitMQ, or none, means.
//!
//! # Promise
//! An error that RabbitMQ gives for everything is the destination's fault, not the message's. What
//! nobody answered is never called refused. Error texts are bounded and on one line.

use counterfoil_core::source::SourceError;
use counterfoil_core::{Code, Outcome};
use lapin::{Error, ErrorKind};

const LONGEST_TEXT: usize = 300;

/// Why something did not work before anything of a message was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody answers.
    Unavailable(String),
    /// RabbitMQ answered, and does not want us: credentials, rights, something that is not there.
    Refused(String),
}

impl Failure {
    /// Of a connection, a channel or a declaration.
    pub(crate) fn of(error: &Error) -> Self {
        match answer(error) {
            Some(said) if said.is_refusal() => Failure::Refused(said.text),
            Some(said) => Failure::Unavailable(said.text),
            None => Failure::Unavailable(why(error)),
        }
    }

    /// The outcome of every message that was to be sent.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Failure::Unavailable(error) => Outcome::Unavailable { error },
            Failure::Refused(error) => Outcome::DestinationRefused {
                code: Code::DESTINATION_REFUSED,
                error,
            },
        }
    }
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unavailable(error) => SourceError::Unavailable(error),
            Failure::Refused(error) => SourceError::Refused(error),
        }
    }
}

/// What RabbitMQ said when it closed a channel or the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: u16,
    pub(crate) text: String,
}

/// Access refused, not found, locked, precondition failed; the virtual host is not for us.
const REFUSALS: [u16; 5] = [403, 404, 405, 406, 530];

impl Said {
    fn is_refusal(&self) -> bool {
        REFUSALS.contains(&self.code)
    }

    /// The server's own limit for a message, if it closed the channel for that.
    pub(crate) fn largest(&self) -> Option<usize> {
        let (_, limit) = self.text.split_once("larger than configured max size ")?;
        let digits: String = limit.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    /// What becomes of a message that was under way when the channel closed.
    pub(crate) fn outcome(self) -> Outcome {
        match self.code {
            403 | 404 | 530 => Failure::Refused(self.text).outcome(),
            _ => Outcome::retry(Code::UNCONFIRMED, self.text),
        }
    }
}

/// What RabbitMQ said, if it said something.
pub(crate) fn answer(error: &Error) -> Option<Said> {
    let ErrorKind::ProtocolError(said) = error.kind() else {
        return None;
    };
    Some(Said {
        code: said.get_id(),
        text: one_line(&format!("RabbitMQ answered {}", said.get_message())),
    })
}

/// Why there was no answer, in words.
pub(crate) fn why(error: &Error) -> String {
    one_line(&error.to_string())
}

pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_TEXT)
        .collect()
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn said(code: u16, text: &str) -> Error {
        let error = AMQPError::from_id(code, text.into()).unwrap();
        ErrorKind::ProtocolError(error).into()
    }

    #[test]
    fn credentials_rights_and_missing_things_are_refusals() {
        for code in [403, 404, 405, 406, 530] {
            let failure = Failure::of(&said(code, "NO"));
            assert!(matches!(failure, Failure::Refused(_)), "{code}");
        }
    }

    #[test]
    fn a_server_in_trouble_and_nobody_at_all_are_unavailable() {
        for code in [320, 506, 541] {
            let failure = Failure::of(&said(code, "NO"));
            assert!(matches!(failure, Failure::Unavailable(_)), "{code}");
        }
        let silent = Error::from(ErrorKind::MissingHeartbeatError);
        assert!(matches!(Failure::of(&silent), Failure::Unavailable(_)));
    }

    #[test]
    fn a_closed_channel_blames_the_destination_only_if_it_is_its_fault() {
        let label = |code| answer(&said(code, "NO")).unwrap().outcome().label();
        assert_eq!(label(404), "destination-refused");
        assert_eq!(label(403), "destination-refused");
        assert_eq!(label(406), "retry");
        assert_eq!(label(541), "retry");
    }

    #[test]
    fn the_servers_limit_is_read_from_its_words() {
        let text = "PRECONDITION_FAILED - message size 200 is larger than configured max size 100";
        assert_eq!(answer(&said(406, text)).unwrap().largest(), Some(100));
        assert_eq!(answer(&said(406, "other")).unwrap().largest(), None);
    }

    #[test]
    fn a_text_is_short_and_on_one_line() {
        let text = one_line(&format!("a\r\nb{}", "x".repeat(1_000)));
        assert!(text.starts_with("a  bx"));
        assert_eq!(text.len(), LONGEST_TEXT);
    }
}
