//! One call of a destination.
//!
//! # Promise
//! Whatever the destination does (answers too little, hangs, panics), every delivery of the batch
//! comes back with exactly one outcome.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::row::RowKey;
use counterfoil_core::store::{Fence, Store};
use counterfoil_core::{Code, Delivery, Destination, Outcome};
use futures_util::FutureExt;

/// After so many crashes while it was tried alone, a message is parked.
pub(crate) const MAX_CRASHES: u32 = 3;

/// A delivery and what came of it. Absent: it was not offered and is forgotten here; its row, if it
/// is still there and ours, is read again.
pub(crate) type Offered = (Delivery, Option<Outcome>);

/// Offers a batch and pairs every delivery with its outcome.
pub(crate) async fn publish(
    destination: Arc<dyn Destination>,
    batch: Vec<Delivery>,
    timeout: Option<Duration>,
) -> Vec<Offered> {
    let call = AssertUnwindSafe(destination.publish(&batch)).catch_unwind();
    let answer = match timeout {
        // The destination's own limit comes first; this one is for a destination that forgets it.
        Some(limit) => tokio::time::timeout(limit.saturating_mul(2), call).await,
        None => Ok(call.await),
    };
    let outcomes = match answer {
        Ok(Ok(outcomes)) => outcomes,
        Ok(Err(panic)) => {
            let error = format!("the destination panicked: {}", panic_text(panic.as_ref()));
            batch
                .iter()
                .map(|_| Outcome::retry(Code::PANIC, error.clone()))
                .collect()
        }
        Err(_) => batch
            .iter()
            .map(|_| Outcome::retry(Code::TIMEOUT, "no answer in time"))
            .collect(),
    };
    let missing = || {
        Outcome::retry(
            Code::UNCONFIRMED,
            "the destination gave no outcome for this message",
        )
    };
    let mut outcomes = outcomes.into_iter();
    batch
        .into_iter()
        .map(|delivery| {
            (
                delivery,
                Some(outcomes.next().unwrap_or_else(missing).bounded()),
            )
        })
        .collect()
}

/// Offers one message that may have killed a process before: it is counted first, durably.
pub(crate) async fn publish_suspect(
    store: Arc<dyn Store>,
    fence: Fence,
    destination: Arc<dyn Destination>,
    (mut delivery, row): (Delivery, RowKey),
    timeout: Option<Duration>,
) -> Vec<Offered> {
    if delivery.crashes >= MAX_CRASHES {
        let error = format!(
            "the process died {} times while it delivered this message",
            delivery.crashes
        );
        return vec![(
            delivery,
            Some(Outcome::Refused {
                code: Code::CRASH_SUSPECT,
                error,
                confirm: true,
            }),
        )];
    }
    match store.suspect(&fence, &row).await {
        Ok(Some(crashes)) => delivery.crashes = crashes,
        // Its shard was lost, or it was cancelled.
        Ok(None) => return vec![(delivery, None)],
        Err(error) => {
            tracing::warn!(error = error.one_line(), id = %delivery.id, "could not count a crash suspect");
            return vec![(delivery, None)];
        }
    }
    publish(destination, vec![delivery], timeout).await
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
