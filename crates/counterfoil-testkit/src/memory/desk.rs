//! The operator's side.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use counterfoil_core::desk::{
    Audit, Desk, Detail, Entry, Event, Filter, HISTORY_PAGE, Ignored, ParkedRecord, QueueStats,
    Redriven, overtakes,
};
use counterfoil_core::explain::Facts;
use counterfoil_core::message::MessageId;
use counterfoil_core::presence::{ConsumerEntry, RelayEntry};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Result, Store};

use super::MemoryStore;
use super::looking::{page, parked_entry, pending_entry};
use super::settle::event;
use super::state::{Ended, Parked, Row, State};

#[async_trait]
impl Desk for MemoryStore {
    async fn stats(&self) -> Result<Vec<QueueStats>> {
        Ok(self.lock().stats(self.clock().now()))
    }

    async fn consumers(&self) -> Result<Vec<ConsumerEntry>> {
        Ok(self.lock().list_consumers(self.clock().now()))
    }

    async fn relays(&self) -> Result<Vec<RelayEntry>> {
        Ok(self.lock().list_relays(self.clock().now()))
    }

    async fn outbox(&self, filter: &Filter) -> Result<Vec<Entry>> {
        let state = self.lock();
        Ok(page(state.outbox.values().map(pending_entry), filter, None))
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Entry>> {
        let state = self.lock();
        Ok(page(
            state.parked.values().map(parked_entry),
            filter,
            Some("pending"),
        ))
    }

    async fn show(&self, id: &str) -> Result<Option<Detail>> {
        Ok(self.lock().show(id))
    }

    async fn facts(&self, id: &str) -> Result<Facts> {
        Ok(self.lock().facts(id, self.clock().now()))
    }

    async fn note(&self, subject: &str, kind: &str, detail: &str, by: &str) -> Result<()> {
        let (mut state, now) = (self.lock(), self.clock().now());
        let line = Event {
            detail: Some(detail.to_owned()),
            ..event(kind, by, now)
        };
        state.queue_events.push((subject.to_owned(), line));
        Ok(())
    }

    async fn pause_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        Store::pause(self, queue, reason, by).await
    }

    async fn resume_queue(&self, queue: &str, by: &str) -> Result<bool> {
        let (mut state, now) = (self.lock(), self.clock().now());
        let paused = state.queues.get_mut(queue).and_then(|q| q.paused.take());
        if paused.is_some() {
            let line = (queue.to_owned(), event("resumed", by, now));
            state.queue_events.push(line);
        }
        Ok(paused.is_some())
    }

    async fn queue_history(&self, queue: &str) -> Result<Vec<Event>> {
        let state = self.lock();
        let all = state.queue_events.iter().filter(|(of, _)| of == queue);
        let mut last: Vec<Event> = all
            .rev()
            .take(HISTORY_PAGE as usize)
            .map(|(_, event)| event.clone())
            .collect();
        last.reverse();
        Ok(last)
    }

    async fn cancel(&self, id: &str, reason: &str, by: &str) -> Result<bool> {
        let (mut state, now) = (self.lock(), self.clock().now());
        let found: Vec<i64> = state
            .outbox
            .values()
            .filter(|row| row.is(id))
            .map(|row| row.seq)
            .collect();
        for seq in &found {
            state.cancel(*seq, reason, by, now);
        }
        Ok(!found.is_empty())
    }

