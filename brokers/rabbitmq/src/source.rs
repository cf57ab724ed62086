//! Queues that messages are received from.
//!
//! # Promise
//! Whoever is let in receives from queues that are there. What a group needs is made when it first
//! subscribes, or by [`RabbitMqSource::declare`], and from then on it gets everything that is
//! published.

use std::fmt;

use async_trait::async_trait;
use counterfoil_core::message::MAX_PAYLOAD;
use counterfoil_core::source::{Features, HeaderValues, Source, SourceError, Subscription};

use crate::classify::Failure;
use crate::durability;
use crate::link::Wire;
use crate::settings::{CheckedSource, SettingsError, SourceSettings};
use crate::subscription::RabbitSubscription;
use crate::topology::{declare, waiting};

/// Receives the messages of a topic for a group, or those of a queue.
///
/// See [`SourceSettings`] for what can be configured.
///
/// ```no_run
/// use counterfoil_core::source::Source as _;
/// use counterfoil_rabbitmq::{RabbitMqSource, SourceSettings};
///
/// # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
/// let settings = SourceSettings::new("amqp://127.0.0.1/", "orders", "stock").partitions(4);
/// let source = RabbitMqSource::new(settings)?;
/// let mut subscription = source.subscribe().await?;
/// let messages = subscription.receive(100).await?;
/// # Ok(())
/// # }
/// ```
pub struct RabbitMqSource {
    settings: CheckedSource,
}

impl RabbitMqSource {
    /// Builds the source. Nothing is connected yet.
    pub fn new(settings: SourceSettings) -> Result<Self, SettingsError> {
        let settings = settings.check()?;
        Ok(Self { settings })
    }

    /// Makes the queues of the group, which get what is published from now on. Changes nothing when
    /// they are there, and does nothing at all when the source is passive.
    pub async fn declare(&self) -> Result<(), SourceError> {
        let wire = self.ready().await?;
        wire.close(self.settings.timeout).await;
        Ok(())
    }

    /// A connection, and queues that are there.
    async fn ready(&self) -> Result<Wire, Failure> {
        let CheckedSource { dial, queues, .. } = &self.settings;
        let wire = dial.open().await?;
        let channel = dial.channel(&wire).await?;
        if !self.settings.passive {
            declare(dial, &channel, queues).await?;
            return Ok(wire);
        }
        for name in &queues.all {
            dial.within(waiting(&channel, name)).await?;
        }
        let (dial, queues) = (dial.clone(), queues.clone());
        tokio::spawn(async move { durability::look(&dial, &queues).await });
        Ok(wire)
    }
}

#[async_trait]
impl Source for RabbitMqSource {
    fn describe(&self) -> String {
        let CheckedSource { dial, queues, .. } = &self.settings;
        match &queues.topic {
            Some(topic) => {
                let group = &queues.base[topic.len() + 1..];
                format!("rabbitmq topic {topic} for group {group} at {}", dial.shown)
            }
            None => format!("rabbitmq queue {} at {}", queues.base, dial.shown),
        }
    }

    fn features(&self) -> Features {
        // What is known about queues of ours is not known about others.
        let ours = !self.settings.passive;
        Features {
            ordering_key: ours,
            native_dedup: false,
            delay: ours,
            dead_letters: ours,
            // What our destinations send unless they are told otherwise; RabbitMQ takes more.
            largest_payload: Some(MAX_PAYLOAD),
            headers: HeaderValues::Bytes,
        }
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        let wire = self.ready().await?;
        let subscription = RabbitSubscription::join(self.settings.clone(), wire).await?;
        Ok(Box::new(subscription))
    }
}

impl fmt::Debug for RabbitMqSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSource")
            .field("server", &self.settings.dial.shown)
            .field("queues", &self.settings.queues.base)
            .finish_non_exhaustive()
    }
}
