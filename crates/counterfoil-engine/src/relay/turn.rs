//! One turn of the loop: begin what can begin, take in what has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::mark::Reach;
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{Held, Read, Result, Settled, ShardSet, StoreError, Waiting, Want};

use super::{Asked, Done, LINGER, Relay, Room, store_pause};
use crate::lanes::{ReadNo, Source};
use crate::settings::OnPark;
use crate::unsettled::{Blame, Trial};

/// Lanes looked for at one time.
const LANES_AT_ONCE: usize = 200;

impl Relay {
    /// Begins whatever can begin now.
    pub(super) fn pump(&mut self) {
        let now = Instant::now();
        self.check_name();
        self.start_balance(now);
        self.start_give(now);
        for queue in 0..self.queues.len() {
            if self.queues[queue].at_rest() {
                continue;
            }
            self.start_publish(queue, now);
            self.start_settle(queue, now);
            self.start_refill(queue, now);
        }
        if !self.stopping {
            self.start_look(now);
            self.start_read(now);
            self.start_tend(now);
            self.start_scan(now);
        }
    }

    fn start_read(&mut self, now: Instant) {
        if now >= self.next_poll {
            self.make_hungry();
            self.next_poll = now + self.poll_pause(now);
        }
        if self.reading || !self.store_open(now) {
            return;
        }
        let rescan = now >= self.next_rescan;
        let threshold = self.settings.batch / 2;
        let mut asked = Vec::new();
        let hungry = self.queues.iter().filter(|q| q.hungry).count();
        let shared = self.memory_left() / hungry.max(1);
        for (i, queue) in self.queues.iter_mut().enumerate() {
            if !queue.hungry {
                continue;
            }
            let room = queue.room(&self.settings);
            let held = queue.lanes.bytes();
            let offer = queue.load.offer(held, self.settings.queue_memory, shared);
            if let Some(bytes) = offer.filter(|_| room > threshold) {
                queue.hungry = false;
                queue.load.expect(bytes);
                asked.push(Asked {
                    queue: i,
                    generation: queue.generation,
                    from: if rescan { 0 } else { queue.mark.position() },
                    limit: room.min(self.settings.batch).min(queue.load.rows(bytes))
                        + queue.lanes.doubtful(),
                    bytes,
                });
            }
        }
        if asked.is_empty() {
            return;
        }
        self.reading = true;
        let no = self.begin_read();
        let store = Arc::clone(&self.store);
        let wants: Vec<(Arc<str>, ShardSet)> = asked
            .iter()
            .map(|a| {
                (
                    Arc::clone(self.queues[a.queue].name()),
                    self.queues[a.queue].active(),
                )
            })
            .collect();
        let known = asked.iter().flat_map(|a| {
            self.queues[a.queue]
                .lanes
                .known()
                .filter(|seq| *seq > a.from)
        });
        let skip: Vec<i64> = known.collect();
        self.ops.spawn(async move {
            let begun = Instant::now();
            let wants: Vec<Want<'_>> = wants
                .iter()
                .zip(&asked)
                .map(|((queue, shards), a)| Want {
                    queue,
                    shards: *shards,
                    after: a.from,
                    limit: a.limit,
                    bytes: a.bytes,
                })
                .collect();
            let result = store.read(&wants, &skip).await;
            Done::Read {
                no,
                asked,
                took: begun.elapsed(),
                rescan,
                result,
            }
        });
    }

