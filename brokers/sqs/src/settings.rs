//! What can be configured about a queue, and what is refused.
//!
//! # Promise
//! Every mistake that can be seen without the network is found when the destination or the source
//! is built, with an error that says what to change. Neither the settings nor their errors show a
//! secret.

use std::time::Duration;

use counterfoil_core::envelope::{Source, SourceError};

use crate::place::{Given, Keys, Place};

const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_BATCH: usize = 100;
const LARGEST_BATCH: usize = 1_000;
const MIB: usize = 1024 * 1024;
/// What SQS takes in one message, and in one request, since August 2025.
const MAX_MESSAGE: usize = MIB;
const SMALLEST_MESSAGE: usize = 128 * 1024;
/// Kept free beside the body: headers and attributes, and those of a dead letter.
const BESIDE: usize = 64 * 1024;
const WAIT: Duration = Duration::from_secs(5);
/// SQS waits no longer.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
const SHORTEST_VISIBILITY: Duration = Duration::from_secs(3);
/// SQS keeps nothing back for longer.
pub(crate) const LONGEST_VISIBILITY: Duration = Duration::from_secs(12 * 60 * 60);

/// The largest body that fits in a message even when it has to be encoded.
pub(crate) fn largest_payload(max_message: usize) -> usize {
    (max_message - BESIDE) / 4 * 3
}

/// What both directions have in common: where, and as whom.
macro_rules! access {
    () => {
        /// Sends requests to this address instead of the service in the region: `http://127.0.0.1:9324`,
        /// with credentials if wanted: `http://KEY:SECRET@127.0.0.1:9324`.
        pub fn endpoint(mut self, url: impl Into<String>) -> Self {
            self.given.endpoint = Some(url.into());
            self
        }

        /// The region of the queue.
        pub fn region(mut self, region: impl Into<String>) -> Self {
            self.given.region = Some(region.into());
            self
        }

        /// Signs with these keys.
        pub fn credentials(mut self, id: impl Into<String>, secret: impl Into<String>) -> Self {
            self.given.keys = Some(Keys {
                id: id.into(),
                secret: secret.into(),
                token: None,
            });
            self
        }

        /// Signs with these keys of a session.
        pub fn session_credentials(
            mut self,
            id: impl Into<String>,
            secret: impl Into<String>,
            token: impl Into<String>,
        ) -> Self {
            self.given.keys = Some(Keys {
                id: id.into(),
                secret: secret.into(),
                token: Some(token.into()),
            });
            self
        }

        /// Finding the address and connecting together end after this time.
        pub fn connect_timeout(mut self, timeout: Duration) -> Self {
            self.connect_timeout = Some(timeout);
            self
        }

        /// The most bytes of a message, and of all messages of one request, as the queue allows.
        pub fn max_message(mut self, bytes: usize) -> Self {
            self.max_message = bytes;
            self
        }
    };
}

/// The settings of one destination.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `queue` | | its name, or its URL |
/// | `endpoint` | the origin of the queue's URL, or the service in the region | `http://` or `https://` |
/// | `region` | that of the URL, or as the surroundings say | |
/// | `credentials` | those of the URL, or as the surroundings say | not in both places |
/// | `source`, where messages say that they come from | `counterfoil` | a URI reference |
/// | `timeout` of a whole batch, connecting included | 10 s | above 0, up to 10 min |
/// | `connect_timeout` | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
/// | `max_batch`, messages in one call | 100 | 1 to 1,000 |
/// | `max_message`, bytes with everything | 1 MiB | 128 KiB to 1 MiB |
/// | `max_payload`, larger ones are parked | what fits when it is encoded: 720 KiB | 1 byte to `max_message` |
///
/// "As the surroundings say" is what every program with an SDK of AWS does: `AWS_REGION`,
/// `AWS_ACCESS_KEY_ID`, the profile, the role of the container or of the machine.
///
/// ```no_run
/// use counterfoil_sqs::{Settings, Sqs};
///
/// let destination = Sqs::new(Settings::new("orders.fifo").region("eu-west-1"))?;
/// # Ok::<(), counterfoil_sqs::SettingsError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Settings {
    given: Given,
    source: Option<String>,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    max_batch: usize,
    max_message: usize,
    max_payload: Option<usize>,
}

