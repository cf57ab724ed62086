//! What a relay gets to see.

use chrono::{DateTime, Utc};
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{ShardSet, Want};

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
        queue: &str,
        shards: ShardSet,
        limit: usize,
    ) -> Vec<Aggregate> {
        let mut lanes: Vec<Aggregate> = self
            .outbox
            .values()
            .filter(|row| row.held() && row.queue() == queue && shards.contains(row.shard()))
            .filter_map(Row::lane)
            .collect();
        lanes.sort();
        lanes.dedup();
        lanes.retain(|lane| !self.blocked(queue, lane));
        lanes.truncate(limit);
        lanes
    }
}

fn asked_for(row: &Row, want: &Want<'_>, skip: &[i64]) -> bool {
    row.queue() == want.queue && want.shards.contains(row.shard()) && !skip.contains(&row.seq)
}

fn raw(row: &Row, early: bool, behind: bool) -> RawRow {
    let c = row.columns.clone();
    RawRow {
        seq: row.seq,
        shard: row.shard(),
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
