//! What can be configured about publishing, and what is refused.
//!
//! # Promise
//! Every mistake that can be seen without the network is found when the destination is built, with
//! an error that says what to change. Neither the settings nor their errors show a secret.

use std::fmt;
use std::time::Duration;

use counterfoil_core::envelope::{Source, SourceError};

use crate::access::{Access, Given, access_settings};
use crate::subject::{self, Subjects};

const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_BATCH: usize = 500;
const LARGEST_BATCH: usize = 10_000;
/// A server takes 1 MiB by default, headers included.
const MAX_PAYLOAD: usize = 960 * 1024;
/// The most that a server can be told to take.
const LARGEST_PAYLOAD: usize = 64 * 1024 * 1024;

/// How a stream is made that is not there.
///
/// It keeps messages in files, drops nothing to make room (`discard: new`, without limits), and
/// remembers ids for two minutes.
///
/// | setting | default |
/// |---|---|
/// | `replicas` | 1 |
/// | `max_age`, after which messages are dropped, read or not | never |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Create {
    pub(crate) replicas: u8,
    pub(crate) max_age: Option<Duration>,
}

impl Create {
    /// One replica, and messages stay for ever.
    pub const fn new() -> Self {
        Self {
            replicas: 1,
            max_age: None,
        }
    }

    /// So many servers hold each message: 1 to 5.
    pub const fn replicas(mut self, servers: u8) -> Self {
        self.replicas = servers;
        self
    }

    /// Drops messages after this time, read or not.
    pub const fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    pub(crate) fn check(self) -> Result<Self, SettingsError> {
        if !(1..=5).contains(&self.replicas) {
            return Err(SettingsError::Replicas(self.replicas));
        }
        match self.max_age {
            Some(age) if age < Duration::from_secs(1) => Err(SettingsError::MaxAge(age)),
            _ => Ok(self),
        }
    }
}

impl Default for Create {
    fn default() -> Self {
        Self::new()
    }
}

/// The settings of one destination.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | `nats://[user[:password]@]host[:port]` or `tls://…`; several with commas |
/// | `subject` | | words with dots between them |
/// | `partitions` of the subject | 1: the subject itself | 1 to 256 |
/// | `password`, `token`, `nkey`, `credentials_file` | that of the URL, or none | one of them |
/// | `ca_file`, `client_certificate`, `require_tls` | authorities of the system, none, as the server wants | |
/// | `create`, make the stream when it is missing | no: it is an error | |
/// | `source`, where messages say that they come from | `counterfoil` | a URI reference |
/// | `timeout` of a whole batch, connecting included | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP, TLS and login | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
/// | `max_batch`, messages in one call | 500 | 1 to 10,000 |
/// | `max_payload`, larger ones are parked | 960 KiB | 1 byte to 64 MiB |
///
/// ```no_run
/// use std::time::Duration;
/// use counterfoil_nats::{Nats, Settings};
///
/// let settings = Settings::new("tls://relay@nats.internal", "shop.orders")
///     .password(std::env::var("NATS_PASSWORD")?)
///     .partitions(8)
///     .timeout(Duration::from_secs(5));
/// let destination = Nats::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Settings {
    access: Given,
    subject: String,
    partitions: u16,
    create: Option<Create>,
    source: Option<String>,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    max_batch: usize,
    max_payload: usize,
}

impl Settings {
    /// Messages go to this subject of the NATS at this URL.
    pub fn new(url: impl Into<String>, subject: impl Into<String>) -> Self {
        Self {
            access: Given {
                url: url.into(),
                ..Given::default()
            },
            subject: subject.into(),
            partitions: 1,
            create: None,
            source: None,
            timeout: TIMEOUT,
            connect_timeout: None,
            max_batch: MAX_BATCH,
            max_payload: MAX_PAYLOAD,
        }
    }

    access_settings!();

