//! Locks that run out.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::Locks;
use tokio::sync::Barrier;

use super::fixture::GuardFixture;
use super::harness::GuardHarness;

const LEASE: Duration = Duration::from_secs(60);

/// The second one is told so, at once.
pub async fn a_lock_has_one_holder<H: GuardHarness>(t: GuardFixture<H>) {
    let first = t.guard.acquire("month-end", LEASE).await.unwrap();
    let second = t.guard.acquire("month-end", LEASE).await.unwrap();
    let other = t.guard.acquire("payroll", LEASE).await.unwrap();

    assert!(first.is_some() && other.is_some());
    assert_eq!(second, None);
}

/// Free for the next one.
pub async fn a_released_lock_is_free_and_its_number_grows<H: GuardHarness>(t: GuardFixture<H>) {
    let mut last = 0;
    for _ in 0..10 {
        let fence = t.guard.acquire("l", LEASE).await.unwrap().unwrap();
        assert!(fence > last);
        last = fence;

        assert!(t.guard.release("l", fence).await.unwrap());
        assert!(!t.guard.release("l", fence).await.unwrap());
        assert!(!t.guard.renew("l", fence, LEASE).await.unwrap());
    }
}

/// A holder that was silent for too long.
pub async fn a_lock_whose_lease_is_over_is_free_and_its_holder_fenced_off<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let first = t.guard.acquire("l", LEASE).await.unwrap().unwrap();
    t.advance(LEASE).await;

    let second = t.guard.acquire("l", LEASE).await.unwrap().unwrap();

    assert!(second > first);
    assert!(!t.guard.renew("l", first, LEASE).await.unwrap());
    assert!(!t.guard.release("l", first).await.unwrap());
    assert_eq!(t.guard.acquire("l", LEASE).await.unwrap(), None);
    assert!(t.guard.release("l", second).await.unwrap());
}

/// Counted from now.
pub async fn a_renewed_lock_is_held_longer<H: GuardHarness>(t: GuardFixture<H>) {
    let fence = t.guard.acquire("l", LEASE).await.unwrap().unwrap();
    for _ in 0..4 {
        t.advance(LEASE / 2).await;
        assert!(t.guard.renew("l", fence, LEASE).await.unwrap());
        assert_eq!(t.guard.acquire("l", LEASE).await.unwrap(), None);
    }

    t.advance(LEASE).await;

    assert!(t.guard.acquire("l", LEASE).await.unwrap() > Some(fence));
}

/// What was lost is lost, also when nobody else was there.
pub async fn a_lock_that_ran_out_cannot_be_renewed<H: GuardHarness>(t: GuardFixture<H>) {
    let fence = t.guard.acquire("l", LEASE).await.unwrap().unwrap();
    t.advance(LEASE).await;

    assert!(!t.guard.renew("l", fence, LEASE).await.unwrap());
    assert!(!t.guard.release("l", fence).await.unwrap());
    assert!(!t.guard.renew("never", fence, LEASE).await.unwrap());
}

/// Bytes decide.
pub async fn locks_whose_names_look_alike_are_different<H: GuardHarness>(t: GuardFixture<H>) {
    for name in ["l", "L", "l ", " l", "ł"] {
        let fence = t.guard.acquire(name, LEASE).await.unwrap();
        assert!(fence.is_some(), "{name:?}");
    }
}

/// New locks, and then ones that are free again.
pub async fn fifty_attempts_at_once_have_one_holder<H: GuardHarness>(t: GuardFixture<H>) {
    let mut last = 0;
    for _ in 0..3 {
        let start = Arc::new(Barrier::new(50));
        let running: Vec<_> = (0..50)
            .map(|_| {
                let (guard, start) = (t.guard.clone(), Arc::clone(&start));
                tokio::spawn(async move {
                    start.wait().await;
                    guard.acquire("l", LEASE).await.unwrap()
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
        assert!(t.guard.release("l", last).await.unwrap());
    }
}
