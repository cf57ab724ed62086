//! What a store hands to the relay, and the rules that make a delivery of it.
//!
//! # Promise
//! A row is written by anybody: by us, by an application in another language, by hand. Whatever
//! stands in it, [`RawRow::into_delivery`] gives a delivery with a stable id, and says in
//! [`Delivery::defect`] when it can only be parked. The same rules hold on every store.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error_text;
use crate::hex::Hex;
use crate::message::{Aggregate, Headers, MAX_NAME, MessageId, Payload};

/// Where a pending row stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowState {
    /// Nobody has looked at it yet, or it is plainly due.
    New,
    /// To be delivered later for the first time. Holds nobody back.
    Scheduled,
    /// Failed, and waits for its next attempt. Holds its aggregate back.
    Retrying,
    /// Waits behind an earlier message of its aggregate.
    Held,
    /// A state that no version of ours writes.
    Unknown(String),
}

impl RowState {
    /// Reads the stored word. Absent means new.
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            None | Some("new" | "") => RowState::New,
            Some("scheduled") => RowState::Scheduled,
            Some("retrying") => RowState::Retrying,
            Some("held") => RowState::Held,
            Some(other) => RowState::Unknown(other.chars().take(64).collect()),
        }
    }

    /// The stored word.
    pub fn as_str(&self) -> &str {
        match self {
            RowState::New => "new",
            RowState::Scheduled => "scheduled",
            RowState::Retrying => "retrying",
            RowState::Held => "held",
            RowState::Unknown(word) => word,
        }
    }
}

/// How the id of a row stands in the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WrittenId {
    /// A UUID in its usual spelling, as all but foreign writers write it.
    Usual,
    /// NULL.
    Absent,
    /// Anything else that a foreign writer has left, byte by byte.
    Odd(Arc<[u8]>),
}

impl WrittenId {
    /// The id that stands there in these bytes.
    pub fn of(written: Option<&[u8]>) -> Self {
        let Some(bytes) = written else {
            return Self::Absent;
        };
        let mut buffer = [0; 36];
        let text = str::from_utf8(bytes).ok();
        let usual = text.and_then(MessageId::parse).is_some_and(|id| {
            let usual = id.as_uuid().hyphenated().encode_lower(&mut buffer);
            usual.as_bytes() == bytes
        });
        if usual {
            Self::Usual
        } else {
            Self::Odd(bytes.into())
        }
    }
}

/// One row of the outbox, as it was read.
///
/// The number alone does not name it: when a replica that lacks the last transactions becomes the
/// primary, their numbers come back under other messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// Its number.
    pub seq: i64,
    /// Its shard.
    pub shard: u16,
    /// Its message; a parked record carries this id also when the row's own could not be read.
    pub id: MessageId,
    /// How its id stands in the table.
    pub written: WrittenId,
}

impl RowKey {
    /// What stands in the column `id`, for databases whose texts are UTF-8. Absent for NULL.
    pub fn column(&self) -> Option<Cow<'_, str>> {
        match &self.written {
            WrittenId::Absent => None,
            WrittenId::Usual => Some(Cow::Owned(self.id.to_string())),
            WrittenId::Odd(bytes) => Some(String::from_utf8_lossy(bytes)),
        }
    }

    /// What stands in the column `id`, in a form that fits into any list: a UUID as it is, anything
    /// else as `x` and the hexadecimal digits of its bytes. Absent for NULL.
    pub fn token(&self) -> Option<String> {
        match &self.written {
            WrittenId::Absent => None,
            WrittenId::Usual => Some(self.id.to_string()),
            WrittenId::Odd(bytes) => Some(format!("x{}", Hex(bytes))),
        }
    }
}

/// A row of the outbox as it stands in the table, before anybody has judged it.
#[derive(Debug, Clone)]
pub struct RawRow {
    /// The order of insertion; the key of the row.
    pub seq: i64,
    /// The shard of its aggregate.
    pub shard: u16,
    /// The id as written, or the one that stands for an absent one.
    pub id: Option<String>,
    /// What stands in the table under `id`.
    pub written_id: WrittenId,
    /// The aggregate type as written.
    pub aggregate_type: Option<String>,
    /// The aggregate id as written.
    pub aggregate_id: Option<String>,
    /// The version as written.
    pub version: Option<i64>,
    /// The event type as written.
    pub event_type: Option<String>,
    /// The text payload as written.
    pub payload: Option<String>,
    /// The opaque payload as written.
    pub payload_bin: Option<Vec<u8>>,
    /// The headers as written.
    pub headers: Option<String>,
    /// Where it stands.
    pub state: RowState,
    /// Attempts that were made and failed.
    pub attempts: u32,
    /// How often a process died while this row was tried alone.
    pub crashes: u32,
    /// Its time has not come yet, by the database's clock.
    pub early: bool,
    /// Something earlier of its aggregate is unresolved in the store.
    pub behind: bool,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// A column that could not be read at all, in words.
    pub unreadable: Option<String>,
}