    /// Spreads keys over so many subjects: `SUBJECT.0`, `SUBJECT.1` and so on. Consumers must know
    /// the same number, and changing it moves keys.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions;
        self
    }

    /// Makes the stream when no stream takes the subject.
    pub fn create(mut self, how: Create) -> Self {
        self.create = Some(how);
        self
    }

    /// Where messages say that they come from.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A message without an answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Finding the address, connecting and logging in together end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The most messages in one call.
    pub fn max_batch(mut self, messages: usize) -> Self {
        self.max_batch = messages;
        self
    }

    /// Larger payloads are refused before they are sent. So is what is over the server's own
    /// `max_payload` together with its headers.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let access = self.access.check()?;
        let subjects = Subjects::parse(&self.subject, self.partitions)?;
        let source = self.source.map(Source::new).transpose()?;
        let connect_timeout = timeouts(self.timeout, self.connect_timeout)?;
        if !(1..=LARGEST_BATCH).contains(&self.max_batch) {
            return Err(SettingsError::MaxBatch(self.max_batch));
        }
        if !(1..=LARGEST_PAYLOAD).contains(&self.max_payload) {
            return Err(SettingsError::MaxPayload(self.max_payload));
        }
        Ok(Checked {
            access,
            subjects,
            create: self.create.map(Create::check).transpose()?,
            source: source.unwrap_or_default(),
            timeout: self.timeout,
            connect_timeout,
            max_batch: self.max_batch,
            max_payload: self.max_payload,
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("server", &self.access.shown())
            .field("subject", &self.subject)
            .field("partitions", &self.partitions)
            .field("create", &self.create)
            .field("source", &self.source)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_batch", &self.max_batch)
            .field("max_payload", &self.max_payload)
            .finish_non_exhaustive()
    }
}

/// Settings in which nothing is wrong.
pub(crate) struct Checked {
    pub(crate) access: Access,
    pub(crate) subjects: Subjects,
    pub(crate) create: Option<Create>,
    pub(crate) source: Source,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_batch: usize,
    pub(crate) max_payload: usize,
}

/// Checks both timeouts, and says which one is for connecting.
pub(crate) fn timeouts(
    timeout: Duration,
    connect: Option<Duration>,
) -> Result<Duration, SettingsError> {
    if timeout.is_zero() || timeout > LONGEST_TIMEOUT {
        return Err(SettingsError::Timeout(timeout));
    }
    let connect = connect.unwrap_or_else(|| CONNECT_TIMEOUT.min(timeout / 2));
    match connect.is_zero() || connect >= timeout {
        true => Err(SettingsError::ConnectTimeout(connect)),
        false => Ok(connect),
    }
}

/// Checks a name that the server gives to files and puts into subjects.
pub(crate) fn name(what: &'static str, text: &str) -> Result<(), SettingsError> {
    let fits = !text.contains('.') && subject::check(text).is_ok() && text.len() <= 64;
    match fits {
        true => Ok(()),
        false => Err(SettingsError::Name(what)),
    }
}

