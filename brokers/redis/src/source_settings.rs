//! What can be configured about receiving, and what is refused.
//!
//! # Promise
//! The same as for publishing: mistakes are found when the source is built, and no password is shown.

use std::fmt;
use std::time::Duration;

use crate::address::Address;
use crate::settings::{CONNECT_TIMEOUT, LONGEST_TIMEOUT, SettingsError, TIMEOUT, check_partitions};

const MISSED_AFTER: Duration = Duration::from_secs(30);
const SHORTEST_MISS: Duration = Duration::from_millis(500);
const LONGEST_MISS: Duration = Duration::from_secs(3_600);

/// The settings of one source.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | `redis://[user[:password]@]host[:port][/database]`, `rediss://` over TLS |
/// | `stream` | | not empty |
/// | `group`, whose members share the entries | | not empty |
/// | `partitions`, streams `NAME.0` and on, each with one consumer at a time | one stream `NAME` for all | 1 to 1,024, as the destination has it |
/// | `only_new`, a new group begins at the end of the stream | at the beginning | |
/// | `missed_after`, a consumer without a sign of life loses what it has | 30 s | 500 ms to 1 h |
/// | `trim`, drops what every group has dealt with | off | |
/// | `password` | that of the URL, or none | not in both places |
/// | `ca`, certificates (PEM) to trust | those of the system | with `rediss://` |
/// | `timeout` of one answer | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP and login | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
///
/// ```no_run
/// use counterfoil_redis_streams::{RedisStreamsSource, SourceSettings};
///
/// let settings = SourceSettings::new("redis://stock@redis.internal/0", "orders", "stock")
///     .password(std::env::var("REDIS_PASSWORD")?)
///     .partitions(8);
/// let source = RedisStreamsSource::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct SourceSettings {
    url: String,
    stream: String,
    group: String,
    partitions: Option<u16>,
    only_new: bool,
    missed_after: Duration,
    trim: bool,
    password: Option<String>,
    ca: Option<Vec<u8>>,
    timeout: Duration,
    connect_timeout: Option<Duration>,
}

impl SourceSettings {
    /// Entries come from this stream of the Redis at this URL, to the members of this group.
    pub fn new(
        url: impl Into<String>,
        stream: impl Into<String>,
        group: impl Into<String>,
    ) -> Self {
        Self {
            url: url.into(),
            stream: stream.into(),
            group: group.into(),
            partitions: None,
            only_new: false,
            missed_after: MISSED_AFTER,
            trim: false,
            password: None,
            ca: None,
            timeout: TIMEOUT,
            connect_timeout: None,
        }
    }

    /// Reads so many streams, `NAME.0` and on. Each of them has one consumer of the group at a time,
    /// so that entries with one key come in order.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// A group that does not exist yet gets only what is added from now on.
    pub fn only_new(mut self) -> Self {
        self.only_new = true;
        self
    }

    /// A consumer that was not heard of for so long loses what it has to others.
    pub fn missed_after(mut self, time: Duration) -> Self {
        self.missed_after = time;
        self
    }

    /// Drops entries that every group of the stream has been given and has acknowledged. A group
    /// that does not exist yet is not waited for.
    pub fn trim(mut self) -> Self {
        self.trim = true;
        self
    }

    /// Logs in with this password, as the user of the URL or as the default one.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Trusts servers whose certificates these signed (PEM), and no others. Needs `rediss://`.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// An answer is waited for so long.
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
        let address = Address::parse(&self.url, self.password, self.ca)?;
        if self.stream.is_empty() {
            return Err(SettingsError::Stream("is empty".into()));
        }
        if self.stream.contains(['{', '}']) {
            let problem = "has braces: a source reads one stream, and has no placeholders";
            return Err(SettingsError::Stream(problem.into()));
        }
        if self.group.is_empty() {
            return Err(SettingsError::Group("is empty".into()));
        }
        check_partitions(self.partitions)?;
        if !(SHORTEST_MISS..=LONGEST_MISS).contains(&self.missed_after) {
            return Err(SettingsError::MissedAfter(self.missed_after));
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(SettingsError::Timeout(self.timeout));
        }
        let connect_timeout = self
            .connect_timeout
            .unwrap_or_else(|| CONNECT_TIMEOUT.min(self.timeout / 2));
        if connect_timeout.is_zero() || connect_timeout >= self.timeout {
            return Err(SettingsError::ConnectTimeout(connect_timeout));
        }
        Ok(CheckedSource {
            address,
            stream: self.stream,
            group: self.group,
            partitions: self.partitions,
            only_new: self.only_new,
            missed_after: self.missed_after,
            trim: self.trim,
            timeout: self.timeout,
            connect_timeout,
        })
    }
}

impl fmt::Debug for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSettings")
            .field("server", &Address::shown_of(&self.url))
            .field("stream", &self.stream)
            .field("group", &self.group)
            .field("partitions", &self.partitions)
            .field("only_new", &self.only_new)
            .field("missed_after", &self.missed_after)
            .field("trim", &self.trim)
            .field("password", &self.password.is_some())
            .field("ca", &self.ca.is_some())
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

/// Settings in which nothing is wrong.
pub(crate) struct CheckedSource {
    pub(crate) address: Address,
    pub(crate) stream: String,
    pub(crate) group: String,
    pub(crate) partitions: Option<u16>,
    pub(crate) only_new: bool,
    pub(crate) missed_after: Duration,
    pub(crate) trim: bool,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> SourceSettings {
        SourceSettings::new("redis://127.0.0.1/", "orders", "stock")
    }

    fn refused(settings: SourceSettings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.address.shown, "redis://127.0.0.1:6379/0");
        assert_eq!(checked.partitions, None);
        assert_eq!(checked.missed_after, Duration::from_secs(30));
        assert_eq!(checked.timeout, Duration::from_secs(10));
        assert_eq!(checked.connect_timeout, Duration::from_secs(3));
        assert!(!checked.only_new && !checked.trim);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let with =
            |stream: &str, group: &str| refused(SourceSettings::new("redis://h/", stream, group));
        assert!(matches!(with("", "g"), SettingsError::Stream(_)));
        assert!(matches!(
            with("a:{event-type}", "g"),
            SettingsError::Stream(_)
        ));
        assert!(matches!(with("s", ""), SettingsError::Group(_)));
        let s = Duration::from_secs;
        for wrong in [s(0), s(3_601)] {
            assert_eq!(
                refused(plain().missed_after(wrong)),
                SettingsError::MissedAfter(wrong)
            );
        }
        assert_eq!(refused(plain().partitions(0)), SettingsError::Partitions(0));
        assert_eq!(refused(plain().timeout(s(0))), SettingsError::Timeout(s(0)));
        assert_eq!(
            refused(plain().connect_timeout(s(10))),
            SettingsError::ConnectTimeout(s(10))
        );
        assert!(matches!(refused(plain().ca("x")), SettingsError::Ca(_)));
    }

    #[test]
    fn no_password_is_shown() {
        let shown = [
            format!(
                "{:?}",
                SourceSettings::new("redis://u:hunter2@h/", "s", "g")
            ),
            format!("{:?}", plain().password("hunter2")),
        ];

        assert!(!shown.concat().contains("hunter2"), "{shown:?}");
    }
}