    pub(super) fn read_done(
        &mut self,
        no: ReadNo,
        asked: &[Asked],
        took: Duration,
        rescan: bool,
        result: Result<Read>,
    ) {
        self.reading = false;
        for asked in asked {
            self.queues[asked.queue].load.came(asked.bytes);
        }
        let read = match result {
            Ok(read) => read,
            Err(error) => {
                self.end_read(no);
                self.make_hungry();
                return self.store_failed("read messages", &error);
            }
        };
        self.store_answered();
        if rescan {
            // Looking below the mark over many dead rows is slow: then do it rarely.
            self.next_rescan = Instant::now() + self.settings.rescan.max(took * 20);
        }
        for ((asked, rows), reach) in asked.iter().zip(read.rows).zip(read.reach) {
            let queue = &mut self.queues[asked.queue];
            if asked.generation != queue.generation {
                queue.hungry = true;
                continue;
            }
            if reach == Reach::Paused {
                queue.note_paused(true);
                continue;
            }
            queue.hungry |= reach == Reach::Limit;
            if rows.is_empty() && queue.lanes.is_empty() {
                // A dead owner left nothing behind.
                queue.suspects = 0;
            }
            let last = rows.last().map(|r| r.seq);
            queue.weigh(&rows);
            if queue.mark.covered() == 0 {
                self.next_scan = Instant::now();
            }
            queue.mark.after_read(asked.from, last, reach, read.horizon);
            for row in rows {
                self.arrive(asked.queue, row, no);
            }
        }
        self.end_read(no);
    }

    fn arrive(&mut self, queue: usize, row: RawRow, no: ReadNo) {
        self.lively = Instant::now();
        let queue = &mut self.queues[queue];
        // Rows of shards that were lost meanwhile are the new owner's.
        let Some(epoch) = queue
            .epoch(row.shard)
            .filter(|_| queue.active().contains(row.shard))
        else {
            return;
        };
        let (early, behind, written) = (row.early, row.behind, row.written_id.clone());
        let delivery = row.into_delivery(queue.name(), epoch);
        queue.lanes.written(&delivery, written);
        if early && delivery.state == RowState::New && delivery.defect.is_none() {
            return queue.lanes.early(&delivery);
        }
        let source = match delivery.state {
            RowState::Retrying => Source::Retry,
            _ => Source::Fresh { behind },
        };
        queue.lanes.arrive(delivery, source, no);
    }

    /// Looks for retries and scheduled rows whose time has come, and for paused queues.
    fn start_tend(&mut self, now: Instant) {
        if self.tending || now < self.next_tend || !self.store_open(now) {
            return;
        }
        self.next_tend = now + self.poll_pause(now);
        let places = if self.many() {
            // What has come due since the last look is found by the next one.
            self.curious = true;
            std::mem::take(&mut self.due)
        } else {
            (0..self.queues.len()).collect()
        };
        let served: Vec<usize> = places
            .into_iter()
            .filter(|q| !self.queues[*q].shards.is_empty())
            .collect();
        if served.is_empty() {
            return;
        }
        self.tending = true;
        let (no, absences) = (self.begin_read(), self.absences);
        let store = Arc::clone(&self.store);
        let batch = self.settings.batch;
        // The other half is for what is new.
        let shared = self.memory_left() / 2 / served.len();
        let (mut asked, mut wants, mut skip) = (Vec::new(), Vec::new(), Vec::new());
        for q in served {
            let queue = &mut self.queues[q];
            let bytes = queue.reserve_bytes(&self.settings, shared);
            let fitting = bytes.map_or(0, |bytes| queue.load.rows(bytes));
            let limit = queue.reserve(&self.settings).min(batch).min(fitting);
            let limit = limit + queue.lanes.doubtful();
            let bytes = bytes.unwrap_or(0);
            queue.load.expect(bytes);
            asked.push((q, bytes));
            wants.push((Arc::clone(queue.name()), queue.active(), limit, bytes));
            skip.extend(queue.lanes.known());
        }
        self.ops.spawn(async move {
            let wants: Vec<Want<'_>> = wants
                .iter()
                .map(|(queue, shards, limit, bytes)| Want {
                    queue,
                    shards: *shards,
                    after: 0,
                    limit: *limit,
                    bytes: *bytes,
                })
                .collect();
            let result = store.read_waiting(&wants, &skip).await;
            Done::Waiting {
                no,
                absences,
                asked,
                result,
            }
        });
    }

