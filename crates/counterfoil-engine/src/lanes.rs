//! Lanes: the order of deliveries of one queue, in memory and without I/O.
//!
//! # Promise
//! Of each aggregate at most one message is handed out at a time, in the order of the aggregate;
//! nothing is handed out while something earlier of its aggregate is unresolved, here or in the
//! store. What must wait for long is not kept in memory but put aside in the store ("held").
//!
//! # How order survives concurrent reads
//! A read sees a snapshot. A row that a snapshot shows as free may have got an unresolved
//! predecessor since. So a lane that was put aside keeps a *barrier*: rows of reads that began
//! before the change was durable are put aside too. Later reads see the change themselves.
//!
//! What was put aside comes back with a *refill*, whose snapshot may be older than the last rows
//! that were put aside. So a refill brings back rows only up to its *bound*: the first row of the
//! lane that was not durably aside when it began. And it brings back nothing above the *coverage*,
//! the number up to which everything new has been read: a former owner may have put a row aside
//! and left earlier ones of its lane unread.
//!
//! # What survives the store
//! A replica that becomes the primary may lack the last transactions, and gives their numbers to other
//! messages. So a row is known by its number and its id. What was read before the store was away is
//! *doubtful*: its number hides no other row.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use counterfoil_core::MessageId;
use counterfoil_core::code::Code;
use counterfoil_core::error_text;
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::{Delivery, LaneKey, RowKey, RowState, WrittenId};
use counterfoil_core::store::{Park, Retry, Settlement, ShardSet};

/// The number of a read: later reads have higher ones.
pub(crate) type ReadNo = u64;

/// Where a row comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// `read`, or a scheduled row that has come due; `behind` as the store saw it.
    Fresh { behind: bool },
    /// A retry whose time has come: the head of its lane.
    Retry,
    /// A held row of a lane that was refilled.
    Refill,
}

#[derive(Default)]
struct Lane {
    rows: VecDeque<Delivery>,
    in_flight: bool,
    queued: bool,
    /// The head backs off or is parked: nothing may go until the store brings it back.
    blocked: bool,
    /// There may be held rows of this lane in the store.
    held_in_store: bool,
    /// Rows of this lane that are put aside or back off, and not durably so yet.
    unsettled: Vec<i64>,
    refilling: bool,
    /// The first row that the refill under way may have missed.
    bound: Option<i64>,
    /// To be refilled when everything up to now is durable.
    due: bool,
    barrier: ReadNo,
    aggregate: Option<Aggregate>,
}

impl Lane {
    fn idle(&self) -> bool {
        let at_rest = !self.in_flight && !self.refilling && !self.due;
        at_rest && self.rows.is_empty() && self.unsettled.is_empty()
    }

    /// Whether nothing of it will come to an end by itself.
    fn waits(&self) -> bool {
        self.rows.is_empty() && !self.in_flight
    }

    /// A row is put aside or backs off.
    fn change(&mut self, seq: i64) {
        self.unsettled.push(seq);
        self.bound = Some(self.bound.map_or(seq, |bound| bound.min(seq)));
    }

    fn begin_refill(&mut self) {
        self.due = false;
        self.refilling = true;
        self.bound = self.unsettled.iter().copied().min();
    }
}

/// All lanes of one queue, and what is to be told to the store.
pub(crate) struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    ready: VecDeque<LaneKey>,
    /// Every row that is in memory or not settled durably.
    known: HashSet<Known>,
    /// How the ids of those are written that are not written as usual.
    odd: HashMap<Known, WrittenId>,
    /// Those of them that were read before the store was away.
    doubtful: HashSet<Known>,
    in_flight: usize,
    /// What the rows in memory weigh, handed out or not.
    bytes: usize,
    /// For each shard: rows handed out or waiting to be settled.
    busy: [u32; 64],
    settlement: Settlement,
    touched: Vec<(LaneKey, i64)>,
    refill_after: Vec<LaneKey>,
    per_lane: usize,
}

/// The number and the message of a row.
type Known = (i64, MessageId);

/// So many deliveries are worth a settlement of their own.
const LINGER_ROWS: usize = 200;

/// A settlement that is under way.
pub(crate) struct Batch {
    pub(crate) settlement: Settlement,
    touched: Vec<(LaneKey, i64)>,
    refill: Vec<LaneKey>,
}

