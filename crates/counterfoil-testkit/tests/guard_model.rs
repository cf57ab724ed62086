//! Random interleavings of actors, clocks and operators against a ledger of what is true.
//!
//! The code under test is the real one: [`decide`] and [`MemoryGuard`], whose clock is moved. The
//! ledger knows only who began, who was settled and how, and never looks at a record to find out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this is test code: a surprise ends the test"
)]

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use counterfoil_core::guard::{
    Change, Decision, Digest, Expect, Fingerprint, Found, Key, Mode, Records, Rules, Snapshot,
    State, Write, decide,
};
use counterfoil_testkit::memory::{Clock, MemoryGuard};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

const LEASE: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(60);
const ACTORS: usize = 4;
const KEYS: usize = 2;

/// One step of somebody.
#[derive(Debug, Clone)]
enum Step {
    /// An actor looks and decides. What it decides is done later, or never.
    Look {
        actor: usize,
        key: usize,
        payload: u8,
    },
    /// An actor does what it has decided.
    Claim {
        actor: usize,
    },
    Heartbeat {
        actor: usize,
    },
    End {
        actor: usize,
        state: State,
        wait: bool,
    },
    Doubt {
        actor: usize,
    },
    Release {
        actor: usize,
    },
    /// An actor forgets everything, but may come back as a ghost.
    Crash {
        actor: usize,
    },
    /// Somebody writes under a number that was given out before.
    Ghost {
        which: usize,
        change: usize,
    },
    Advance {
        seconds: u64,
    },
    /// Somebody settles what is stuck.
    Reconcile {
        key: usize,
        happened: bool,
    },
    Purge {
        batch: u32,
    },
    /// An operator deletes a key.
    Forget {
        key: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (actor, key) = (0..ACTORS, 0..KEYS);
    let state = prop::sample::select(vec![State::Succeeded, State::Failed, State::Retryable]);
    prop_oneof![
        8 => (actor.clone(), key.clone(), 0_u8..2)
            .prop_map(|(actor, key, payload)| Step::Look { actor, key, payload }),
        8 => actor.clone().prop_map(|actor| Step::Claim { actor }),
        3 => actor.clone().prop_map(|actor| Step::Heartbeat { actor }),
        4 => (actor.clone(), state, any::<bool>())
            .prop_map(|(actor, state, wait)| Step::End { actor, state, wait }),
        1 => actor.clone().prop_map(|actor| Step::Doubt { actor }),
        1 => actor.clone().prop_map(|actor| Step::Release { actor }),
        2 => actor.prop_map(|actor| Step::Crash { actor }),
        3 => (any::<usize>(), 0_usize..5).prop_map(|(which, change)| Step::Ghost { which, change }),
        4 => prop::sample::select(vec![1, 5, 9, 10, 11, 30, 60])
            .prop_map(|seconds| Step::Advance { seconds }),
        2 => (key.clone(), any::<bool>()).prop_map(|(key, happened)| Step::Reconcile { key, happened }),
        2 => (1_u32..4).prop_map(|batch| Step::Purge { batch }),
        1 => key.prop_map(|key| Step::Forget { key }),
    ]
}

/// What is true about a key.
#[derive(Debug, Clone, Default)]
struct Truth {
    /// The run that nobody has settled: its number, its payload and until when its owner is
    /// believed.
    open: Option<(i64, u8, DateTime<Utc>)>,
    /// Somebody said that nobody knows.
    doubted: bool,
    /// How the last run ended, for which payload, and how long that is remembered.
    over: Option<(State, u8, DateTime<Utc>)>,
    /// The greatest number so far.
    fence: i64,
}

impl Truth {
    fn alive(&self, now: DateTime<Utc>) -> bool {
        !self.doubted && self.open.is_some_and(|(_, _, until)| until > now)
    }

