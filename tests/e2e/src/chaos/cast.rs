//! The processes of a run, and what is done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{HOLDING, LEASE, Least, Options, Report, SKIPPING, StoreKind, TIMEOUT};
use crate::actor::{Where, WriterArgs};
use crate::book::Book;
use crate::checker::Disturbance;
use crate::process::Process;
use crate::site::Site;
use crate::world::World;

/// What a relay delivers in this time before its death may be unsettled without being found so:
/// the next owner may be faster than the look into the outbox.
const JUST_BEFORE: Duration = Duration::from_secs(1);
/// What a relay sends in this time after it wakes up it had begun before.
const JUST_AFTER: Duration = Duration::from_secs(1);

const RELAYS_KILLED: &str = "relays killed";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Relay,
    Writer,
}

enum State {
    Plays(Process),
    /// Frozen at the first time, until the second.
    Frozen(Process, Duration, Duration),
    /// Asked to end.
    Ends(Process),
    /// Comes back at this time.
    Away(Duration),
}

struct Role {
    part: Part,
    name: String,
    lives: u32,
    state: State,
}

/// Everybody who plays.
pub(super) struct Cast {
    world: Arc<World>,
    rng: fastrand::Rng,
    store: StoreKind,
    roles: Vec<Role>,
    disturbances: Vec<Disturbance>,
    happened: BTreeMap<&'static str, u64>,
    pulse: Pulse,
}

impl Cast {
    pub(super) fn new(world: Arc<World>, options: &Options, rng: fastrand::Rng) -> Self {
        let role = |part: Part, letter: &str, n: usize| Role {
            part,
            name: format!("{letter}{n}"),
            lives: 0,
            state: State::Away(Duration::ZERO),
        };
        let relays = (0..options.relays).map(|n| role(Part::Relay, "r", n));
        let writers = (0..options.writers).map(|n| role(Part::Writer, "w", n));
        Self {
            roles: relays.chain(writers).collect(),
            pulse: Pulse::start(&world),
            world,
            rng,
            store: options.store,
            disturbances: Vec::new(),
            happened: BTreeMap::new(),
        }
    }

    pub(super) async fn everybody_enters(&mut self) {
        for n in 0..self.roles.len() {
            self.enter(n);
        }
        for role in &mut self.roles {
            if let State::Plays(process) = &mut role.state {
                process.says("ready").await;
            }
        }
    }

    fn enter(&mut self, n: usize) {
        let role = &mut self.roles[n];
        role.lives += 1;
        let label = format!("{}-{}", role.name, role.lives);
        let arguments = match role.part {
            Part::Relay => relay(&self.world, &label),
            Part::Writer => writer(&self.world, &label, self.rng.u64(..)),
        };
        role.state = State::Plays(self.world.start(&label, &arguments));
    }

    /// Does something to somebody, and lets others come back whose time has come.
    pub(super) async fn something_happens(&mut self) {
        let now = self.world.book().now();
        for n in 0..self.roles.len() {
            self.come_back(n, now);
        }
        let playing: Vec<usize> = (0..self.roles.len())
            .filter(|n| matches!(self.roles[*n].state, State::Plays(_)))
            .collect();
        let Some(&n) = self.rng.choice(&playing) else {
            return;
        };
        match (self.roles[n].part, self.rng.u8(0..10)) {
            (_, 0..4) => self.kill(n).await,
            (_, 4..7) => self.freeze(n).await,
            (_, 7..9) => self.ask_to_end(n),
            _ => self.cut_connections(n).await,
        }
    }

    fn come_back(&mut self, n: usize, now: Duration) {
        let enters = match &mut self.roles[n].state {
            State::Frozen(_, _, until) if *until <= now => return self.wake_up(n),
            State::Ends(process) => !process.runs(),
            State::Away(until) => *until <= now,
            // Its connection was cut while it started.
            State::Plays(process) => !process.runs(),
            State::Frozen(..) => false,
        };
        if enters {
            self.enter(n);
        }
    }

