//! What can be configured about a topic, and what is refused.
//!
//! # Promise
//! Every mistake that can be seen without the network is found when the destination or the source
//! is built, with an error that says what to change. Neither the settings nor their errors show a
//! password.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use counterfoil_core::envelope::{Source, SourceError};

use crate::access::{Access, Given, Mechanism};
use crate::topic::TopicName;

mod receiving;

pub(crate) use receiving::CheckedSource;
pub use receiving::SourceSettings;

const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_BATCH: usize = 500;
const LARGEST_BATCH: usize = 10_000;
/// A broker with default settings takes 1,048,588 bytes, headers included.
pub(crate) const MAX_PAYLOAD: usize = 1_000_000;
const LARGEST_PAYLOAD: usize = 64 * 1024 * 1024;

/// The settings of one destination.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | `kafka://[user[:password]@]host[:port][,host[:port]…]`; `kafkas://` with TLS |
/// | `topic`, may hold `{aggregate-type}` and `{event-type}` | | letters, digits, `.`, `_`, `-` |
/// | `password` | that of the URL, or none | not in both places |
/// | `mechanism` for user and password | PLAIN | PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 |
/// | `ca_file`, whom to trust | the public roots | PEM; only with `kafkas://` |
/// | `source`, where messages say that they come from | `counterfoil` | a URI reference |
/// | `timeout` of a whole batch, connecting included | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP and login | 3 s, or a quarter of `timeout` if that is less | above 0, up to half of `timeout` |
/// | `max_batch`, messages in one call | 500 | 1 to 10,000 |
/// | `max_payload`, larger ones are parked | 1,000,000 bytes | 1 byte to 64 MiB |
///
/// ```no_run
/// use std::time::Duration;
/// use counterfoil_kafka::{Kafka, Mechanism, Settings};
///
/// let settings = Settings::new("kafkas://relay@one.example.com,two.example.com", "orders")
///     .password(std::env::var("KAFKA_PASSWORD")?)
///     .mechanism(Mechanism::ScramSha512)
///     .timeout(Duration::from_secs(5));
/// let destination = Kafka::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Settings {
    given: Given,
    topic: String,
    source: Option<String>,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    max_batch: usize,
    max_payload: usize,
}

impl Settings {
    /// Messages go to this topic of the Kafka at this URL.
    pub fn new(url: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            given: Given::new(url),
            topic: topic.into(),
            source: None,
            timeout: TIMEOUT,
            connect_timeout: None,
            max_batch: MAX_BATCH,
            max_payload: MAX_PAYLOAD,
        }
    }

    /// Logs in with this password, as the user of the URL.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.given.password = Some(password.into());
        self
    }

    /// How the password is shown to the broker.
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.given.mechanism = mechanism;
        self
    }

    /// Trusts these certificates, and no others.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.given.ca_file = Some(file.into());
        self
    }

    /// Where messages say that they come from.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A batch without an answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connecting to one server and logging in end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The most messages in one call.
    pub fn max_batch(mut self, messages: usize) -> Self {
        self.max_batch = messages;
        self
    }

    /// Larger payloads are refused before they are sent. What the broker finds too large it refuses
    /// itself.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Finds every mistake.
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let times = times(self.timeout, self.connect_timeout)?;
        if !(1..=LARGEST_BATCH).contains(&self.max_batch) {
            return Err(SettingsError::MaxBatch(self.max_batch));
        }
        if !(1..=LARGEST_PAYLOAD).contains(&self.max_payload) {
            return Err(SettingsError::MaxPayload(self.max_payload));
        }
        Ok(Checked {
            access: self.given.check()?,
            topic: TopicName::parse(&self.topic)?,
            source: self
                .source
                .map(Source::new)
                .transpose()?
                .unwrap_or_default(),
            times,
            max_batch: self.max_batch,
            max_payload: self.max_payload,
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("servers", &self.given.shown())
            .field("topic", &self.topic)
            .field("password", &self.given.password.is_some())
            .field("mechanism", &self.given.mechanism)
            .field("ca_file", &self.given.ca_file)
            .field("source", &self.source)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_batch", &self.max_batch)
            .field("max_payload", &self.max_payload)
            .finish()
    }
}

/// Settings of a destination in which nothing is wrong.
pub(crate) struct Checked {
    pub(crate) access: Access,
    pub(crate) topic: TopicName,
    pub(crate) source: Source,
    pub(crate) times: Times,
    pub(crate) max_batch: usize,
    pub(crate) max_payload: usize,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// All of it.
    pub(crate) whole: Duration,
    /// Connecting to one server.
    pub(crate) connect: Duration,
    /// One question to a server: short enough for a second try.
    pub(crate) request: Duration,
}

fn times(whole: Duration, connect: Option<Duration>) -> Result<Times, SettingsError> {
    if whole.is_zero() || whole > LONGEST_TIMEOUT {
        return Err(SettingsError::Timeout(whole));
    }
    let connect = connect.unwrap_or_else(|| CONNECT_TIMEOUT.min(whole / 4));
    if connect.is_zero() || connect > whole / 2 {
        return Err(SettingsError::ConnectTimeout(connect));
    }
    Ok(Times {
        whole,
        connect,
        request: connect.max(whole * 2 / 5),
    })
}

