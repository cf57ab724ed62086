//! Who takes part, and what is done to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{AUDIT, Report, STOCK, Server, Stage, check};
use crate::process::Process;

/// About the longest window after which a relay or a consumer is missed.
const LONG: Duration = Duration::from_secs(5);

/// How long to wait for something that may not come.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to try to find consumers at work.
const TRIES: usize = 5;

/// What a process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Writer,
    Relay,
    Stock,
    Audit,
}

impl Part {
    pub(super) fn command(self) -> &'static str {
        match self {
            Part::Writer => "produce",
            Part::Relay => "forward",
            Part::Stock | Part::Audit => "consume",
        }
    }

    pub(super) fn consumer(self) -> &'static str {
        match self {
            Part::Audit => AUDIT,
            _ => STOCK,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Part::Writer => "writer",
            Part::Relay => "relay",
            Part::Stock => "stock",
            Part::Audit => "audit",
        }
    }
}

/// What can happen.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill(Part),
    /// For longer than anybody waits for it.
    Freeze(Part),
    /// Asked to end, and started again.
    Leave(Part),
    KillBroker,
    FreezeBroker,
}

const FAULTS: [Fault; 11] = [
    Fault::Kill(Part::Relay),
    Fault::Kill(Part::Stock),
    Fault::Kill(Part::Stock),
    Fault::Kill(Part::Audit),
    Fault::Kill(Part::Writer),
    Fault::Freeze(Part::Relay),
    Fault::Freeze(Part::Stock),
    Fault::Freeze(Part::Audit),
    Fault::Leave(Part::Stock),
    Fault::KillBroker,
    Fault::FreezeBroker,
];

enum State {
    Plays(Process),
    Frozen(Process, Instant),
    Away(Instant),
    /// Has written everything.
    Done,
}

struct Role {
    part: Part,
    name: String,
    lives: u32,
    state: State,
}

enum Health {
    Well,
    Frozen(Instant),
    Dead(Instant),
}

/// Everybody who plays.
pub(super) struct Cast {
    stage: Arc<Stage>,
    rng: fastrand::Rng,
    roles: Vec<Role>,
    server: Box<dyn Server>,
    health: Health,
    happened: BTreeMap<String, u64>,
    repeats: u64,
}

impl Cast {
    pub(super) fn new(stage: Arc<Stage>, server: Box<dyn Server>) -> Self {
        let mut parts = vec![Part::Relay, Part::Stock, Part::Stock, Part::Audit];
        parts.extend(vec![Part::Writer; stage.options.writers]);
        let mut counts = BTreeMap::new();
        let roles = parts.into_iter().map(|part| {
            let n = counts.entry(part.name()).or_insert(0);
            let name = format!("{}{n}", part.name());
            *n += 1;
            Role {
                part,
                name,
                lives: 0,
                state: State::Away(Instant::now()),
            }
        });
        Self {
            roles: roles.collect(),
            rng: fastrand::Rng::with_seed(stage.options.seed),
            stage,
            server,
            health: Health::Well,
            happened: BTreeMap::new(),
            repeats: 0,
        }
    }

    pub(super) async fn everybody_enters(&mut self) {
        for n in 0..self.roles.len() {
            self.enter(n);
            if let State::Plays(process) = &mut self.roles[n].state {
                process.says("ready").await;
            }
        }
    }

    fn enter(&mut self, n: usize) {
        let seed = self.rng.u64(..);
        let role = &mut self.roles[n];
        role.lives += 1;
        let label = format!("{}-{}", role.name, role.lives);
        role.state = State::Plays(self.stage.start(role.part, &label, seed));
    }

    /// In an order that follows from the seed, with a little time between them.
    pub(super) async fn every_fault_once(&mut self) {
        // In a long run something must also get done between them.
        let longest = if self.stage.options.relentless {
            3_000
        } else {
            900
        };
        let mut faults = FAULTS;
        self.rng.shuffle(&mut faults);
        for fault in faults {
            let gap = Duration::from_millis(self.rng.u64(100..longest));
            self.let_pass(gap).await;
            self.happens(fault).await;
        }
    }

    async fn let_pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.come_back(Instant::now()).await;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whoever is away or asleep for long enough comes back.
    async fn come_back(&mut self, now: Instant) {
        match self.health {
            Health::Frozen(until) if until <= now => {
                self.server.resume();
                self.health = Health::Well;
            }
            Health::Dead(until) if until <= now => {
                self.server.restart().await;
                self.health = Health::Well;
            }
            _ => {}
        }
        for n in 0..self.roles.len() {
            let role = &mut self.roles[n];
            match std::mem::replace(&mut role.state, State::Done) {
                State::Frozen(mut process, until) if until <= now => {
                    process.resume();
                    role.state = State::Plays(process);
                }
                State::Away(until) if until <= now => self.enter(n),
                State::Plays(mut process) => match process.runs() {
                    true => role.state = State::Plays(process),
                    false => self.has_ended(n, process).await,
                },
                other => role.state = other,
            }
        }
    }

    /// By itself: when everything is written, when it was asked to, or when it could not start.
    async fn has_ended(&mut self, n: usize, mut process: Process) {
        let done = process.ends().await.success() && self.roles[n].part == Part::Writer;
        self.count_repeats(&process);
        match done {
            true => self.roles[n].state = State::Done,
            false => self.enter(n),
        }
    }

