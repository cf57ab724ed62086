//! Waiting for something to become true, with a deadline.
//!
//! # Promise
//! Nobody waits for a time to pass: every wait names what it waits for, and says so when it gives up.

use std::future::Future;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look.
const TICK: Duration = Duration::from_millis(10);

/// Looks until there is an answer.
///
/// # Panics
/// When there is none within [`PATIENCE`].
pub async fn until<T, F, Fut>(what: &str, look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    match within(PATIENCE, look).await {
        Some(found) => found,
        None => panic!("waited {PATIENCE:?} for this: {what}"),
    }
}

/// Looks until there is an answer or the time is over.
pub async fn within<T, F, Fut>(limit: Duration, mut look: F) -> Option<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return Some(found);
        }
        if begun.elapsed() >= limit {
            return None;
        }
        tokio::time::sleep(TICK).await;
    }
}
