//! One turn of the loop: begin what can begin, take in what has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::message::Aggregate;
use counterfoil_core::policy::Class;
use counterfoil_core::policy::breaker::{Admission, State, Ticket};
use counterfoil_core::row::{Delivery, RawRow, RowState};
use counterfoil_core::store::{Read, Result, Settled, ShardSet, Waiting, Want};
use counterfoil_core::{Code, Outcome};

use super::{Asked, Done, LINGER, Relay, SCAN_LANES};
use crate::lanes::{Batch, ReadNo, Source};
use crate::lifecycle::UNROUTED;
use crate::publish::{self, Offered};
use crate::queue::Consequence;

/// How long a message that no route wants waits before it is looked at again.
const NO_ROUTE_PAUSE: Duration = Duration::from_secs(300);
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
            self.start_publish(queue, now);
            self.start_settle(queue, now);
            self.start_refill(queue, now);
        }
        if !self.stopping {
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
        for (i, queue) in self.queues.iter_mut().enumerate() {
            let room = queue.room(&self.settings);
            if queue.hungry && room > threshold {
                queue.hungry = false;
                asked.push(Asked {
                    queue: i,
                    generation: queue.generation,
                    from: if rescan { 0 } else { queue.mark.position() },
                    limit: room.min(self.settings.batch),
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
        for (asked, rows) in asked.iter().zip(read.rows) {
            let complete = rows.len() < asked.limit;
            let queue = &mut self.queues[asked.queue];
            if asked.generation != queue.generation {
                queue.hungry = true;
                continue;
            }
            queue.hungry |= !complete;
            if rows.is_empty() && queue.lanes.len() == 0 {
                // A dead owner left nothing behind.
                queue.suspects = 0;
            }
            let last = rows.last().map(|r| r.seq);
            queue
                .mark
                .after_read(asked.from, last, complete, read.horizon);
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
        let (early, behind) = (row.early, row.behind);
        let delivery = row.into_delivery(queue.name(), epoch);
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
        let asked: Vec<usize> = (0..self.queues.len())
            .filter(|q| !self.queues[*q].shards.is_empty())
            .collect();
        self.next_tend = now + self.poll_pause(now);
        if asked.is_empty() {
            return;
        }
        self.tending = true;
        let no = self.begin_read();
        let store = Arc::clone(&self.store);
        let batch = self.settings.batch;
        let wants: Vec<(Arc<str>, ShardSet, usize)> = asked
            .iter()
            .map(|q| &self.queues[*q])
            .map(|q| {
                (
                    Arc::clone(q.name()),
                    q.active(),
                    q.reserve(&self.settings).min(batch),
                )
            })
            .collect();
        let skip: Vec<i64> = asked
            .iter()
            .flat_map(|q| self.queues[*q].lanes.known())
            .collect();
        self.ops.spawn(async move {
            let wants: Vec<Want<'_>> = wants
                .iter()
                .map(|(queue, shards, limit)| Want {
                    queue,
                    shards: *shards,
                    after: 0,
                    limit: *limit,
                })
                .collect();
            let result = store.read_waiting(&wants, &skip).await;
            Done::Waiting { no, asked, result }
        });
    }

    pub(super) fn waiting_done(&mut self, no: ReadNo, asked: &[usize], result: Result<Waiting>) {
        self.tending = false;
        match result {
            Err(error) => self.store_failed("read retries", &error),
            Ok(waiting) => {
                self.store_answered();
                for queue in &mut self.queues {
                    let paused = waiting.paused.iter().any(|p| **p == **queue.name());
                    if paused && !queue.paused {
                        tracing::info!(queue = &**queue.name(), "paused");
                        queue.start_over();
                    } else if !paused && queue.paused {
                        tracing::info!(queue = &**queue.name(), "resumed");
                        queue.hungry = true;
                    }
                    queue.paused = paused;
                }
                for (queue, rows) in asked.iter().zip(waiting.rows) {
                    for row in rows {
                        self.arrive(*queue, row, no);
                    }
                }
            }
        }
        self.end_read(no);
    }

    /// Looks for held rows that nothing holds any more: after a takeover, or after an operator
    /// has ignored or cancelled what they waited for.
    fn start_scan(&mut self, now: Instant) {
        if now < self.next_scan || !self.store_open(now) {
            return;
        }
        self.next_scan = now + SCAN_LANES;
        for (i, queue) in self.queues.iter().enumerate() {
            let shards = queue.active();
            if queue.paused || shards.is_empty() {
                continue;
            }
            let (store, name) = (Arc::clone(&self.store), Arc::clone(queue.name()));
            self.ops.spawn(async move {
                let result = store.runnable_lanes(&name, shards, LANES_AT_ONCE).await;
                Done::Runnable { queue: i, result }
            });
        }
    }

    pub(super) fn runnable_done(&mut self, queue: usize, result: Result<Vec<Aggregate>>) {
        match result {
            Err(error) => self.store_failed("look for held messages", &error),
            Ok(found) => {
                let queue = &mut self.queues[queue];
                let due = queue.lanes.runnable(found);
                queue.refill.extend(due);
            }
        }
    }

    fn start_refill(&mut self, index: usize, now: Instant) {
        let open = self.store_open(now);
        let queue = &mut self.queues[index];
        let room = queue.reserve(&self.settings) / self.settings.lane;
        let n = queue.refill.len().min(LANES_AT_ONCE).min(room);
        if n == 0 || queue.refilling || !open {
            return;
        }
        queue.refilling = true;
        let asked: Vec<Aggregate> = queue.refill.drain(..n).collect();
        let (store, name, lane) = (
            Arc::clone(&self.store),
            Arc::clone(queue.name()),
            self.settings.lane,
        );
        let no = self.begin_read();
        self.ops.spawn(async move {
            let result = store.read_lanes(&name, &asked, lane).await;
            Done::Lanes {
                no,
                queue: index,
                asked,
                result,
            }
        });
    }

    pub(super) fn lanes_done(
        &mut self,
        no: ReadNo,
        index: usize,
        asked: &[Aggregate],
        result: Result<Vec<RawRow>>,
    ) {
        let queue = &mut self.queues[index];
        queue.refilling = false;
        let (rows, error) = match result {
            Ok(rows) => (Some(rows), None),
            Err(error) => (None, Some(error)),
        };
        let active = queue.active();
        let rows = rows.map(|rows| {
            rows.into_iter()
                .filter(|row| active.contains(row.shard))
                .filter_map(|row| {
                    queue
                        .epoch(row.shard)
                        .map(|epoch| row.into_delivery(queue.name(), epoch))
                })
                .collect()
        });
        queue.lanes.refilled(asked, rows, no);
        if let Some(error) = error {
            self.store_failed("read held messages", &error);
        }
        self.end_read(no);
    }

    fn start_publish(&mut self, index: usize, now: Instant) {
        // Nothing is sent by a relay that may not be the owner any more.
        let live = self.deadline().is_some_and(|until| now < until);
        while live && !self.stopping && self.queues[index].may_publish() {
            let queue = &mut self.queues[index];
            let alone = queue.suspects > 0;
            let probe = queue.dependency.state() != State::Closed;
            let max = if alone || probe {
                1
            } else {
                queue.caps.max_batch
            };
            let batch = queue.lanes.next_batch(max);
            let batch = self.sort_out(index, batch);
            if batch.is_empty() {
                continue;
            }
            let queue = &mut self.queues[index];
            let Admission::Go(ticket) = queue.dependency.admit() else {
                // An operator was faster.
                batch.into_iter().for_each(|d| queue.lanes.put_back(d));
                return;
            };
            self.spawn_publish(index, batch, alone, ticket);
        }
    }

    /// Parks what cannot be delivered, and routes what has no queue yet. The rest is published.
    fn sort_out(&mut self, index: usize, batch: Vec<Delivery>) -> Vec<Delivery> {
        let unrouted = &**self.queues[index].name() == UNROUTED;
        let mut rest = Vec::with_capacity(batch.len());
        for mut delivery in batch {
            let queue = &mut self.queues[index];
            if let Some(defect) = delivery.defect.take() {
                let mut park = queue.park(&delivery, Code::VALIDATION_ERROR, defect, false);
                // It was never offered to anybody.
                park.attempts = delivery.attempt - 1;
                queue.lanes.park(&delivery, park);
            } else if unrouted {
                let targets = self.routes.queues(&delivery.event_type);
                let copies: Vec<_> = match targets.as_slice() {
                    [] => Vec::new(),
                    // One destination: the message keeps its id.
                    [one] => vec![(delivery.id, (*one).to_owned())],
                    many => many
                        .iter()
                        .map(|q| (delivery.id.derive(q), (*q).to_owned()))
                        .collect(),
                };
                if copies.is_empty() {
                    queue.lanes.deferred(&delivery, NO_ROUTE_PAUSE);
                } else {
                    queue.lanes.rerouted(&delivery, copies);
                }
                self.rerouted = true;
            } else if delivery.attempt > 1 && queue.suspects == 0 && !queue.dependency.take_retry()
            {
                queue.postpone(delivery, &mut self.rng);
            } else {
                rest.push(delivery);
            }
        }
        rest
    }

    fn spawn_publish(
        &mut self,
        index: usize,
        mut batch: Vec<Delivery>,
        alone: bool,
        ticket: Ticket,
    ) {
        let queue = &mut self.queues[index];
        queue.publishing += 1;
        let place = queue.dependency.try_enter();
        let destination = Arc::clone(&queue.spec.destination);
        let timeout = queue.caps.timeout;
        if alone && let Some(delivery) = batch.pop() {
            queue.suspects -= 1;
            let shards = [delivery.shard].into_iter().collect();
            let fence = self.queues[index].fence(&self.relay_id(), shards);
            let store = Arc::clone(&self.store);
            self.ops.spawn(async move {
                let outcomes =
                    publish::publish_suspect(store, fence, destination, delivery, timeout).await;
                drop(place);
                Done::Published {
                    queue: index,
                    outcomes,
                    suspect: true,
                    ticket,
                }
            });
        } else {
            self.ops.spawn(async move {
                let outcomes = publish::publish(destination, batch, timeout).await;
                drop(place);
                Done::Published {
                    queue: index,
                    outcomes,
                    suspect: false,
                    ticket,
                }
            });
        }
    }

    pub(super) fn published(
        &mut self,
        index: usize,
        outcomes: Vec<Offered>,
        suspect: bool,
        ticket: Ticket,
    ) {
        let queue = &mut self.queues[index];
        queue.publishing -= 1;
        queue.prompt |= suspect;
        let (mut stored, mut consequence, mut class) = (0, Consequence::Nothing, None);
        for (delivery, outcome) in outcomes {
            let Some(outcome) = outcome else {
                // It stands in the store as before: what follows it must not overtake it.
                queue.lanes.forget(&delivery);
                queue.start_over();
                continue;
            };
            let said = queue.class(delivery.lane(), &outcome, ticket.is_probe());
            class = better(class, said);
            match &outcome {
                Outcome::Stored => stored += 1,
                other => {
                    metrics::counter!(
                        "counterfoil_failures_total",
                        "queue" => queue.name().to_string(), "outcome" => other.label()
                    )
                    .increment(1);
                }
            }
            let next = match outcome {
                Outcome::Unavailable { error } if suspect => queue.exonerate(delivery, error),
                outcome => queue.outcome(delivery, outcome, &mut self.rng),
            };
            if next != Consequence::Nothing {
                consequence = next;
            }
        }
        metrics::counter!("counterfoil_delivered_total", "queue" => queue.name().to_string())
            .increment(stored);
        queue.dependency.succeeded_times(stored);
        if let Some(class) = class {
            queue.dependency.record(ticket, class);
        }
        if suspect && queue.suspects == 0 {
            tracing::info!(
                queue = &**queue.name(),
                "what the dead relay left has been tried one by one"
            );
        }
        if suspect && !queue.lanes.has_ready() && queue.lanes.len() <= 1 {
            // Nothing more was left behind.
            queue.suspects = 0;
        }
        self.follow(index, consequence, ticket.is_probe());
    }

    fn follow(&mut self, index: usize, consequence: Consequence, probe: bool) {
        let queue = &mut self.queues[index];
        let (store, name) = (Arc::clone(&self.store), Arc::clone(queue.name()));
        match consequence {
            Consequence::Nothing => {}
            Consequence::Available => {
                tracing::info!(queue = &*name, "the destination answers again");
                self.ops.spawn(async move {
                    let result = store.note_unavailable(&name, false).await;
                    Done::Unavailable {
                        queue: index,
                        result,
                    }
                });
            }
            Consequence::Unavailable => {
                let known = std::mem::replace(&mut queue.unavailable, true);
                if known && !probe {
                    return;
                }
                if !known {
                    tracing::warn!(
                        queue = &*name,
                        destination = queue.spec.destination.describe(),
                        "nobody answers"
                    );
                }
                self.ops.spawn(async move {
                    let result = store.note_unavailable(&name, true).await;
                    Done::Unavailable {
                        queue: index,
                        result,
                    }
                });
            }
            Consequence::Pause(reason) => {
                tracing::error!(
                    queue = &*name,
                    reason,
                    "the destination refuses everything: the queue is paused"
                );
                metrics::counter!("counterfoil_paused_total", "queue" => name.to_string())
                    .increment(1);
                queue.paused = true;
                queue.start_over();
                self.ops.spawn(async move {
                    let result = store.pause(&name, &reason, "counterfoil").await;
                    Done::Told("pause a queue", result)
                });
            }
        }
    }

    pub(super) fn noted_unavailable(&mut self, index: usize, result: Result<Option<Duration>>) {
        match result {
            Err(error) => tracing::warn!(
                error = error.one_line(),
                "could not note that nobody answers"
            ),
            Ok(since) => {
                let over = since.is_some_and(|s| s >= self.settings.patience);
                self.queues[index].patience_over = over;
            }
        }
    }

    fn start_settle(&mut self, index: usize, now: Instant) {
        let relay = self.relay_id();
        let queue = &mut self.queues[index];
        if queue.settling || !(queue.unsettled.is_some() || queue.lanes.has_settlement()) {
            return;
        }
        let patient = queue.unsettled.is_none() && !queue.prompt && !self.stopping;
        if patient && queue.lanes.may_linger() {
            let until = *queue.linger.get_or_insert(now + LINGER);
            if now < until {
                return;
            }
        }
        queue.linger = None;
        queue.prompt = false;
        let again = match &queue.unsettled {
            Some((_, at)) if now < *at => return,
            Some(_) => queue.unsettled.take().map(|u| u.0),
            None => None,
        };
        let Some(mut batch) = again.or_else(|| queue.lanes.take_settlement()) else {
            return;
        };
        batch.settlement.keep_sent = self.settings.keep_sent;
        queue.settling = true;
        let shards: ShardSet = batch.settlement.rows().map(|r| r.1).collect();
        let fence = queue.fence(&relay, shards);
        let front = queue.mark.front();
        let store = Arc::clone(&self.store);
        self.ops.spawn(async move {
            let result = store.settle(&fence, &batch.settlement).await;
            Done::Settled {
                queue: index,
                front,
                batch,
                result,
            }
        });
    }

    pub(super) fn settled(
        &mut self,
        index: usize,
        front: i64,
        batch: Batch,
        result: Result<Settled>,
    ) {
        let next_read = self.next_read;
        let queue = &mut self.queues[index];
        queue.settling = false;
        let settled = match result {
            Ok(settled) => settled,
            Err(error) => {
                // Nothing is lost: the rows stay known, and the same settlement is tried again.
                self.store_failed("settle messages", &error);
                let at = self.store_pause.unwrap_or_else(Instant::now);
                self.queues[index].unsettled = Some((batch, at));
                return;
            }
        };
        queue.mark.after_settle(front, settled.stamp);
        if !settled.lost.is_empty() {
            tracing::warn!(queue = &**queue.name(), shards = ?settled.lost, "settled too late: shards were lost");
            metrics::counter!("counterfoil_fenced_total", "queue" => queue.name().to_string())
                .increment(1);
            queue.lost(settled.lost.into_iter().collect());
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
        let due = queue.lanes.settled(batch, next_read);
        queue.refill.extend(due);
        if std::mem::take(&mut self.rerouted) {
            // The copies wait in other queues, here or at other relays.
            self.make_hungry();
            self.voice.notify_one();
        }
    }
}

/// What a call says about its destination when its messages fared differently: the best of it,
/// because whoever takes one message is alive.
fn better(a: Option<Class>, b: Option<Class>) -> Option<Class> {
    let rank = |class: &Option<Class>| match class {
        None => 0,
        Some(Class::Failed(_)) => 1,
        Some(Class::Throttled { .. }) => 2,
        Some(Class::Refused) => 3,
        Some(Class::Success) => 4,
    };
    std::cmp::max_by_key(a, b, rank)
}