/// A message on its way to a destination.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The key of its row.
    pub seq: i64,
    /// The shard of its aggregate.
    pub shard: u16,
    /// The fencing number of the ownership under which it is sent.
    pub epoch: i64,
    /// Its identity.
    pub id: MessageId,
    /// The queue it waits in.
    pub queue: Arc<str>,
    /// What its order is kept for.
    pub aggregate: Option<Aggregate>,
    /// The producer's number within the aggregate.
    pub version: Option<i64>,
    /// What happened.
    pub event_type: String,
    /// The content.
    pub payload: Payload,
    /// Trace context, idempotency key and the like.
    pub headers: Headers,
    /// Which attempt this is, counted from one.
    pub attempt: u32,
    /// How often a process died while this message was tried alone.
    pub crashes: u32,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// Where its row stood when it was read.
    pub state: RowState,
    /// Why it can only be parked.
    pub defect: Option<String>,
}

/// The lane of a delivery: deliveries of one lane go one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey(u64);

impl Delivery {
    /// About how much memory it takes, in bytes.
    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        crate::fit::ROW + self.payload.len() + headers
    }

    /// The lane of this delivery. Without an aggregate every message has a lane of its own.
    pub fn lane(&self) -> LaneKey {
        match &self.aggregate {
            Some(aggregate) => LaneKey::of(aggregate),
            None => {
                let mut hasher = std::hash::DefaultHasher::new();
                (1u8, self.seq).hash(&mut hasher);
                LaneKey(hasher.finish())
            }
        }
    }
}

impl LaneKey {
    /// The lane of an aggregate. Two aggregates that collide share a lane, which only makes them
    /// wait for each other.
    pub fn of(aggregate: &Aggregate) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        (0u8, aggregate).hash(&mut hasher);
        LaneKey(hasher.finish())
    }
}

impl RawRow {
    /// How a settlement names this row.
    pub fn key(&self) -> RowKey {
        RowKey {
            seq: self.seq,
            shard: self.shard,
            id: self.message_id(&mut Defects(None)),
            written: self.written_id.clone(),
        }
    }

    /// Judges the row. Nothing is lost: what cannot be delivered comes back with a defect.
    pub fn into_delivery(self, queue: &Arc<str>, epoch: i64) -> Delivery {
        let mut defects = Defects(self.unreadable.clone());
        let id = self.message_id(&mut defects);
        if let RowState::Unknown(word) = &self.state {
            defects.add(format!("unknown state {word:?}"));
        }
        let headers = match self.headers.as_deref() {
            None | Some("") => Headers::new(),
            Some(text) => Headers::from_json(text).unwrap_or_else(|reason| {
                defects.add(reason);
                Headers::new()
            }),
        };
        if headers.iter().any(|(_, value)| value.contains('\0')) {
            defects.add("a header's value holds a NUL character".into());
        }
        for (name, _) in headers.iter() {
            judge_name("the name of a header", name, &mut defects);
        }
        let event_type = self.event_type.unwrap_or_default();
        judge_name("the event type", &event_type, &mut defects);
        let payload = judge_payload(self.payload, self.payload_bin, &mut defects);
        let aggregate = judge_aggregate(self.aggregate_type, self.aggregate_id, &mut defects);
        Delivery {
            seq: self.seq,
            shard: self.shard,
            epoch,
            id,
            queue: Arc::clone(queue),
            aggregate,
            version: self.version,
            event_type,
            payload,
            headers,
            attempt: self.attempts.saturating_add(1),
            crashes: self.crashes,
            created_at: self.created_at,
            state: self.state,
            defect: defects.0.map(error_text::bounded),
        }
    }

    fn message_id(&self, defects: &mut Defects) -> MessageId {
        let fallback = || MessageId::of_row(self.seq, self.created_at.timestamp_micros());
        match self.id.as_deref() {
            None => fallback(),
            Some(text) => MessageId::parse(text).unwrap_or_else(|| {
                let shown: String = text.chars().take(64).collect();
                defects.add(format!("the id {shown:?} is not a UUID"));
                fallback()
            }),
        }
    }
}

struct Defects(Option<String>);

impl Defects {
    fn add(&mut self, reason: String) {
        match &mut self.0 {
            Some(all) => {
                all.push_str("; ");
                all.push_str(&reason);
            }
            none => *none = Some(reason),
        }
    }
}

fn judge_aggregate(
    kind: Option<String>,
    id: Option<String>,
    defects: &mut Defects,
) -> Option<Aggregate> {
    let (kind, id) = (kind.unwrap_or_default(), id?);
    if kind.len() > MAX_NAME || id.len() > MAX_NAME {
        // Such a name fits no index, so nothing can be held behind it.
        defects.add(format!(
            "the aggregate's type or id is over {MAX_NAME} bytes"
        ));
        return None;
    }
    judge_name("the aggregate's type", &kind, defects);
    judge_name("the aggregate's id", &id, defects);
    Some(Aggregate { kind, id })
}

