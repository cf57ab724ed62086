//! A commit that would not be one is found out before it.

use counterfoil_core::store::StoreError;

use super::fixture::CONSUMER;
use super::harness::InboxHarness;
use crate::fixture::{Fixture, lane};

/// The handler says that all is well, and the database knows better.
pub async fn a_swallowed_error_commits_nothing<H: InboxHarness>(t: Fixture<H>) {
    let order = lane(1);
    t.apply("first", &order, 1).await;
    for applied in [vec![], vec![(&order, 2)]] {
        let mut tx = t.consume().await;
        t.admit(&mut tx, &["a"], &[&order]).await;
        t.harness.insert(&mut tx, 1).await.unwrap();
        t.harness.swallow(&mut tx).await;

        let finished = t.harness.finish(&mut tx, CONSUMER, &applied).await;

        assert!(
            matches!(finished, Err(StoreError::Doomed(_))),
            "{finished:?}"
        );
        drop(tx);
        assert!(t.harness.rows().await.is_empty());
        assert_eq!(t.lane(&order).await.applied, Some(1));
    }

    assert_eq!(t.arrive(&["a"]).await, ["a"]);
}

/// Whichever connection was hit.
pub async fn after_a_swallowed_error_the_pool_goes_on<H: InboxHarness>(t: Fixture<H>) {
    for n in 0..10 {
        let key = format!("k{n}");
        let mut tx = t.consume().await;
        t.admit(&mut tx, &[&key], &[&lane(n)]).await;
        t.harness.swallow(&mut tx).await;
        drop(tx);
    }

    for n in 0..10 {
        t.apply(&format!("k{n}"), &lane(n), 1).await;
    }
}

/// The rest of its statements would commit one by one.
pub async fn a_handler_that_ends_the_transaction_is_found_out<H: InboxHarness>(t: Fixture<H>) {
    let order = lane(1);
    t.apply("first", &order, 1).await;
    for (n, sql) in ["ROLLBACK", "COMMIT"].into_iter().enumerate() {
        for applied in [vec![], vec![(&order, 2)]] {
            let mut tx = t.consume().await;
            let key = format!("{sql} {}", applied.len());
            t.admit(&mut tx, &[&key], &[&order]).await;
            t.harness.execute(&mut tx, sql).await;

            let finished = t.harness.finish(&mut tx, CONSUMER, &applied).await;

            assert!(matches!(finished, Err(StoreError::Doomed(_))), "{sql} {n}");
            drop(tx);
            assert_eq!(t.lane(&order).await.applied, Some(1));
        }
    }
}

/// Its row is not there.
pub async fn an_aggregate_that_was_not_admitted_cannot_be_finished<H: InboxHarness>(t: Fixture<H>) {
    let (one, two) = (lane(1), lane(2));
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a"], &[&one]).await;

    let both = [(&one, 1), (&two, 1)];
    let finished = t.harness.finish(&mut tx, CONSUMER, &both).await;

    assert!(
        matches!(finished, Err(StoreError::Doomed(_))),
        "{finished:?}"
    );
    t.harness.rollback(tx).await;
    assert_eq!(t.arrive(&["a"]).await, ["a"]);
}
