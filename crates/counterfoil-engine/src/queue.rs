//! What the relay knows about one queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::mark::LowMark;
use counterfoil_core::message::{Aggregate, Message, header};
use counterfoil_core::policy::Class;
use counterfoil_core::policy::breaker::State;
use counterfoil_core::policy::class::Failure;
use counterfoil_core::row::{LaneKey, RawRow};
use counterfoil_core::store::{Fence, Park, RelayId, ShardSet, Taken};
use counterfoil_core::{Capabilities, Code, Delivery, Outcome};

use crate::lanes::Lanes;
use crate::pipeline::Dependency;
use crate::relay::memory::Load;
use crate::settings::{OnPark, QueueSpec, Settings};
use crate::tasks;
use crate::unsettled::Unsettled;

/// At most so many messages are tried alone after an owner died.
const MAX_SUSPECTS: usize = 256;
/// How long a message waits that was offered to a destination in trouble.
const SOON: Duration = Duration::from_millis(500);
/// About how long a retry waits for which there is no budget.
const BUDGET_PAUSE: Duration = Duration::from_secs(5);

/// How long a message waits at least and at most when what it needs is not there.
const POSTPONED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// One owned shard.
pub(crate) struct OwnedShard {
    pub(crate) epoch: i64,
    /// To be given back when nothing of it is in flight, or at this time at the latest.
    pub(crate) leaving: Option<Instant>,
}

/// A shard that was given back. What looked around before the store had done so still shows it as
/// ours, and must not take it again.
pub(crate) struct GivenShard {
    epoch: i64,
    /// The first look around that has begun after the giving had ended. Absent while it is under way.
    seen_from: Option<u64>,
}

/// The relay's knowledge of one queue.
pub(crate) struct Queue {
    pub(crate) spec: QueueSpec,
    pub(crate) caps: Capabilities,
    /// The breaker and the budget of the destination.
    pub(crate) dependency: Arc<Dependency>,
    pub(crate) lanes: Lanes,
    pub(crate) load: Load,
    pub(crate) shards: BTreeMap<u16, OwnedShard>,
    /// Some of its shards are to be given back.
    pub(crate) leaving: bool,
    given: BTreeMap<u16, GivenShard>,
    pub(crate) mark: LowMark,
    /// Grows with every newly owned shard and whenever rows are dropped: what reads that began
    /// before bring is not taken in.
    pub(crate) generation: u64,
    pub(crate) paused: bool,
    /// There may be rows that were not read yet.
    pub(crate) hungry: bool,
    pub(crate) publishing: usize,
    /// A settlement is under way.
    pub(crate) settling: bool,
    pub(crate) unsettled: Unsettled,
    /// A few deliveries wait so long for more, to be settled together.
    pub(crate) linger: Option<Instant>,
    /// A message that was tried alone has an outcome, which must not wait: it was counted as a
    /// crash before it was tried.
    pub(crate) prompt: bool,
    pub(crate) refill: Vec<Aggregate>,
    pub(crate) refilling: bool,
    /// Nobody answers.
    pub(crate) unavailable: bool,
    pub(crate) patience_over: bool,
    /// How long a message is postponed without using up attempts.
    patience: Duration,
    /// The lane that failed last: one message that fails again and again says nothing about its
    /// destination.
    failed_last: Option<LaneKey>,
    /// Messages still to be tried alone, because the last owner of their shard died.
    pub(crate) suspects: usize,
}

/// What the relay must do after an outcome, besides settling.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    Nothing,
    /// Somebody answers again.
    Available,
    /// Nobody answers, and this is why.
    Unavailable(String),
}

