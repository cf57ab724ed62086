//! What a relay gets to see.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{LaneCursor, Occupied, Runnable, Want};

use super::state::{Row, State};

impl State {
    pub(super) fn read(&self, want: &Want<'_>, skip: &[i64], now: DateTime<Utc>) -> Vec<RawRow> {
        if self.paused(want.queue) {
            return Vec::new();
        }
        self.outbox
            .range(want.after.saturating_add(1)..)
            .map(|(_, row)| row)
            .filter(|row| !row.waits() && !row.held() && asked_for(row, want, skip))
            .take(want.limit)
            .map(|row| raw(row, !row.due(now), self.behind(row)))
            .collect()
    }

    pub(super) fn read_waiting(
        &self,
        want: &Want<'_>,
        skip: &[i64],
        now: DateTime<Utc>,
    ) -> Vec<RawRow> {
        if self.paused(want.queue) {
            return Vec::new();
        }
        let mut due: Vec<&Row> = self
            .outbox
            .values()
            .filter(|row| row.waits() && row.due(now) && asked_for(row, want, skip))
            .collect();
        due.sort_by_key(|row| (row.available_at, row.seq));
        let head = |row: &Row| row.state == counterfoil_core::row::RowState::Retrying;
        due.into_iter()
            .take(want.limit)
            .map(|row| raw(row, false, !head(row) && self.behind(row)))
            .collect()
    }

    pub(super) fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
    ) -> Vec<RawRow> {
        let mut rows: Vec<RawRow> = lanes
            .iter()
            .filter(|lane| !self.blocked(queue, lane))
            .flat_map(|lane| self.lane_rows(queue, lane).take(per_lane))
            .map(|row| raw(row, false, false))
            .collect();
        rows.sort_by_key(|row| row.seq);
        rows
    }

    pub(super) fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Runnable {
        let place = |queue: &str| wants.iter().position(|want| want.queue == queue);
        let lanes: BTreeMap<(String, Aggregate), u16> = self
            .outbox
            .values()
            .filter(|row| row.held() || row.state == RowState::Retrying)
            .filter(|row| place(row.queue()).is_some())
            .filter_map(|row| {
                let lane = row.lane()?;
                Some(((row.queue().to_owned(), lane), row.shard()))
            })
            .collect();
        let mut ahead = lanes
            .iter()
            .filter(|((queue, lane), _)| from.is_none_or(|from| cursor(queue, lane).1 > key(from)));
        let looked_at: Vec<_> = ahead.by_ref().take(at_most).collect();
        let free = looked_at.iter().filter_map(|((queue, lane), shard)| {
            let place = place(queue)?;
            let asked = wants[place].shards.contains(**shard);
            (asked && !self.blocked(queue, lane)).then(|| (place, lane.clone()))
        });
        let last = looked_at.last().filter(|_| looked_at.len() == at_most);
        Runnable {
            lanes: free.collect(),
            next: last.map(|((queue, lane), _)| cursor(queue, lane).0),
        }
    }

    pub(super) fn occupied(&self, now: DateTime<Utc>) -> Occupied {
        let queues = |wanted: &dyn Fn(&Row) -> bool| -> Vec<String> {
            let rows = self.outbox.values().filter(|row| wanted(row));
            let names: BTreeSet<&str> = rows.map(Row::queue).collect();
            names.into_iter().map(str::to_owned).collect()
        };
        let paused = self.queues.iter().filter(|(_, q)| q.paused.is_some());
        Occupied {
            new: queues(&|row| !row.waits() && !row.held()),
            due: queues(&|row| row.waits() && row.due(now)),
            held: queues(&|row| row.held() || row.state == RowState::Retrying),
            paused: paused.map(|(name, _)| name.clone()).collect(),
        }
    }
}

/// A lane as a cursor, and as what cursors are compared by.
fn cursor(queue: &str, lane: &Aggregate) -> (LaneCursor, (String, String, String)) {
    let cursor = LaneCursor {
        queue: queue.to_owned(),
        lane: format!("{}:{}{}", lane.kind.len(), lane.kind, lane.id),
    };
    let key = (queue.to_owned(), lane.kind.clone(), lane.id.clone());
    (cursor, key)
}

fn key(cursor: &LaneCursor) -> (String, String, String) {
    let (length, rest) = cursor.lane.split_once(':').unwrap_or_default();
    let (kind, id) = rest.split_at(length.parse().unwrap_or(0));
    (cursor.queue.clone(), kind.to_owned(), id.to_owned())
}

fn asked_for(row: &Row, want: &Want<'_>, skip: &[i64]) -> bool {
    row.queue() == want.queue && want.shards.contains(row.shard()) && !skip.contains(&row.seq)
}

fn raw(row: &Row, early: bool, behind: bool) -> RawRow {
    let c = row.columns.clone();
    RawRow {
        seq: row.seq,
        shard: row.shard(),
        written_id: row.written_id(),
        id: c.id,
        aggregate_type: c.aggregate_type,
        aggregate_id: c.aggregate_id,
        version: c.version,
        event_type: c.event_type,
        payload: c.payload,
        payload_bin: c.payload_bin,
        headers: c.headers,
        state: row.state.clone(),
        attempts: row.attempts(),
        crashes: row.crashes,
        early,
        behind,
        created_at: row.created_at,
        unreadable: None,
    }
}
