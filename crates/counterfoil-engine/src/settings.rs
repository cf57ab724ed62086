//! The settings of a relay, checked before anything starts.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::Destination;
use counterfoil_core::policy::{Backoff, Ratio, breaker, budget, bulkhead};
use counterfoil_core::store::Retention;

use crate::pipeline::{Limits, LimitsError, reserved};

/// How a relay works.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | `lease` | 15 s | a relay that is silent for so long loses its shards |
/// | `poll` | 200 ms | how often to look without being woken; two and a half times as long when idle |
/// | `batch` | 2,000 | rows in one read, for each queue |
/// | `queue_memory` | 16 MiB | messages in memory, for each queue |
/// | `memory` | 64 MiB | messages in memory, for all queues |
/// | `lane` | 100 | rows of one aggregate in memory |
/// | `rescan` | 5 s | how often to look below the low mark |
/// | `handover` | 30 s | how long a shard that is given away waits for its handlers |
/// | `drain` | 20 s | how long a stopping relay waits for its handlers |
/// | `sweep` | 60 s | how often to remove what is over |
#[derive(Debug, Clone)]
pub struct Settings {
    /// A relay that is silent for so long loses its shards.
    pub lease: Duration,
    /// How often to look for messages without being woken.
    pub poll: Duration,
    /// Rows in one read, for each queue. Twice as many are kept in memory.
    pub batch: usize,
    /// Bytes of messages in memory, for each queue; one message is taken however large it is.
    pub queue_memory: usize,
    /// Bytes of messages in memory, for all queues together. A queue that has nothing in memory reads
    /// a little all the same.
    pub memory: usize,
    /// Rows of one aggregate in memory.
    pub lane: usize,
    /// How often to look below the low mark.
    pub rescan: Duration,
    /// How long a shard that is given away waits for its handlers.
    pub handover: Duration,
    /// How long a stopping relay waits for its handlers.
    pub drain: Duration,
    /// How often to remove what is over.
    pub sweep: Duration,
    /// How long things that are over stay.
    pub retention: Retention,
    /// Keep sent messages in the history.
    pub keep_sent: bool,
    /// How long an unavailable destination does not use up attempts.
    pub patience: Duration,
    /// The name of this relay begins with this, for people.
    pub label: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            poll: Duration::from_millis(200),
            batch: 2_000,
            queue_memory: 16 << 20,
            memory: 64 << 20,
            lane: 100,
            rescan: Duration::from_secs(5),
            handover: Duration::from_secs(30),
            drain: Duration::from_secs(20),
            sweep: Duration::from_secs(60),
            retention: Retention::default(),
            keep_sent: false,
            patience: Duration::from_secs(24 * 3_600),
            label: "relay".into(),
        }
    }
}

/// What parking a message does to the later ones of its aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnPark {
    /// They wait until the parked one is delivered or ignored.
    #[default]
    Hold,
    /// They go on.
    Skip,
}

/// One queue that this process serves.
#[derive(Clone)]
pub struct QueueSpec {
    /// Its name.
    pub name: Arc<str>,
    /// Where its messages go.
    pub destination: Arc<dyn Destination>,
    /// When to try again, and how often.
    pub backoff: Backoff,
    /// When nobody is sent anything because the destination is in trouble.
    pub breaker: breaker::Settings,
    /// How many retries there may be together.
    pub budget: budget::Limits,
    /// What parking does to the rest of the aggregate.
    pub on_park: OnPark,
    /// The scene that is started when a message of this queue is given up.
    pub compensation: Option<String>,
}

impl QueueSpec {
    /// The breaker of a destination, unless told otherwise: five failures in a row, or half of at
    /// least twenty calls in ten seconds; open for half a second at first and half a minute at most.
    pub const BREAKER: breaker::Settings = breaker::Settings {
        consecutive: Some(5),
        open_for: Duration::from_millis(500),
        open_cap: Duration::from_secs(30),
        ..breaker::Settings::DEFAULT
    };

    /// The budget of a destination, unless told otherwise. Every message has to arrive some time, so
    /// it is wide: a thousand retries a minute, and one more for each success.
    pub const BUDGET: budget::Limits = budget::Limits {
        ratio: Ratio::ONE,
        floor: 1_000,
        cap: 100_000,
        ..budget::Limits::DEFAULT
    };

