//! What can be configured about a stream, and what is refused.
//!
//! # Promise
//! Every mistake that can be seen without the network is found when the destination is built, with
//! an error that says what to change. Neither the settings nor their errors show a password.

use std::fmt;
use std::time::Duration;

use counterfoil_core::envelope::{Source, SourceError};
use counterfoil_core::message::MAX_PAYLOAD;

use crate::address::Address;
use crate::stream::StreamName;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_BATCH: usize = 500;
const LARGEST_BATCH: usize = 10_000;
const MOST_PARTITIONS: u16 = 1_024;
/// Redis' own limit for one value.
const LARGEST_PAYLOAD: usize = 512 * 1024 * 1024;

/// The settings of one destination.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | `redis://[user[:password]@]host[:port][/database]`, `rediss://` over TLS |
/// | `stream`, may hold `{aggregate-type}` and `{event-type}` | | not empty |
/// | `partitions`, streams `NAME.0` and on | one stream `NAME` | 1 to 1,024 |
/// | `password` | that of the URL, or none | not in both places |
/// | `ca`, certificates (PEM) to trust | those of the system | with `rediss://` |
/// | `source`, where messages say that they come from | `counterfoil` | a URI reference |
/// | `timeout` of a whole batch, connecting included | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP and login | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
/// | `max_batch`, messages in one call | 500 | 1 to 10,000 |
/// | `max_payload`, larger ones are parked | 16 MiB | 1 byte to 512 MiB |
///
/// ```no_run
/// use std::time::Duration;
/// use counterfoil_redis_streams::{RedisStreams, Settings};
///
/// let settings = Settings::new("redis://relay@redis.internal/0", "events:{aggregate-type}")
///     .password(std::env::var("REDIS_PASSWORD")?)
///     .timeout(Duration::from_secs(5));
/// let destination = RedisStreams::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Settings {
    url: String,
    stream: String,
    partitions: Option<u16>,
    password: Option<String>,
    ca: Option<Vec<u8>>,
    source: Option<String>,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    max_batch: usize,
    max_payload: usize,
}

impl Settings {
    /// Entries go to this stream of the Redis at this URL.
    pub fn new(url: impl Into<String>, stream: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            stream: stream.into(),
            partitions: None,
            password: None,
            ca: None,
            source: None,
            timeout: TIMEOUT,
            connect_timeout: None,
            max_batch: MAX_BATCH,
            max_payload: MAX_PAYLOAD,
        }
    }

    /// Logs in with this password, as the user of the URL or as the default one.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Spreads entries over so many streams, `NAME.0` and on, by what their order is kept for.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Trusts servers whose certificates these signed (PEM), and no others. Needs `rediss://`.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
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

    /// Larger payloads are refused before they are sent. Above the server's `proto-max-bulk-len` it
    /// would close the connection instead.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let address = Address::parse(&self.url, self.password, self.ca)?;
        let stream = StreamName::parse(&self.stream)?;
        check_partitions(self.partitions)?;
        let source = self.source.map(Source::new).transpose()?;
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(SettingsError::Timeout(self.timeout));
        }
        let connect_timeout = self
            .connect_timeout
            .unwrap_or_else(|| CONNECT_TIMEOUT.min(self.timeout / 2));
        if connect_timeout.is_zero() || connect_timeout >= self.timeout {
            return Err(SettingsError::ConnectTimeout(connect_timeout));
        }
        if !(1..=LARGEST_BATCH).contains(&self.max_batch) {
            return Err(SettingsError::MaxBatch(self.max_batch));
        }
        if !(1..=LARGEST_PAYLOAD).contains(&self.max_payload) {
            return Err(SettingsError::MaxPayload(self.max_payload));
        }
        Ok(Checked {
            address,
            stream,
            partitions: self.partitions,
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
            .field("server", &Address::shown_of(&self.url))
            .field("stream", &self.stream)
            .field("partitions", &self.partitions)
            .field("password", &self.password.is_some())
            .field("ca", &self.ca.is_some())
            .field("source", &self.source)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_batch", &self.max_batch)
            .field("max_payload", &self.max_payload)
            .finish()
    }
}

/// Whether there can be so many.
pub(crate) fn check_partitions(partitions: Option<u16>) -> Result<(), SettingsError> {
    match partitions {
        Some(wrong) if !(1..=MOST_PARTITIONS).contains(&wrong) => {
            Err(SettingsError::Partitions(wrong))
        }
        _ => Ok(()),
    }
}

/// Settings in which nothing is wrong.
pub(crate) struct Checked {
    pub(crate) address: Address,
    pub(crate) stream: StreamName,
    /// Absent: one stream, under its own name.
    pub(crate) partitions: Option<u16>,
    pub(crate) source: Source,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_batch: usize,
    pub(crate) max_payload: usize,
}