    fn settle(&mut self) {
        self.open = None;
        self.doubted = false;
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Actor {
    /// Decided to run: key, payload, what is expected, which attempt.
    decided: Option<(usize, u8, Expect, u32)>,
    /// Runs: key, number, payload.
    owns: Option<(usize, i64, u8)>,
}

struct World {
    guard: MemoryGuard,
    rules: Rules,
    truth: Vec<Truth>,
    actors: Vec<Actor>,
    /// Every number that was ever given out.
    given: Vec<(usize, i64)>,
    /// What somebody has found stuck, and not yet settled.
    found: Vec<Option<Found>>,
    runs: HashMap<&'static str, u32>,
}

fn key(n: usize) -> Key {
    Key::new("shop", "pay", format!("k{n}")).unwrap()
}

fn digest(n: usize) -> Digest {
    key(n).digest()
}

fn asked(payload: u8) -> Fingerprint {
    Fingerprint([payload + 1; 32])
}

fn span(by: Duration) -> TimeDelta {
    TimeDelta::from_std(by).unwrap()
}

fn end(state: State, wait: bool) -> Change {
    Change::End {
        state,
        snapshot: Some(Snapshot::default()),
        keep: KEEP,
        retry_in: (wait && state == State::Retryable).then_some(LEASE),
    }
}

impl World {
    fn new(rules: Rules) -> Self {
        Self {
            guard: MemoryGuard::with_clock(Clock::frozen()),
            rules,
            truth: vec![Truth::default(); KEYS],
            actors: vec![Actor::default(); ACTORS],
            given: Vec::new(),
            found: vec![None; KEYS],
            runs: HashMap::new(),
        }
    }

    fn now(&self) -> DateTime<Utc> {
        self.guard.clock().now()
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Look {
                actor,
                key,
                payload,
            } => self.look(actor, key, payload).await,
            Step::Claim { actor } => self.claim(actor).await,
            Step::Heartbeat { actor } => self.heartbeat(actor).await,
            Step::End { actor, state, wait } => self.end(actor, state, wait).await,
            Step::Doubt { actor } => self.doubt(actor).await,
            Step::Release { actor } => self.release(actor).await,
            Step::Crash { actor } => self.actors[actor] = Actor::default(),
            Step::Ghost { which, change } => self.ghost(which, change).await,
            Step::Advance { seconds } => self.guard.clock().advance(Duration::from_secs(seconds)),
            Step::Reconcile { key, happened } => self.reconcile(key, happened).await,
            Step::Purge { batch } => {
                Records::purge(&self.guard, batch).await.unwrap();
            }
            Step::Forget { key } => {
                self.guard.forget(&digest(key)).await.unwrap();
                let fence = self.truth[key].fence;
                self.truth[key] = Truth {
                    fence,
                    ..Truth::default()
                };
            }
        }
        self.nothing_is_lost().await;
    }

    /// What is not over, and what is remembered, is there.
    async fn nothing_is_lost(&self) {
        let now = self.now();
        for (n, truth) in self.truth.iter().enumerate() {
            let found = self.guard.look(&digest(n)).await.unwrap();
            if let Some((fence, ..)) = truth.open {
                let found = found.as_ref().expect("an open record is gone");
                assert_eq!(found.record.fence, fence);
                assert!(!found.record.state.is_over());
            } else if let Some((state, _, until)) = truth.over
                && until > now
            {
                let found = found.expect("a record is gone before its time");
                assert_eq!(found.state(), state);
            }
        }
    }

    async fn look(&mut self, actor: usize, n: usize, payload: u8) {
        let found = self.guard.look(&digest(n)).await.unwrap();
        let decision = decide(found.as_ref(), &asked(payload), &self.rules);
        let (now, truth) = (self.now(), &self.truth[n]);
        match truth.open {
            Some((_, same, _)) if same == payload && truth.alive(now) => {
                assert_eq!(decision, Decision::InProgress);
            }
            Some((_, same, _)) if same == payload && !self.rules.rerun_uncertain => {
                assert_eq!(decision, Decision::Uncertain);
            }
            Some((_, other, _)) if other != payload && self.rules.mode == Mode::Strict => {
                assert_eq!(decision, Decision::Conflict);
            }
            _ => {}
        }
        self.actors[actor].decided = match decision {
            Decision::Run { expect, attempt } => Some((n, payload, expect, attempt)),
            _ => None,
        };
    }

    async fn claim(&mut self, actor: usize) {
        // Whoever runs something finishes that first.
        if self.actors[actor].owns.is_some() {
            return;
        }
        let Some((n, payload, expect, attempt)) = self.actors[actor].decided.take() else {
            return;
        };
        let write = Write {
            key: key(n),
            fingerprint: asked(payload),
            state: State::Processing,
            attempt,
            lease: Some(LEASE),
            keep: KEEP,
            retry_in: None,
            snapshot: None,
            expect,
        };
        let Some(fence) = self.guard.put(&write).await.unwrap() else {
            return;
        };
        let now = self.now();
        self.may_run(n, payload, now);
        let truth = &mut self.truth[n];
        assert!(fence > truth.fence, "numbers grow");
        *truth = Truth {
            open: Some((fence, payload, now + span(LEASE))),
            fence,
            ..Truth::default()
        };
        self.actors[actor].owns = Some((n, fence, payload));
        self.given.push((n, fence));
        *self.runs.entry("begun").or_default() += 1;
    }

    /// Somebody was told to run: nobody else may be at it, or may have done it.
    fn may_run(&self, n: usize, payload: u8, now: DateTime<Utc>) {
        let truth = &self.truth[n];
        let overwrites = |earlier: u8| self.rules.mode == Mode::Overwrite && earlier != payload;
        if let Some((_, earlier, _)) = truth.open {
            // An owner that came back to life between the look and the claim of an operation that
            // may be repeated is not protected; every other one is.
            assert!(
                overwrites(earlier) || self.rules.rerun_uncertain,
                "a run that nobody has settled was replaced"
            );
        }
        if let Some((state, earlier, until)) = truth.over {
            assert!(
                until <= now
                    || overwrites(earlier)
                    || state == State::Retryable
                    || self.rules.rerun_uncertain,
                "a second run after {state:?}"
            );
        }
    }

    /// Changes a record as an actor, and answers whether it was accepted, which must be what the
    /// ledger says.
    async fn change(&mut self, n: usize, fence: i64, change: &Change) -> bool {
        let before = self.guard.look(&digest(n)).await.unwrap().map(|f| f.record);
        let done = self.guard.change(&digest(n), fence, change).await.unwrap();
        let current = self.truth[n].open.is_some_and(|(open, ..)| open == fence);
        let beats = matches!(change, Change::Heartbeat { .. });
        assert_eq!(
            done,
            current && !(beats && self.truth[n].doubted),
            "{change:?}"
        );
        if !done {
            let after = self.guard.look(&digest(n)).await.unwrap().map(|f| f.record);
            assert_eq!(after, before, "a stale number has changed something");
        }
        done
    }

    async fn heartbeat(&mut self, actor: usize) {
        let Some((n, fence, _)) = self.actors[actor].owns else {
            return;
        };
        if self
            .change(n, fence, &Change::Heartbeat { lease: LEASE })
            .await
        {
            self.beat(n);
        }
    }

    fn beat(&mut self, n: usize) {
        let until = self.now() + span(LEASE);
        if let Some(open) = &mut self.truth[n].open {
            open.2 = until;
        }
    }

    async fn end(&mut self, actor: usize, state: State, wait: bool) {
        let Some((n, fence, _)) = self.actors[actor].owns.take() else {
            return;
        };
        if self.change(n, fence, &end(state, wait)).await {
            self.ended(n, state);
        }
    }

    /// A run was accepted as over: this is the moment at which its effect counts.
    fn ended(&mut self, n: usize, state: State) {
        let until = self.now() + span(KEEP);
        let (_, payload, _) = self.truth[n].open.expect("an end of nothing");
        self.truth[n].settle();
        self.truth[n].over = Some((state, payload, until));
        *self.runs.entry("ended").or_default() += 1;
    }

    async fn doubt(&mut self, actor: usize) {
        let Some((n, fence, _)) = self.actors[actor].owns.take() else {
            return;
        };
        if self.change(n, fence, &Change::Doubt).await {
            self.truth[n].doubted = true;
        }
    }

    async fn release(&mut self, actor: usize) {
        let Some((n, fence, _)) = self.actors[actor].owns.take() else {
            return;
        };
        if self.change(n, fence, &Change::Release).await {
            self.truth[n].settle();
        }
    }

    /// The owner of an old number comes back. When its number is still the present one, it is the
    /// owner, and what it does counts.
    async fn ghost(&mut self, which: usize, change: usize) {
        if self.given.is_empty() {
            return;
        }
        let (n, fence) = self.given[which % self.given.len()];
        let change = match change {
            0 => Change::Heartbeat { lease: LEASE },
            1 => end(State::Succeeded, false),
            2 => end(State::Failed, false),
            3 => Change::Doubt,
            _ => Change::Release,
        };
        if !self.change(n, fence, &change).await {
            return;
        }
        match change {
            Change::Heartbeat { .. } => self.beat(n),
            Change::End { state, .. } => self.ended(n, state),
            Change::Doubt => self.truth[n].doubted = true,
            Change::Release => self.truth[n].settle(),
        }
    }

    /// As the reconciler does: it finds what is stuck, asks the world, and settles; between two of
    /// these steps anything may happen.
    async fn reconcile(&mut self, n: usize, happened: bool) {
        if let Some(found) = self.found[n].take() {
            self.settle(n, &found, happened).await;
        }
        let stuck = self.guard.stuck(Duration::ZERO, None, 10).await.unwrap();
        let now = self.now();
        self.found[n] = stuck.into_iter().find(|f| f.record.key == key(n));
        let lost = self.truth[n].open.is_some() && !self.truth[n].alive(now);
        assert_eq!(
            self.found[n].is_some(),
            lost,
            "what is stuck is found, and nothing else"
        );
    }

    async fn settle(&mut self, n: usize, found: &Found, happened: bool) {
        let now = self.guard.look(&digest(n)).await.unwrap();
        let as_it_was = now.is_some_and(|now| now.record == found.record);
        let verdict = if happened {
            end(State::Succeeded, false)
        } else {
            Change::Release
        };

        let done = self.guard.settle(found, &verdict).await.unwrap();

        assert_eq!(done, as_it_was, "what has changed is not settled");
        if !done {
            return;
        }
        assert!(!self.truth[n].alive(self.now()), "a live owner was settled");
        if happened {
            self.ended(n, State::Succeeded);
        } else {
            self.truth[n].settle();
        }
    }
}

fn play(steps: Vec<Step>, rules: Rules) -> HashMap<&'static str, u32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(rules);
        for step in steps {
            world.step(step).await;
        }
        world.runs
    })
}

