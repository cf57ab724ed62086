//! What is over is forgotten one day, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use counterfoil_core::guard::{Change, Decision, Expect, Records, Rules, State, Write, decide};

use super::fixture::{ASKED, GuardFixture, KEEP, LEASE, claim, end, finished, key};
use super::harness::GuardHarness;

/// The oldest first, a batch at a time.
pub async fn what_is_over_and_expired_goes_in_batches<H: GuardHarness>(t: GuardFixture<H>) {
    for (name, state) in [
        ("a", State::Succeeded),
        ("b", State::Failed),
        ("c", State::Retryable),
    ] {
        t.ended(name, state).await;
        t.advance(LEASE).await;
    }
    t.advance(KEEP - LEASE).await;
    t.ended("young", State::Succeeded).await;

    let first = Records::purge(&t.guard, 2).await.unwrap();
    let left = [t.look("a").await, t.look("b").await, t.look("c").await].map(|f| f.is_some());
    let rest = [
        Records::purge(&t.guard, 2).await.unwrap(),
        Records::purge(&t.guard, 2).await.unwrap(),
    ];

    assert_eq!((first, left), (2, [false, false, true]));
    assert_eq!(rest, [1, 0]);
    assert!(t.look("young").await.is_some());
}

/// However old: who may still be at work, or may have been, is remembered.
pub async fn what_is_not_over_is_never_purged<H: GuardHarness>(t: GuardFixture<H>) {
    t.claim("lost").await;
    let doubted = t.claim("doubted").await;
    assert!(t.change(doubted, &Change::Doubt).await);
    let beating = t.claim("beating").await;
    t.advance(KEEP * 3).await;
    assert!(t.change(beating, &Change::Heartbeat { lease: LEASE }).await);

    assert_eq!(Records::purge(&t.guard, 100).await.unwrap(), 0);

    for name in ["lost", "doubted", "beating"] {
        assert!(t.look(name).await.is_some(), "{name}");
    }
}

/// A record that is over and expired is replaced, whether or not somebody has purged it.
pub async fn an_expired_record_makes_room<H: GuardHarness>(t: GuardFixture<H>) {
    let first = t.ended("k", State::Succeeded).await;
    let rules = Rules::default();
    assert_eq!(
        decide(t.look("k").await.as_ref(), &ASKED, &rules),
        Decision::Replay
    );
    t.advance(KEEP).await;

    let found = t.find("k").await;
    let decision = decide(Some(&found), &ASKED, &rules);

    assert!(found.expired());
    let expect = Expect::Fence(first.fence);
    assert_eq!(decision, Decision::Run { expect, attempt: 1 });
    let fence = t
        .put(&Write {
            expect,
            ..claim("k")
        })
        .await;
    assert!(fence > first.fence);
    assert_eq!(Records::purge(&t.guard, 10).await.unwrap(), 0);
    assert_eq!(t.find("k").await.record.state, State::Processing);
}

/// Expired records come to life again and are ended while a purge runs all the time: none of them
/// is lost.
pub async fn case_32_a_purge_during_completions_takes_no_live_record<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let t = Arc::new(t);
    let name = |n: usize| format!("k{n}");
    for n in 0..30 {
        t.put(&finished(&name(n), Expect::Absent)).await;
    }
    t.advance(KEEP).await;
    let done = Arc::new(AtomicBool::new(false));
    let purging = tokio::spawn({
        let (t, done) = (Arc::clone(&t), Arc::clone(&done));
        async move {
            while !done.load(Ordering::SeqCst) {
                Records::purge(&t.guard, 3).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });

    for n in (0..30).rev() {
        let claimed = loop {
            let expect = match t.look(&name(n)).await {
                Some(found) => Expect::Fence(found.record.fence),
                None => Expect::Absent,
            };
            let write = Write {
                expect,
                ..claim(&name(n))
            };
            if let Some(fence) = t.guard.put(&write).await.unwrap() {
                break fence;
            }
        };
        let digest = key(&name(n)).digest();
        let end = end(State::Succeeded);
        let ended = t.guard.change(&digest, claimed, &end).await.unwrap();
        assert!(ended, "a claim was purged");
    }
    done.store(true, Ordering::SeqCst);
    purging.await.unwrap();

    for n in 0..30 {
        assert_eq!(t.find(&name(n)).await.record.state, State::Succeeded);
    }
}
