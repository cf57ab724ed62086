//! One-time tokens.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::{Consumed, Token, Tokens};
use counterfoil_core::store::StoreError;
use tokio::sync::Barrier;

use super::fixture::GuardFixture;
use super::harness::GuardHarness;

const TTL: Duration = Duration::from_secs(900);

/// Won once, refused ever after; also as text.
pub async fn a_token_is_used_once<H: GuardHarness>(t: GuardFixture<H>) {
    let token = t.guard.issue("ann", TTL).await.unwrap();
    let sent = Token::parse(&token.to_string()).unwrap();

    let used = [
        t.guard.consume(&sent, "ann").await.unwrap(),
        t.guard.consume(&sent, "ann").await.unwrap(),
        t.guard
            .consume(&Token::random().unwrap(), "ann")
            .await
            .unwrap(),
    ];

    assert_eq!(used, [Consumed::Won, Consumed::Refused, Consumed::Refused]);
}

/// A form that is sent a hundred times.
pub async fn case_35_a_hundred_uses_at_once_have_one_winner<H: GuardHarness>(t: GuardFixture<H>) {
    let token = t.guard.issue("ann", TTL).await.unwrap();
    let start = Arc::new(Barrier::new(100));

    let running: Vec<_> = (0..100)
        .map(|_| {
            let (guard, token, start) = (t.guard.clone(), token.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                guard.consume(&token, "ann").await.unwrap()
            })
        })
        .collect();
    let mut won = 0;
    for one in running {
        won += u32::from(one.await.unwrap() == Consumed::Won);
    }

    assert_eq!(won, 1);
}

/// Owners are compared bytewise.
pub async fn case_35_a_token_of_somebody_else_is_refused_and_not_used_up<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let token = t.guard.issue("ann", TTL).await.unwrap();

    for other in ["bob", "Ann", "ann ", "", "' OR '1'='1"] {
        let used = t.guard.consume(&token, other).await.unwrap();
        assert_eq!(used, Consumed::Refused, "{other}");
    }

    let used = t.guard.consume(&token, "ann").await.unwrap();
    assert_eq!(used, Consumed::Won);
}

/// Not used in time.
pub async fn a_token_expires<H: GuardHarness>(t: GuardFixture<H>) {
    let late = t.guard.issue("ann", TTL).await.unwrap();
    let in_time = t.guard.issue("ann", TTL * 2).await.unwrap();
    t.advance(TTL).await;

    assert_eq!(
        t.guard.consume(&late, "ann").await.unwrap(),
        Consumed::Refused
    );
    assert_eq!(
        t.guard.consume(&in_time, "ann").await.unwrap(),
        Consumed::Won
    );
}

/// A batch at a time, and no live one.
pub async fn expired_tokens_go_in_batches<H: GuardHarness>(t: GuardFixture<H>) {
    for _ in 0..3 {
        t.guard.issue("ann", TTL).await.unwrap();
    }
    let live = t.guard.issue("ann", TTL * 2).await.unwrap();
    t.advance(TTL).await;

    let mut gone = Vec::new();
    for _ in 0..3 {
        gone.push(Tokens::purge(&t.guard, 2).await.unwrap());
    }

    assert_eq!(gone, [2, 1, 0]);
    assert_eq!(t.guard.consume(&live, "ann").await.unwrap(), Consumed::Won);
}

/// Nobody, and names without end.
pub async fn a_bad_owner_is_refused<H: GuardHarness>(t: GuardFixture<H>) {
    for bad in [String::new(), "x".repeat(256), "a\nb".into()] {
        let refused = t.guard.issue(&bad, TTL).await;
        assert!(
            matches!(refused, Err(StoreError::Message(_))),
            "{refused:?}"
        );
    }
}