fn rules(overwrite: bool, rerun_uncertain: bool) -> Rules {
    let rules = Rules {
        lease: LEASE,
        keep: KEEP,
        attempts: 3,
        rerun_uncertain,
        ..Rules::default()
    };
    if overwrite { rules.overwrite() } else { rules }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    /// Strict rules: while nobody has settled a run, and while its success is remembered, nobody
    /// else runs; and a stale number changes nothing.
    #[test]
    fn two_runs_of_a_key_never_overlap(steps in prop::collection::vec(step(), 1..150)) {
        play(steps, rules(false, false));
    }

    /// Whatever the rules: numbers grow, stale ones change nothing, and nothing is lost.
    #[test]
    fn a_stale_number_changes_nothing(
        steps in prop::collection::vec(step(), 1..150), overwrite in any::<bool>(), rerun in any::<bool>(),
    ) {
        play(steps, rules(overwrite, rerun));
    }
}

/// The steps above would prove nothing if nobody ever ran.
#[test]
fn the_steps_reach_what_they_should() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut total: HashMap<&'static str, u32> = HashMap::new();
    for _ in 0..50 {
        let steps = prop::collection::vec(step(), 150);
        let tree = steps.new_tree(&mut runner).unwrap();
        for (what, count) in play(tree.current(), rules(false, false)) {
            *total.entry(what).or_default() += count;
        }
    }

    assert!(total["begun"] > 200 && total["ended"] > 100, "{total:?}");
}