    pub(super) fn waiting_done(
        &mut self,
        no: ReadNo,
        absences: u64,
        asked: &[(usize, usize)],
        result: Result<Waiting>,
    ) {
        self.tending = false;
        for (queue, bytes) in asked {
            self.queues[*queue].load.came(*bytes);
        }
        match result {
            Err(error) => self.store_failed("read retries", &error),
            Ok(waiting) => {
                self.store_answered();
                for queue in &mut self.queues {
                    let paused = waiting.paused.iter().any(|p| **p == **queue.name());
                    queue.note_paused(paused);
                }
                if absences != self.absences {
                    // What the store said before it was away may not be so any more.
                    self.next_tend = Instant::now();
                    return self.end_read(no);
                }
                for ((queue, _), rows) in asked.iter().zip(waiting.rows) {
                    self.queues[*queue].weigh(&rows);
                    for row in rows {
                        self.arrive(*queue, row, no);
                    }
                }
            }
        }
        self.end_read(no);
    }

    fn start_refill(&mut self, index: usize, now: Instant) {
        let open = self.store_open(now);
        let queue = &mut self.queues[index];
        if !queue.settling && queue.unsettled.is_empty() {
            let due = queue.lanes.refill_now();
            queue.refill.extend(due);
        }
        let room = queue.reserve(&self.settings) / self.settings.lane;
        let n = queue.refill.len().min(LANES_AT_ONCE).min(room);
        if n == 0 || queue.refilling || !open {
            return;
        }
        let shared = self.memory_left();
        let queue = &mut self.queues[index];
        let Some(bytes) = queue.reserve_bytes(&self.settings, shared) else {
            return;
        };
        let rows = queue.load.rows(bytes);
        let per_lane = self.settings.lane.min(rows);
        let n = n.min((rows / per_lane).max(1));
        queue.load.expect(bytes);
        let room = Room { per_lane, bytes };
        queue.refilling = true;
        let asked: Vec<Aggregate> = queue.refill.drain(..n).collect();
        let (store, name) = (Arc::clone(&self.store), Arc::clone(queue.name()));
        let (no, absences) = (self.begin_read(), self.absences);
        self.ops.spawn(async move {
            let result = store.read_lanes(&name, &asked, per_lane, bytes).await;
            Done::Lanes {
                no,
                absences,
                queue: index,
                asked,
                room,
                result,
            }
        });
    }

    pub(super) fn lanes_done(
        &mut self,
        (no, absences): (ReadNo, u64),
        index: usize,
        asked: &[Aggregate],
        room: Room,
        result: Result<Held>,
    ) {
        let lane = self.settings.lane;
        let queue = &mut self.queues[index];
        queue.refilling = false;
        queue.load.came(room.bytes);
        let (rows, cut, error) = match result {
            Ok(held) => {
                // What the store said before it was away may not be so any more.
                let rows = (absences == self.absences).then_some(held.rows);
                (rows, held.cut || room.per_lane < lane, None)
            }
            Err(error) => (None, false, Some(error)),
        };
        queue.weigh(rows.as_deref().unwrap_or_default());
        let active = queue.active();
        let rows = rows.map(|rows| {
            rows.into_iter()
                .filter(|row| active.contains(row.shard))
                .filter_map(|row| {
                    let (epoch, written) = (queue.epoch(row.shard)?, row.written_id.clone());
                    let delivery = row.into_delivery(queue.name(), epoch);
                    queue.lanes.written(&delivery, written);
                    Some(delivery)
                })
                .collect()
        });
        let covered = queue.mark.covered();
        queue.lanes.refilled(asked, rows, cut, no, covered);
        if let Some(error) = error {
            self.store_failed("read held messages", &error);
        }
        self.end_read(no);
    }

