//! What the memory store holds, and the rules about lanes that reading and settling share.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use counterfoil_core::desk::Event;
use counterfoil_core::message::{Aggregate, MAX_NAME, Message, MessageId, Payload};
use counterfoil_core::presence::ConsumerStatus;
use counterfoil_core::row::{RowKey, RowState, WrittenId};
use counterfoil_core::store::{Kept, RelayId};

/// The number of shards. Small, so that tests of a few messages meet all of them.
pub(super) const SHARDS: u16 = 8;

/// What anybody may write: the columns of a message.
#[derive(Debug, Clone, Default)]
pub(super) struct Columns {
    pub(super) id: Option<String>,
    pub(super) queue: Option<String>,
    pub(super) aggregate_type: Option<String>,
    pub(super) aggregate_id: Option<String>,
    pub(super) version: Option<i64>,
    pub(super) event_type: Option<String>,
    pub(super) payload: Option<String>,
    pub(super) payload_bin: Option<Vec<u8>>,
    pub(super) headers: Option<String>,
}

/// A row of the outbox.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) seq: i64,
    pub(super) columns: Columns,
    pub(super) state: RowState,
    pub(super) attempts: i32,
    pub(super) crashes: u32,
    /// It came back from the parking lot, where its record waits for the outcome.
    pub(super) redriven: bool,
    pub(super) available_at: Option<DateTime<Utc>>,
    pub(super) created_at: DateTime<Utc>,
    pub(super) code: Option<String>,
    pub(super) error: Option<String>,
}

/// A record of the parking lot.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    pub(super) row: Row,
    pub(super) id: MessageId,
    pub(super) hold: bool,
    pub(super) confirm: bool,
    pub(super) state: &'static str,
    pub(super) at: DateTime<Utc>,
    pub(super) updated_at: DateTime<Utc>,
}

/// A message that is over.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) row: Row,
    pub(super) state: &'static str,
    pub(super) detail: Option<String>,
    pub(super) at: DateTime<Utc>,
}

/// A key by which a repeat is recognised.
#[derive(Debug, Clone)]
pub(super) struct LedgerEntry {
    pub(super) id: MessageId,
    pub(super) created_at: DateTime<Utc>,
}

/// (scope, key).
pub(super) type Key = (String, String);

#[derive(Debug)]
pub(super) struct Member {
    pub(super) queues: Vec<String>,
    pub(super) lease_until: DateTime<Utc>,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) status: ConsumerStatus,
    pub(super) reported_at: DateTime<Utc>,
    pub(super) lease_until: DateTime<Utc>,
}

#[derive(Debug, Default)]
pub(super) struct Ownership {
    pub(super) owner: Option<RelayId>,
    pub(super) epoch: i64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) paused: Option<(String, String)>,
    pub(super) unavailable_since: Option<DateTime<Utc>>,
}

/// Everything, under one lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) outbox: BTreeMap<i64, Row>,
    pub(super) parked: BTreeMap<i64, Parked>,
    pub(super) history: BTreeMap<i64, Ended>,
    pub(super) events: Vec<(i64, Event)>,
    /// Who paused and resumed which queue.
    pub(super) queue_events: Vec<(String, Event)>,
    pub(super) ledger: HashMap<Key, LedgerEntry>,
    pub(super) relays: BTreeMap<RelayId, Member>,
    pub(super) shards: BTreeMap<(String, u16), Ownership>,
    pub(super) queues: BTreeMap<String, Queue>,
    pub(super) breakers: BTreeMap<String, Kept>,
    pub(super) consumers: BTreeMap<RelayId, Consumer>,
    next_seq: i64,
    next_tx: u64,
    /// Transactions that have an id and have not ended.
    pub(super) open: BTreeSet<u64>,
    /// Keys that open transactions have noted, and which.
    pub(super) claimed: HashMap<Key, u64>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            outbox: BTreeMap::new(),
            parked: BTreeMap::new(),
            history: BTreeMap::new(),
            events: Vec::new(),
            queue_events: Vec::new(),
            ledger: HashMap::new(),
            relays: BTreeMap::new(),
            shards: BTreeMap::new(),
            queues: BTreeMap::new(),
            breakers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            next_seq: 1,
            next_tx: 1,
            open: BTreeSet::new(),
            claimed: HashMap::new(),
        }
    }

    /// The next number. Taken at enqueue and not given back, as databases do it.
    pub(super) fn take_seq(&mut self) -> i64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// The next numbers are those from this one on.
    pub(super) fn give_numbers_from(&mut self, seq: i64) {
        self.next_seq = seq;
    }

    /// The next transaction id. A transaction takes it before its first number.
    pub(super) fn take_tx(&mut self) -> u64 {
        self.next_tx += 1;
        self.next_tx - 1
    }

    /// All transactions with ids below this one have ended.
    pub(super) fn horizon(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next_tx)
    }

    pub(super) fn paused(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(|q| q.paused.is_some())
    }

    /// Rows of one lane that wait for another try or behind one.
    pub(super) fn lane_rows<'a>(
        &'a self,
        queue: &'a str,
        lane: &'a Aggregate,
    ) -> impl Iterator<Item = &'a Row> {
        self.outbox.values().filter(move |row| {
            matches!(row.state, RowState::Retrying | RowState::Held)
                && row.queue() == queue
                && row.lane().as_ref() == Some(lane)
        })
    }

    /// The parked messages that a lane waits for.
    pub(super) fn holders<'a>(
        &'a self,
        queue: &'a str,
        lane: &'a Aggregate,
    ) -> impl Iterator<Item = &'a Parked> {
        self.parked.values().filter(move |p| {
            p.hold
                && matches!(p.state, "pending" | "redriven")
                && p.row.queue() == queue
                && p.row.lane().as_ref() == Some(lane)
        })
    }

    /// A retry or a parked message stands at the head of the lane. A redriven one is a row of the
    /// lane like the others.
    pub(super) fn blocked(&self, queue: &str, lane: &Aggregate) -> bool {
        self.lane_rows(queue, lane)
            .any(|row| row.state == RowState::Retrying)
            || self.holders(queue, lane).any(|p| p.state == "pending")
    }

    /// A row that arrives now in its lane would not be the head.
    pub(super) fn behind(&self, row: &Row) -> bool {
        row.lane().is_some_and(|lane| {
            self.lane_rows(row.queue(), &lane)
                .any(|other| other.seq != row.seq)
                || self.holders(row.queue(), &lane).next().is_some()
        })
    }

    /// The row that was read under this key, if it is still there.
    pub(super) fn row_mut(&mut self, key: &RowKey) -> Option<&mut Row> {
        let row = self.outbox.get_mut(&key.seq)?;
        (row.written_id() == key.written && row.message_id() == key.id).then_some(row)
    }

    /// Takes the row that was read under this key out of the outbox.
    pub(super) fn remove_row(&mut self, key: &RowKey) -> Option<Row> {
        self.row_mut(key)?;
        self.outbox.remove(&key.seq)
    }

    /// Adds a line to a message's history.
    pub(super) fn note(&mut self, seq: i64, event: Event) {
        self.events.push((seq, event));
    }
}

