//! What becomes of rows.

use chrono::{DateTime, Utc};
use counterfoil_core::Code;
use counterfoil_core::desk::Event;
use counterfoil_core::row::{RowKey, RowState};
use counterfoil_core::store::{
    Fence, Keyed, Park, RelayId, Reroute, Retention, Retry, Settled, Settlement,
};

use super::clock::span;
use super::state::{Columns, Ended, LedgerEntry, Parked, Row, State};

impl State {
    pub(super) fn settle(
        &mut self,
        fence: &Fence,
        all: &Settlement,
        now: DateTime<Utc>,
    ) -> Settled {
        let held = self.holding(fence);
        let ours = all.restrict(held);
        for row in &ours.sent {
            self.sent(row, ours.keep_sent, &fence.relay, now);
        }
        for retry in &ours.retry {
            self.retry(retry, &fence.relay, now);
        }
        for (rows, state) in [
            (&ours.hold, RowState::Held),
            (&ours.schedule, RowState::Scheduled),
        ] {
            for row in rows {
                if let Some(row) = self.row_mut(row) {
                    row.state = state.clone();
                }
            }
        }
        for (row, delay) in &ours.defer {
            if let Some(row) = self.row_mut(row) {
                row.state = RowState::Scheduled;
                row.available_at = Some(now + span(*delay));
                row.code = Some(Code::NO_ROUTE.to_string());
            }
        }
        for park in &ours.park {
            self.park(park, &fence.relay, now);
        }
        for reroute in &ours.reroute {
            self.reroute(reroute, &fence.relay, now);
        }
        let lost = fence
            .shards
            .iter()
            .map(|s| s.0)
            .filter(|s| !held.contains(*s))
            .collect();
        Settled {
            lost,
            stamp: Some(self.take_tx()),
        }
    }

    fn sent(&mut self, key: &RowKey, keep: bool, relay: &RelayId, now: DateTime<Utc>) {
        let Some(row) = self.remove_row(key) else {
            return;
        };
        let seq = key.seq;
        if row.redriven {
            if let Some(record) = self.parked.get_mut(&seq) {
                record.state = "delivered";
                record.updated_at = now;
            }
            let attempt = Some(row.attempts() + 1);
            self.note(
                seq,
                Event {
                    attempt,
                    ..event("delivered", relay.as_str(), now)
                },
            );
        }
        if keep {
            let mut row = row;
            row.attempts = row.attempts.max(0).saturating_add(1);
            self.history.insert(
                seq,
                Ended {
                    row,
                    state: "sent",
                    detail: None,
                    at: now,
                },
            );
        }
    }

    fn retry(&mut self, retry: &Retry, relay: &RelayId, now: DateTime<Utc>) {
        let Some(row) = self.row_mut(&retry.row) else {
            return;
        };
        row.state = RowState::Retrying;
        row.crashes = 0;
        row.attempts = i32::try_from(retry.attempts).unwrap_or(i32::MAX);
        row.code = Some(retry.code.to_string());
        row.error = Some(retry.error.clone());
        row.available_at = Some(now + span(retry.delay));
        let event = Event {
            attempt: Some(row.attempts()),
            code: Some(retry.code.to_string()),
            detail: Some(retry.error.clone()),
            ..event("retry", relay.as_str(), now)
        };
        self.note(retry.row.seq, event);
    }

    fn park(&mut self, park: &Park, relay: &RelayId, now: DateTime<Utc>) {
        let Some(mut row) = self.remove_row(&park.row) else {
            return;
        };
        let seq = park.row.seq;
        row.attempts = i32::try_from(park.attempts).unwrap_or(i32::MAX);
        let attempt = Some(row.attempts());
        row.code = Some(park.code.to_string());
        row.error = Some(park.error.clone());
        let record = Parked {
            row,
            id: park.row.id,
            hold: park.hold,
            confirm: park.confirm,
            state: "pending",
            at: now,
            updated_at: now,
        };
        self.parked.insert(seq, record);
        let event = Event {
            attempt,
            code: Some(park.code.to_string()),
            detail: Some(park.error.clone()),
            ..event("parked", relay.as_str(), now)
        };
        self.note(seq, event);
        if let Some(Keyed {
            message,
            key: Some(key),
        }) = park.keyed_follow_up()
        {
            let entry = LedgerEntry {
                id: message.id,
                created_at: now,
            };
            if self.ledger.contains_key(&key) {
                return;
            }
            self.ledger.insert(key, entry);
            let mut row = Row::new(self.take_seq(), Columns::from(&message), now);
            row.available_at = message.available_at;
            self.outbox.insert(row.seq, row);
        }
    }

