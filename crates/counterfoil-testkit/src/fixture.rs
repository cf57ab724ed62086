//! What every case starts with: an empty outbox, messages to put in and relays to take them out.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::Code;
use counterfoil_core::desk::{Desk, QueueStats};
use counterfoil_core::message::{Aggregate, Message, MessageId};
use counterfoil_core::row::{Delivery, RawRow, RowKey};
use counterfoil_core::store::{Enqueued, Keyed, Park, Retry, Store};

use crate::harness::{ForeignRow, Harness};
pub use crate::relay::Relay;

/// The queue that most cases use.
pub const QUEUE: &str = "billing";
/// Another one.
pub const OTHER: &str = "search";
/// Longer than any case takes.
pub const LEASE: Duration = Duration::from_secs(600);
/// More bytes than most cases write.
pub const PLENTY: usize = 64 << 20;
/// Longer than any case takes, and shorter than a day.
pub const LATER: Duration = Duration::from_secs(3_600);

/// An empty outbox under test.
pub struct Fixture<H: Harness> {
    /// The harness of the store.
    pub harness: Arc<H>,
    /// The store, as the engine of this process uses it.
    pub store: Arc<dyn Store>,
    /// The operator's side.
    pub desk: Arc<dyn Desk>,
}

impl<H: Harness> Fixture<H> {
    /// A fixture on a fresh harness.
    pub fn new(harness: Arc<H>) -> Self {
        Self {
            store: harness.store(),
            desk: harness.desk(),
            harness,
        }
    }

    /// Commits messages in one transaction.
    pub async fn put(&self, messages: &[Message]) {
        let mut tx = self.harness.begin().await;
        self.harness.enqueue(&mut tx, messages).await.unwrap();
        self.harness.commit(tx).await.unwrap();
    }

    /// Commits foreign rows, each in a transaction of its own.
    pub async fn foreign(&self, rows: &[ForeignRow]) {
        for row in rows {
            let mut tx = self.harness.begin().await;
            if let Err(error) = self.harness.foreign(&mut tx, row).await {
                panic!("a foreign writer failed with {error}: {}", short(row));
            }
            self.harness.commit(tx).await.unwrap();
        }
    }

    /// Commits one message under a key.
    pub async fn put_keyed(&self, keyed: &Keyed) -> Enqueued {
        let mut tx = self.harness.begin().await;
        let answer = self.harness.enqueue_keyed(&mut tx, keyed).await.unwrap();
        self.harness.commit(tx).await.unwrap();
        answer
    }

    /// Figures of every queue, by name.
    pub async fn stats(&self) -> Vec<QueueStats> {
        let mut stats = self.desk.stats().await.unwrap();
        stats.sort_by(|a, b| a.queue.cmp(&b.queue));
        stats
    }

    /// A relay of this process that owns every shard of these queues.
    pub async fn relay(&self, queues: &[&str]) -> Relay {
        let mut relay = Relay::join(Arc::clone(&self.store), queues).await;
        let taken = relay.take_all().await;
        assert_eq!(taken.len(), queues.len() * usize::from(self.store.shards()));
        relay
    }

    /// A relay of another process, which owns nothing yet.
    pub async fn other_relay(&self, queues: &[&str]) -> Relay {
        Relay::join(self.harness.second_store().await, queues).await
    }
}

fn short(row: &ForeignRow) -> String {
    format!("{row:?}").chars().take(600).collect()
}

/// Rows as a settlement names them.
pub fn keys(rows: &[RawRow]) -> Vec<RowKey> {
    rows.iter().map(RawRow::key).collect()
}

/// One more failed attempt, with a timeout.
pub fn retry(row: &RawRow, delay: Duration) -> Retry {
    Retry {
        row: row.key(),
        delay,
        attempts: row.attempts + 1,
        code: Code::TIMEOUT,
        error: "no answer within 5s".into(),
    }
}

/// A row to be parked so that its aggregate waits for it.
pub fn park(row: &RawRow) -> Park {
    Park {
        row: row.key(),
        attempts: row.attempts + 1,
        code: Code::UPSTREAM_4XX,
        error: "410 Gone".into(),
        hold: true,
        confirm: false,
        follow_up: None,
    }
}

/// What the relay makes of a row.
pub fn judge(row: &RawRow) -> Delivery {
    row.clone().into_delivery(&Arc::from(QUEUE), 1)
}

/// The identity of a row's message.
pub fn id(row: &RawRow) -> MessageId {
    judge(row).id
}

/// The identities of rows' messages, in order.
pub fn ids(rows: &[RawRow]) -> Vec<MessageId> {
    rows.iter().map(id).collect()
}

/// The identities of messages, in order.
pub fn ids_of(messages: &[Message]) -> Vec<MessageId> {
    messages.iter().map(|m| m.id).collect()
}

/// The versions of rows, in order.
pub fn versions(rows: &[RawRow]) -> Vec<i64> {
    rows.iter().map(|r| r.version.unwrap_or(-1)).collect()
}

/// The aggregate of the messages that [`message`] makes.
pub fn lane(name: impl std::fmt::Display) -> Aggregate {
    Aggregate::new("order", name)
}

/// A message of an aggregate in [`QUEUE`].
pub fn message(aggregate: impl std::fmt::Display, version: i64) -> Message {
    let content = serde_json::json!({ "version": version });
    Message::json("order", aggregate, "OrderPaid", &content)
        .unwrap()
        .version(version)
        .queue(QUEUE)
}

/// Messages of one aggregate in [`QUEUE`], with versions from one.
pub fn messages(aggregate: impl std::fmt::Display, count: i64) -> Vec<Message> {
    (1..=count)
        .map(|version| message(&aggregate, version))
        .collect()
}

/// A message under a key.
pub fn keyed(message: Message, scope: &str, key: &str) -> Keyed {
    Keyed {
        message,
        key: Some((scope.into(), key.into())),
    }
}