impl Settings {
    /// Messages go to this queue: its name or its URL.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            given: named(queue.into()),
            source: None,
            timeout: TIMEOUT,
            connect_timeout: None,
            max_batch: MAX_BATCH,
            max_message: MAX_MESSAGE,
            max_payload: None,
        }
    }

    access!();

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

    /// The most messages in one call. They go in requests of up to ten.
    pub fn max_batch(mut self, messages: usize) -> Self {
        self.max_batch = messages;
        self
    }

    /// Larger payloads are refused before they are sent.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let place = Place::of(self.given)?;
        let source = self.source.map(Source::new).transpose()?;
        let connect_timeout = timeouts(self.timeout, self.connect_timeout)?;
        if !(1..=LARGEST_BATCH).contains(&self.max_batch) {
            return Err(SettingsError::MaxBatch(self.max_batch));
        }
        check_message(self.max_message)?;
        let max_payload = self
            .max_payload
            .unwrap_or_else(|| largest_payload(self.max_message));
        if !(1..=self.max_message).contains(&max_payload) {
            return Err(SettingsError::MaxPayload(max_payload));
        }
        Ok(Checked {
            place,
            source: source.unwrap_or_default(),
            timeout: self.timeout,
            connect_timeout,
            max_batch: self.max_batch,
            max_message: self.max_message,
            max_payload,
        })
    }
}

/// The settings of one source.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `queue`, `endpoint`, `region`, `credentials`, `connect_timeout`, `max_message` | as those of [`Settings`] | |
/// | `timeout` of a request | 10 s | above 0, up to 10 min |
/// | `wait`, how long a request waits for messages | 5 s | 0 to 20 s, whole seconds |
/// | `visibility`, after which others get what a dead consumer had | that of the queue, 3 s at least | 3 s to 12 h, whole seconds |
/// | `dead_letters`, the name of the queue for them | that of the redrive policy, or `<queue>-DLQ` | |
#[derive(Debug, Clone)]
#[must_use]
pub struct SourceSettings {
    given: Given,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    max_message: usize,
    wait: Duration,
    visibility: Option<Duration>,
    dead_letters: Option<String>,
}

impl SourceSettings {
    /// Messages come from this queue: its name or its URL.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            given: named(queue.into()),
            timeout: TIMEOUT,
            connect_timeout: None,
            max_message: MAX_MESSAGE,
            wait: WAIT,
            visibility: None,
            dead_letters: None,
        }
    }

    access!();

    /// A request without an answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a request waits for messages. Leaving in good order takes as long.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// After this time without a sign of life, others get what a consumer had.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Some(visibility);
        self
    }

    /// The name of the queue for dead letters.
    pub fn dead_letters(mut self, queue: impl Into<String>) -> Self {
        self.dead_letters = Some(queue.into());
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<SourceChecked, SettingsError> {
        let place = Place::of(self.given)?;
        let connect_timeout = timeouts(self.timeout, self.connect_timeout)?;
        check_message(self.max_message)?;
        let wait = seconds(self.wait, Duration::ZERO, LONGEST_WAIT);
        let visibility = self.visibility.map(|visibility| {
            seconds(visibility, SHORTEST_VISIBILITY, LONGEST_VISIBILITY)
                .ok_or(SettingsError::Visibility(visibility))
        });
        if let Some(name) = &self.dead_letters {
            let given = named(name.clone());
            let fifo = Place::of(given)?.is_fifo();
            if name.contains("://") || fifo != place.is_fifo() {
                return Err(SettingsError::DeadLetters(name.clone()));
            }
        }
        Ok(SourceChecked {
            place,
            timeout: self.timeout,
            connect_timeout,
            max_message: self.max_message,
            wait: wait.ok_or(SettingsError::Wait(self.wait))?,
            visibility: visibility.transpose()?,
            dead_letters: self.dead_letters,
        })
    }
}

/// Settings in which nothing is wrong.
pub(crate) struct Checked {
    pub(crate) place: Place,
    pub(crate) source: Source,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_batch: usize,
    pub(crate) max_message: usize,
    pub(crate) max_payload: usize,
}

/// The same for a source. Times that SQS counts are in seconds.
#[derive(Clone)]
pub(crate) struct SourceChecked {
    pub(crate) place: Place,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_message: usize,
    pub(crate) wait: i32,
    pub(crate) visibility: Option<i32>,
    pub(crate) dead_letters: Option<String>,
}