/// Why a destination or a source cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The URL cannot be read.
    #[error("the URL of NATS is not usable: {0}")]
    Url(String),
    /// The URL is of another kind.
    #[error("the URL of NATS begins with nats:// or tls://, not {0}:")]
    Scheme(String),
    /// There are several ways to log in.
    #[error("there are several passwords, tokens, keys or files of credentials: choose one")]
    TwoCredentials,
    /// A secret has no characters.
    #[error("the password, token or key is empty; leave it out if none is wanted")]
    EmptySecret,
    /// There is a user without a password.
    #[error(
        "the URL of NATS names a user and there is no password; a token is a setting of its own"
    )]
    NoPassword,
    /// There is a password without a user.
    #[error("there is a password, and the URL of NATS names no user")]
    NoUser,
    /// The subject cannot be used.
    #[error("the subject {0}")]
    Subject(String),
    /// The number of partitions is out of bounds.
    #[error("a subject has 1 to 256 partitions, not {0}")]
    Partitions(u16),
    /// A name cannot be used.
    #[error(
        "the name of the {0} has 1 to 64 visible characters without dots, wildcards and slashes"
    )]
    Name(&'static str),
    /// The source cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The number of replicas is out of bounds.
    #[error("a stream has 1 to 5 replicas, not {0}")]
    Replicas(u8),
    /// The age is out of bounds.
    #[error("messages stay for at least a second, not {0:?}")]
    MaxAge(Duration),
    /// The timeout is out of bounds.
    #[error("the timeout is above 0 and up to 10 minutes, not {0:?}")]
    Timeout(Duration),
    /// The connect timeout is out of bounds.
    #[error("the connect timeout is above 0 and below the timeout, not {0:?}")]
    ConnectTimeout(Duration),
    /// The wait for a sign of life is out of bounds.
    #[error("a consumer is waited for from 1 second to 1 hour, not {0:?}")]
    AckWait(Duration),
    /// The number of messages under way is out of bounds.
    #[error("a partition has 1 to 10000 messages under way, not {0}")]
    MaxInFlight(usize),
    /// The batch is out of bounds.
    #[error("a batch has 1 to 10000 messages, not {0}")]
    MaxBatch(usize),
    /// The largest payload is out of bounds.
    #[error("the largest payload is 1 byte to 64 MiB, not {0} bytes")]
    MaxPayload(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Settings {
        Settings::new("nats://127.0.0.1", "orders")
    }

    fn refused(settings: Settings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.access.shown, "nats://127.0.0.1:4222");
        assert_eq!(checked.subjects.all(), ["orders"]);
        assert_eq!(checked.create, None);
        assert_eq!(checked.timeout, Duration::from_secs(10));
        assert_eq!(checked.connect_timeout, Duration::from_secs(3));
        assert_eq!(checked.max_batch, 500);
        assert_eq!(checked.max_payload, 983_040);
        assert_eq!(checked.source.as_str(), "counterfoil");
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let s = Duration::from_secs;
        for wrong in [s(0), s(601)] {
            assert_eq!(
                refused(plain().timeout(wrong)),
                SettingsError::Timeout(wrong)
            );
        }
        for wrong in [s(0), s(10)] {
            assert_eq!(
                refused(plain().connect_timeout(wrong)),
                SettingsError::ConnectTimeout(wrong)
            );
        }
        for n in [0, 10_001] {
            assert_eq!(refused(plain().max_batch(n)), SettingsError::MaxBatch(n));
        }
        for n in [0, LARGEST_PAYLOAD + 1] {
            assert_eq!(
                refused(plain().max_payload(n)),
                SettingsError::MaxPayload(n)
            );
        }
        for n in [0, 6] {
            let create = Create::new().replicas(n);
            assert_eq!(refused(plain().create(create)), SettingsError::Replicas(n));
        }
        let brief = Create::new().max_age(Duration::ZERO);
        assert_eq!(
            refused(plain().create(brief)),
            SettingsError::MaxAge(Duration::ZERO)
        );
        assert!(matches!(
            refused(plain().source("a b")),
            SettingsError::Source(_)
        ));
    }

    #[test]
    fn no_secret_is_shown() {
        let settings = [
            Settings::new("nats://u:hunter2@h", "s"),
            Settings::new("nats://u@h", "s").password("hunter2"),
            Settings::new("nats://h", "s").token("hunter2"),
            Settings::new("nats://h", "s").nkey("hunter2"),
            Settings::new("nats://u:hunter2@h:0", "s"),
            Settings::new("http://u:hunter2@h", "s"),
            Settings::new("nats://u:hunter2@h", "s").token("hunter2"),
        ];
        for settings in settings {
            let shown = format!("{settings:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            match settings.check() {
                Ok(checked) => assert!(!checked.access.shown.contains("hunter2")),
                Err(error) => assert!(!format!("{error:?} {error}").contains("hunter2")),
            }
        }
    }
}