    /// Whether at least so much has happened.
    pub(super) async fn has_done(&self, least: Least) -> bool {
        let killed = self.happened.get(RELAYS_KILLED).copied().unwrap_or(0);
        killed >= least.killed && self.world.site.committed().await.len() >= least.committed
    }

    fn count(&mut self, n: usize, relay: &'static str, writer: &'static str) {
        let what = if self.roles[n].part == Part::Relay {
            relay
        } else {
            writer
        };
        *self.happened.entry(what).or_default() += 1;
    }

    async fn kill(&mut self, n: usize) {
        self.count(n, RELAYS_KILLED, "writers killed");
        let back = self.world.book().now() + Duration::from_millis(self.rng.u64(0..1_500));
        let role = &mut self.roles[n];
        let State::Plays(mut process) = std::mem::replace(&mut role.state, State::Away(back))
        else {
            return;
        };
        process.kill().await;
        let at = self.world.book().now();
        if self.roles[n].part == Part::Relay {
            self.let_go(&process.label).await;
            self.unsettled(&process.label).await;
            self.disturb(&process.label, at.saturating_sub(JUST_BEFORE), at);
        }
    }

    /// What a dead relay had begun comes to its end in the database, or is ended.
    async fn let_go(&self, label: &str) {
        let gone = self.world.site.is_gone(label);
        if tokio::time::timeout(Duration::from_secs(1), gone)
            .await
            .is_err()
        {
            self.world.site.cut_off(label).await;
        }
    }

    /// Notes what a relay has offered and not settled.
    async fn unsettled(&mut self, label: &str) {
        let pending = self.world.pending().await;
        let offers = self.world.book().offers();
        let touched: BTreeSet<_> = offers
            .iter()
            .filter(|o| o.relay == label && pending.contains(&o.item.id))
            .map(|o| o.item.id)
            .collect();
        let now = self.world.book().now();
        self.disturbances.push(Disturbance {
            relay: Some(label.to_owned()),
            touched: Some(touched),
            from: now,
            until: now,
        });
    }

    fn disturb(&mut self, label: &str, from: Duration, until: Duration) {
        self.disturbances.push(Disturbance {
            relay: Some(label.to_owned()),
            touched: None,
            from,
            until,
        });
    }

    /// For less than a lease or for more.
    async fn freeze(&mut self, n: usize) {
        self.count(n, "relays frozen", "writers frozen");
        let longest = match (self.roles[n].part, self.store) {
            (Part::Relay, StoreKind::Postgres) => LEASE * 2,
            // It may hold a lock that everybody waits for.
            _ => Duration::from_millis(1_500),
        };
        let length = longest.mul_f64(self.rng.f64());
        let now = self.world.book().now();
        let role = &mut self.roles[n];
        let State::Plays(mut process) = std::mem::replace(&mut role.state, State::Away(now)) else {
            return;
        };
        let label = process.label.clone();
        process.pause().await;
        role.state = State::Frozen(process, now, now + length);
        if self.roles[n].part == Part::Relay {
            self.unsettled(&label).await;
        }
    }

    fn wake_up(&mut self, n: usize) {
        let now = self.world.book().now();
        let role = &mut self.roles[n];
        let State::Frozen(mut process, since, _) =
            std::mem::replace(&mut role.state, State::Away(now))
        else {
            return;
        };
        process.resume();
        let label = process.label.clone();
        role.state = State::Plays(process);
        if self.roles[n].part == Part::Relay {
            self.disturb(&label, since.saturating_sub(JUST_BEFORE), now + JUST_AFTER);
        }
    }

    fn ask_to_end(&mut self, n: usize) {
        self.count(n, "relays asked to end", "writers asked to end");
        let role = &mut self.roles[n];
        let state = std::mem::replace(&mut role.state, State::Away(Duration::MAX));
        let State::Plays(mut process) = state else {
            return;
        };
        process.terminate();
        role.state = State::Ends(process);
    }

