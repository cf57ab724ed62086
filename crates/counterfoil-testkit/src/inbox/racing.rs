//! Many consumers at once: each key has one effect, and all come to an end.

use std::sync::Arc;

use counterfoil_core::inbox::{Lane, Mode};
use counterfoil_core::message::Aggregate;
use counterfoil_core::store::StoreError;

use super::fixture::CONSUMER;
use super::harness::InboxHarness;
use crate::fixture::{Fixture, lane};
use crate::suite::Seed;

/// The same message on twenty machines.
pub async fn twenty_arrivals_at_once_have_one_effect<H: InboxHarness>(t: Fixture<H>) {
    let running: Vec<_> = (0..20)
        .map(|n| {
            let harness = Arc::clone(&t.harness);
            let batch = vec![0];
            tokio::spawn(async move { process(&*harness, &batch, false, n).await })
        })
        .collect();
    for one in running {
        one.await.unwrap();
    }

    assert_eq!(t.harness.rows().await, [0]);
    assert_eq!(t.lane(&lane(0)).await, expected(1));
}

/// Some give their lists the other way round: they may be told to try again.
pub async fn opposite_orders_come_to_an_end_and_apply_each_key_once<H: InboxHarness>(
    t: Fixture<H>,
) {
    race(&t, "opposite_orders", 24, true).await;
}

/// As the rules say.
pub async fn batches_in_order_come_to_an_end_and_apply_each_key_once<H: InboxHarness>(
    t: Fixture<H>,
) {
    race(&t, "batches_in_order", 200, false).await;
}

const WORKERS: usize = 4;
const LANES: i64 = 6;

/// Every worker is offered every key once, in batches of its own.
async fn race<H: InboxHarness>(t: &Fixture<H>, name: &str, keys: i64, opposite: bool) {
    let mut seed = Seed::new(name);
    let mut running = Vec::new();
    for worker in 0..WORKERS {
        let mut order: Vec<i64> = (0..keys).collect();
        for n in (1..order.len()).rev() {
            order.swap(n, seed.below(n + 1));
        }
        let harness = Arc::clone(&t.harness);
        running.push(tokio::spawn(async move {
            let reverse = opposite && worker % 2 == 1;
            for batch in order.chunks(6) {
                process(&*harness, batch, reverse, worker).await;
            }
        }));
    }
    for one in running {
        one.await.unwrap();
    }

    assert_eq!(t.harness.rows().await, (0..keys).collect::<Vec<_>>());
    for n in 0..LANES {
        let of_lane = (0..keys).filter(|key| key % LANES == n).count();
        let count = i64::try_from(of_lane).unwrap();
        assert_eq!(t.lane(&lane(n)).await, expected(count), "lost an update");
    }
}

fn expected(version: i64) -> Lane {
    Lane {
        applied: Some(version),
        taken: false,
    }
}

/// One batch, until it has passed. The version of an aggregate counts its keys.
async fn process<H: InboxHarness>(harness: &H, batch: &[i64], reverse: bool, worker: usize) {
    for attempt in 0.. {
        match attempt_batch(harness, batch, reverse).await {
            Ok(()) => return,
            Err(StoreError::Busy(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
        assert!(attempt < 200, "worker {worker} makes no progress");
        tokio::task::yield_now().await;
    }
}

async fn attempt_batch<H: InboxHarness>(
    harness: &H,
    batch: &[i64],
    reverse: bool,
) -> Result<(), StoreError> {
    let mut keys: Vec<String> = batch.iter().map(|n| format!("{n:04}")).collect();
    keys.sort_unstable();
    let mut lanes: Vec<Aggregate> = batch.iter().map(|n| lane(n % LANES)).collect();
    lanes.sort();
    lanes.dedup();
    if reverse {
        keys.reverse();
        lanes.reverse();
    }
    let key_list: Vec<&str> = keys.iter().map(String::as_str).collect();
    let lane_list: Vec<&Aggregate> = lanes.iter().collect();
    let mut tx = harness.begin_consumer().await?;
    let admitted = harness
        .admit(&mut tx, CONSUMER, Mode::Arrival, &key_list, &lane_list)
        .await?;
    let mut applied = Vec::new();
    for order in &lanes {
        let mut version = admitted.lanes[order].applied.unwrap_or(0);
        for n in batch.iter().filter(|n| lane(*n % LANES) == *order) {
            if admitted.fresh.contains(&format!("{n:04}")) {
                harness.insert(&mut tx, *n).await?;
                version += 1;
                applied.push((order, version));
            }
        }
    }
    harness.finish(&mut tx, CONSUMER, &applied).await?;
    harness.plain_commit(tx).await
}
