//! What can be configured, and what is refused.
//!
//! # Promise
//! Every mistake that can be seen without the network is found when the destination or source is
//! built, with an error that says what to change. Neither the settings nor their errors show a
//! password.

use std::path::PathBuf;
use std::time::Duration;

use counterfoil_core::envelope::{Source, SourceError};
use counterfoil_core::message::MAX_PAYLOAD;

use crate::access::Access;
use crate::link::Dial;
use crate::names::{Place, Target};

const MAX_BATCH: usize = 500;
const LARGEST_BATCH: usize = 10_000;
/// The most that a RabbitMQ can be told to take.
const LARGEST_PAYLOAD: usize = 512 * 1024 * 1024;
const PREFETCH: u16 = 200;
/// More would not help the order: each of them is a routing key.
const MOST_PARTITIONS: usize = 64;

/// The settings of one destination.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | `amqp://` or `amqps://`, `[user[:password]@]host[:port][/vhost]` |
/// | where to: a topic, a queue, or an exchange and a routing key | | up to 200 bytes each |
/// | `partitions` of a queue | 1 | 1 to 64 |
/// | `user`, `password` | those of the URL, or `guest` | not in both places |
/// | `ca_file`, the authorities to trust | public ones | PEM, `amqps://` only |
/// | `source`, where messages say that they come from | `counterfoil` | a URI reference |
/// | `timeout` of a whole batch, connecting included | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP, TLS and login | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
/// | `max_batch`, messages in one call | 500 | 1 to 10,000 |
/// | `max_payload`, larger ones are parked | 16 MiB | 1 byte to 512 MiB |
///
/// ```no_run
/// use std::time::Duration;
/// use counterfoil_rabbitmq::{RabbitMq, Settings};
///
/// let settings = Settings::new("amqps://relay@rabbit.internal/shop", "orders")
///     .password(std::env::var("RABBITMQ_PASSWORD")?)
///     .timeout(Duration::from_secs(5));
/// let destination = RabbitMq::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Settings {
    access: Access,
    place: Place,
    partitions: usize,
    source: Option<String>,
    max_batch: usize,
    max_payload: usize,
}

impl Settings {
    /// Messages go to every group that reads this topic.
    pub fn new(url: impl Into<String>, topic: impl Into<String>) -> Self {
        Self::to(url.into(), Place::Topic(topic.into()))
    }

    /// Messages go to this queue, or to its partitions.
    pub fn queue(url: impl Into<String>, queue: impl Into<String>) -> Self {
        Self::to(url.into(), Place::Queue(queue.into()))
    }

    /// Messages go to this exchange, under a routing key that may hold `{aggregate-type}`,
    /// `{aggregate-id}` and `{event-type}`.
    pub fn exchange(
        url: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        Self::to(
            url.into(),
            Place::Exchange(exchange.into(), routing_key.into()),
        )
    }

    fn to(url: String, place: Place) -> Self {
        Self {
            access: Access::new(url),
            place,
            partitions: 1,
            source: None,
            max_batch: MAX_BATCH,
            max_payload: MAX_PAYLOAD,
        }
    }

    /// The queue is so many queues, `NAME.0` and on; an aggregate always goes to the same one.
    pub fn partitions(mut self, partitions: usize) -> Self {
        self.partitions = partitions;
        self
    }

    /// Logs in as this user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.access.user = Some(user.into());
        self
    }

    /// Logs in with this password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.access.password = Some(password.into());
        self
    }

    /// Trusts the authorities in this file beside the public ones.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.ca_file = Some(path.into());
        self
    }

    /// Where messages say that they come from.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A batch without an answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.access.timeout = timeout;
        self
    }

    /// Finding the address, connecting and logging in together end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.access.connect_timeout = Some(timeout);
        self
    }

    /// The most messages in one call.
    pub fn max_batch(mut self, messages: usize) -> Self {
        self.max_batch = messages;
        self
    }

    /// Larger payloads are refused before they are sent. So are those above the server's own limit,
    /// `max_message_size`, after it has told it.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let target = Target::new(&self.place, partitions(self.partitions)?)?;
        let dial = self
            .access
            .check(format!("counterfoil: to {}", target.shown()))?;
        let source = self.source.map(Source::new).transpose()?;
        if !(1..=LARGEST_BATCH).contains(&self.max_batch) {
            return Err(SettingsError::MaxBatch(self.max_batch));
        }
        if !(1..=LARGEST_PAYLOAD).contains(&self.max_payload) {
            return Err(SettingsError::MaxPayload(self.max_payload));
        }
        Ok(Checked {
            dial,
            target,
            source: source.unwrap_or_default(),
            timeout: self.access.timeout,
            max_batch: self.max_batch,
            max_payload: self.max_payload,
        })
    }
}

/// Settings in which nothing is wrong.
pub(crate) struct Checked {
    pub(crate) dial: Dial,
    pub(crate) target: Target,
    pub(crate) source: Source,
    pub(crate) timeout: Duration,
    pub(crate) max_batch: usize,
    pub(crate) max_payload: usize,
}

/// The settings of one source.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `url` | | as for [`Settings`] |
/// | where from: a topic and a group, or a queue | | up to 200 bytes together; a group has letters, digits, `-` and `_`, and begins with a letter |
/// | `partitions`: how many members of the group can work at a time | 1 | 1 to 64, fixed for the life of the group |
/// | `passive`: nothing is declared | off | |
/// | `prefetch`: messages of a partition that are with us at a time | 200 | 1 to 65,535 |
/// | `user`, `password`, `ca_file` | as for [`Settings`] | |
/// | `timeout` of every step but waiting for messages | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP, TLS and login | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
#[derive(Debug, Clone)]
#[must_use]
pub struct SourceSettings {
    access: Access,
    place: Place,
    group: Option<String>,
    partitions: usize,
    passive: bool,
    prefetch: u16,
}

