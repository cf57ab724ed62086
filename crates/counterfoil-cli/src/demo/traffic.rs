//! Customers: they order, they click twice, and some of their orders are poison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::shop::{Order, Shop};

/// What the customers have done.
#[derive(Default)]
pub(super) struct Tally {
    orders: AtomicU64,
    duplicates: AtomicU64,
}

impl Tally {
    /// Orders placed.
    pub(super) fn orders(&self) -> u64 {
        self.orders.load(Ordering::Relaxed)
    }

    /// Second clicks that changed nothing.
    pub(super) fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }
}

/// About ten clicks a second until it is aborted.
pub(super) async fn run(shop: Shop, tally: Arc<Tally>) {
    for n in 1u64.. {
        let poison = n % 40 == 0;
        let order = Order {
            id: format!("order-{n}"),
            sku: ["tea", "cups", "honey"][usize::try_from(n % 3).unwrap_or(0)].into(),
            quantity: i64::from(fastrand::u8(1..5)),
            amount: if poison {
                -1
            } else {
                i64::from(fastrand::u16(100..10_000))
            },
        };
        let clicks = if n % 4 == 0 { 2 } else { 1 };
        let placed = (0..clicks).map(|_| place(shop.clone(), order.clone(), Arc::clone(&tally)));
        futures_util::future::join_all(placed).await;
        tokio::time::sleep(Duration::from_millis(u64::from(fastrand::u8(60..160)))).await;
    }
}

async fn place(shop: Shop, order: Order, tally: Arc<Tally>) {
    let counter = match shop.place(&order).await {
        Ok(true) => &tally.orders,
        Ok(false) => &tally.duplicates,
        Err(error) => {
            return tracing::warn!(%error, order = order.id, "an order could not be placed");
        }
    };
    counter.fetch_add(1, Ordering::Relaxed);
}
