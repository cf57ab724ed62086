//! The seam between operators and a database: look, explain, pause, cancel, redrive, ignore, audit.
//!
//! # Promise
//! Looking changes nothing. Everything that changes something says who did it and leaves a line in
//! the history of the message, or of the queue.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::explain::Facts;
use crate::message::{Aggregate, MessageId};
use crate::presence::{ConsumerEntry, RelayEntry};
use crate::store::{Kept, Opened, Result};

/// One page of at most this many entries, whatever is asked for.
pub const MAX_PAGE: u32 = 1_000;
/// The most lines that [`Desk::queue_history`] gives.
pub const HISTORY_PAGE: u32 = 100;

/// The number that an id spells, as `#123`: a row without an id is found by that.
pub fn number(id: &str) -> Option<i64> {
    let digits = id.trim().strip_prefix('#')?;
    digits.parse().ok().filter(|n| *n >= 0)
}

/// The id of a row as operators see it: as stored, or its number where there is none.
pub fn shown_id(stored: Option<String>, seq: i64) -> String {
    stored
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| format!("#{seq}"))
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this queue.
    pub queue: Option<String>,
    /// Only this state.
    pub state: Option<String>,
    /// Only this aggregate id.
    pub aggregate_id: Option<String>,
    /// Only this error code.
    pub code: Option<String>,
    /// Only entries numbered above this: pass the last one seen to get the next page.
    pub after: i64,
    /// At most this many; zero means 100.
    pub limit: u32,
}

impl Filter {
    /// The number of entries to return.
    pub fn page(&self) -> u32 {
        match self.limit {
            0 => 100,
            n => n.min(MAX_PAGE),
        }
    }
}

/// A message as operators see it, wherever it stands.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Its number: the order of insertion.
    pub seq: i64,
    /// Its identity, as stored; `#` and the number where a foreign writer left none.
    pub id: String,
    /// The queue; empty while no route has taken it.
    pub queue: String,
    /// What its order is kept for.
    pub aggregate: Option<Aggregate>,
    /// The producer's number.
    pub version: Option<i64>,
    /// What happened.
    pub event_type: String,
    /// new, scheduled, retrying, held; pending, redriven, ignored; sent, cancelled.
    pub state: String,
    /// Failed attempts.
    pub attempts: u32,
    /// Not before this time.
    pub available_at: Option<DateTime<Utc>>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it was sent, parked or cancelled.
    pub ended_at: Option<DateTime<Utc>>,
    /// The last error code.
    pub code: Option<String>,
    /// The last error.
    pub error: Option<String>,
}

/// Everything about one message.
#[derive(Debug, Clone, Serialize)]
pub struct Detail {
    /// Where it stands: `outbox`, `parked` or `history`.
    pub place: &'static str,
    /// The message.
    pub entry: Entry,
    /// The text content as stored.
    pub payload: Option<String>,
    /// The size of the opaque content.
    pub payload_bin_bytes: Option<u64>,
    /// The headers as stored.
    pub headers: Option<String>,
    /// What happened to it, oldest first.
    pub events: Vec<Event>,
}

/// One line of the history of a message or a queue.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// When.
    pub at: DateTime<Utc>,
    /// Of a message: retry, parked, redriven, delivered, cancelled, ignored. Of a queue: paused,
    /// resumed. Of a request: forgotten, happened, failed, did-not-happen.
    pub kind: String,
    /// Which attempt.
    pub attempt: Option<u32>,
    /// The error code.
    pub code: Option<String>,
    /// The error, or what the operator said.
    pub detail: Option<String>,
    /// Who: a relay or an operator.
    pub actor: Option<String>,
}

