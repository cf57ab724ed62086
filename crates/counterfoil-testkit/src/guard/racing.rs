//! Several at once.

use std::sync::Arc;

use counterfoil_core::guard::{Change, Expect, Records, State, Write};
use tokio::sync::Barrier;

use super::fixture::{GuardFixture, claim, end};
use super::harness::GuardHarness;

/// Puts the same many times at once, and answers what was said.
async fn at_once<H: GuardHarness>(t: &GuardFixture<H>, write: &Write) -> Vec<Option<i64>> {
    let start = Arc::new(Barrier::new(50));
    let running: Vec<_> = (0..50)
        .map(|_| {
            let (guard, write, start) = (t.guard.clone(), write.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                guard.put(&write).await.unwrap()
            })
        })
        .collect();
    let mut answers = Vec::new();
    for one in running {
        answers.push(one.await.unwrap());
    }
    answers
}

/// A new key.
pub async fn fifty_claims_at_once_have_one_winner<H: GuardHarness>(t: GuardFixture<H>) {
    for name in ["a", "b", "c"] {
        let winners: Vec<i64> = at_once(&t, &claim(name))
            .await
            .into_iter()
            .flatten()
            .collect();

        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(t.find(name).await.record.fence, winners[0]);
    }
}

/// A key whose record makes room.
pub async fn case_31_fifty_replacements_at_once_have_one_winner<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let first = t.ended("k", State::Retryable).await;
    let write = Write {
        expect: Expect::Fence(first.fence),
        attempt: 2,
        ..claim("k")
    };

    let winners: Vec<i64> = at_once(&t, &write).await.into_iter().flatten().collect();

    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(t.find("k").await.record.fence, winners[0]);
}

/// The owner ends while somebody settles: one of the two is believed.
pub async fn an_end_and_a_release_at_once_are_one_of_them<H: GuardHarness>(t: GuardFixture<H>) {
    for n in 0..10 {
        let name = format!("k{n}");
        let claim = t.claim(&name).await;

        let (end, release) = (end(State::Succeeded), Change::Release);
        let (ended, released) = tokio::join!(
            t.guard.change(&claim.digest, claim.fence, &end),
            t.guard.change(&claim.digest, claim.fence, &release)
        );

        let (ended, released) = (ended.unwrap(), released.unwrap());
        assert!(ended != released, "{ended} {released}");
        assert_eq!(t.look(&name).await.is_some(), ended);
    }
}
