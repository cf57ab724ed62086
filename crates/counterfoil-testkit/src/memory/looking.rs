//! What operators see: figures, lists, one message, and why it has not arrived.

use chrono::{DateTime, Utc};
use counterfoil_core::Code;
use counterfoil_core::desk::{Detail, Entry, Filter, QueueStats, number, shown_id};
use counterfoil_core::explain::{Blocker, Facts, Pending};
use counterfoil_core::message::{Aggregate, MessageId};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Kept, RelayId};

use super::state::{Ended, Parked, Queue, Row, State};

impl State {
    pub(super) fn stats(&self, now: DateTime<Utc>) -> Vec<QueueStats> {
        let in_rows = self.outbox.values().map(Row::queue);
        let in_lot = self
            .parked
            .values()
            .filter(|p| p.state == "pending")
            .map(|p| p.row.queue());
        let in_history = self
            .history
            .values()
            .filter(|e| e.state == "sent")
            .map(|e| e.row.queue());
        let live = || self.relays.values().filter(|m| m.lease_until > now);
        let served = live().flat_map(|m| m.queues.iter().map(String::as_str));
        let noted = |q: &Queue| q.paused.is_some() || q.unavailable_since.is_some();
        let noted = self
            .queues
            .iter()
            .filter(|(_, q)| noted(q))
            .map(|(name, _)| name.as_str());
        let every: std::collections::BTreeSet<&str> = in_rows
            .chain(in_lot)
            .chain(in_history)
            .chain(served)
            .chain(noted)
            .collect();
        every
            .into_iter()
            .map(|queue| self.queue_stats(queue, now))
            .collect()
    }

    fn queue_stats(&self, queue: &str, now: DateTime<Utc>) -> QueueStats {
        let rows = || self.outbox.values().filter(|row| row.queue() == queue);
        let count = |state: RowState| rows().filter(|row| row.state == state).count() as u64;
        let (scheduled, retrying, held) = (
            count(RowState::Scheduled),
            count(RowState::Retrying),
            count(RowState::Held),
        );
        let unrouted = |row: &&Row| {
            queue.is_empty()
                && row.state == RowState::Scheduled
                && row.code.as_deref() == Some(Code::NO_ROUTE.as_str())
        };
        let parked = |p: &&Parked| p.state == "pending" && p.row.queue() == queue;
        let kept = |e: &&Ended| e.state == "sent" && e.row.queue() == queue;
        let oldest = rows()
            .filter(|r| r.state != RowState::Scheduled)
            .map(|r| r.created_at)
            .min();
        let noted = self.queues.get(queue);
        QueueStats {
            queue: queue.to_owned(),
            new: rows().count() as u64 - scheduled - retrying - held,
            scheduled,
            no_route: rows().filter(unrouted).count() as u64,
            retrying,
            held,
            parked: self.parked.values().filter(parked).count() as u64,
            kept: self.history.values().filter(kept).count() as u64,
            oldest_seconds: oldest.map(|at| (now - at).as_seconds_f64().max(0.0)),
            paused: noted.and_then(pause_reason),
            unavailable_since: noted.and_then(|q| q.unavailable_since),
            breaker: self.breakers.get(queue).and_then(Kept::opened),
            relays: self.serving(queue, now),
        }
    }

    fn serving(&self, queue: &str, now: DateTime<Utc>) -> u64 {
        let serves = |queues: &[String]| queues.iter().any(|q| q == queue);
        self.relays
            .values()
            .filter(|m| m.lease_until > now && serves(&m.queues))
            .count() as u64
    }

    /// Where it stands now comes first.
    pub(super) fn show(&self, id: &str) -> Option<Detail> {
        let parked = self.parked.values().rfind(|p| p.is(id));
        let undecided = parked.filter(|p| matches!(p.state, "pending" | "ignored"));
        let pending = self.outbox.values().find(|row| row.is(id));
        let ended = self.history.values().rfind(|e| e.row.is(id));
        let (place, entry, row) = if let Some(p) = undecided {
            ("parked", parked_entry(p), &p.row)
        } else if let Some(row) = pending {
            ("outbox", pending_entry(row), row)
        } else if let Some(e) = ended {
            ("history", ended_entry(e), &e.row)
        } else {
            let p = parked?;
            ("parked", parked_entry(p), &p.row)
        };
        let c = &row.columns;
        Some(Detail {
            place,
            payload: c.payload.clone(),
            payload_bin_bytes: c.payload_bin.as_ref().map(|b| b.len() as u64),
            headers: c.headers.clone(),
            events: self
                .events
                .iter()
                .filter(|e| e.0 == entry.seq)
                .map(|e| e.1.clone())
                .collect(),
            entry,
        })
    }

    pub(super) fn facts(&self, id: &str, now: DateTime<Utc>) -> Facts {
        let Some(Detail { place, entry, .. }) = self.show(id) else {
            let in_ledger = self.ledger.values().any(|e| same(&e.id.to_string(), id));
            return Facts::Unknown { in_ledger };
        };
        let at = entry.ended_at.unwrap_or(entry.created_at);
        match (place, entry.state.as_str()) {
            ("history", "cancelled") => Facts::Cancelled {
                at,
                why: entry.error,
            },
            ("history", _) => Facts::Sent { at },
            ("parked", "delivered") => Facts::Sent {
                at: self.parked[&entry.seq].updated_at,
            },
            ("parked", _) => Facts::Parked {
                at,
                holds: self.waiting_behind(entry.seq),
                state: entry.state,
                code: entry.code.unwrap_or_default(),
                error: entry.error,
                attempts: entry.attempts,
            },
            _ => Facts::Pending(self.pending_facts(&self.outbox[&entry.seq], now)),
        }
    }

