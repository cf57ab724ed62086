//! The settings of a source.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{SettingsError, TIMEOUT, Times, times};
use crate::access::{Access, Given, Mechanism};
use crate::topic;

const PREFETCH: usize = 1_000;
const LARGEST_PREFETCH: usize = 100_000;

/// The settings of one source.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | as for [`Settings`](crate::Settings) |
/// | `topic` | | letters, digits, `.`, `_`, `-` |
/// | `group`, whose members share the messages | | not empty |
/// | `password`, `mechanism`, `ca_file` | as for [`Settings`](crate::Settings) | |
/// | `timeout` of joining, settling and asking | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP and login | 3 s, or a quarter of `timeout` if that is less | above 0, up to half of `timeout` |
/// | `prefetch`, messages in memory that nobody has asked for yet | 1,000 | 1 to 100,000 |
///
/// A new group begins at the oldest message of the topic.
///
/// ```no_run
/// use counterfoil_kafka::{KafkaSource, SourceSettings};
///
/// let source = KafkaSource::new(SourceSettings::new("kafka://127.0.0.1:9092", "orders", "stock"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct SourceSettings {
    given: Given,
    topic: String,
    group: String,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    prefetch: usize,
}

impl SourceSettings {
    /// Receives from this topic of the Kafka at this URL, as a member of this group.
    pub fn new(url: impl Into<String>, topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            given: Given::new(url),
            topic: topic.into(),
            group: group.into(),
            timeout: TIMEOUT,
            connect_timeout: None,
            prefetch: PREFETCH,
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

    /// A broker that gives no answer for so long is gone, and the subscription ends.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connecting to one server and logging in end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The most messages in memory that nobody has asked for yet.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages;
        self
    }

    /// Finds every mistake.
    pub(crate) fn check(self) -> Result<CheckedSource, SettingsError> {
        let times = times(self.timeout, self.connect_timeout)?;
        if self.group.is_empty() {
            return Err(SettingsError::Group);
        }
        if !(1..=LARGEST_PREFETCH).contains(&self.prefetch) {
            return Err(SettingsError::Prefetch(self.prefetch));
        }
        topic::check(&self.topic).map_err(|problem| SettingsError::Topic(problem.into()))?;
        Ok(CheckedSource {
            access: self.given.check()?,
            topic: self.topic,
            group: self.group,
            times,
            prefetch: self.prefetch,
        })
    }
}

impl fmt::Debug for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSettings")
            .field("servers", &self.given.shown())
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("password", &self.given.password.is_some())
            .field("mechanism", &self.given.mechanism)
            .field("ca_file", &self.given.ca_file)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("prefetch", &self.prefetch)
            .finish()
    }
}

/// Settings of a source in which nothing is wrong.
#[derive(Debug, Clone)]
pub(crate) struct CheckedSource {
    pub(crate) access: Access,
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) times: Times,
    pub(crate) prefetch: usize,
}