impl Batch {
    /// Splits it in two, to be settled one after the other.
    pub(crate) fn split(self) -> (Batch, Batch) {
        let (first, rest) = self.settlement.split();
        let early: HashSet<i64> = first.rows().map(|row| row.seq).collect();
        let (touched, later) = self
            .touched
            .into_iter()
            .partition(|(_, seq)| early.contains(seq));
        let first = Batch {
            settlement: first,
            touched,
            refill: Vec::new(),
        };
        let rest = Batch {
            settlement: rest,
            touched: later,
            // Held rows come back when everything that was said of their lanes is durable.
            refill: self.refill,
        };
        (first, rest)
    }

    /// Takes out what is said about rows of these shards.
    pub(crate) fn take_shards(&mut self, gone: ShardSet) -> Batch {
        let stay = (0..64).filter(|shard| !gone.contains(*shard)).collect();
        let taken = self.settlement.restrict(gone);
        self.settlement = self.settlement.restrict(stay);
        let numbers: HashSet<i64> = taken.rows().map(|row| row.seq).collect();
        let touched = std::mem::take(&mut self.touched).into_iter();
        let (out, rest) = touched.partition(|(_, seq)| numbers.contains(seq));
        self.touched = rest;
        Batch {
            settlement: taken,
            touched: out,
            refill: Vec::new(),
        }
    }

    /// The store refuses this one row: it is parked, with as little as can be said.
    pub(crate) fn give_up(&mut self, refusal: &str, hold: bool) {
        let said = &mut self.settlement;
        let because = |what: &str| format!("{what}; the database refused to store that: {refusal}");
        let minimal = |row| Park {
            row,
            attempts: 0,
            code: Code::STORE_REFUSED,
            error: String::new(),
            hold: false,
            confirm: true,
            follow_up: None,
        };
        let park = if let Some(retry) = said.retry.pop() {
            Park {
                attempts: retry.attempts,
                hold,
                error: because(&format!("it failed with {}", retry.code)),
                ..minimal(retry.row)
            }
        } else if let Some(park) = said.park.pop() {
            let lost = match park.follow_up {
                Some(_) => ", and its compensation was not started",
                None => "",
            };
            Park {
                attempts: park.attempts,
                hold: park.hold,
                error: because(&format!("it was given up with {}{lost}", park.code)),
                ..minimal(park.row)
            }
        } else {
            return;
        };
        said.park.push(Park {
            error: error_text::bounded(park.error),
            ..park
        });
    }
}