/// Figures of one queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The queue; empty for messages that no route has taken.
    pub queue: String,
    /// Waiting to be delivered, due or not looked at.
    pub new: u64,
    /// To be delivered later, or looked at again because no route matches.
    pub scheduled: u64,
    /// Of the scheduled ones without a queue: those that wait because no route matches their event
    /// type.
    pub no_route: u64,
    /// Failed, waiting for the next attempt.
    pub retrying: u64,
    /// Behind an earlier message of their aggregate.
    pub held: u64,
    /// In the parking lot, pending.
    pub parked: u64,
    /// In the history: sent and kept.
    pub kept: u64,
    /// Seconds since the oldest undelivered message was enqueued.
    pub oldest_seconds: Option<f64>,
    /// Why and by whom the queue is paused.
    pub paused: Option<String>,
    /// Since when nobody answers at the destination.
    pub unavailable_since: Option<DateTime<Utc>>,
    /// The breaker of the destination, while it is open.
    #[serde(default)]
    pub breaker: Option<Opened>,
    /// Live relays that can serve the queue.
    pub relays: u64,
}

impl QueueStats {
    /// Takes in what is remembered of breakers.
    pub fn with_breakers(mut all: Vec<Self>, kept: &[Kept]) -> Vec<Self> {
        for stats in &mut all {
            stats.breaker = Kept::find_open(kept, &stats.queue);
        }
        all
    }

    /// Messages that are not delivered yet.
    pub fn pending(&self) -> u64 {
        self.new + self.scheduled + self.retrying + self.held
    }

    /// Whether messages wait and nobody lives who could deliver them.
    pub fn unserved(&self) -> bool {
        self.relays == 0 && self.pending() > 0
    }
}

/// What an audit counted. See `docs/book/guarantees.md` for what it proves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// In the outbox.
    pub pending: u64,
    /// In the history as sent.
    pub sent_kept: u64,
    /// In the history as cancelled.
    pub cancelled: u64,
    /// In the parking lot, waiting for a decision.
    pub parked: u64,
    /// In the parking lot, decided to be ignored.
    pub ignored: u64,
    /// Keys in the ledger.
    pub ledger: u64,
    /// Rows that stand in two places at once.
    pub in_two_places: u64,
    /// Parked records that say "redriven", without an end and without a row in the outbox.
    pub redriven_lost: u64,
    /// Ledger keys whose message stands nowhere. Meaningful only while history is kept.
    pub ledger_missing: u64,
    /// Held rows that nothing holds back and no relay has taken up.
    pub held_orphans: u64,
}

impl Audit {
    /// What is wrong, in sentences. Empty when every message is accounted for.
    pub fn findings(&self, history_kept: bool) -> Vec<String> {
        let mut findings = Vec::new();
        let mut add = |n: u64, what: &str| {
            if n > 0 {
                findings.push(format!("{n} {what}"));
            }
        };
        add(self.in_two_places, "messages stand in two places at once");
        add(
            self.redriven_lost,
            "redriven messages have neither a row nor an outcome",
        );
        if history_kept {
            add(
                self.ledger_missing,
                "keys in the ledger have no message anywhere",
            );
        }
        findings
    }
}

/// What came of a redrive.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Redriven {
    /// Put back into their queues.
    pub redriven: Vec<MessageId>,
    /// Left alone, and why.
    pub refused: Vec<(String, String)>,
}

/// What came of ignoring parked messages.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Ignored {
    /// Given up; nobody waits for them any longer.
    pub ignored: Vec<MessageId>,
    /// Left alone, and why.
    pub refused: Vec<(String, String)>,
}

/// A parked message, as a decision about it needs it. The rules are the same on every store.
#[derive(Debug, Clone)]
pub struct ParkedRecord {
    /// Its number.
    pub seq: i64,
    /// Its id.
    pub id: String,
    /// pending, redriven, delivered or ignored.
    pub state: String,
    /// A redrive needs a person's confirmation.
    pub confirm: bool,
}

impl ParkedRecord {
    /// Its number and its id.
    pub fn key(&self) -> (i64, MessageId) {
        (self.seq, MessageId::parse(&self.id).unwrap_or_default())
    }

    /// Whether it may go back into its queue, as far as it alone can tell; else why not.
    pub fn may_redrive(found: Option<Self>, confirmed: bool) -> std::result::Result<Self, String> {
        let record = found.ok_or(NOT_PARKED)?;
        match record.state.as_str() {
            "pending" if record.confirm && !confirmed => {
                Err("its handler asked for a person's confirmation".into())
            }
            "pending" => Ok(record),
            "ignored" if confirmed => Ok(record),
            "ignored" => Err("it was ignored: taking it back needs a confirmation".into()),
            state => Err(format!("already {state}")),
        }
    }

