//! Claims whose answer does not come, or comes to nobody; and what is done about requests that are
//! stuck or over.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::StoreError;
use counterfoil_core::guard::{
    Change, Digest, Expect, Fingerprint, Found, GuardStats, Key, Mark, Record, RecordFilter,
    Records, Rules, Snapshot, State, Verdict, Write,
};
use counterfoil_core::store::Result;
use counterfoil_engine::guard::lease::{ANSWER_WITHIN, End, Ended, Lease};
use counterfoil_engine::guard::reconcile::{Reconcile, Reconciler, Round};
use counterfoil_engine::guard::{Entered, Warden};
use counterfoil_testkit::gone::after_polls;
use counterfoil_testkit::memory::{Clock, MemoryGuard};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Records that are put when the test says so, whoever still waits for it.
struct Slow {
    records: MemoryGuard,
    put: Semaphore,
    /// What becomes of the next ends and releases, the last first; none: they are done.
    ends: Mutex<Vec<Fails>>,
}

/// How a statement fails.
#[derive(Clone, Copy)]
enum Fails {
    /// It was not heard.
    Unheard,
    /// It was done, and the answer was lost.
    Done,
}

impl Slow {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            records: MemoryGuard::new(),
            put: Semaphore::new(permits),
            ends: Mutex::default(),
        })
    }

    fn fail(&self, ends: &[Fails]) {
        *self.ends.lock().unwrap() = ends.to_vec();
    }

    /// Lets time pass, here and in the database.
    async fn pass(&self, seconds: u32) {
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.records.clock().advance(Duration::from_secs(1));
        }
    }

    async fn is_free(&self) -> bool {
        self.records.look(&key().digest()).await.unwrap().is_none()
    }
}

#[async_trait]
impl Records for Slow {
    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        self.records.look(digest).await
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        self.put.acquire().await.unwrap().forget();
        let fence = self.records.put(write).await;
        tokio::task::yield_now().await;
        fence
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        let ends = matches!(change, Change::End { .. } | Change::Release);
        let fails = ends.then(|| self.ends.lock().unwrap().pop()).flatten();
        if matches!(fails, Some(Fails::Unheard)) {
            return Err(StoreError::Busy("locked".into()));
        }
        let changed = self.records.change_if(mark, change).await;
        match fails {
            Some(_) => Err(StoreError::Unreachable("gone".into())),
            None => changed,
        }
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        self.records.forget(digest).await
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        self.records.list(filter).await
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        self.records.stuck(idle, after, limit).await
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        self.records.stats().await
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        Records::purge(&self.records, batch).await
    }
}

const ASKED: Fingerprint = Fingerprint([7; 32]);

fn key() -> Key {
    Key::new("alice", "pay", "k").unwrap()
}

fn warden(records: &Arc<Slow>) -> Warden {
    Warden::new(Arc::clone(records) as Arc<dyn Records>, Rules::default())
}

