//! A store that refuses what came of a delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use counterfoil_core::desk::Desk;
use counterfoil_core::store::{Settlement, StoreError};
use counterfoil_core::{Code, MessageId, Outcome};
use counterfoil_testkit::memory::MemoryStore;

use crate::support::*;

fn refused() -> StoreError {
    StoreError::Database("value too long for type".into())
}

fn retries(settlement: &Settlement, id: MessageId) -> bool {
    settlement.retry.iter().any(|retry| retry.row.id == id)
}

/// Fifty messages of different aggregates; the one of aggregate 25 fails.
async fn one_fails(store: &MemoryStore) -> (Arc<Script>, MessageId) {
    let script = Script::new(|d| match &d.aggregate {
        Some(aggregate) if aggregate.id == "25" => Outcome::retry(Code::UPSTREAM_4XX, "odd"),
        _ => Outcome::Stored,
    });
    let all: Vec<_> = (0..50).map(|a| message(a, 1)).collect();
    let ids = enqueue(store, &all).await;
    (script, ids[25])
}

#[tokio::test]
async fn a_row_whose_settlement_is_refused_is_parked_and_the_others_are_settled() {
    let store = MemoryStore::new();
    let (script, odd) = one_fails(&store).await;
    store.refuse_settlements(move |s| retries(s, odd).then(refused));

    let _engine = start(&store, spec(&script)).await;
    until_empty(&store).await;

    let parked = parked(&store).await;
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0].id, odd.to_string());
    assert_eq!(parked[0].code.as_deref(), Some("STORE_REFUSED"));
    let error = parked[0].error.as_deref().unwrap();
    assert!(
        error.contains("UPSTREAM_4XX") && error.contains("too long"),
        "{error}"
    );
    assert_eq!(script.seen().len(), 50, "nothing is delivered twice");
}

#[tokio::test]
async fn a_store_that_hangs_up_at_one_row_and_answers_everybody_else_refuses_that_row() {
    let store = MemoryStore::new();
    let (script, odd) = one_fails(&store).await;
    store.refuse_settlements(move |s| {
        retries(s, odd).then(|| StoreError::Unreachable("connection reset".into()))
    });

    let _engine = start(&store, spec(&script)).await;
    until_empty(&store).await;

    assert_eq!(
        parked(&store).await[0].code.as_deref(),
        Some("STORE_REFUSED")
    );
}

#[tokio::test]
async fn a_store_that_refuses_everything_for_a_while_parks_nothing() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let all: Vec<_> = (0..50).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    store.refuse_settlements(move |_| (counter.fetch_add(1, Ordering::SeqCst) < 200).then(refused));

    let _engine = start(&store, spec(&script)).await;
    until_empty(&store).await;

    assert!(calls.load(Ordering::SeqCst) > 200);
    assert!(parked(&store).await.is_empty());
    assert_eq!(script.seen().len(), 50, "nothing is delivered twice");
}

#[tokio::test]
async fn what_is_behind_a_refused_row_waits_for_it_and_goes_on_after_its_redrive() {
    let store = MemoryStore::new();
    let failing = Arc::new(AtomicUsize::new(1));
    let switch = Arc::clone(&failing);
    let script = Script::new(move |_| match switch.load(Ordering::SeqCst) {
        0 => Outcome::Stored,
        _ => Outcome::retry(Code::UPSTREAM_4XX, "odd"),
    });
    let ids = enqueue(&store, &[message("a", 1), message("a", 2)]).await;
    let odd = ids[0];
    store.refuse_settlements(move |s| retries(s, odd).then(refused));
    let _engine = start(&store, spec(&script)).await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;
    assert_eq!(script.seen().len(), 1);

    failing.store(0, Ordering::SeqCst);
    let id = odd.to_string();
    let redriven = store.redrive(&[id], true, "ann").await.unwrap();
    assert_eq!(redriven.redriven.len(), 1);
    until_empty(&store).await;

    let versions: Vec<_> = script.seen().iter().map(|d| d.version).collect();
    assert_eq!(versions, [Some(1), Some(1), Some(2)]);
}