/// Why a destination or a source cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The queue cannot be one.
    #[error("the queue is not usable: {0}")]
    Queue(String),
    /// The address cannot be one.
    #[error("the endpoint is not usable: {0}")]
    Endpoint(String),
    /// The region cannot be one.
    #[error("a region has letters, digits and `-`, for example eu-west-1; it is {0:?}")]
    Region(String),
    /// There are credentials in a URL and beside it.
    #[error("there are credentials in the URL and others beside it: choose one")]
    TwoCredentials,
    /// A key has no characters.
    #[error("the key or its secret is empty; leave both out to use those of the surroundings")]
    EmptyCredentials,
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
    #[error("a batch has 1 to 1000 messages, not {0}")]
    MaxBatch(usize),
    /// The largest message is out of bounds.
    #[error("the largest message is 128 KiB to 1 MiB, not {0} bytes")]
    MaxMessage(usize),
    /// The largest payload is out of bounds.
    #[error("the largest payload is 1 byte up to the largest message, not {0} bytes")]
    MaxPayload(usize),
    /// The wait is out of bounds.
    #[error("a request waits 0 to 20 seconds, in whole seconds, not {0:?}")]
    Wait(Duration),
    /// The visibility timeout is out of bounds.
    #[error("the visibility timeout is 3 seconds to 12 hours, in whole seconds, not {0:?}")]
    Visibility(Duration),
    /// The queue for dead letters cannot be one.
    #[error("dead letters go to a queue of the same kind, by its name; it is {0:?}")]
    DeadLetters(String),
}

fn named(queue: String) -> Given {
    Given {
        queue,
        ..Given::default()
    }
}

fn timeouts(timeout: Duration, connect: Option<Duration>) -> Result<Duration, SettingsError> {
    if timeout.is_zero() || timeout > LONGEST_TIMEOUT {
        return Err(SettingsError::Timeout(timeout));
    }
    let connect = connect.unwrap_or_else(|| CONNECT_TIMEOUT.min(timeout / 2));
    match connect.is_zero() || connect >= timeout {
        true => Err(SettingsError::ConnectTimeout(connect)),
        false => Ok(connect),
    }
}

fn check_message(bytes: usize) -> Result<(), SettingsError> {
    match (SMALLEST_MESSAGE..=MAX_MESSAGE).contains(&bytes) {
        true => Ok(()),
        false => Err(SettingsError::MaxMessage(bytes)),
    }
}

/// Whole seconds within bounds.
fn seconds(time: Duration, least: Duration, most: Duration) -> Option<i32> {
    let whole = time.subsec_nanos() == 0 && (least..=most).contains(&time);
    whole.then(|| i32::try_from(time.as_secs()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn refused(settings: Settings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = Settings::new("orders").check().unwrap();
        assert_eq!(checked.timeout, S(10));
        assert_eq!(checked.connect_timeout, S(3));
        assert_eq!(checked.max_batch, 100);
        assert_eq!(checked.max_message, 1024 * 1024);
        assert_eq!(checked.max_payload, 720 * 1024);
        assert_eq!(checked.source.as_str(), "counterfoil");
        let old = Settings::new("orders").max_message(256 * 1024);
        assert_eq!(old.check().unwrap().max_payload, 144 * 1024);
        let source = SourceSettings::new("orders").check().unwrap();
        assert_eq!((source.wait, source.visibility), (5, None));
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let plain = || Settings::new("orders");
        assert_eq!(refused(plain().timeout(S(0))), SettingsError::Timeout(S(0)));
        let slow = plain().connect_timeout(S(10));
        assert_eq!(refused(slow), SettingsError::ConnectTimeout(S(10)));
        for n in [0, 1_001] {
            assert_eq!(refused(plain().max_batch(n)), SettingsError::MaxBatch(n));
        }
        for n in [0, 128 * 1024 - 1, MIB + 1] {
            assert_eq!(
                refused(plain().max_message(n)),
                SettingsError::MaxMessage(n)
            );
        }
        for n in [0, MIB + 1] {
            assert_eq!(
                refused(plain().max_payload(n)),
                SettingsError::MaxPayload(n)
            );
        }
        let odd = refused(plain().source("a b"));
        assert!(matches!(odd, SettingsError::Source(_)));
    }

    #[test]
    fn times_that_sqs_cannot_count_are_refused() {
        let plain = || SourceSettings::new("orders.fifo");
        for wait in [S(21), Duration::from_millis(1_500)] {
            let refused = plain().wait(wait).check().err();
            assert_eq!(refused, Some(SettingsError::Wait(wait)));
        }
        for visibility in [S(2), S(43_201), Duration::from_millis(5_500)] {
            let refused = plain().visibility(visibility).check().err();
            assert_eq!(refused, Some(SettingsError::Visibility(visibility)));
        }
        let other = plain().dead_letters("orders-dead").check().err();
        assert_eq!(
            other,
            Some(SettingsError::DeadLetters("orders-dead".into()))
        );
        assert!(plain().dead_letters("dead.fifo").check().is_ok());
    }

    #[test]
    fn no_secret_is_shown() {
        let given = Settings::new("orders").session_credentials("id", "hunter2", "hunter2");
        assert!(!format!("{given:?}").contains("hunter2"));
        let source = SourceSettings::new("http://id:hunter2@h/q");
        assert!(!format!("{source:?}").contains("hunter2"));
    }
}