    async fn redrive(&self, ids: &[String], confirmed: bool, by: &str) -> Result<Redriven> {
        let (mut state, now) = (self.lock(), self.clock().now());
        let mut answer = Redriven::default();
        let mut chosen: Vec<(i64, MessageId)> = Vec::new();
        for id in ids {
            match ParkedRecord::may_redrive(state.find_parked(id), confirmed) {
                Ok(found) => chosen.push(found.key()),
                Err(reason) => answer.refused.push((id.clone(), reason)),
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        let overtaken = state.overtaken(&chosen);
        for (seq, id) in chosen {
            if let Some((_, earlier)) = overtaken.iter().find(|o| o.0 == seq) {
                answer.refused.push((id.to_string(), overtakes(earlier)));
            } else {
                state.redrive(seq, by, now);
                answer.redriven.push(id);
            }
        }
        Ok(answer)
    }

    async fn ignore(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        let (mut state, now) = (self.lock(), self.clock().now());
        let mut answer = Ignored::default();
        let mut chosen: Vec<(i64, MessageId)> = Vec::new();
        for id in ids {
            match ParkedRecord::may_ignore(state.find_parked(id)) {
                Ok(found) => chosen.push(found.key()),
                Err(reason) => answer.refused.push((id.clone(), reason)),
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        for (seq, id) in chosen {
            state.ignore(seq, reason, by, now);
            answer.ignored.push(id);
        }
        Ok(answer)
    }

    async fn audit(&self) -> Result<Audit> {
        Ok(self.lock().audit())
    }
}

impl State {
    fn cancel(&mut self, seq: i64, reason: &str, by: &str, now: DateTime<Utc>) {
        let Some(row) = self.outbox.remove(&seq) else {
            return;
        };
        let record = self.parked.get_mut(&seq).filter(|p| p.state == "redriven");
        if let Some(record) = record {
            // Nobody waits any longer for a message that will not come.
            record.state = "ignored";
            record.updated_at = now;
        }
        let detail = Some(format!("{reason} (by {by})"));
        self.history.insert(
            seq,
            Ended {
                row,
                state: "cancelled",
                detail,
                at: now,
            },
        );
        let event = Event {
            detail: Some(reason.to_owned()),
            ..event("cancelled", by, now)
        };
        self.note(seq, event);
    }

    /// What waits for a decision comes first, then what was given up.
    fn find_parked(&self, id: &str) -> Option<ParkedRecord> {
        let named = self.parked.values().filter(|p| p.is(id));
        let found = named.min_by_key(|p| (p.state != "pending", p.state != "ignored", p.row.seq));
        found.map(|p| ParkedRecord {
            seq: p.row.seq,
            id: p.id.to_string(),
            state: p.state.to_owned(),
            confirm: p.confirm,
        })
    }

    /// Those of the chosen before which another one of their lane is parked, and which.
    fn overtaken(&self, chosen: &[(i64, MessageId)]) -> Vec<(i64, String)> {
        let earlier = |seq: i64| {
            let row = &self.parked.get(&seq)?.row;
            let lane = row.lane()?;
            let first = self.holders(row.queue(), &lane).find(|p| {
                p.state == "pending" && p.row.seq < seq && !chosen.iter().any(|c| c.0 == p.row.seq)
            });
            first.map(|p| (seq, p.id.to_string()))
        };
        chosen.iter().filter_map(|c| earlier(c.0)).collect()
    }

    /// Called for the lowest of a lane first: the others wait behind it.
    fn redrive(&mut self, seq: i64, by: &str, now: DateTime<Utc>) {
        let Some(record) = self.parked.get_mut(&seq) else {
            return;
        };
        record.state = "redriven";
        record.updated_at = now;
        let mut row = record.row.clone();
        row.columns.id = Some(record.id.to_string());
        row.attempts = 0;
        row.crashes = 0;
        row.redriven = true;
        row.available_at = Some(now);
        let waits = row.lane().is_some_and(|lane| {
            self.lane_rows(row.queue(), &lane)
                .any(|earlier| earlier.seq < seq)
        });
        row.state = if waits {
            RowState::Held
        } else {
            RowState::Retrying
        };
        // An ignored message may have been cancelled before.
        self.history.remove(&seq);
        self.outbox.insert(seq, row);
        self.note(seq, event("redriven", by, now));
    }

    fn ignore(&mut self, seq: i64, reason: &str, by: &str, now: DateTime<Utc>) {
        if let Some(record) = self.parked.get_mut(&seq) {
            record.state = "ignored";
            record.updated_at = now;
        }
        let event = Event {
            detail: Some(reason.to_owned()),
            ..event("ignored", by, now)
        };
        self.note(seq, event);
    }

    fn audit(&self) -> Audit {
        let ended = |state| self.history.values().filter(|e| e.state == state).count() as u64;
        let lot = |state| self.parked.values().filter(|p| p.state == state).count() as u64;
        let stands = |id: MessageId| {
            self.outbox.values().any(|row| row.message_id() == id)
                || self.parked.values().any(|p| p.id == id)
                || self.history.values().any(|e| e.row.message_id() == id)
        };
        let lost = |p: &&Parked| p.state == "redriven" && !self.outbox.contains_key(&p.row.seq);
        let orphan = |row: &&Row| {
            row.state == RowState::Held
                && row.lane().is_none_or(|lane| {
                    !self
                        .same_lane(row.queue(), &lane)
                        .any(|other| other.seq < row.seq)
                        && self.holders(row.queue(), &lane).next().is_none()
                })
        };
        Audit {
            pending: self.outbox.len() as u64,
            sent_kept: ended("sent"),
            cancelled: ended("cancelled"),
            parked: lot("pending"),
            ignored: lot("ignored"),
            ledger: self.ledger.len() as u64,
            in_two_places: self.in_two_places(),
            redriven_lost: self.parked.values().filter(lost).count() as u64,
            ledger_missing: self.ledger.values().filter(|e| !stands(e.id)).count() as u64,
            held_orphans: self.outbox.values().filter(orphan).count() as u64,
        }
    }

    fn in_two_places(&self) -> u64 {
        let also_ended = self
            .outbox
            .keys()
            .filter(|seq| self.history.contains_key(seq))
            .count();
        let lot = |seq: &i64| self.parked.get(seq).map(|p| p.state);
        let also_parked = self
            .outbox
            .keys()
            .filter(|s| lot(s).is_some_and(|s| s != "redriven"));
        let undecided = |seq: &&i64| matches!(lot(seq), Some("pending" | "redriven"));
        let ended_and_parked = self.history.keys().filter(undecided).count();
        (also_ended + also_parked.count() + ended_and_parked) as u64
    }
}
