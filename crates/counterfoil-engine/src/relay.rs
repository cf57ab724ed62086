//! The relay: moves committed messages from the outbox to their destinations.
//!
//! # Promise
//! One task owns all state and does no I/O itself: reads, publications and settlements run beside
//! it and come back as [`Done`]. So there is no lock, and every decision is made in one place.
//!
//! # What bounds it
//! For each queue: rows in memory (twice the batch) and their bytes, calls at a time (the destination's), one
//! settlement at a time. For the relay: one read at a time. A slow destination fills its own
//! memory and is then not read any more.

mod looking;
pub(crate) mod memory;
pub(crate) mod ownership;
mod publishing;
mod turn;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use counterfoil_core::message::Aggregate;
use counterfoil_core::policy::breaker::Ticket;
use counterfoil_core::route::Routes;
use counterfoil_core::store::{
    Held, LaneCursor, Occupied, Read, RelayId, Result, Runnable, Settled, ShardRef, Store,
    StoreError, Survey, Taken, Waiting,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::lanes::ReadNo;
use crate::lifecycle::UNROUTED;
use crate::pipeline::Dependency;
use crate::publish::Offered;
use crate::queue::Queue;
use crate::settings::{QueueSpec, Settings};
use crate::unsettled::Trial;

pub(crate) use ownership::{beat, margin};

/// So long after the last rows the relay polls as often as the settings say.
const LIVELY: Duration = Duration::from_secs(10);
/// Afterwards it polls so many times less often: whoever commits wakes it anyway.
const IDLE_POLL: f64 = 2.5;
/// How often lanes that nothing holds any more are looked for.
const SCAN_LANES: Duration = Duration::from_secs(1);
/// How long a few deliveries wait for more, to be settled in one commit. A relay that is killed
/// meanwhile delivers them again, as after a kill between delivery and settlement.
const LINGER: Duration = Duration::from_millis(5);
/// Messages without a route that are made due in one go.
const LOOK_AGAIN: u32 = 1_000;
/// The shortest pause after the store failed.
const STORE_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause after the store failed.
const STORE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What has come to an end beside the loop.
enum Done {
    Read {
        no: ReadNo,
        asked: Vec<Asked>,
        took: Duration,
        rescan: bool,
        result: Result<Read>,
    },
    Waiting {
        no: ReadNo,
        absences: u64,
        asked: Vec<(usize, usize)>,
        result: Result<Waiting>,
    },
    Lanes {
        no: ReadNo,
        absences: u64,
        queue: usize,
        asked: Vec<Aggregate>,
        room: Room,
        result: Result<Held>,
    },
    Looked {
        generations: Vec<u64>,
        took: Duration,
        result: Result<Occupied>,
    },
    Runnable {
        asked: Vec<(usize, u64)>,
        took: Duration,
        result: Result<Runnable>,
    },
    Published {
        queue: usize,
        outcomes: Vec<Offered>,
        suspect: bool,
        ticket: Ticket,
    },
    Settled {
        queue: usize,
        /// How often the store had been away, and the front, when it began.
        seen: (u64, i64),
        trial: Box<Trial>,
        result: Result<Settled>,
    },
    Surveyed {
        relay: RelayId,
        result: Result<Survey>,
    },
    StillBalanced,
    Took {
        relay: RelayId,
        result: Result<Vec<Taken>>,
    },
    Gave {
        given: Vec<ShardRef>,
        result: Result<()>,
    },
    Unavailable {
        queue: usize,
        result: Result<Option<Duration>>,
    },
    LookedAgain(Result<()>),
}

/// One queue of a read: which, of which generation, from where, how many and how much.
struct Asked {
    queue: usize,
    generation: u64,
    from: i64,
    limit: usize,
    bytes: usize,
}

/// What a read of lanes may bring.
#[derive(Clone, Copy)]
struct Room {
    per_lane: usize,
    bytes: usize,
}

/// The lease as the heartbeat sees it.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) relay: RelayId,
    /// Nothing may be published after this time.
    pub(crate) until: Option<Instant>,
}