/// Lets every other task come to its end.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_answered_is_given_up_and_taken_back_when_it_is_made_after_all() {
    let records = Slow::new(0);
    let warden = warden(&records);
    let start = Instant::now();

    let told = warden.enter_leased(&key(), &ASKED).await;

    assert!(
        matches!(told, Err(StoreError::Unreachable(_))),
        "nothing runs"
    );
    assert_eq!(start.elapsed().as_secs(), 10);
    // The database wakes up, and does what it was told then.
    records.put.add_permits(1);
    settle().await;
    assert!(records.is_free().await);
    records.put.add_permits(1);
    let again = warden.enter_leased(&key(), &ASKED).await.unwrap();
    assert!(matches!(again, Entered::Fresh(_)), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_while_it_claims_leaves_no_claim_behind() {
    for polls in 1.. {
        let records = Slow::new(1);
        let warden = warden(&records);

        let entered = after_polls(polls, warden.enter_leased(&key(), &ASKED)).await;

        settle().await;
        match entered {
            None => assert!(records.is_free().await, "after {polls} polls"),
            Some(entered) => {
                let Entered::Fresh(lease) = entered.unwrap() else {
                    panic!("not fresh");
                };
                assert!(lease.fence() > 0);
                assert!(!records.is_free().await);
                assert!(polls > 1, "nobody went away");
                return;
            }
        }
    }
}

async fn claimed(warden: &Warden) -> Lease {
    match warden.enter_leased(&key(), &ASKED).await.unwrap() {
        Entered::Fresh(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn answer() -> End {
    End::Succeeded(Snapshot::json(&"paid").unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_recorded_although_the_database_was_away_for_longer_than_the_lease() {
    let records = Slow::new(1);
    let warden = warden(&records);
    let lease = claimed(&warden).await;
    // More than three leases, a second between two tries.
    records.fail(&[Fails::Unheard; 100]);
    let start = Instant::now();

    let told = lease.end(answer()).await.unwrap();

    assert!(matches!(told, Ended::Pending), "{told:?}");
    assert_eq!(start.elapsed(), ANSWER_WITHIN);
    // A repeat waits for it, and is told that it is in progress.
    let hasty = warden.clone().rules(Rules {
        wait: Duration::ZERO,
        ..Rules::default()
    });
    let meanwhile = hasty.enter_leased(&key(), &ASKED).await.unwrap();
    assert!(matches!(meanwhile, Entered::InProgress(_)), "{meanwhile:?}");
    records.pass(200).await;
    let found = records.look(&key().digest()).await.unwrap().unwrap();
    assert_eq!(found.state(), State::Succeeded);
    let after = warden.enter_leased(&key(), &ASKED).await.unwrap();
    assert!(matches!(after, Entered::Replay(_)), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_recording_was_heard_and_not_answered_is_recorded() {
    let records = Slow::new(1);
    let lease = claimed(&warden(&records)).await;
    records.fail(&[Fails::Done]);

    let told = lease.end(answer()).await.unwrap();

    assert!(matches!(told, Ended::Recorded(_)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_in_time_is_uncertain() {
    let records = Slow::new(1);
    let rules = Rules {
        record_within: Duration::from_secs(60),
        ..Rules::default()
    };
    let warden = warden(&records).rules(rules);
    let lease = claimed(&warden).await;
    records.fail(&[Fails::Unheard; 1_000]);

    let told = lease.end(answer()).await.unwrap();
    assert!(matches!(told, Ended::Pending), "{told:?}");
    records.pass(50).await;
    let found = records.look(&key().digest()).await.unwrap().unwrap();
    assert_eq!(
        found.state(),
        State::Processing,
        "it lives until it gives up"
    );
    records.pass(45).await;

    let after = warden.enter_leased(&key(), &ASKED).await.unwrap();
    assert!(matches!(after, Entered::Uncertain(_)), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn what_did_not_happen_is_released_although_the_database_was_away() {
    let records = Slow::new(1);
    let lease = claimed(&warden(&records)).await;
    records.fail(&[Fails::Unheard; 20]);

    assert!(lease.release().await.is_err());
    tokio::time::sleep(Duration::from_secs(60)).await;

    assert!(records.is_free().await);
}

/// A request that nobody has settled, or one that is over.
async fn kept(records: &MemoryGuard, business_type: &str, name: &str, state: State) {
    let write = Write {
        key: Key::new("alice", business_type, name).unwrap(),
        fingerprint: ASKED,
        state,
        attempt: 1,
        lease: None,
        keep: Duration::from_secs(60),
        retry_in: None,
        snapshot: None,
        expect: Expect::Absent,
    };
    records.put(&write).await.unwrap().unwrap();
}

/// Says what the key says, in one way or another.
struct ByKey;

#[async_trait]
impl Reconciler for ByKey {
    async fn did_it_happen(&self, record: &Record) -> Result<Verdict, BoxError> {
        match record.key.key() {
            "happened" => Ok(Verdict::Happened(Snapshot::default())),
            "did not" => Ok(Verdict::DidNotHappen),
            "error" => Err("nobody answers".into()),
            "silence" => std::future::pending().await,
            "panic" => panic!("as the test wants"),
            _ => Ok(Verdict::Unknown),
        }
    }
}

async fn round(records: &MemoryGuard) -> Round {
    Reconcile::new(Arc::new(records.clone()), Rules::default())
        .check("pay", Rules::default(), Arc::new(ByKey))
        .round()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_check_that_fails_or_says_nothing_is_no_other_records_harm() {
    let records = MemoryGuard::with_clock(Clock::frozen());
    for name in [
        "panic", "silence", "error", "unknown", "happened", "did not",
    ] {
        kept(&records, "pay", name, State::Uncertain).await;
    }
    records.clock().advance(Duration::from_secs(600));

    let round = round(&records).await;

    let expected = Round {
        settled: 1,
        released: 1,
        left: 4,
        alarming: 6,
    };
    assert_eq!(round, expected);
}

#[tokio::test(start_paused = true)]
async fn many_that_nobody_can_settle_do_not_hide_one_that_somebody_can() {
    let records = MemoryGuard::with_clock(Clock::frozen());
    for n in 0..250 {
        kept(&records, "unchecked", &n.to_string(), State::Uncertain).await;
        kept(&records, "pay", &n.to_string(), State::Uncertain).await;
    }
    records.clock().advance(Duration::from_secs(1));
    kept(&records, "pay", "happened", State::Uncertain).await;
    records.clock().advance(Duration::from_secs(600));

    let round = round(&records).await;

    assert_eq!((round.settled, round.alarming), (1, 501));
}

/// Where nobody runs a reconciler.
#[tokio::test(start_paused = true)]
async fn the_guard_itself_purges_now_and_then() {
    let records = MemoryGuard::with_clock(Clock::frozen());
    let warden = Warden::new(Arc::new(records.clone()), Rules::default());
    for n in 0..2_500 {
        kept(&records, "pay", &n.to_string(), State::Succeeded).await;
    }
    kept(&records, "pay", "open", State::Uncertain).await;
    records.clock().advance(Duration::from_secs(61));
    let count = async || -> u64 {
        let stats = records.stats().await.unwrap();
        stats.iter().map(|s| s.succeeded + s.uncertain).sum()
    };

    warden.enter_leased(&key(), &ASKED).await.unwrap();
    settle().await;
    assert_eq!(count().await, 2_501 + 1, "it is not yet time");
    tokio::time::advance(Duration::from_secs(600)).await;
    warden.enter_leased(&key(), &ASKED).await.unwrap();
    settle().await;

    assert_eq!(count().await, 1 + 1);
}
