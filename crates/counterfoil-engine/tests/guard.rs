//! Claims whose answer does not come, or comes to nobody.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::StoreError;
use counterfoil_core::guard::{
    Change, Digest, Fingerprint, Found, GuardStats, Key, RecordFilter, Records, Rules, Write,
};
use counterfoil_core::store::Result;
use counterfoil_engine::guard::{Entered, Warden};
use counterfoil_testkit::gone::after_polls;
use counterfoil_testkit::memory::MemoryGuard;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Records that are put when the test says so, whoever still waits for it.
struct Slow {
    records: MemoryGuard,
    put: Semaphore,
}

impl Slow {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            records: MemoryGuard::new(),
            put: Semaphore::new(permits),
        })
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

    async fn change(&self, digest: &Digest, fence: i64, change: &Change) -> Result<bool> {
        self.records.change(digest, fence, change).await
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        self.records.forget(digest).await
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        self.records.list(filter).await
    }

    async fn stuck(&self, idle: Duration, limit: u32) -> Result<Vec<Found>> {
        self.records.stuck(idle, limit).await
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