    fn reroute(&mut self, reroute: &Reroute, relay: &RelayId, now: DateTime<Utc>) {
        let Some(row) = self.remove_row(&reroute.row) else {
            return;
        };
        if row.redriven {
            if let Some(record) = self.parked.get_mut(&row.seq) {
                record.state = "delivered";
                record.updated_at = now;
            }
            self.note(row.seq, event("rerouted", relay.as_str(), now));
        }
        for (id, queue) in &reroute.copies {
            let columns = Columns {
                id: Some(id.to_string()),
                queue: Some(queue.clone()),
                ..row.columns.clone()
            };
            let mut copy = Row::new(self.take_seq(), columns, row.created_at);
            copy.available_at = row.available_at;
            self.outbox.insert(copy.seq, copy);
        }
    }

    /// Removes what is over: at most one batch of each kind.
    pub(super) fn sweep(&mut self, retention: &Retention, now: DateTime<Utc>) -> u64 {
        let batch = retention.batch as usize;
        let (history, ledger) = (now - span(retention.history), now - span(retention.ledger));
        let mut old: Vec<_> = self
            .history
            .iter()
            .filter(|(_, e)| e.at < history)
            .map(|(s, e)| (e.at, *s))
            .collect();
        old.sort_unstable();
        old.truncate(batch);
        for (_, seq) in &old {
            self.history.remove(seq);
        }
        let mut keys: Vec<_> = self
            .ledger
            .iter()
            .filter(|(_, e)| e.created_at < ledger)
            .map(|(key, e)| (e.created_at, key.clone()))
            .collect();
        keys.sort_unstable();
        keys.truncate(batch);
        for (_, key) in &keys {
            self.ledger.remove(key);
        }
        let events = self.sweep_events(history.min(ledger), batch);
        let parked = self.sweep_parked(now - span(retention.parked), batch);
        (old.len() + keys.len() + parked + events) as u64
    }

    /// What was delivered after a redrive, or ignored, goes with its events.
    fn sweep_parked(&mut self, before: DateTime<Utc>, batch: usize) -> usize {
        let over = |p: &Parked| matches!(p.state, "delivered" | "ignored");
        let mut old: Vec<_> = self
            .parked
            .iter()
            .filter(|(_, p)| over(p) && p.updated_at < before)
            .map(|(seq, p)| (p.updated_at, *seq))
            .collect();
        old.sort_unstable();
        old.truncate(batch);
        for (_, seq) in &old {
            self.parked.remove(seq);
            if !self.history.contains_key(seq) {
                self.events.retain(|(of, _)| of != seq);
            }
        }
        old.len()
    }

    fn sweep_events(&mut self, before: DateTime<Utc>, batch: usize) -> usize {
        let (outbox, parked) = (&self.outbox, &self.parked);
        let mut removed = 0;
        self.events.retain(|(seq, event)| {
            let over = event.at < before && !outbox.contains_key(seq) && !parked.contains_key(seq);
            let goes = over && removed < batch;
            removed += usize::from(goes);
            !goes
        });
        self.queue_events.retain(|(_, event)| {
            let goes = event.at < before && removed < batch;
            removed += usize::from(goes);
            !goes
        });
        removed
    }
}

pub(super) fn event(kind: &str, actor: &str, at: DateTime<Utc>) -> Event {
    Event {
        at,
        kind: kind.into(),
        attempt: None,
        code: None,
        detail: None,
        actor: Some(actor.into()),
    }
}