    /// A queue with the default policies.
    pub fn new(name: &str, destination: Arc<dyn Destination>) -> Self {
        Self {
            name: Arc::from(name),
            backoff: destination.backoff(),
            destination,
            breaker: Self::BREAKER,
            budget: Self::BUDGET,
            on_park: OnPark::Hold,
            compensation: None,
        }
    }

    /// The limits of its destination.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            breaker: self.breaker,
            budget: self.budget,
            bulkhead: bulkhead::Size {
                limit: self.destination.capabilities().concurrency,
                queue: 0,
            },
            ..Limits::default()
        }
    }
}

/// Settings that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A duration or a number is zero.
    #[error("{0} must be greater than zero")]
    Zero(&'static str),
    /// A relay would lose its shards while it waits for an answer.
    #[error(
        "the lease ({lease:?}) must be longer than the publish timeout of queue {queue:?} ({timeout:?}): \
         raise `lease` or lower the destination's timeout"
    )]
    LeaseTooShort {
        /// The lease.
        lease: Duration,
        /// The queue whose destination may take longer.
        queue: String,
        /// The timeout of that destination.
        timeout: Duration,
    },
    /// Limits of a destination that cannot be.
    #[error("the destination of queue {queue:?}: {error}")]
    Limits {
        /// The queue.
        queue: String,
        /// What is wrong.
        error: LimitsError,
    },
    /// The same queue twice.
    #[error("the queue {0:?} has two destinations: a queue has exactly one")]
    QueueTwice(String),
    /// A name that belongs to a service.
    #[error("the queue {queue:?} needs another name: {why}, and the two would share a breaker")]
    QueueReserved {
        /// The queue.
        queue: String,
        /// Whose names begin like this.
        why: &'static str,
    },
    /// A scene names a compensation that is not registered here.
    #[error("the scene {scene:?} names the compensation {compensation:?}, which is not registered")]
    UnknownCompensation {
        /// The scene.
        scene: String,
        /// What it names.
        compensation: String,
    },
}

impl Settings {
    /// Refuses what cannot work, with a sentence that says what to change.
    pub fn validate(&self, queues: &[QueueSpec]) -> Result<(), SettingsError> {
        for (name, zero) in [
            ("lease", self.lease.is_zero()),
            ("poll", self.poll.is_zero()),
            ("rescan", self.rescan.is_zero()),
            ("sweep", self.sweep.is_zero()),
            ("batch", self.batch == 0),
            ("queue memory", self.queue_memory == 0),
            ("memory", self.memory == 0),
            ("lane", self.lane == 0),
            ("retention batch", self.retention.batch == 0),
        ] {
            if zero {
                return Err(SettingsError::Zero(name));
            }
        }
        for (i, queue) in queues.iter().enumerate() {
            if queues[..i].iter().any(|q| q.name == queue.name) {
                return Err(SettingsError::QueueTwice(queue.name.to_string()));
            }
            if let Some(why) = reserved(&queue.name) {
                let queue = queue.name.to_string();
                return Err(SettingsError::QueueReserved { queue, why });
            }
            let caps = queue.destination.capabilities();
            if caps.max_batch == 0 || caps.concurrency == 0 {
                return Err(SettingsError::Zero(
                    "concurrency and batch of a destination",
                ));
            }
            let limits = queue.limits().validate();
            limits.map_err(|error| SettingsError::Limits {
                queue: queue.name.to_string(),
                error,
            })?;
            if let Some(timeout) = caps.timeout.filter(|t| *t >= self.lease) {
                return Err(SettingsError::LeaseTooShort {
                    lease: self.lease,
                    queue: queue.name.to_string(),
                    timeout,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use counterfoil_core::destination::{Capabilities, Outcome};
    use counterfoil_core::row::Delivery;

    use super::*;

    struct Nowhere;

    #[async_trait]
    impl Destination for Nowhere {
        fn describe(&self) -> String {
            "nowhere".into()
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::single(1, None)
        }

        async fn publish(&self, _: &[Delivery]) -> Vec<Outcome> {
            Vec::new()
        }
    }

    #[test]
    fn a_queue_cannot_have_the_name_of_a_service() {
        let check = |name: &str| {
            let queue = QueueSpec::new(name, Arc::new(Nowhere));
            Settings::default().validate(&[queue])
        };

        for name in ["upstream:shop", "client:shop"] {
            let refused = check(name).unwrap_err().to_string();
            assert!(refused.contains("needs another name"), "{refused}");
        }
        for name in ["upstream", "client", "my-client:shop"] {
            assert_eq!(check(name), Ok(()));
        }
    }
}