/// How the relay is reached, and reaches others.
pub(crate) struct Signals {
    pub(crate) nudge: Arc<Notify>,
    pub(crate) voice: Arc<Notify>,
    pub(crate) alone: Arc<AtomicBool>,
    pub(crate) lease: watch::Receiver<Lease>,
}

/// The relay of this process.
pub(crate) struct Relay {
    store: Arc<dyn Store>,
    settings: Settings,
    queues: Vec<Queue>,
    by_name: HashMap<Arc<str>, usize>,
    routes: Routes,
    nudge: Arc<Notify>,
    /// Tells relays in other processes that something was committed.
    voice: Arc<Notify>,
    alone: Arc<AtomicBool>,
    lease: watch::Receiver<Lease>,
    /// The name under which the shards in memory are owned.
    named: Option<RelayId>,
    ops: JoinSet<Done>,
    rng: fastrand::Rng,
    next_read: ReadNo,
    reads: BTreeSet<ReadNo>,
    reading: bool,
    tending: bool,
    /// There may be rows in queues that are not known to have any.
    curious: bool,
    looking: bool,
    /// Queues with retries and scheduled rows that are due, and queues with lanes that wait, as the
    /// last look has shown.
    due: Vec<usize>,
    held: Vec<usize>,
    scanning: bool,
    scan_from: Option<LaneCursor>,
    balancing: bool,
    balanced: Option<ownership::Balanced>,
    /// The number of the last look around that has begun.
    look: u64,
    /// Copies were made for other queues.
    rerouted: bool,
    /// When rows were last found.
    lively: Instant,
    next_poll: Instant,
    next_tend: Instant,
    next_look: Instant,
    next_scan: Instant,
    next_rescan: Instant,
    next_balance: Instant,
    store_failures: u32,
    /// What the store has answered, to any question.
    store_answers: u64,
    /// The store could not be reached, or not be written: another one may answer next.
    store_away: bool,
    /// How often it came back.
    absences: u64,
    store_pause: Option<Instant>,
    stopping: bool,
}