    fn waiting_behind(&self, parked: i64) -> u64 {
        let record = &self.parked[&parked];
        let holds = record.hold && matches!(record.state, "pending" | "redriven");
        let Some(lane) = record.row.lane().filter(|_| holds) else {
            return 0;
        };
        let waits = |row: &&Row| row.seq != parked && row.state != RowState::Scheduled;
        self.same_lane(record.row.queue(), &lane)
            .filter(waits)
            .count() as u64
    }

    pub(super) fn same_lane<'a>(
        &'a self,
        queue: &'a str,
        lane: &'a Aggregate,
    ) -> impl Iterator<Item = &'a Row> {
        self.outbox
            .values()
            .filter(move |r| r.queue() == queue && r.lane().as_ref() == Some(lane))
    }

    fn pending_facts(&self, row: &Row, now: DateTime<Utc>) -> Pending {
        let queue = row.queue();
        let lane = row.lane();
        let earlier = lane.as_ref().and_then(|lane| {
            let scheduled = |r: &Row| r.state == RowState::Scheduled;
            self.same_lane(queue, lane)
                .find(|other| other.seq < row.seq && !scheduled(other) && !scheduled(row))
                .map(|other| blocker(other, lane))
        });
        let holder = lane.as_ref().and_then(|lane| {
            let before = |p: &&Parked| p.state == "pending" || p.row.seq < row.seq;
            let holder = self.holders(queue, lane).find(before);
            // A retry is the head of its lane.
            holder
                .filter(|_| row.state != RowState::Retrying)
                .map(|p| Blocker {
                    id: p.id.to_string(),
                    ..blocker(&p.row, lane)
                })
        });
        let owner = self
            .shards
            .get(&(queue.to_owned(), row.shard()))
            .and_then(|o| o.owner.clone());
        let noted = self.queues.get(queue);
        let until = |relay: &RelayId| {
            self.relays
                .get(relay)
                .map(|m| m.lease_until)
                .filter(|at| *at > now)
        };
        Pending {
            queue: queue.to_owned(),
            event_type: row.columns.event_type.clone().unwrap_or_default(),
            state: row.state.clone(),
            attempts: row.attempts(),
            available_at: row.available_at,
            early: !row.due(now),
            code: row.code.clone(),
            behind: earlier,
            parked: holder,
            paused: noted.and_then(pause_reason),
            unavailable_since: noted.and_then(|q| q.unavailable_since),
            breaker: self.breakers.get(queue).and_then(Kept::opened),
            owner: owner.map(|relay| (relay.to_string(), until(&relay))),
            relays: self.serving(queue, now),
        }
    }
}

impl Parked {
    pub(super) fn is(&self, id: &str) -> bool {
        number(id) == Some(self.row.seq) || same(&self.id.to_string(), id)
    }
}

impl Row {
    pub(super) fn is(&self, id: &str) -> bool {
        number(id) == Some(self.seq) || self.columns.id.as_deref().is_some_and(|own| same(own, id))
    }
}

/// Whether two texts spell the same id.
fn same(one: &str, other: &str) -> bool {
    let parsed = |text| MessageId::parse(text);
    one.eq_ignore_ascii_case(other.trim())
        || parsed(one).is_some_and(|id| parsed(other) == Some(id))
}

fn pause_reason(queue: &Queue) -> Option<String> {
    queue
        .paused
        .as_ref()
        .map(|(reason, by)| format!("{reason} (by {by})"))
}

fn blocker(row: &Row, lane: &Aggregate) -> Blocker {
    Blocker {
        id: shown_id(row.columns.id.clone(), row.seq),
        version: row.columns.version,
        aggregate: lane.to_string(),
        code: row.code.clone(),
    }
}

pub(super) fn page(
    entries: impl Iterator<Item = Entry>,
    filter: &Filter,
    usual_state: Option<&str>,
) -> Vec<Entry> {
    let is = |wanted: &Option<String>, found: Option<&str>| {
        wanted.as_deref().is_none_or(|w| found == Some(w))
    };
    let state = match (filter.state.as_deref(), usual_state) {
        (Some("all"), Some(_)) => None,
        (given, usual) => given.or(usual),
    };
    entries
        .filter(|e| e.seq > filter.after)
        .filter(|e| is(&filter.queue, Some(&e.queue)) && state.is_none_or(|s| s == e.state))
        .filter(|e| {
            is(
                &filter.aggregate_id,
                e.aggregate.as_ref().map(|a| a.id.as_str()),
            )
        })
        .filter(|e| is(&filter.code, e.code.as_deref()))
        .take(filter.page() as usize)
        .collect()
}

pub(super) fn pending_entry(row: &Row) -> Entry {
    let c = &row.columns;
    let kind = c.aggregate_type.clone().unwrap_or_default();
    Entry {
        seq: row.seq,
        id: shown_id(c.id.clone(), row.seq),
        queue: row.queue().to_owned(),
        aggregate: c.aggregate_id.clone().map(|id| Aggregate { kind, id }),
        version: c.version,
        event_type: c.event_type.clone().unwrap_or_default(),
        state: row.state.as_str().to_owned(),
        attempts: row.attempts(),
        available_at: row.available_at,
        created_at: row.created_at,
        ended_at: None,
        code: row.code.clone(),
        error: row.error.clone(),
    }
}

pub(super) fn parked_entry(p: &Parked) -> Entry {
    Entry {
        id: p.id.to_string(),
        state: p.state.to_owned(),
        available_at: None,
        ended_at: Some(p.at),
        ..pending_entry(&p.row)
    }
}

fn ended_entry(e: &Ended) -> Entry {
    Entry {
        state: e.state.to_owned(),
        available_at: None,
        ended_at: Some(e.at),
        code: None,
        error: e.detail.clone(),
        ..pending_entry(&e.row)
    }
}