/// As everywhere else: what could paint a terminal or break a header is no name.
fn judge_name(what: &str, name: &str, defects: &mut Defects) {
    if name.chars().any(char::is_control) {
        defects.add(format!("{what} holds a control character"));
    }
}

fn judge_payload(text: Option<String>, bin: Option<Vec<u8>>, defects: &mut Defects) -> Payload {
    match (text, bin) {
        (Some(_), Some(_)) => {
            defects.add("both payload and payload_bin are set".into());
            Payload::Json("null".into())
        }
        (None, Some(bin)) => Payload::Opaque(Bytes::from(bin)),
        (None, None) => Payload::Json("null".into()),
        (Some(text), None) => {
            if let Err(e) = serde_json::from_str::<serde::de::IgnoredAny>(&text) {
                defects.add(format!("the payload is not valid JSON: {e}"));
            }
            Payload::Json(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> RawRow {
        RawRow {
            seq: 1,
            shard: 0,
            id: None,
            written_id: WrittenId::Absent,
            aggregate_type: None,
            aggregate_id: None,
            version: None,
            event_type: None,
            payload: None,
            payload_bin: None,
            headers: None,
            state: RowState::New,
            attempts: 0,
            crashes: 0,
            early: false,
            behind: false,
            created_at: DateTime::UNIX_EPOCH,
            unreadable: None,
        }
    }

    fn judge(row: RawRow) -> Delivery {
        row.into_delivery(&Arc::from("q"), 1)
    }

    #[test]
    fn an_empty_row_gets_the_documented_defaults() {
        let delivery = judge(row());

        assert_eq!(delivery.defect, None);
        assert_eq!(delivery.payload, Payload::Json("null".into()));
        assert_eq!(
            delivery.id,
            judge(row()).id,
            "the default id is stable over retries"
        );
        assert_eq!(delivery.attempt, 1);
    }

    #[test]
    fn odd_values_are_named_as_defects() {
        let odd = judge(RawRow {
            id: Some("order-1".into()),
            payload: Some("{".into()),
            headers: Some("[]".into()),
            state: RowState::parse(Some("SENT")),
            ..row()
        });

        let reason = odd.defect.unwrap();
        for word in ["not a UUID", "not valid JSON", "headers", "unknown state"] {
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn control_characters_in_names_are_defects_and_hold_their_aggregate() {
        let odd = judge(RawRow {
            event_type: Some("Paid\n".into()),
            aggregate_type: Some("order\u{1b}[2J".into()),
            aggregate_id: Some("4\u{0}2".into()),
            headers: Some(r#"{"a\u0007": "x", "b": "\u0000", "c": "line\nbreak"}"#.into()),
            ..row()
        });

        let reason = odd.defect.unwrap();
        for what in [
            "event type",
            "aggregate's type",
            "aggregate's id",
            "name of a header",
        ] {
            let told = format!("{what} holds a control character");
            assert!(reason.contains(&told), "{reason}");
        }
        assert!(reason.contains("NUL"), "{reason}");
        assert!(odd.aggregate.is_some(), "later ones wait behind it");
        let fine = RawRow {
            headers: Some(r#"{"c": "line\nbreak"}"#.into()),
            ..row()
        };
        assert_eq!(judge(fine).defect, None);
    }

    #[test]
    fn a_row_is_known_by_every_byte_of_its_id() {
        let id = MessageId::new();
        let key = |bytes: &[u8]| {
            RawRow {
                id: Some(String::from_utf8_lossy(bytes).into()),
                written_id: WrittenId::of(Some(bytes)),
                ..row()
            }
            .key()
        };

        let usual = key(id.to_string().as_bytes());
        assert_eq!((usual.id, &usual.written), (id, &WrittenId::Usual));
        assert_eq!(usual.token(), Some(id.to_string()));
        assert_eq!((row().key().token(), row().key().column()), (None, None));
        let spellings = [
            id.to_string().to_uppercase(),
            id.as_uuid().simple().to_string(),
            format!(" {id}"),
            String::new(),
        ];
        for odd in &spellings {
            let key = key(odd.as_bytes());
            assert_eq!(key.column().as_deref(), Some(&**odd));
            let digits = Hex(odd.as_bytes()).to_string();
            assert_eq!(key.token(), Some(format!("x{digits}")));
        }
        assert_ne!(key(b"\xff").token(), key(b"\xfe").token());
    }

    #[test]
    fn rows_without_an_aggregate_never_share_a_lane() {
        let a = judge(RawRow { seq: 1, ..row() });
        let b = judge(RawRow { seq: 2, ..row() });

        assert_ne!(a.lane(), b.lane());
    }
}
