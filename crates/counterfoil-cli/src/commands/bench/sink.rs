//! A destination that only counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::message::MessageId;
use counterfoil_core::{Capabilities, Delivery, Destination, Outcome};

/// Takes everything at once and remembers when.
#[derive(Default)]
pub(super) struct Sink {
    delivered: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    first: Option<Instant>,
    last: Option<Instant>,
    /// When each message arrived, while somebody wants to know.
    arrived: Option<HashMap<MessageId, Instant>>,
}

impl Sink {
    /// How many have arrived.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Acquire)
    }

    /// From the first arrival to the last.
    pub(super) fn span(&self) -> Duration {
        let state = self.state();
        state
            .last
            .zip(state.first)
            .map(|(last, first)| last - first)
            .unwrap_or_default()
    }

    /// From now on, when each message arrives is remembered.
    pub(super) fn watch(&self) {
        self.state().arrived = Some(HashMap::new());
    }

    /// When each message arrived since [`Sink::watch`].
    pub(super) fn arrived(&self) -> HashMap<MessageId, Instant> {
        self.state().arrived.take().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Destination for Sink {
    fn describe(&self) -> String {
        "nowhere".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 1_000,
            concurrency: 4,
            timeout: None,
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let now = Instant::now();
        let mut state = self.state();
        state.first.get_or_insert(now);
        state.last = Some(now);
        if let Some(arrived) = &mut state.arrived {
            arrived.extend(batch.iter().map(|delivery| (delivery.id, now)));
        }
        drop(state);
        self.delivered
            .fetch_add(batch.len() as u64, Ordering::Release);
        vec![Outcome::Stored; batch.len()]
    }
}