impl Relay {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        specs: Vec<(QueueSpec, Arc<Dependency>)>,
        routes: Routes,
        signals: Signals,
    ) -> Self {
        let Signals {
            nudge,
            voice,
            alone,
            lease,
        } = signals;
        let now = Instant::now();
        let queues: Vec<Queue> = specs
            .into_iter()
            .map(|(spec, dependency)| Queue::new(spec, dependency, &settings))
            .collect();
        let names = queues.iter().map(|q| Arc::clone(q.name()));
        let by_name = names.zip(0..).collect();
        Self {
            store,
            settings,
            queues,
            by_name,
            routes,
            nudge,
            voice,
            alone,
            lease,
            named: None,
            ops: JoinSet::new(),
            rng: fastrand::Rng::new(),
            next_read: 1,
            reads: BTreeSet::new(),
            reading: false,
            tending: false,
            curious: false,
            looking: false,
            due: Vec::new(),
            held: Vec::new(),
            scanning: false,
            scan_from: None,
            balancing: false,
            balanced: None,
            look: 0,
            rerouted: false,
            lively: now,
            next_poll: now,
            next_tend: now,
            next_look: now,
            next_scan: now,
            next_rescan: now,
            next_balance: now,
            store_failures: 0,
            store_answers: 0,
            store_away: false,
            absences: 0,
            store_pause: None,
            stopping: false,
        }
    }

    /// Runs until `stop` is true, then drains.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut drain_until: Option<Instant> = None;
        let nudge = Arc::clone(&self.nudge);
        self.look_again();
        loop {
            self.pump();
            if self.stopping && self.drained(drain_until) {
                break;
            }
            let wake_at = self.wake_at(drain_until);
            tokio::select! {
                Some(done) = self.ops.join_next() => self.took_place(done),
                () = nudge.notified() => self.make_hungry(),
                changed = self.lease.changed() => {
                    if changed.is_err() {
                        // The heartbeat is gone: without it nothing may be published.
                        self.stopping = true;
                    }
                    self.next_balance = Instant::now();
                }
                _ = stop.changed(), if !self.stopping => {
                    self.stopping = true;
                    drain_until = Some(Instant::now() + self.settings.drain);
                    self.forget_waiting();
                }
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
            // Everything that is already there is taken in before anything new is begun.
            while let Some(done) = self.ops.try_join_next() {
                self.took_place(done);
            }
        }
        self.say_goodbye().await;
    }

    fn took_place(&mut self, done: std::result::Result<Done, tokio::task::JoinError>) {
        match done {
            Ok(done) => self.handle(done),
            // Our own operations do not panic; if one does, its rows come again with the next owner.
            Err(error) => tracing::error!(%error, "an operation of the relay ended badly"),
        }
    }

    fn handle(&mut self, done: Done) {
        match done {
            Done::Read {
                no,
                asked,
                took,
                rescan,
                result,
            } => self.read_done(no, &asked, took, rescan, result),
            Done::Waiting {
                no,
                absences,
                asked,
                result,
            } => self.waiting_done(no, absences, &asked, result),
            Done::Lanes {
                no,
                absences,
                queue,
                asked,
                room,
                result,
            } => self.lanes_done((no, absences), queue, &asked, room, result),
            Done::Looked {
                generations,
                took,
                result,
            } => self.looked(&generations, took, result),
            Done::Runnable {
                asked,
                took,
                result,
            } => self.runnable_done(&asked, took, result),
            Done::Published {
                queue,
                outcomes,
                suspect,
                ticket,
            } => self.published(queue, outcomes, suspect, ticket),
            Done::Settled {
                queue,
                seen,
                trial,
                result,
            } => self.settled(queue, seen, *trial, result),
            Done::Surveyed { relay, result } => self.surveyed(&relay, result),
            Done::StillBalanced => self.still_balanced(),
            Done::Took { relay, result } => self.took(&relay, result),
            Done::Gave { given, result } => self.gave(&given, result),
            Done::Unavailable { queue, result } => self.noted_unavailable(queue, result),
            Done::LookedAgain(result) => match result {
                Ok(()) => self.next_tend = Instant::now(),
                Err(error) => tracing::warn!(
                    error = error.one_line(),
                    "could not look at messages without a route again: they wait for their time"
                ),
            },
        }
    }

    /// This process may have other routes than the one before it: what no route wanted is looked at.
    fn look_again(&mut self) {
        if !self.queues.iter().any(|q| **q.name() == *UNROUTED) {
            return;
        }
        let store = Arc::clone(&self.store);
        self.ops.spawn(async move {
            loop {
                match store.look_again(LOOK_AGAIN).await {
                    Ok(n) if n >= u64::from(LOOK_AGAIN) => {}
                    result => return Done::LookedAgain(result.map(|_| ())),
                }
            }
        });
    }

    /// The next moment at which something is due without being woken.
    fn wake_at(&self, drain_until: Option<Instant>) -> Instant {
        let now = Instant::now();
        if self.stopping {
            return drain_until
                .unwrap_or(now)
                .min(now + Duration::from_millis(50));
        }
        let mut at = self.next_poll;
        if !self.scanning {
            at = at.min(self.next_scan);
        }
        if self.curious && !self.looking {
            at = at.min(self.next_look);
        }
        if !self.tending {
            at = at.min(self.next_tend);
        }
        if !self.balancing {
            at = at.min(self.next_balance);
        }
        if let Some(pause) = self.store_pause {
            at = at.max(pause);
        }
        for queue in self.queues.iter().filter(|q| !q.at_rest()) {
            let unsettled = queue.unsettled.next_at();
            let admitted = queue.dependency.wait().map(|wait| now + wait);
            let times = [admitted, unsettled, queue.linger];
            at = times
                .into_iter()
                .flatten()
                .filter(|time| *time > now)
                .fold(at, Instant::min);
        }
        // Something that is due but cannot begin yet must not turn the loop into a spin.
        at.max(now + Duration::from_millis(1))
    }

    /// How long to wait before looking without being woken.
    fn poll_pause(&self, now: Instant) -> Duration {
        if now.saturating_duration_since(self.lively) < LIVELY {
            self.settings.poll
        } else {
            self.settings.poll.mul_f64(IDLE_POLL)
        }
    }

    /// There may be something new in every queue.
    fn make_hungry(&mut self) {
        if self.many() {
            self.curious = true;
            return;
        }
        for queue in &mut self.queues {
            queue.hungry = true;
        }
    }

    fn store_failed(&mut self, what: &str, error: &StoreError) {
        let now = Instant::now();
        // Operations that fail together are one failure.
        let news = self.store_failures == 0 || self.store_open(now);
        if news {
            self.store_failures = self.store_failures.saturating_add(1);
            self.store_pause = Some(now + store_pause(self.store_failures));
        }
        self.store_away |= matches!(
            error,
            StoreError::Unreachable(_) | StoreError::NotWritable(..)
        );
        if news && self.store_failures == 1 {
            tracing::error!(error = error.one_line(), "cannot {what}; trying again");
        } else {
            tracing::debug!(
                error = error.one_line(),
                failures = self.store_failures,
                "cannot {what}"
            );
        }
        metrics::counter!("counterfoil_store_errors_total", "operation" => what.to_owned())
            .increment(1);
    }

    fn store_answered(&mut self) {
        self.store_answers += 1;
        if std::mem::take(&mut self.store_failures) > 0 {
            tracing::info!("the database answers again");
        }
        if std::mem::take(&mut self.store_away) {
            self.absences += 1;
            self.queues.iter_mut().for_each(Queue::store_was_away);
        }
        self.store_pause = None;
    }

    fn store_open(&self, now: Instant) -> bool {
        self.store_pause.is_none_or(|at| now >= at)
    }

    /// The time after which nothing may be published, for the relay's present name.
    fn deadline(&self) -> Option<Instant> {
        self.lease.borrow().until
    }

    fn relay_id(&self) -> RelayId {
        self.lease.borrow().relay.clone()
    }

    fn begin_read(&mut self) -> ReadNo {
        let no = self.next_read;
        self.next_read += 1;
        self.reads.insert(no);
        no
    }

    fn end_read(&mut self, no: ReadNo) {
        self.reads.remove(&no);
        let oldest = self.reads.first().copied().unwrap_or(self.next_read);
        for queue in self.queues.iter_mut().filter(|q| !q.at_rest()) {
            queue.lanes.collect(oldest);
        }
    }

    fn forget_waiting(&mut self) {
        for queue in &mut self.queues {
            queue.lanes.drop_waiting();
        }
    }

    fn drained(&self, until: Option<Instant>) -> bool {
        let idle = self.queues.iter().all(|q| {
            q.publishing == 0 && !q.settling && q.unsettled.is_empty() && !q.lanes.has_settlement()
        });
        idle || until.is_none_or(|at| Instant::now() >= at)
    }

    async fn say_goodbye(mut self) {
        let undone: usize = self.queues.iter().map(|q| q.lanes.in_flight()).sum();
        if undone > 0 {
            tracing::warn!(
                undone,
                "stopping with deliveries under way: they will be offered again"
            );
        }
        self.ops.abort_all();
        let relay = self.relay_id();
        if let Err(error) = self.store.leave(&relay).await {
            tracing::warn!(
                error = error.one_line(),
                "could not give the shards back: the lease will run out"
            );
        }
    }

    /// Whether other relays live: then commits of this process are worth telling them.
    fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }
}

/// How long nothing is asked of the store after so many failures in a row.
fn store_pause(failures: u32) -> Duration {
    STORE_PAUSE
        .saturating_mul(1 << failures.min(8))
        .min(STORE_PAUSE_MAX)
}