impl Row {
    pub(super) fn new(seq: i64, columns: Columns, created_at: DateTime<Utc>) -> Self {
        Self {
            seq,
            columns,
            state: RowState::New,
            attempts: 0,
            crashes: 0,
            redriven: false,
            available_at: None,
            created_at,
            code: None,
            error: None,
        }
    }

    /// The queue; empty while no route has taken it.
    pub(super) fn queue(&self) -> &str {
        self.columns.queue.as_deref().unwrap_or("")
    }

    /// What it can wait behind. An endless name is a defect and no lane.
    pub(super) fn lane(&self) -> Option<Aggregate> {
        let kind = self.columns.aggregate_type.as_deref().unwrap_or("");
        let id = self.columns.aggregate_id.as_deref()?;
        (kind.len() <= MAX_NAME && id.len() <= MAX_NAME).then(|| Aggregate::new(kind, id))
    }

    /// The shard: a fixed hash (FNV-1a) of the aggregate, or of the id where there is none.
    pub(super) fn shard(&self) -> u16 {
        let c = &self.columns;
        let kind = c.aggregate_type.as_deref().unwrap_or("");
        let id = c.aggregate_id.as_deref().or(c.id.as_deref()).unwrap_or("");
        let hash = format!("{kind}/{id}")
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, b| {
                (hash ^ u32::from(b)).wrapping_mul(0x0100_0193)
            });
        (hash >> 16) as u16 % SHARDS
    }

    /// Whether its time has come.
    pub(super) fn due(&self, now: DateTime<Utc>) -> bool {
        self.available_at.is_none_or(|at| at <= now)
    }

    /// Waits for its time, outside of the plain read. Without a time there is nothing to wait for.
    pub(super) fn waits(&self) -> bool {
        let aside = matches!(self.state, RowState::Scheduled | RowState::Retrying);
        aside && self.available_at.is_some()
    }

    /// Waits behind another row. Without a lane there is nothing to wait behind.
    pub(super) fn held(&self) -> bool {
        self.state == RowState::Held && self.lane().is_some()
    }

    pub(super) fn attempts(&self) -> u32 {
        u32::try_from(self.attempts).unwrap_or(0)
    }

    /// Its id as it stands there.
    pub(super) fn written_id(&self) -> WrittenId {
        WrittenId::of(self.columns.id.as_deref().map(str::as_bytes))
    }

    /// The identity that a destination sees.
    pub(super) fn message_id(&self) -> MessageId {
        let written = self.columns.id.as_deref().and_then(MessageId::parse);
        written.unwrap_or_else(|| MessageId::of_row(self.seq, self.created_at.timestamp_micros()))
    }
}

impl From<&Message> for Columns {
    fn from(m: &Message) -> Self {
        let (payload, payload_bin) = match &m.payload {
            Payload::Json(text) => (Some(text.clone()), None),
            Payload::Opaque(bytes) => (None, Some(bytes.to_vec())),
        };
        Columns {
            id: Some(m.id.to_string()),
            queue: m.queue.clone(),
            aggregate_type: m.aggregate.as_ref().map(|a| a.kind.clone()),
            aggregate_id: m.aggregate.as_ref().map(|a| a.id.clone()),
            version: m.version,
            event_type: Some(m.event_type.clone()),
            payload,
            payload_bin,
            headers: m.headers.to_json(),
        }
    }
}