    fn count_repeats(&mut self, process: &Process) {
        let said = process.last("repeats ").and_then(|n| n.parse().ok());
        self.repeats += said.unwrap_or(0);
    }

    async fn happens(&mut self, fault: Fault) {
        let what = match fault {
            Fault::KillBroker if self.server.survives() => {
                self.broker_is_well().await;
                self.broker_misses_something().await;
                self.server.kill().await;
                let away = Duration::from_millis(self.rng.u64(0..1_000));
                self.health = Health::Dead(Instant::now() + away);
                "broker killed".to_owned()
            }
            Fault::KillBroker | Fault::FreezeBroker => {
                self.broker_is_well().await;
                self.server.pause().await;
                // Longer than a driver waits for an answer.
                let asleep = Duration::from_millis(self.rng.u64(2_500..4_500));
                self.health = Health::Frozen(Instant::now() + asleep);
                "broker frozen".to_owned()
            }
            Fault::Kill(part) => self.kill(part).await,
            Fault::Freeze(part) => self.freeze(part).await,
            Fault::Leave(part) => self.leave(part).await,
        };
        *self.happened.entry(what).or_default() += 1;
    }

    async fn broker_is_well(&mut self) {
        while !matches!(self.health, Health::Well) {
            self.let_pass(Duration::from_millis(20)).await;
        }
    }

    /// Freezes the broker while consumers have something in hand: they go on with it, and what they
    /// acknowledge then is not heard.
    async fn broker_misses_something(&mut self) {
        for _ in 0..TRIES {
            self.something_takes_effect().await;
            self.server.pause().await;
            if self.something_takes_effect().await {
                return;
            }
            self.server.resume();
        }
    }

    /// Waits for it, for a while. Answers whether it came.
    async fn something_takes_effect(&mut self) -> bool {
        let pool = self.stage.pool.clone();
        let effects = async || check::number(&pool, "SELECT count(*) FROM j_log").await;
        let (before, begun) = (effects().await, Instant::now());
        while begun.elapsed() < PATIENCE {
            if effects().await > before {
                return true;
            }
            self.let_pass(Duration::from_millis(5)).await;
        }
        false
    }

    /// Somebody who plays this part now. Absent when all of them are through.
    async fn somebody(&mut self, part: Part) -> Option<(usize, Process)> {
        loop {
            self.come_back(Instant::now()).await;
            let playing: Vec<usize> = (0..self.roles.len())
                .filter(|n| self.roles[*n].part == part)
                .filter(|n| !matches!(self.roles[*n].state, State::Done))
                .collect();
            let n = *self.rng.choice(&playing)?;
            match std::mem::replace(&mut self.roles[n].state, State::Done) {
                State::Plays(process) => return Some((n, process)),
                other => self.roles[n].state = other,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn kill(&mut self, part: Part) -> String {
        if let Some((n, mut process)) = self.somebody(part).await {
            process.kill().await;
            self.count_repeats(&process);
            let away = Duration::from_millis(self.rng.u64(0..1_000));
            self.roles[n].state = State::Away(Instant::now() + away);
        }
        format!("{} killed", part.name())
    }

    async fn freeze(&mut self, part: Part) -> String {
        if let Some((n, mut process)) = self.somebody(part).await {
            process.pause().await;
            let asleep = LONG.mul_f64(0.75 + self.rng.f64() / 2.0);
            self.roles[n].state = State::Frozen(process, Instant::now() + asleep);
        }
        format!("{} frozen", part.name())
    }

    async fn leave(&mut self, part: Part) -> String {
        if let Some((n, mut process)) = self.somebody(part).await {
            process.terminate();
            self.roles[n].state = State::Plays(process);
        }
        format!("{} asked to end", part.name())
    }

    /// Everybody plays again, and everything gets written.
    pub(super) async fn heal(&mut self) {
        let far = Instant::now() + Duration::from_secs(3_600);
        let writing = |role: &Role| role.part == Part::Writer && !matches!(role.state, State::Done);
        self.come_back(far).await;
        while self.roles.iter().any(writing) {
            self.come_back(far).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Writers are asked to end, and do.
    pub(super) async fn writers_end(&mut self) {
        for role in &mut self.roles {
            if let (Part::Writer, State::Plays(process)) = (role.part, &mut role.state) {
                process.terminate();
                assert!(process.ends().await.success(), "{}", process.log());
                role.state = State::Done;
            }
        }
    }

    /// Everybody ends in peace; one who does not is a violation.
    pub(super) async fn everybody_leaves(mut self, report: &mut Report) {
        let far = Instant::now() + Duration::from_secs(3_600);
        self.come_back(far).await;
        let mut repeats = self.repeats;
        for role in &mut self.roles {
            if let State::Plays(process) = &mut role.state {
                process.has_said("ready").await;
                process.terminate();
                let status = process.ends().await;
                if !status.success() {
                    let ended = format!("{} ended with {status}", process.label);
                    report.violations.push(ended);
                }
                let said = process.last("repeats ").and_then(|n| n.parse::<u64>().ok());
                repeats += said.unwrap_or(0);
            }
        }
        report.repeats = repeats;
        report.happened = self.happened;
    }
}
