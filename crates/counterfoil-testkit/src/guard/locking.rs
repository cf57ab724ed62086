//! Locks that run out.
//!
//! [`lock_suite!`](crate::lock_suite) makes one test of each case, also for locks that belong to no
//! guard.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::Locks;
use counterfoil_core::store::StoreError;
use tokio::sync::Barrier;

use super::fixture::GuardFixture;
use super::harness::GuardHarness;

const LEASE: Duration = Duration::from_secs(60);

/// What the cases need. Nobody holds a lock yet.
#[async_trait]
pub trait LockFixture: Send + Sync + 'static {
    /// What is under test.
    fn locks(&self) -> Arc<dyn Locks>;

    /// Lets so much time pass, by moving the clock or by making everything older.
    async fn advance(&self, by: Duration);
}

#[async_trait]
impl<H: GuardHarness> LockFixture for GuardFixture<H> {
    fn locks(&self) -> Arc<dyn Locks> {
        Arc::new(self.guard.clone())
    }

    async fn advance(&self, by: Duration) {
        self.harness.advance(by).await;
    }
}

/// Makes one test of each case about locks. `$run` runs a case, which takes a
/// [`LockFixture`](crate::guard::locking::LockFixture).
#[macro_export]
macro_rules! lock_suite {
    ($run:expr) => {
        $crate::lock_cases!($run;
            a_lock_has_one_holder,
            a_released_lock_is_free_and_its_number_grows,
            a_lock_whose_lease_is_over_is_free_and_its_holder_fenced_off,
            a_renewed_lock_is_held_longer,
            a_lock_that_ran_out_cannot_be_renewed,
            locks_whose_names_look_alike_are_different,
            a_lock_without_a_good_name_is_refused,
            fifty_attempts_at_once_have_one_holder,
        );
    };
}

/// One module of tests.
#[doc(hidden)]
#[macro_export]
macro_rules! lock_cases {
    ($run:expr; $($case:ident),* $(,)?) => {
        mod locking {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $run($crate::guard::locking::$case);
                }
            )*
        }
    };
}

/// The second one is told so, at once.
pub async fn a_lock_has_one_holder<T: LockFixture>(t: T) {
    let locks = t.locks();
    let first = locks.acquire("month-end", LEASE).await.unwrap();
    let second = locks.acquire("month-end", LEASE).await.unwrap();
    let other = locks.acquire("payroll", LEASE).await.unwrap();

    assert!(first.is_some() && other.is_some());
    assert_eq!(second, None);
}

/// Free for the next one.
pub async fn a_released_lock_is_free_and_its_number_grows<T: LockFixture>(t: T) {
    let locks = t.locks();
    let mut last = 0;
    for _ in 0..10 {
        let fence = locks.acquire("l", LEASE).await.unwrap().unwrap();
        assert!(fence > last);
        last = fence;

        assert!(locks.release("l", fence).await.unwrap());
        assert!(!locks.release("l", fence).await.unwrap());
        assert!(!locks.renew("l", fence, LEASE).await.unwrap());
    }
}

/// A holder that was silent for too long.
pub async fn a_lock_whose_lease_is_over_is_free_and_its_holder_fenced_off<T: LockFixture>(t: T) {
    let locks = t.locks();
    let first = locks.acquire("l", LEASE).await.unwrap().unwrap();
    t.advance(LEASE).await;

    let second = locks.acquire("l", LEASE).await.unwrap().unwrap();

    assert!(second > first);
    assert!(!locks.renew("l", first, LEASE).await.unwrap());
    assert!(!locks.release("l", first).await.unwrap());
    assert_eq!(locks.acquire("l", LEASE).await.unwrap(), None);
    assert!(locks.release("l", second).await.unwrap());
}

/// Counted from now.
pub async fn a_renewed_lock_is_held_longer<T: LockFixture>(t: T) {
    let locks = t.locks();
    let fence = locks.acquire("l", LEASE).await.unwrap().unwrap();
    for _ in 0..4 {
        t.advance(LEASE / 2).await;
        assert!(locks.renew("l", fence, LEASE).await.unwrap());
        assert_eq!(locks.acquire("l", LEASE).await.unwrap(), None);
    }

    t.advance(LEASE).await;

    assert!(locks.acquire("l", LEASE).await.unwrap() > Some(fence));
}

/// What was lost is lost, also when nobody else was there.
pub async fn a_lock_that_ran_out_cannot_be_renewed<T: LockFixture>(t: T) {
    let locks = t.locks();
    let fence = locks.acquire("l", LEASE).await.unwrap().unwrap();
    t.advance(LEASE).await;

    assert!(!locks.renew("l", fence, LEASE).await.unwrap());
    assert!(!locks.release("l", fence).await.unwrap());
    assert!(!locks.renew("never", fence, LEASE).await.unwrap());
}

/// Bytes decide.
pub async fn locks_whose_names_look_alike_are_different<T: LockFixture>(t: T) {
    let locks = t.locks();
    for name in ["l", "L", "l ", " l", "ł"] {
        let fence = locks.acquire(name, LEASE).await.unwrap();
        assert!(fence.is_some(), "{name:?}");
    }
}

/// No name, and names without end.
pub async fn a_lock_without_a_good_name_is_refused<T: LockFixture>(t: T) {
    let locks = t.locks();
    for bad in [String::new(), "x".repeat(256), "a\nb".into()] {
        let refused = locks.acquire(&bad, LEASE).await;
        assert!(
            matches!(refused, Err(StoreError::Message(_))),
            "{refused:?}"
        );
    }
}

/// New locks, and then ones that are free again.
pub async fn fifty_attempts_at_once_have_one_holder<T: LockFixture>(t: T) {
    let locks = t.locks();
    let mut last = 0;
    for _ in 0..3 {
        let start = Arc::new(Barrier::new(50));
        let running: Vec<_> = (0..50)
            .map(|_| {
                let (locks, start) = (Arc::clone(&locks), Arc::clone(&start));
                tokio::spawn(async move {
                    start.wait().await;
                    locks.acquire("l", LEASE).await.unwrap()
                })
            })
            .collect();
        let mut holders = Vec::new();
        for one in running {
            holders.extend(one.await.unwrap());
        }

        assert_eq!(holders.len(), 1, "{holders:?}");
        assert!(holders[0] > last);
        last = holders[0];
        assert!(locks.release("l", last).await.unwrap());
    }
}