/// Why a destination or a source cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The URL cannot be read.
    #[error("the URL of Redis is not usable: {0}")]
    Url(String),
    /// The URL is of another kind.
    #[error("the URL of Redis begins with redis:// or rediss://, not {0}:")]
    Scheme(String),
    /// The certificates to trust cannot be used.
    #[error("the certificates to trust {0}")]
    Ca(String),
    /// There is a password in the URL and beside it.
    #[error("there is a password in the URL and another one beside it: choose one")]
    TwoPasswords,
    /// The password has no characters.
    #[error("the password is empty; leave it out if none is wanted")]
    EmptyPassword,
    /// There is a user without a password.
    #[error("the URL of Redis names a user and there is no password")]
    NoPassword,
    /// The name of the stream cannot be used.
    #[error("the name of the stream {0}")]
    Stream(String),
    /// The number of partitions is out of bounds.
    #[error("a stream has 1 to {MOST_PARTITIONS} partitions, not {0}")]
    Partitions(u16),
    /// The name of the group cannot be used.
    #[error("the name of the group {0}")]
    Group(String),
    /// The time after which a consumer is missed is out of bounds.
    #[error("a consumer is missed after 500 ms to 1 hour, not {0:?}")]
    MissedAfter(Duration),
    /// The source cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The timeout is out of bounds.
    #[error("the timeout is above 0 and up to 10 minutes, not {0:?}")]
    Timeout(Duration),
    /// The connect timeout is out of bounds.
    #[error("the connect timeout is above 0 and below the timeout, not {0:?}")]
    ConnectTimeout(Duration),
    /// The batch is out of bounds.
    #[error("a batch has 1 to 10000 messages, not {0}")]
    MaxBatch(usize),
    /// The largest payload is out of bounds.
    #[error("the largest payload is 1 byte to 512 MiB, not {0} bytes")]
    MaxPayload(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Settings {
        Settings::new("redis://127.0.0.1/", "orders")
    }

    fn refused(settings: Settings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.address.shown, "redis://127.0.0.1:6379/0");
        assert_eq!(checked.timeout, Duration::from_secs(10));
        assert_eq!(checked.connect_timeout, Duration::from_secs(3));
        assert_eq!(checked.max_batch, 500);
        assert_eq!(checked.max_payload, 16 * 1024 * 1024);
        assert_eq!(checked.source.as_str(), "counterfoil");
        let short = plain().timeout(Duration::from_secs(2)).check().unwrap();
        assert_eq!(short.connect_timeout, Duration::from_secs(1));
    }

    #[test]
    fn a_url_is_taken_apart() {
        let url = "redis://relay:a%23b@[::1]:7000/3";
        let login = Settings::new(url, "s").check().unwrap().address.login;

        assert_eq!(login.user.as_deref(), Some("relay"));
        assert_eq!(login.password.as_deref(), Some("a#b"));
        assert_eq!(login.database, 3);
        let beside = Settings::new("redis://relay@h/", "s").password("p");
        assert_eq!(beside.check().unwrap().address.login.password.unwrap(), "p");
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused() {
        let url = |url: &str| refused(Settings::new(url, "s"));
        for wrong in [
            "",
            "127.0.0.1:6379",
            "redis://",
            "redis://[::1/",
            "redis://h:0/",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/?protocol=resp3",
            "redis://:a#b@h/",
        ] {
            assert!(matches!(url(wrong), SettingsError::Url(_)), "{wrong}");
        }
        assert_eq!(url("http://h/"), SettingsError::Scheme("http".into()));
        assert_eq!(
            url("unix:///tmp/redis"),
            SettingsError::Scheme("unix".into())
        );
    }

    #[test]
    fn there_is_one_password_for_a_user_and_none_for_nobody() {
        let url = |url: &str| Settings::new(url, "s");

        let two = url("redis://:hunter2@h/").password("other");
        assert_eq!(refused(two), SettingsError::TwoPasswords);
        assert_eq!(refused(url("redis://relay@h/")), SettingsError::NoPassword);
        let empty = url("redis://h/").password("");
        assert_eq!(refused(empty), SettingsError::EmptyPassword);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let s = Duration::from_secs;
        assert_eq!(refused(plain().timeout(s(0))), SettingsError::Timeout(s(0)));
        assert_eq!(
            refused(plain().timeout(s(601))),
            SettingsError::Timeout(s(601))
        );
        for connect in [s(0), s(10)] {
            assert_eq!(
                refused(plain().connect_timeout(connect)),
                SettingsError::ConnectTimeout(connect)
            );
        }
        for n in [0, 1_025] {
            assert_eq!(refused(plain().partitions(n)), SettingsError::Partitions(n));
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
        assert!(matches!(
            refused(plain().source("a b")),
            SettingsError::Source(_)
        ));
    }

    #[test]
    fn no_password_is_shown() {
        let settings = [
            Settings::new("redis://u:hunter2@h/", "s"),
            Settings::new("redis://u@h/", "s").password("hunter2"),
            Settings::new("redis://u:hunter2@h:0/", "s"),
            Settings::new("rediss://u:hunter2@h/", "s"),
            Settings::new("redis://u:hunter2@h/x", "s"),
        ];
        for settings in settings {
            let shown = format!("{settings:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            match settings.check() {
                Ok(checked) => assert!(!checked.address.shown.contains("hunter2")),
                Err(error) => assert!(!format!("{error:?} {error}").contains("hunter2")),
            }
        }
    }
}
