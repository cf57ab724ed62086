//! What can be configured about receiving, and what is refused.
//!
//! # Promise
//! The same as that of `settings`.

use std::fmt;
use std::time::Duration;

use crate::access::{Access, Given, access_settings};
use crate::settings::{Create, SettingsError, name, timeouts};
use crate::subject::{self, Subjects};

const TIMEOUT: Duration = Duration::from_secs(10);
const ACK_WAIT: Duration = Duration::from_secs(30);
const SHORTEST_ACK_WAIT: Duration = Duration::from_secs(1);
const LONGEST_ACK_WAIT: Duration = Duration::from_secs(3_600);
const MAX_IN_FLIGHT: usize = 1_000;
const LARGEST_IN_FLIGHT: usize = 10_000;

/// The settings of one source.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | as in [`Settings`](crate::Settings) |
/// | `subject` | | that of the destination |
/// | `group`, whose members share the messages | | up to 64 characters, no dots |
/// | `partitions` | 1 | that of the destination |
/// | `password`, `token`, `nkey`, `credentials_file` | that of the URL, or none | one of them |
/// | `ca_file`, `client_certificate`, `require_tls` | authorities of the system, none, as the server wants | |
/// | `create`, make streams when they are missing | no: it is an error | |
/// | `dead_letters`, the subject of what cannot pass | `SUBJECT.DLQ` | |
/// | `ack_wait`, after which a silent member is replaced | 30 s | 1 s to 1 h |
/// | `max_in_flight`, messages of a partition that are out | 1,000 | 1 to 10,000 |
/// | `timeout` of each question to the server | 10 s | above 0, up to 10 min |
/// | `connect_timeout` | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
///
/// ```no_run
/// use counterfoil_nats::{NatsSource, SourceSettings};
///
/// let settings = SourceSettings::new("nats://nats.internal", "shop.orders", "stock").partitions(8);
/// let source = NatsSource::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct SourceSettings {
    access: Given,
    subject: String,
    group: String,
    partitions: u16,
    create: Option<Create>,
    dead_letters: Option<String>,
    ack_wait: Duration,
    max_in_flight: usize,
    timeout: Duration,
    connect_timeout: Option<Duration>,
}

impl SourceSettings {
    /// Messages come from this subject of the NATS at this URL, to members of this group.
    pub fn new(
        url: impl Into<String>,
        subject: impl Into<String>,
        group: impl Into<String>,
    ) -> Self {
        Self {
            access: Given {
                url: url.into(),
                ..Given::default()
            },
            subject: subject.into(),
            group: group.into(),
            partitions: 1,
            create: None,
            dead_letters: None,
            ack_wait: ACK_WAIT,
            max_in_flight: MAX_IN_FLIGHT,
            timeout: TIMEOUT,
            connect_timeout: None,
        }
    }

    access_settings!();

    /// As many as the destination has.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions;
        self
    }

    /// Makes the stream when no stream takes the subject, and one for dead letters when they need it.
    pub fn create(mut self, how: Create) -> Self {
        self.create = Some(how);
        self
    }

    /// What cannot pass goes to this subject.
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = Some(subject.into());
        self
    }

    /// A member that is silent for so long is replaced, and what it had is handed out again.
    pub fn ack_wait(mut self, time: Duration) -> Self {
        self.ack_wait = time;
        self
    }

    /// The most messages of a partition that were handed out and are not settled. Those that were
    /// released with a delay count until they are settled.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// A question without an answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Finding the address, connecting and logging in together end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<CheckedSource, SettingsError> {
        let access = self.access.check()?;
        let subjects = Subjects::parse(&self.subject, self.partitions)?;
        name("group", &self.group)?;
        let dead = self
            .dead_letters
            .unwrap_or_else(|| format!("{}.DLQ", self.subject));
        subject::check(&dead)?;
        if !(SHORTEST_ACK_WAIT..=LONGEST_ACK_WAIT).contains(&self.ack_wait) {
            return Err(SettingsError::AckWait(self.ack_wait));
        }
        if !(1..=LARGEST_IN_FLIGHT).contains(&self.max_in_flight) {
            return Err(SettingsError::MaxInFlight(self.max_in_flight));
        }
        Ok(CheckedSource {
            access,
            subjects,
            group: self.group,
            create: self.create.map(Create::check).transpose()?,
            dead,
            ack_wait: self.ack_wait,
            max_in_flight: self.max_in_flight,
            connect_timeout: timeouts(self.timeout, self.connect_timeout)?,
            timeout: self.timeout,
        })
    }
}

impl fmt::Debug for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSettings")
            .field("server", &self.access.shown())
            .field("subject", &self.subject)
            .field("group", &self.group)
            .field("partitions", &self.partitions)
            .field("create", &self.create)
            .field("dead_letters", &self.dead_letters)
            .field("ack_wait", &self.ack_wait)
            .field("max_in_flight", &self.max_in_flight)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// Settings in which nothing is wrong.
#[derive(Clone)]
pub(crate) struct CheckedSource {
    pub(crate) access: Access,
    pub(crate) subjects: Subjects,
    pub(crate) group: String,
    pub(crate) create: Option<Create>,
    pub(crate) dead: String,
    pub(crate) ack_wait: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl CheckedSource {
    /// The name of the consumer of a partition.
    pub(crate) fn consumer(&self, partition: u16) -> String {
        match self.subjects.partitions() {
            1 => self.group.clone(),
            _ => format!("{}-{partition}", self.group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> SourceSettings {
        SourceSettings::new("nats://127.0.0.1", "shop.orders", "stock")
    }

    fn refused(settings: SourceSettings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.dead, "shop.orders.DLQ");
        assert_eq!(checked.ack_wait, Duration::from_secs(30));
        assert_eq!(checked.max_in_flight, 1_000);
        assert_eq!(checked.timeout, Duration::from_secs(10));
        assert_eq!(checked.consumer(0), "stock");
        assert_eq!(
            plain().partitions(2).check().unwrap().consumer(1),
            "stock-1"
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for wrong in ["", "a.b", "a b", "*", "a/b", &"x".repeat(65)] {
            let settings = SourceSettings::new("nats://h", "s", wrong);
            assert_eq!(refused(settings), SettingsError::Name("group"), "{wrong}");
        }
        for wrong in [Duration::from_millis(999), Duration::from_secs(3_601)] {
            let settings = plain().ack_wait(wrong);
            assert_eq!(refused(settings), SettingsError::AckWait(wrong));
        }
        for wrong in [0, 10_001] {
            let settings = plain().max_in_flight(wrong);
            assert_eq!(refused(settings), SettingsError::MaxInFlight(wrong));
        }
        let dead = refused(plain().dead_letters("a.>"));
        assert!(matches!(dead, SettingsError::Subject(_)));
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?}", plain().token("hunter2"));

        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
