//! Who is in a group, and who reads which partition.
//!
//! # Promise
//! Members that hear each other agree on who reads what, each partition has a reader, and nobody has
//! two more than another. Disagreement costs time and nothing else: a queue has one active consumer,
//! whatever members believe.
//!
//! RabbitMQ makes the first that comes the active consumer of every queue. So members tell each
//! other once a second that they are there, through an exchange of the group. Time is counted in
//! signs of our own that came back: when the broker stands still, nobody is missed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Consumer, ExchangeKind};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use uuid::Uuid;

use crate::classify::Failure;
use crate::link::{Dial, Wire};

const SIGN: Duration = Duration::from_secs(1);
/// Without a sign for so many of ours, a member is gone.
const MISSED: u32 = 5;
/// Signs that nobody reads are dropped: the next one says the same.
const STALE_MS: i64 = 10_000;
const GOODBYE: &str = "-";

/// Membership of a group with several partitions.
pub(crate) struct Members {
    me: String,
    exchange: String,
    wire: Wire,
    channel: Channel,
    task: JoinHandle<()>,
}

impl Members {
    /// Joins, and says from now on which partitions are ours.
    pub(crate) async fn join(
        dial: &Dial,
        exchange: String,
        partitions: usize,
    ) -> Result<(Self, watch::Receiver<Vec<usize>>), Failure> {
        let wire = dial.open().await?;
        let channel = dial.channel(&wire).await?;
        let signs = dial.within(listen(&channel, &exchange)).await?;
        let me = Uuid::now_v7().to_string();
        let table = Table::new(me.clone(), partitions);
        let (tell, share) = watch::channel(table.share());
        let (of, to) = (channel.clone(), exchange.clone());
        let task = tokio::spawn(async move { attend(of, to, signs, table, tell).await });
        let members = Self {
            me,
            exchange,
            wire,
            channel,
            task,
        };
        Ok((members, share))
    }

    /// Tells the others that we go.
    pub(crate) async fn leave(&self, patience: Duration) {
        self.task.abort();
        let goodbye = publish(
            &self.channel,
            &self.exchange,
            format!("{GOODBYE}{}", self.me),
        );
        let _ = timeout(patience, goodbye).await;
        self.wire.close(patience).await;
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(channel: &Channel, exchange: &str) -> lapin::Result<Consumer> {
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let none = FieldTable::default;
    channel
        .exchange_declare(exchange.into(), ExchangeKind::Fanout, durable, none())
        .await?;
    let mut arguments = none();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(STALE_MS));
    let ours = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel.queue_declare("".into(), ours, arguments).await?;
    let queue = queue.name().clone();
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(queue.clone(), exchange.into(), "".into(), bind, none())
        .await?;
    let unacknowledged = BasicConsumeOptions {
        no_ack: true,
        ..BasicConsumeOptions::default()
    };
    channel
        .basic_consume(queue, "".into(), unacknowledged, none())
        .await
}

async fn publish(channel: &Channel, exchange: &str, sign: String) -> lapin::Result<()> {
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default();
    let body = Bytes::from(sign);
    channel
        .basic_publish(exchange.into(), "".into(), options, &body, properties)
        .await?;
    Ok(())
}

/// Until the connection breaks or nobody listens any more: then the receiver sees the end.
async fn attend(
    channel: Channel,
    exchange: String,
    mut signs: Consumer,
    mut table: Table,
    tell: watch::Sender<Vec<usize>>,
) {
    let mut ticks = interval(SIGN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let answer = tokio::select! {
            _ = ticks.tick() => true,
            sign = signs.next() => match sign {
                Some(Ok(sign)) => table.hear(&String::from_utf8_lossy(&sign.data)),
                _ => return,
            },
        };
        tell.send_if_modified(|share| {
            let now = table.share();
            let changed = *share != now;
            *share = now;
            changed
        });
        if answer
            && publish(&channel, &exchange, table.me.clone())
                .await
                .is_err()
        {
            return;
        }
    }
}

/// Who was heard.
struct Table {
    me: String,
    partitions: usize,
    /// The others, and how many signs of ours came back since theirs.
    others: BTreeMap<String, u32>,
}

impl Table {
    fn new(me: String, partitions: usize) -> Self {
        Self {
            me,
            partitions,
            others: BTreeMap::new(),
        }
    }

    /// Takes note of a sign. Whether it is answered at once: a new one must not wait for us.
    fn hear(&mut self, sign: &str) -> bool {
        if let Some(gone) = sign.strip_prefix(GOODBYE) {
            self.others.remove(gone);
            return false;
        }
        if sign == self.me {
            self.others.values_mut().for_each(|missed| *missed += 1);
            self.others.retain(|_, missed| *missed <= MISSED);
            return false;
        }
        self.others.insert(sign.to_owned(), 0).is_none()
    }

    /// The partitions that are ours.
    fn share(&self) -> Vec<usize> {
        let rank = self.others.range(..self.me.clone()).count();
        (rank..self.partitions)
            .step_by(self.others.len() + 1)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(me: &str, others: &[&str]) -> Table {
        let mut table = Table::new(me.into(), 5);
        for other in others {
            assert!(table.hear(other), "a new one is answered");
        }
        table
    }

    #[test]
    fn every_partition_has_one_reader_and_all_agree() {
        let names = ["a", "b", "c"];
        let mut all = Vec::new();
        for me in names {
            let others: Vec<&str> = names.iter().copied().filter(|n| *n != me).collect();
            all.extend(table(me, &others).share());
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert_eq!(table("b", &["a", "c"]).share(), [1, 4]);
    }

    #[test]
    fn whoever_is_alone_reads_everything_and_too_many_wait() {
        assert_eq!(table("a", &[]).share(), [0, 1, 2, 3, 4]);
        let others = ["a", "b", "c", "d", "e"];
        assert_eq!(table("f", &others).share(), Vec::<usize>::new());
    }

    #[test]
    fn who_says_nothing_for_five_signs_of_ours_is_gone() {
        let mut two = table("a", &["b"]);
        for _ in 0..MISSED {
            two.hear("a");
        }
        assert_eq!(two.share(), [0, 2, 4]);
        assert!(!two.hear("b"), "a known one is not answered");
        for _ in 0..=MISSED {
            two.hear("a");
        }
        assert_eq!(two.share(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn who_says_goodbye_is_gone_at_once() {
        let mut two = table("a", &["b"]);
        two.hear("-b");
        assert_eq!(two.share(), [0, 1, 2, 3, 4]);
    }
}