impl Lanes {
    pub(crate) fn new(per_lane: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            known: HashSet::new(),
            odd: HashMap::new(),
            doubtful: HashSet::new(),
            in_flight: 0,
            bytes: 0,
            busy: [0; 64],
            settlement: Settlement::default(),
            touched: Vec::new(),
            refill_after: Vec::new(),
            per_lane,
        }
    }

    /// Rows in memory or not settled yet.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// What the rows in memory weigh.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is known of any lane, and there is nothing to settle.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.known.is_empty() && !self.has_settlement()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Numbers of rows that need not be read again.
    pub(crate) fn known(&self) -> impl Iterator<Item = i64> + '_ {
        let sure = |row: &&Known| self.doubtful.is_empty() || !self.doubtful.contains(*row);
        self.known.iter().filter(sure).map(|row| row.0)
    }

    /// How many rows may be read although they are known.
    pub(crate) fn doubtful(&self) -> usize {
        self.doubtful.len()
    }

    /// The store was away: other rows may stand under the numbers of those that are in memory.
    pub(crate) fn doubt(&mut self) {
        self.doubtful.extend(self.known.iter().copied());
    }

    /// How a settlement names the row of a delivery.
    pub(crate) fn key(&self, row: &Delivery) -> RowKey {
        let written = self.odd.get(&(row.seq, row.id));
        RowKey {
            seq: row.seq,
            shard: row.shard,
            id: row.id,
            written: written.cloned().unwrap_or(WrittenId::Usual),
        }
    }

    /// Before a row arrives: how its id is written.
    pub(crate) fn written(&mut self, row: &Delivery, written: WrittenId) {
        if written != WrittenId::Usual {
            self.odd.insert((row.seq, row.id), written);
        }
    }

    fn unlearn(&mut self, row: Known) {
        self.known.remove(&row);
        self.doubtful.remove(&row);
        self.odd.remove(&row);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn has_settlement(&self) -> bool {
        !self.settlement.is_empty()
    }

    /// Rows of this shard that are handed out or not settled durably.
    pub(crate) fn busy(&self, shard: u16) -> u32 {
        self.busy.get(usize::from(shard)).copied().unwrap_or(0)
    }

    /// A row that is not due yet: it goes to the scheduled ones and holds nobody back.
    pub(crate) fn early(&mut self, row: &Delivery) {
        if self.known.insert((row.seq, row.id)) {
            self.count(row.shard, 1);
            let key = self.key(row);
            self.settlement.schedule.push(key);
        }
    }

    /// A row has been read by read number `read`.
    pub(crate) fn arrive(&mut self, row: Delivery, source: Source, read: ReadNo) {
        if !self.known.insert((row.seq, row.id)) {
            return;
        }
        let key = row.lane();
        let per_lane = self.per_lane;
        let lane = self.lanes.entry(key).or_default();
        if lane.aggregate.is_none() {
            lane.aggregate.clone_from(&row.aggregate);
        }
        let aside = match source {
            Source::Refill => false,
            Source::Retry => {
                lane.blocked = false;
                false
            }
            Source::Fresh { behind } => {
                row.aggregate.is_some()
                    && (behind
                        || lane.blocked
                        || lane.held_in_store
                        || read < lane.barrier
                        || lane.rows.len() >= per_lane)
            }
        };
        if aside {
            lane.held_in_store = true;
            self.put_aside(key, &row);
        } else {
            self.bytes += row.weight();
            insert_in_order(&mut lane.rows, row, source == Source::Retry);
            self.make_ready(key);
        }
    }

    fn put_aside(&mut self, key: LaneKey, row: &Delivery) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.change(row.seq);
        }
        self.touched.push((key, row.seq));
        self.count(row.shard, 1);
        let row = self.key(row);
        self.settlement.hold.push(row);
    }

    fn make_ready(&mut self, key: LaneKey) {
        if let Some(lane) = self.lanes.get_mut(&key)
            && !lane.in_flight
            && !lane.queued
            && !lane.blocked
            && !lane.rows.is_empty()
        {
            lane.queued = true;
            self.ready.push_back(key);
        }
    }

    fn count(&mut self, shard: u16, by: i32) {
        if let Some(n) = self.busy.get_mut(usize::from(shard)) {
            *n = n.saturating_add_signed(by);
        }
    }

    /// Hands out the heads of at most `max` lanes.
    pub(crate) fn next_batch(&mut self, max: usize) -> Vec<Delivery> {
        let mut batch = Vec::with_capacity(max.min(self.ready.len()));
        while batch.len() < max {
            let Some(key) = self.ready.pop_front() else {
                break;
            };
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            lane.queued = false;
            if lane.in_flight || lane.blocked {
                continue;
            }
            if let Some(row) = lane.rows.pop_front() {
                lane.in_flight = true;
                self.in_flight += 1;
                self.count(row.shard, 1);
                batch.push(row);
            }
        }
        batch
    }

    /// Hands out one row to probe a destination with: one that has failed before, if there is one.
    /// Where first attempts fail and second ones pass, a probe must not always be a first one.
    pub(crate) fn next_probe(&mut self) -> Vec<Delivery> {
        let again = |key: &LaneKey| {
            let head = self.lanes.get(key).and_then(|lane| lane.rows.front());
            head.is_some_and(|row| row.attempt > 1)
        };
        if let Some(at) = self.ready.iter().position(again)
            && let Some(key) = self.ready.remove(at)
        {
            self.ready.push_front(key);
        }
        self.next_batch(1)
    }

    fn landed(&mut self, row: &Delivery) -> LaneKey {
        let key = row.lane();
        self.in_flight = self.in_flight.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(row.weight());
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.in_flight = false;
        }
        key
    }

    /// The delivery is over and the row leaves the outbox.
    pub(crate) fn sent(&mut self, row: &Delivery) {
        let key = self.landed(row);
        let first = self.settlement.sent.is_empty();
        self.settlement.fresh = (first || self.settlement.fresh) && row.state == RowState::New;
        let sent = self.key(row);
        self.settlement.sent.push(sent);
        self.go_on(key, row);
    }

    /// The row is replaced by copies in other queues.
    pub(crate) fn rerouted(
        &mut self,
        row: &Delivery,
        copies: Vec<(counterfoil_core::MessageId, String)>,
    ) {
        let key = self.landed(row);
        let row_key = self.key(row);
        self.settlement
            .reroute
            .push(counterfoil_core::store::Reroute {
                row: row_key,
                copies,
            });
        self.go_on(key, row);
    }

    /// The row is to be looked at again after a while, and holds nobody back meanwhile.
    pub(crate) fn deferred(&mut self, row: &Delivery, delay: Duration) {
        let key = self.landed(row);
        let deferred = self.key(row);
        self.settlement.defer.push((deferred, delay));
        self.go_on(key, row);
    }

    /// The rest of the lane may go on after a row has left it.
    fn go_on(&mut self, key: LaneKey, row: &Delivery) {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        if lane.rows.is_empty() {
            let came_back = matches!(row.state, RowState::Retrying | RowState::Held);
            if lane.aggregate.is_some() && (lane.held_in_store || came_back) {
                self.refill_later(key);
            } else if lane.idle() {
                self.lanes.remove(&key);
            }
        } else {
            self.make_ready(key);
        }
    }

    /// The row failed and is tried again later; its lane waits.
    pub(crate) fn retry(&mut self, row: &Delivery, delay: Duration, code: Code, error: String) {
        let key = self.landed(row);
        let retried = self.key(row);
        self.settlement.retry.push(Retry {
            row: retried,
            delay,
            attempts: row.attempt,
            code,
            error,
        });
        self.block(key, row.seq);
    }

    /// The row is parked; under `hold` its lane waits.
    pub(crate) fn park(&mut self, row: &Delivery, mut park: Park) {
        let key = self.landed(row);
        park.hold &= row.aggregate.is_some();
        let hold = park.hold;
        self.settlement.park.push(park);
        if hold {
            self.block(key, row.seq);
        } else {
            self.go_on(key, row);
        }
    }

    /// Nothing was stored and the row goes back to the head of its lane.
    pub(crate) fn put_back(&mut self, row: Delivery) {
        let key = self.landed(&row);
        self.count(row.shard, -1);
        if let Some(lane) = self.lanes.get_mut(&key) {
            self.bytes += row.weight();
            lane.rows.push_front(row);
        }
        self.make_ready(key);
    }

    /// The row is nothing to us any more: it is gone, or another relay's.
    pub(crate) fn forget(&mut self, row: &Delivery) {
        let key = self.landed(row);
        self.count(row.shard, -1);
        self.unlearn((row.seq, row.id));
        self.go_on(key, row);
    }

    fn block(&mut self, key: LaneKey, seq: i64) {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        if lane.aggregate.is_none() {
            self.lanes.remove(&key);
            return;
        }
        lane.blocked = true;
        lane.change(seq);
        let freed: usize = lane.rows.iter().map(Delivery::weight).sum();
        self.bytes = self.bytes.saturating_sub(freed);
        let rest = std::mem::take(&mut lane.rows);
        lane.held_in_store |= !rest.is_empty();
        self.touched.push((key, seq));
        for row in &rest {
            self.put_aside(key, row);
        }
    }

    /// Whether what there is to tell the store may wait a moment for more: few rows, all delivered,
    /// and nothing in memory waits for it.
    pub(crate) fn may_linger(&self) -> bool {
        let some = &self.settlement;
        some.only_sent() && some.len() < LINGER_ROWS && self.refill_after.is_empty()
    }

    /// What there is to tell the store.
    pub(crate) fn take_settlement(&mut self) -> Option<Batch> {
        if self.settlement.is_empty() {
            return None;
        }
        Some(Batch {
            settlement: std::mem::take(&mut self.settlement),
            touched: std::mem::take(&mut self.touched),
            refill: std::mem::take(&mut self.refill_after),
        })
    }

    /// A settlement is durable. Reads from number `next_read` on will see it. Answers the
    /// aggregates whose held rows may now be due.
    pub(crate) fn settled(&mut self, batch: &Batch, next_read: ReadNo) -> Vec<Aggregate> {
        for (key, _) in &batch.touched {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.barrier = next_read;
            }
        }
        self.void(batch);
        self.begin_refill(&batch.refill)
    }

    /// Nothing more is told about these rows: they stand in the store as they are.
    pub(crate) fn void(&mut self, batch: &Batch) {
        for row in batch.settlement.rows() {
            self.unlearn((row.seq, row.id));
            self.count(row.shard, -1);
        }
        for (key, seq) in &batch.touched {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.unsettled.retain(|unsettled| unsettled != seq);
            }
        }
    }

    /// The shards are not ours any more: what was to be told about their rows is not.
    pub(crate) fn void_shards(&mut self, gone: ShardSet) {
        let mut batch = Batch {
            settlement: std::mem::take(&mut self.settlement),
            touched: std::mem::take(&mut self.touched),
            refill: Vec::new(),
        };
        let void = batch.take_shards(gone);
        (self.settlement, self.touched) = (batch.settlement, batch.touched);
        self.void(&void);
    }

    fn refill_later(&mut self, key: LaneKey) {
        if let Some(lane) = self.lanes.get_mut(&key)
            && !std::mem::replace(&mut lane.due, true)
        {
            self.refill_after.push(key);
        }
    }

    /// The aggregates whose held rows may be due, when no settlement is under way: without one to
    /// come, nobody else would ask for them.
    pub(crate) fn refill_now(&mut self) -> Vec<Aggregate> {
        if self.refill_after.is_empty() || self.has_settlement() {
            return Vec::new();
        }
        let keys = std::mem::take(&mut self.refill_after);
        self.begin_refill(&keys)
    }

    fn begin_refill(&mut self, keys: &[LaneKey]) -> Vec<Aggregate> {
        let mut due = Vec::new();
        for key in keys {
            let Some(lane) = self.lanes.get_mut(key) else {
                continue;
            };
            lane.due = false;
            if !lane.refilling
                && !lane.blocked
                && lane.rows.is_empty()
                && let Some(aggregate) = &lane.aggregate
            {
                due.push(aggregate.clone());
                lane.begin_refill();
            }
        }
        due
    }

    /// The store found aggregates whose held rows nothing blocks. Answers those that are not
    /// being worked on anyway.
    pub(crate) fn runnable(&mut self, found: Vec<Aggregate>) -> Vec<Aggregate> {
        let mut due = Vec::new();
        for aggregate in found {
            let key = LaneKey::of(&aggregate);
            let lane = self.lanes.entry(key).or_default();
            if lane.idle() {
                lane.aggregate = Some(aggregate.clone());
                lane.blocked = false;
                lane.held_in_store = true;
                lane.begin_refill();
                due.push(aggregate);
            }
        }
        due
    }

    /// Held rows of these aggregates have arrived, or could not be read (`rows` absent), or not all of
    /// them (`cut`). Everything new up to number `covered` has arrived before.
    pub(crate) fn refilled(
        &mut self,
        asked: &[Aggregate],
        rows: Option<Vec<Delivery>>,
        cut: bool,
        read: ReadNo,
        covered: i64,
    ) {
        let failed = rows.is_none();
        let mut arrived: HashMap<LaneKey, Vec<Delivery>> = HashMap::new();
        for row in rows.into_iter().flatten() {
            arrived.entry(row.lane()).or_default().push(row);
        }
        for aggregate in asked {
            let key = LaneKey::of(aggregate);
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            lane.refilling = false;
            let bound = lane.bound.take();
            let mut rows = arrived.remove(&key).unwrap_or_default();
            let more = cut || rows.len() >= self.per_lane;
            let found = rows.len();
            rows.retain(|row| row.seq <= covered && bound.is_none_or(|bound| row.seq < bound));
            let ahead = rows.len() < found;
            lane.held_in_store = failed || more || ahead || bound.is_some();
            let again = rows.is_empty() && (bound.is_some() || cut) && !failed;
            for row in rows {
                self.arrive(row, Source::Refill, read);
            }
            if again && self.lanes.get(&key).is_some_and(Lane::waits) {
                // Rows were put aside meanwhile, or there was no room for them: look again when that
                // is durable.
                self.refill_later(key);
            }
        }
    }

    /// Forgets lanes that the store remembers by itself. `oldest` is the oldest read under way.
    pub(crate) fn collect(&mut self, oldest: ReadNo) {
        self.lanes
            .retain(|_, lane| !(lane.idle() && lane.barrier <= oldest));
    }

    /// The shards are not ours any more, or soon not: forget what is not handed out.
    pub(crate) fn drop_shards(&mut self, gone: ShardSet) {
        let bytes = &mut self.bytes;
        let mut dropped = Vec::new();
        for lane in self.lanes.values_mut() {
            lane.rows.retain(|row| {
                let stays = !gone.contains(row.shard);
                if !stays {
                    *bytes = bytes.saturating_sub(row.weight());
                    dropped.push((row.seq, row.id));
                }
                stays
            });
        }
        dropped.into_iter().for_each(|row| self.unlearn(row));
    }

    /// Forgets everything that is not handed out, for example because the queue was paused.
    pub(crate) fn drop_waiting(&mut self) {
        self.drop_shards((0..64).collect());
        self.ready.clear();
        for lane in self.lanes.values_mut() {
            lane.queued = false;
        }
    }
}

/// Order of the aggregate: by version where both have one, else by arrival (which is by number).
fn insert_in_order(rows: &mut VecDeque<Delivery>, row: Delivery, head: bool) {
    if head {
        rows.push_front(row);
        return;
    }
    let mut at = rows.len();
    while at > 0 {
        match (rows[at - 1].version, row.version) {
            (Some(before), Some(this)) if before > this => at -= 1,
            _ => break,
        }
    }
    rows.insert(at, row);
}