impl SourceSettings {
    /// Messages of this topic, for this group: each group gets all of them.
    pub fn new(url: impl Into<String>, topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            access: Access::new(url.into()),
            place: Place::Topic(topic.into()),
            group: Some(group.into()),
            partitions: 1,
            passive: false,
            prefetch: PREFETCH,
        }
    }

    /// Messages of this queue: all who read it share them.
    pub fn queue(url: impl Into<String>, queue: impl Into<String>) -> Self {
        Self {
            access: Access::new(url.into()),
            place: Place::Queue(queue.into()),
            group: None,
            partitions: 1,
            passive: false,
            prefetch: PREFETCH,
        }
    }

    /// The group or queue is so many queues, `NAME.0` and on, each with one consumer at a time.
    pub fn partitions(mut self, partitions: usize) -> Self {
        self.partitions = partitions;
        self
    }

    /// Declares nothing: the queues are there, and are as somebody else made them. What is only
    /// known about queues of ours, order, delays and dead letters, is not promised then.
    pub fn passive(mut self) -> Self {
        self.passive = true;
        self
    }

    /// The most messages of one partition that are with us at a time, not settled yet.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages;
        self
    }

    /// Logs in as this user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.access.user = Some(user.into());
        self
    }

    /// Logs in with this password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.access.password = Some(password.into());
        self
    }

    /// Trusts the authorities in this file beside the public ones.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.access.ca_file = Some(path.into());
        self
    }

    /// A step without an answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.access.timeout = timeout;
        self
    }

    /// Finding the address, connecting and logging in together end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.access.connect_timeout = Some(timeout);
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<CheckedSource, SettingsError> {
        let partitions = partitions(self.partitions)?;
        let queues = crate::names::Queues::new(&self.place, self.group.as_deref(), partitions)?;
        let dial = self
            .access
            .check(format!("counterfoil: from {}", queues.base))?;
        if self.prefetch == 0 {
            return Err(SettingsError::Prefetch);
        }
        Ok(CheckedSource {
            dial,
            queues,
            passive: self.passive,
            prefetch: self.prefetch,
            timeout: self.access.timeout,
        })
    }
}

/// Settings in which nothing is wrong.
#[derive(Clone)]
pub(crate) struct CheckedSource {
    pub(crate) dial: Dial,
    pub(crate) queues: crate::names::Queues,
    pub(crate) passive: bool,
    pub(crate) prefetch: u16,
    pub(crate) timeout: Duration,
}

fn partitions(count: usize) -> Result<usize, SettingsError> {
    match (1..=MOST_PARTITIONS).contains(&count) {
        true => Ok(count),
        false => Err(SettingsError::Partitions(count)),
    }
}

/// Why a destination or a source cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The URL cannot be read.
    #[error("the URL of RabbitMQ is not usable: {0}")]
    Url(String),
    /// The URL is of another kind.
    #[error("the URL of RabbitMQ begins with amqp:// or amqps://, not {0}:")]
    Scheme(String),
    /// There is a user in the URL and beside it.
    #[error("there is a user in the URL and another one beside it: choose one")]
    TwoUsers,
    /// There is a password in the URL and beside it.
    #[error("there is a password in the URL and another one beside it: choose one")]
    TwoPasswords,
    /// The password has no characters.
    #[error("the password is empty")]
    EmptyPassword,
    /// There is a user without a password.
    #[error("there is a user of RabbitMQ and no password")]
    NoPassword,
    /// There is a password without a user.
    #[error("there is a password for RabbitMQ and no user")]
    NoUser,
    /// The file with authorities cannot be used.
    #[error("the file of authorities {0:?} cannot be used: {1}")]
    CaFile(PathBuf, String),
    /// A name cannot be used.
    #[error("the name of the {0} {1}")]
    Name(&'static str, String),
    /// The number of partitions is out of bounds.
    #[error("there are 1 to 64 partitions, not {0}")]
    Partitions(usize),
    /// Partitions were asked for where there are none.
    #[error("only queues have partitions; each group of a topic has its own number of them")]
    NoPartitions,
    /// No message may come.
    #[error("the prefetch is at least 1")]
    Prefetch,
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
        Settings::new("amqp://h/", "orders")
    }

    fn refused(settings: Settings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.timeout, Duration::from_secs(10));
        assert_eq!(checked.max_batch, 500);
        assert_eq!(checked.max_payload, 16 * 1024 * 1024);
        assert_eq!(checked.source.as_str(), "counterfoil");
        let source = SourceSettings::new("amqp://h/", "orders", "stock").check();
        let source = source.unwrap();
        assert_eq!(source.prefetch, 200);
        assert_eq!(source.queues.all, ["orders.stock"]);
        assert!(!source.passive);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        for n in [0, 10_001] {
            assert_eq!(refused(plain().max_batch(n)), SettingsError::MaxBatch(n));
        }
        for n in [0, LARGEST_PAYLOAD + 1] {
            let error = SettingsError::MaxPayload(n);
            assert_eq!(refused(plain().max_payload(n)), error);
        }
        for n in [0, 65] {
            let queue = Settings::queue("amqp://h/", "q").partitions(n);
            assert_eq!(refused(queue), SettingsError::Partitions(n));
        }
        assert_eq!(refused(plain().partitions(2)), SettingsError::NoPartitions);
        let none = SourceSettings::queue("amqp://h/", "q").prefetch(0);
        assert_eq!(none.check().err(), Some(SettingsError::Prefetch));
        assert!(matches!(
            refused(plain().source("a b")),
            SettingsError::Source(_)
        ));
    }
}
