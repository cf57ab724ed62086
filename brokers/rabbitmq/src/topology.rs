//! Exchanges and queues of ours.
//!
//! # Promise
//! What is declared loses nothing: quorum queues without a limit that drops, whose dead letters are
//! kept until the other queue has them. Declaring again changes nothing. One that is there with other
//! settings is refused, and left as it is.

use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use crate::classify::Failure;
use crate::link::Dial;
use crate::names::{Queues, SLOTS};

/// The longest delay of a release: RabbitMQ counts milliseconds in 32 bits.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);
const SHORTEST_DELAY_MS: u64 = 250;

/// Everything that a group needs to receive, and to get what is published from now on.
pub(crate) async fn declare(
    dial: &Dial,
    channel: &Channel,
    queues: &Queues,
) -> Result<(), Failure> {
    let declared = async {
        queue(channel, &queues.dead_letters(), FieldTable::default()).await?;
        for name in &queues.all {
            queue(channel, name, arguments(queues)).await?;
        }
        if let Some(topic) = &queues.topic {
            exchange(channel, topic, ExchangeKind::Direct).await?;
            let binds = (0..SLOTS).map(|slot| {
                let name = &queues.all[slot % queues.all.len()];
                bind(channel, name, topic, slot.to_string())
            });
            join_all(binds)
                .await
                .into_iter()
                .collect::<lapin::Result<()>>()?;
        }
        Ok(())
    };
    dial.within(declared).await.map_err(explained)
}

/// What a queue that messages are received from is declared with.
pub(crate) fn arguments(queues: &Queues) -> FieldTable {
    let mut arguments = keeping(&queues.dead_letters());
    arguments.insert(key("x-single-active-consumer"), true.into());
    arguments
}

/// Whose dead letters, or what has waited long enough, goes to that queue through the default
/// exchange, and is kept until it has arrived there. That is only so while nothing is dropped.
fn keeping(to: &str) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert(key("x-dead-letter-exchange"), text(""));
    if !to.is_empty() {
        arguments.insert(key("x-dead-letter-routing-key"), text(to));
    }
    arguments.insert(key("x-dead-letter-strategy"), text("at-least-once"));
    arguments.insert(key("x-overflow"), text("reject-publish"));
    arguments
}

/// The queue where messages wait for so long, and then go to the queue that their routing key names.
///
/// There is one for each length: messages leave a queue at its head only, and one that waits for an
/// hour would hold up one that waits for a second.
pub(crate) async fn declare_delay(
    dial: &Dial,
    channel: &Channel,
    name: &str,
    milliseconds: u32,
) -> Result<(), Failure> {
    let declared = async {
        let mut arguments = keeping("");
        arguments.insert(
            key("x-message-ttl"),
            AMQPValue::LongLongInt(milliseconds.into()),
        );
        queue(channel, name, arguments).await?;
        exchange(channel, name, ExchangeKind::Fanout).await?;
        bind(channel, name, name, String::new()).await
    };
    dial.within(declared).await.map_err(explained)
}

/// The length of the queue for a delay: 1, 1½, 2, 3, 4, 6 … quarters of a second, and not less than
/// what is asked for. So there are few of them, and a message comes at most half again as late.
pub(crate) fn delay_class(delay: Duration) -> Option<u32> {
    if delay > LONGEST_DELAY {
        return None;
    }
    let wanted = u64::try_from(delay.as_micros().div_ceil(1_000)).ok()?;
    let mut class = SHORTEST_DELAY_MS;
    while class < wanted {
        let more = class + class / 2;
        class = match more >= wanted {
            true => more,
            false => class * 2,
        };
    }
    u32::try_from(class).ok()
}

/// How many messages wait in a queue that is there.
pub(crate) async fn waiting(channel: &Channel, name: &str) -> lapin::Result<u64> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel.queue_declare(name.into(), options, FieldTable::default());
    Ok(queue.await?.message_count().into())
}

/// Declares a durable quorum queue.
pub(crate) async fn queue(
    channel: &Channel,
    name: &str,
    mut arguments: FieldTable,
) -> lapin::Result<()> {
    arguments.insert(key("x-queue-type"), text("quorum"));
    let options = QueueDeclareOptions::durable();
    channel
        .queue_declare(name.into(), options, arguments)
        .await?;
    Ok(())
}

async fn exchange(channel: &Channel, name: &str, kind: ExchangeKind) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(name.into(), kind, options, FieldTable::default())
        .await
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: String) -> lapin::Result<()> {
    let options = QueueBindOptions::default();
    channel
        .queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            options,
            FieldTable::default(),
        )
        .await
}

fn explained(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(text) if text.contains("inequivalent") => Failure::Refused(format!(
            "{text}; it is there with other settings: delete it if it is empty, or read it as it \
             is with `passive`"
        )),
        other => other,
    }
}

pub(crate) fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.as_bytes().into())
}

fn key(name: &str) -> ShortString {
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_and_not_by_more_than_half() {
        for (delay, class) in [(0, 250), (250, 250), (251, 375), (376, 500), (3_000, 3_000)] {
            assert_eq!(delay_class(Duration::from_millis(delay)), Some(class));
        }
        let mut classes = std::collections::BTreeSet::new();
        for seconds in 1..200_000 {
            let class = delay_class(Duration::from_secs(seconds)).unwrap();
            assert!(u64::from(class) >= seconds * 1_000);
            assert!(u64::from(class) <= seconds * 1_500 + 250);
            classes.insert(class);
        }
        assert!(classes.len() < 40, "{}", classes.len());
        assert!(delay_class(LONGEST_DELAY).is_some());
        assert_eq!(delay_class(LONGEST_DELAY + Duration::from_secs(1)), None);
    }

    #[test]
    fn part_of_a_millisecond_counts_as_one() {
        assert_eq!(delay_class(Duration::from_micros(250_001)), Some(375));
    }
}