    /// Whether it may be ignored; else why not.
    pub fn may_ignore(found: Option<Self>) -> std::result::Result<Self, String> {
        let record = found.ok_or(NOT_PARKED)?;
        match record.state.as_str() {
            "pending" => Ok(record),
            state => Err(format!("already {state}")),
        }
    }
}

/// Why a message that is not in the parking lot is left alone.
const NOT_PARKED: &str = "not in the parking lot";
/// Why a record that was chosen is left alone after all.
pub const TOO_LATE: &str = "somebody else was faster";

/// Why a message is not redriven before an earlier one of its aggregate that holds it.
pub fn overtakes(earlier: &str) -> String {
    format!("{earlier} of the same aggregate is parked before it: redrive or ignore that one first")
}

/// What an operator may do.
#[async_trait]
pub trait Desk: Send + Sync + 'static {
    /// Figures of every queue that has messages, a pause or a relay.
    async fn stats(&self) -> Result<Vec<QueueStats>>;

    /// Consumers that have reported within the last day, by name: those of every process.
    async fn consumers(&self) -> Result<Vec<ConsumerEntry>>;

    /// Relays and what they own, by name.
    async fn relays(&self) -> Result<Vec<RelayEntry>>;

    /// Messages in the outbox, by number.
    async fn outbox(&self, filter: &Filter) -> Result<Vec<Entry>>;

    /// Messages in the parking lot, by number. Without a state: what waits for a decision; the
    /// state `all` means every state.
    async fn parked(&self, filter: &Filter) -> Result<Vec<Entry>>;

    /// Everything about one message, wherever it stands. Here and below an id may be spelled in any
    /// case, or as the message's [`number`].
    async fn show(&self, id: &str) -> Result<Option<Detail>>;

    /// The facts from which [`crate::explain`] makes a sentence.
    async fn facts(&self, id: &str) -> Result<Facts>;

    /// Leaves a line in the history of something that is neither a message nor a queue, such as a
    /// request of the guard; [`Desk::queue_history`] gives it under this subject.
    async fn note(&self, subject: &str, kind: &str, detail: &str, by: &str) -> Result<()>;

    /// Stops delivery from a queue.
    async fn pause_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()>;

    /// Starts delivery again. Answers whether the queue was paused.
    async fn resume_queue(&self, queue: &str, by: &str) -> Result<bool>;

    /// Who paused and resumed a queue, and why: the last [`HISTORY_PAGE`] lines, oldest first.
    async fn queue_history(&self, queue: &str) -> Result<Vec<Event>>;

    /// Takes a pending message out of the outbox, into the history as cancelled. Answers whether
    /// it was there. A delivery that is under way at this moment may still arrive.
    async fn cancel(&self, id: &str, reason: &str, by: &str) -> Result<bool>;

    /// Puts parked messages back into their queues, lowest number first, under the same ids. Of an
    /// aggregate the first one is due at once, and the others wait behind it.
    ///
    /// Refused, with a reason each: what is neither pending nor ignored; what needs a confirmation
    /// that `confirmed` does not give, which every ignored one does; and what would overtake an
    /// earlier message of its queue and aggregate that is pending, holds, and is not redriven with it.
    async fn redrive(&self, ids: &[String], confirmed: bool, by: &str) -> Result<Redriven>;

    /// Gives parked messages up: later messages of their aggregates wait for them no longer. Refused,
    /// with a reason each: what is not pending.
    async fn ignore(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored>;

    /// Counts every message by state and looks for what is missing or double.
    async fn audit(&self) -> Result<Audit>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_spelled_with_a_sign_and_read_back() {
        assert_eq!(number(&shown_id(None, 123)), Some(123));
        assert_eq!(shown_id(Some("x".into()), 123), "x");
        for odd in ["123", "#", "#-1", "#1x", "# 1", "#99999999999999999999"] {
            assert_eq!(number(odd), None, "{odd}");
        }
    }
}