/// Why a destination or a source cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The URL cannot be read.
    #[error("the URL of Kafka is not usable: {0}")]
    Url(String),
    /// The URL is of another kind.
    #[error("the URL of Kafka begins with kafka:// or, with TLS, kafkas://, not {0}:")]
    Scheme(String),
    /// There is a password in the URL and beside it.
    #[error("there is a password in the URL and another one beside it: choose one")]
    TwoPasswords,
    /// The password has no characters.
    #[error("the password is empty; leave user and password out if none is wanted")]
    EmptyPassword,
    /// There is a user without a password.
    #[error("the URL of Kafka names a user and there is no password")]
    NoPassword,
    /// There is a password without a user.
    #[error("there is a password and the URL of Kafka names no user")]
    NoUser,
    /// Certificates are of no use without TLS.
    #[error("a file of certificates is given and the URL is not kafkas://")]
    CaWithoutTls,
    /// The file with certificates cannot be used.
    #[error("the file of certificates is not usable: {0}")]
    CaFile(String),
    /// The name of the topic cannot be used.
    #[error("the name of the topic {0}")]
    Topic(String),
    /// The group has no name.
    #[error("the name of the group is empty")]
    Group,
    /// The source of the envelope cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The timeout is out of bounds.
    #[error("the timeout is above 0 and up to 10 minutes, not {0:?}")]
    Timeout(Duration),
    /// The connect timeout is out of bounds.
    #[error("the connect timeout is above 0 and up to half of the timeout, not {0:?}")]
    ConnectTimeout(Duration),
    /// The batch is out of bounds.
    #[error("a batch has 1 to 10000 messages, not {0}")]
    MaxBatch(usize),
    /// The largest payload is out of bounds.
    #[error("the largest payload is 1 byte to 64 MiB, not {0} bytes")]
    MaxPayload(usize),
    /// What is kept in memory is out of bounds.
    #[error("1 to 100000 messages are kept in memory, not {0}")]
    Prefetch(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Settings {
        Settings::new("kafka://127.0.0.1", "orders")
    }

    fn source() -> SourceSettings {
        SourceSettings::new("kafka://127.0.0.1", "orders", "stock")
    }

    fn refused(settings: Settings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.access.servers, "127.0.0.1:9092");
        assert_eq!(checked.times.whole, Duration::from_secs(10));
        assert_eq!(checked.times.connect, Duration::from_millis(2_500));
        assert_eq!(checked.max_batch, 500);
        assert_eq!(checked.max_payload, 1_000_000);
        assert_eq!(checked.source.as_str(), "counterfoil");
        assert_eq!(source().check().unwrap().prefetch, 1_000);
        let long = plain().timeout(Duration::from_secs(60)).check().unwrap();
        assert_eq!(long.times.connect, Duration::from_secs(3));
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let s = Duration::from_secs;
        for odd in [s(0), s(601)] {
            assert_eq!(refused(plain().timeout(odd)), SettingsError::Timeout(odd));
        }
        for odd in [s(0), s(6)] {
            let connect = plain().connect_timeout(odd);
            assert_eq!(refused(connect), SettingsError::ConnectTimeout(odd));
        }
        for n in [0, 10_001] {
            assert_eq!(refused(plain().max_batch(n)), SettingsError::MaxBatch(n));
        }
        for n in [0, LARGEST_PAYLOAD + 1] {
            let payload = plain().max_payload(n);
            assert_eq!(refused(payload), SettingsError::MaxPayload(n));
        }
        for n in [0, 100_001] {
            let error = source().prefetch(n).check().err().unwrap();
            assert_eq!(error, SettingsError::Prefetch(n));
        }
        let odd = refused(plain().source("a b"));
        assert!(matches!(odd, SettingsError::Source(_)));
    }

    #[test]
    fn a_source_has_a_group_and_one_topic() {
        let of = |topic: &str, group: &str| SourceSettings::new("kafka://h", topic, group).check();

        assert_eq!(of("orders", "").err(), Some(SettingsError::Group));
        for wrong in ["", "a b", "{event-type}", ".."] {
            let error = of(wrong, "stock").err();
            assert!(matches!(error, Some(SettingsError::Topic(_))), "{wrong}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        let url = "kafka://u:hunter2@h";
        let beside = "kafka://u@h";
        for shown in [
            format!("{:?}", Settings::new(url, "t")),
            format!("{:?}", Settings::new(beside, "t").password("hunter2")),
            format!("{:?}", SourceSettings::new(url, "t", "g")),
            format!(
                "{:?}",
                SourceSettings::new(beside, "t", "g").password("hunter2")
            ),
            format!("{:?}", SourceSettings::new(url, "t", "g").check().unwrap()),
        ] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