    fn start_settle(&mut self, index: usize, now: Instant) {
        let relay = self.relay_id();
        let queue = &mut self.queues[index];
        let failed = !queue.unsettled.is_empty() || queue.unsettled.has_odd(now);
        if queue.settling || !(failed || queue.lanes.has_settlement()) {
            return;
        }
        let patient = !failed && !queue.prompt && !self.stopping;
        if patient && queue.lanes.may_linger() {
            let until = *queue.linger.get_or_insert(now + LINGER);
            if now < until {
                return;
            }
        }
        queue.linger = None;
        queue.prompt = false;
        if !queue.unsettled.is_open(now) {
            return;
        }
        let answers = self.store_answers;
        let new = |batch| Trial::new(batch, now, answers);
        let again = queue.unsettled.take(now);
        let Some(mut trial) = again.or_else(|| queue.lanes.take_settlement().map(new)) else {
            return;
        };
        trial.batch.settlement.keep_sent = self.settings.keep_sent;
        queue.settling = true;
        let shards: ShardSet = trial.batch.settlement.rows().map(|r| r.shard).collect();
        let fence = queue.fence(&relay, shards);
        let seen = (self.absences, queue.mark.front());
        let store = Arc::clone(&self.store);
        self.ops.spawn(async move {
            let result = store.settle(&fence, &trial.batch.settlement).await;
            Done::Settled {
                queue: index,
                seen,
                trial: Box::new(trial),
                result,
            }
        });
    }

    pub(super) fn settled(
        &mut self,
        index: usize,
        (absences, front): (u64, i64),
        trial: Trial,
        result: Result<Settled>,
    ) {
        let next_read = self.next_read;
        let queue = &mut self.queues[index];
        queue.settling = false;
        let settled = match result {
            Ok(settled) => settled,
            Err(error) => return self.not_settled(index, trial, &error),
        };
        let batch = trial.batch;
        queue.unsettled.settled();
        // Otherwise the store where the front was seen may not be the one that took the stamp.
        if absences == self.absences {
            queue.mark.after_settle(front, settled.stamp);
        }
        if !settled.lost.is_empty() {
            tracing::warn!(queue = &**queue.name(), shards = ?settled.lost, "settled too late: shards were lost");
            metrics::counter!("counterfoil_fenced_total", "queue" => queue.name().to_string())
                .increment(1);
            queue.lost(settled.lost.into_iter().collect());
            self.balanced = None;
        }
        if !batch.settlement.retry.is_empty() {
            let soonest = batch
                .settlement
                .retry
                .iter()
                .map(|r| r.delay)
                .min()
                .unwrap_or_default();
            self.next_tend = self
                .next_tend
                .min(Instant::now() + soonest + Duration::from_millis(1));
        }
        let due = queue.lanes.settled(&batch, next_read);
        queue.refill.extend(due);
        if std::mem::take(&mut self.rerouted) {
            // The copies wait in other queues, here or at other relays.
            self.make_hungry();
            self.voice.notify_one();
        }
    }

    /// Nothing is lost: the rows stay known, and are settled later.
    fn not_settled(&mut self, index: usize, trial: Trial, error: &StoreError) {
        let pause = store_pause(self.store_failures.saturating_add(1));
        let (until, answers) = (Instant::now() + pause, self.store_answers);
        let rows = trial.batch.settlement.len();
        let queue = &mut self.queues[index];
        let hold = queue.spec.on_park == OnPark::Hold;
        match queue.unsettled.failed(trial, error, until, answers, hold) {
            Blame::Store => self.store_failed("settle messages", error),
            Blame::Rows => {
                tracing::error!(
                    queue = &**queue.name(),
                    rows,
                    error = error.one_line(),
                    "the database refuses to settle messages: looking for the one to blame"
                );
                metrics::counter!("counterfoil_store_errors_total", "operation" => "settle messages")
                    .increment(1);
            }
        }
    }
}