    async fn cut_connections(&mut self, n: usize) {
        if self.store == StoreKind::Postgres {
            self.count(n, "connections of relays cut", "connections of writers cut");
            self.world.site.hang_up(&self.roles[n].name).await;
        }
    }

    /// Everybody who is frozen wakes up, writers end, and every relay plays.
    pub(super) async fn heal(&mut self) {
        // All before anything else: somebody may hold a lock in its sleep that others wait for.
        for n in 0..self.roles.len() {
            self.come_back(n, Duration::MAX);
        }
        for n in 0..self.roles.len() {
            if let State::Ends(process) = &mut self.roles[n].state {
                process.ends().await;
                self.enter(n);
            }
        }
        for n in 0..self.roles.len() {
            let writer = self.roles[n].part == Part::Writer;
            while let State::Plays(process) = &mut self.roles[n].state {
                if process.has_said("ready").await {
                    if writer {
                        process.terminate();
                        process.ends().await;
                    }
                    break;
                }
                self.enter(n);
            }
        }
    }

    /// Everything that may have made somebody lose track so far.
    pub(super) fn disturbances(&self) -> Vec<Disturbance> {
        let mut all = self.disturbances.clone();
        all.extend(self.pulse.stalls());
        all
    }

    /// Relays end in peace; one that does not is a violation.
    pub(super) async fn everybody_leaves(mut self, report: &mut Report) {
        for role in self.roles.iter_mut().filter(|r| r.part == Part::Relay) {
            if let State::Plays(process) = &mut role.state {
                process.terminate();
                let status = process.ends().await;
                if !status.success() {
                    report
                        .violations
                        .push(format!("{} ended with {status}", process.label));
                }
            }
        }
        let stalls = self.pulse.stalls().len() as u64;
        self.happened.insert("stalls of the machine", stalls);
        report.happened = std::mem::take(&mut self.happened);
    }
}

fn relay(world: &World, label: &str) -> Vec<String> {
    let mut args = world.relay_args(label);
    args.queues = vec![HOLDING.to_owned()];
    args.skipping = vec![SKIPPING.to_owned()];
    args.lease = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
    args.timeout = u64::try_from(TIMEOUT.as_millis()).ok();
    args.batch = 2;
    args.to_args()
}

fn writer(world: &World, label: &str, seed: u64) -> Vec<String> {
    let args = WriterArgs {
        place: Where {
            database: world.site.url(label),
        },
        queues: vec![HOLDING.to_owned(), SKIPPING.to_owned()],
        aggregates: 40,
        seed,
        stand_still: None,
        pause: 10,
    };
    args.to_args()
}

/// Watches whether the machine and the database keep up. A lease that runs out because they do not
/// is nobody's fault.
struct Pulse {
    stalls: Arc<Mutex<Vec<Disturbance>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Pulse {
    fn start(world: &World) -> Self {
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let (site, book) = (Arc::clone(&world.site), Arc::clone(&world.receiver.book));
        let task = tokio::spawn(feel(site, book, Arc::clone(&stalls)));
        Self { stalls, task }
    }

    fn stalls(&self) -> Vec<Disturbance> {
        self.stalls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn feel(site: Arc<dyn Site>, book: Arc<Book>, stalls: Arc<Mutex<Vec<Disturbance>>>) {
    loop {
        let begun = book.now();
        tokio::time::sleep(Duration::from_millis(50)).await;
        site.pulse().await;
        let now = book.now();
        if now - begun > LEASE / 4 {
            let (from, until) = (begun.saturating_sub(LEASE), now + LEASE);
            let stall = Disturbance {
                relay: None,
                touched: None,
                from,
                until,
            };
            stalls
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(stall);
        }
    }
}