impl Queue {
    pub(crate) fn new(spec: QueueSpec, dependency: Arc<Dependency>, settings: &Settings) -> Self {
        let caps = spec.destination.capabilities();
        Self {
            spec,
            caps,
            dependency,
            lanes: Lanes::new(settings.lane),
            load: Load::default(),
            shards: BTreeMap::new(),
            leaving: false,
            given: BTreeMap::new(),
            mark: LowMark::default(),
            generation: 0,
            paused: false,
            hungry: true,
            publishing: 0,
            settling: false,
            unsettled: Unsettled::default(),
            linger: None,
            prompt: false,
            refill: Vec::new(),
            refilling: false,
            unavailable: false,
            patience_over: false,
            patience: settings.patience,
            failed_last: None,
            suspects: 0,
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.spec.name
    }

    /// Shards whose messages may be read and handed out.
    pub(crate) fn active(&self) -> ShardSet {
        self.shards
            .iter()
            .filter(|(_, s)| s.leaving.is_none())
            .map(|(n, _)| *n)
            .collect()
    }

    pub(crate) fn epoch(&self, shard: u16) -> Option<i64> {
        self.shards.get(&shard).map(|s| s.epoch)
    }

    /// The ownership under which rows of these shards are changed.
    pub(crate) fn fence(&self, relay: &RelayId, shards: ShardSet) -> Fence {
        Fence {
            relay: relay.clone(),
            queue: Arc::clone(self.name()),
            // A shard that is not ours any more gets a number that never matches.
            shards: shards
                .iter()
                .map(|s| (s, self.epoch(s).unwrap_or(-1)))
                .collect(),
        }
    }

    /// Begins to give a shard back.
    pub(crate) fn give(&mut self, shard: u16) {
        if let Some(owned) = self.shards.remove(&shard) {
            let given = GivenShard {
                epoch: owned.epoch,
                seen_from: None,
            };
            self.given.insert(shard, given);
        }
    }

    /// The giving has ended, well or not: looks around from this one on tell the truth about it.
    pub(crate) fn gave(&mut self, shard: u16, look: u64) {
        if let Some(given) = self.given.get_mut(&shard) {
            given.seen_from = Some(look);
        }
    }

    /// Under another name nothing was ever ours.
    pub(crate) fn forget_given(&mut self) {
        self.given.clear();
    }

    /// A look around shows a shard as ours that we do not know. Answers whether to take it, and whether its
    /// last owner may have died: it was taken, and the answer did not reach us; or giving it failed.
    pub(crate) fn found(&mut self, shard: u16, epoch: i64, look: u64) -> Option<bool> {
        let Some(given) = self.given.get(&shard) else {
            return Some(true);
        };
        given.seen_from.filter(|from| look >= *from)?;
        Some(given.epoch != epoch)
    }

    pub(crate) fn took(&mut self, taken: &Taken) {
        self.given.remove(&taken.shard.shard);
        self.void(taken.shard.shard);
        self.shards.insert(
            taken.shard.shard,
            OwnedShard {
                epoch: taken.epoch,
                leaving: None,
            },
        );
        self.mark.reset();
        self.generation += 1;
        if taken.from_dead {
            let in_flight = self.caps.max_batch.saturating_mul(self.caps.concurrency);
            self.suspects = self
                .suspects
                .max(in_flight.saturating_mul(2).min(MAX_SUSPECTS));
        }
    }

    /// Shards that belong to somebody else now.
    pub(crate) fn lost(&mut self, lost: ShardSet) {
        for shard in lost.iter() {
            self.shards.remove(&shard);
        }
        self.lanes.drop_shards(lost);
    }

    /// What was still to be told under a former ownership of a shard is not told under the next:
    /// another relay may have had its rows in between.
    fn void(&mut self, shard: u16) {
        let shard = [shard].into_iter().collect();
        self.lanes.void_shards(shard);
        for batch in self.unsettled.take_shards(shard) {
            self.lanes.void(&batch);
        }
    }

    /// The store says that the queue is paused, or that it is not.
    pub(crate) fn note_paused(&mut self, paused: bool) {
        if paused && !self.paused {
            tracing::info!(queue = &**self.name(), "paused");
            self.start_over();
        } else if !paused && self.paused {
            tracing::info!(queue = &**self.name(), "resumed");
            self.hungry = true;
        }
        self.paused = paused;
    }

    /// Forgets what waits in memory and reads from the beginning. Rows that were dropped stand below
    /// the mark: without this, later rows of their aggregates would be read first.
    pub(crate) fn start_over(&mut self) {
        self.lanes.drop_waiting();
        self.mark.reset();
        self.generation += 1;
        self.hungry = true;
    }

    /// The store answers again after it was away. It may be another one by now, which lacks the last
    /// transactions and gives their numbers to other messages.
    pub(crate) fn store_was_away(&mut self) {
        self.start_over();
        self.lanes.doubt();
    }

    /// Starts to give shards away.
    pub(crate) fn leave(&mut self, shards: ShardSet, at_latest: Instant) {
        for shard in shards.iter() {
            if let Some(owned) = self.shards.get_mut(&shard) {
                owned.leaving.get_or_insert(at_latest);
            }
        }
        self.leaving = true;
        self.lanes.drop_shards(shards);
    }

    /// Shards that can be given back now.
    pub(crate) fn left(&self, now: Instant) -> Vec<u16> {
        let done = |n: u16, s: &OwnedShard| {
            s.leaving
                .is_some_and(|at| self.lanes.busy(n) == 0 || now >= at)
        };
        self.shards
            .iter()
            .filter(|(n, s)| done(**n, s))
            .map(|(n, _)| *n)
            .collect()
    }

    /// Whether nothing is to be done for it before something comes from outside.
    pub(crate) fn at_rest(&self) -> bool {
        !self.hungry
            && self.publishing == 0
            && !self.settling
            && self.unsettled.is_empty()
            && !self.refilling
            && self.refill.is_empty()
            && self.lanes.is_empty()
    }

    /// How many rows may be read.
    pub(crate) fn room(&self, settings: &Settings) -> usize {
        if self.paused || self.active().is_empty() || !self.open_for_calls() {
            return 0;
        }
        (settings.batch * 2).saturating_sub(self.lanes.len())
    }

    /// How many rows may be read that others wait for: retries and the heads of lanes. They have a
    /// share of the memory of their own, so that a backlog cannot keep them out; nor does an open
    /// breaker, because they are the best probes. What an operator has opened is left alone.
    pub(crate) fn reserve(&self, settings: &Settings) -> usize {
        if self.paused || self.active().is_empty() || self.dependency.wait().is_none() {
            return 0;
        }
        let share = settings.lane.saturating_mul(4).max(256);
        (settings.batch * 2 + share).saturating_sub(self.lanes.len())
    }

    /// How many bytes of what others wait for may be read: their share is beyond what is new.
    pub(crate) fn reserve_bytes(&self, settings: &Settings, shared: usize) -> Option<usize> {
        let budget = settings
            .queue_memory
            .saturating_add(settings.queue_memory / 4);
        self.load.offer(self.lanes.bytes(), budget, shared)
    }

    /// Rows have come: how heavy are they?
    pub(crate) fn weigh(&mut self, rows: &[RawRow]) {
        let bytes = rows.iter().map(RawRow::weight).sum();
        self.load.weigh(rows.len(), bytes);
    }

    /// Whether the breaker would admit a call now.
    fn open_for_calls(&self) -> bool {
        self.dependency.wait() == Some(Duration::ZERO)
    }

    /// Whether a call of the destination may begin.
    pub(crate) fn may_publish(&self) -> bool {
        let limit = if self.suspects > 0 {
            1
        } else {
            self.caps.concurrency
        };
        // A message that is tried alone was counted first: its outcome must be durable before the
        // next one, which may kill the process.
        let durable = self.suspects == 0
            || !(self.settling || !self.unsettled.is_empty() || self.lanes.has_settlement());
        !self.paused
            && durable
            && self.publishing < limit
            && self.lanes.has_ready()
            && self.open_for_calls()
            && self.dependency.has_room()
    }

    /// Takes in what came of one delivery.
    pub(crate) fn outcome(
        &mut self,
        delivery: Delivery,
        outcome: Outcome,
        rng: &mut fastrand::Rng,
    ) -> Consequence {
        let now = self.epoch(delivery.shard);
        if now.is_some_and(|epoch| epoch != delivery.epoch) {
            // Another relay may have had it since: what came of it here says nothing about it now.
            self.leave_to_owner(&delivery);
            return match outcome {
                Outcome::Unavailable { error } => Consequence::Unavailable(error),
                _ => self.answered(),
            };
        }
        match outcome {
            Outcome::Stored => {
                self.lanes.sent(&delivery);
                self.answered()
            }
            Outcome::Refused {
                code,
                error,
                confirm,
            } => {
                let park = self.park(&delivery, code, error, confirm);
                self.lanes.park(&delivery, park);
                self.answered()
            }
            Outcome::Retry { code, error, after } => {
                self.retry(&delivery, code, error, after, rng);
                self.answered()
            }
            Outcome::Postponed { code, error } => {
                self.postponed(delivery, code, error, rng);
                self.answered()
            }
            Outcome::DestinationRefused { code, error } => {
                match self.dependency.state() {
                    State::Closed => self.retry(&delivery, code, error, None, rng),
                    // The destination is in trouble, and not this message.
                    _ => self.try_soon(delivery, code, error),
                }
                Consequence::Nothing
            }
            Outcome::Unavailable { error } if self.patience_over => {
                self.retry(&delivery, Code::UNAVAILABLE, error.clone(), None, rng);
                Consequence::Unavailable(error)
            }
            Outcome::Unavailable { error } => {
                if now.is_some() && self.active().contains(delivery.shard) {
                    self.lanes.put_back(delivery);
                } else {
                    self.leave_to_owner(&delivery);
                }
                Consequence::Unavailable(error)
            }
            // `Outcome` may grow; what this program does not know it tries again.
            _ => {
                self.retry(
                    &delivery,
                    Code::UNCONFIRMED,
                    "unknown outcome".into(),
                    None,
                    rng,
                );
                Consequence::Nothing
            }
        }
    }

    /// Nobody answered, and the process lives: the message did not kill it. Rescheduling forgets the
    /// suspicion durably, and uses up no attempt.
    pub(crate) fn exonerate(&mut self, delivery: Delivery, error: String) -> Consequence {
        if self.epoch(delivery.shard) == Some(delivery.epoch) {
            self.try_soon(delivery, Code::UNAVAILABLE, error.clone());
        } else {
            self.leave_to_owner(&delivery);
        }
        Consequence::Unavailable(error)
    }

    /// It is not to blame, and uses up no attempt.
    fn try_soon(&mut self, mut delivery: Delivery, code: Code, error: String) {
        delivery.attempt = delivery.attempt.saturating_sub(1);
        self.lanes.retry(&delivery, SOON, code, error);
    }

    /// The shard has had another owner since: the present one offers it, or has done so.
    fn leave_to_owner(&mut self, delivery: &Delivery) {
        self.lanes.forget(delivery);
        if self.shards.contains_key(&delivery.shard) {
            // That is us again, and what follows it may have been read already without it.
            self.start_over();
        }
    }

    fn answered(&mut self) -> Consequence {
        self.patience_over = false;
        if std::mem::take(&mut self.unavailable) {
            Consequence::Available
        } else {
            Consequence::Nothing
        }
    }

    /// What an outcome says about the destination as a whole. Absent when it says nothing.
    pub(crate) fn class(&mut self, lane: LaneKey, outcome: &Outcome, probe: bool) -> Option<Class> {
        let failure = match outcome {
            Outcome::Stored => {
                self.failed_last = None;
                return Some(Class::Success);
            }
            Outcome::Unavailable { .. } => return Some(Class::Failed(Failure::Network)),
            Outcome::Retry { code, after, .. } => match code {
                code if *code == Code::UPSTREAM_4XX => {
                    return Some(Class::Throttled { after: *after });
                }
                code if *code == Code::UPSTREAM_5XX => match after {
                    Some(after) => Failure::Overloaded { after: *after },
                    None => Failure::Upstream,
                },
                code if *code == Code::TIMEOUT => Failure::Timeout,
                code if *code == Code::UNCONFIRMED => Failure::Network,
                // A handler's own word is about its message.
                _ => return Some(Class::Refused),
            },
            // Wrong credentials or a wrong address: that is hardly about one message.
            Outcome::DestinationRefused { .. } => Failure::Upstream,
            _ => return Some(Class::Refused),
        };
        let again = self.failed_last.replace(lane) == Some(lane);
        (probe || !again).then_some(Class::Failed(failure))
    }

    /// What it needs is not there: later, and the older the message the later. It uses up no attempt
    /// until the patience with it is over.
    fn postponed(
        &mut self,
        mut delivery: Delivery,
        code: Code,
        error: String,
        rng: &mut fastrand::Rng,
    ) {
        let age = chrono::Utc::now().signed_duration_since(delivery.created_at);
        let age = age.to_std().unwrap_or_default();
        if age >= self.patience {
            return self.retry(&delivery, code, error, None, rng);
        }
        delivery.attempt = delivery.attempt.saturating_sub(1);
        let (shortest, longest) = POSTPONED;
        let delay = (age / 4).clamp(shortest, longest);
        let delay = delay.mul_f64(0.5 + rng.f64() / 2.0);
        self.lanes.retry(&delivery, delay, code, error);
    }

    /// A retry for which there is no budget: later, and it uses up no attempt.
    pub(crate) fn postpone(&mut self, mut delivery: Delivery, rng: &mut fastrand::Rng) {
        delivery.attempt = delivery.attempt.saturating_sub(1);
        let delay = BUDGET_PAUSE.mul_f64(0.5 + rng.f64());
        let text = "the retries of this destination are used up for the moment";
        self.lanes
            .retry(&delivery, delay, Code::RETRY_BUDGET, text.into());
    }

    fn retry(
        &mut self,
        delivery: &Delivery,
        code: Code,
        error: String,
        after: Option<Duration>,
        rng: &mut fastrand::Rng,
    ) {
        match self.spec.backoff.next(delivery.attempt, after, rng) {
            Some(delay) => self.lanes.retry(delivery, delay, code, error),
            None => {
                let park = self.park(delivery, code, error, false);
                self.lanes.park(delivery, park);
            }
        }
    }

    /// The record under which a delivery is parked.
    pub(crate) fn park(
        &self,
        delivery: &Delivery,
        code: Code,
        error: String,
        confirm: bool,
    ) -> Park {
        tracing::warn!(
            queue = &*delivery.queue, id = %delivery.id, %code, attempts = delivery.attempt, error = error.as_str(),
            "parked"
        );
        metrics::counter!("counterfoil_parked_total", "queue" => self.name().to_string(), "code" => code.to_string())
            .increment(1);
        Park {
            row: self.lanes.key(delivery),
            attempts: delivery.attempt,
            follow_up: self.compensation(delivery, &code, &error),
            hold: self.spec.on_park == OnPark::Hold && !code.holds_nobody(),
            // A redrive means: apply it although the one before it is missing.
            confirm: confirm || code == Code::VERSION_GAP,
            code,
            error,
        }
    }

    fn compensation(&self, delivery: &Delivery, code: &Code, error: &str) -> Option<Message> {
        let scene = self.spec.compensation.as_deref()?;
        let business_id = delivery
            .aggregate
            .as_ref()
            .map(|a| a.id.clone())
            .unwrap_or_default();
        let mut message = Message::new(tasks::EVENT_TYPE, delivery.payload.clone())
            .id(delivery.id.derive(&format!("compensation:{scene}")))
            .queue(tasks::queue_of_scene(scene))
            .aggregate(Aggregate::new(scene, business_id))
            .header(header::CAUSATION_ID, delivery.id.to_string())
            .header("counterfoil-given-up-code", code.to_string());
        let short: String = error
            .chars()
            .filter(|c| !c.is_control())
            .take(500)
            .collect();
        message.headers.set("counterfoil-given-up-error", short);
        for name in [
            header::TRACEPARENT,
            header::TRACESTATE,
            header::CORRELATION_ID,
            header::IDEMPOTENCY_KEY,
        ] {
            if let Some(value) = delivery.headers.get(name) {
                message.headers.set(name, value);
            }
        }
        // A compensation that cannot be stored must not keep its message from being parked.
        message
            .validate()
            .map_err(|e| tracing::error!(error = %e, "no compensation"))
            .ok()?;
        Some(message)
    }
}
