//! Which operations of the store were called, and tests that let one of them wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use counterfoil_core::message::MessageId;
use counterfoil_core::store::{Result, StoreError};
use tokio::sync::watch;

use super::MemoryStore;
use super::state::Row;

/// Where an operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before it has looked at or changed anything.
    Before,
    /// After that, before its answer comes.
    After,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    counted: Mutex<BTreeMap<&'static str, u64>>,
    held: watch::Sender<Vec<(&'static str, Point)>>,
    waiting: watch::Sender<BTreeMap<&'static str, usize>>,
    away: AtomicBool,
}

/// Lets an operation wait until this is dropped.
#[derive(Debug)]
pub struct Hold {
    store: MemoryStore,
    operation: &'static str,
    point: Point,
}

impl MemoryStore {
    /// How often an operation of [`counterfoil_core::Store`] has begun, by its name.
    pub fn calls(&self, operation: &str) -> u64 {
        self.counted().get(operation).copied().unwrap_or_default()
    }

    /// How often any operation has begun.
    pub fn all_calls(&self) -> u64 {
        self.counted().values().sum()
    }

    /// Lets every call of an operation wait at a point, until the answer to this is dropped.
    pub fn hold(&self, operation: &'static str, point: Point) -> Hold {
        let held = &self.inner.calls.held;
        held.send_modify(|held| held.push((operation, point)));
        Hold {
            store: self.clone(),
            operation,
            point,
        }
    }

    /// Nobody reaches the store until the answer to this is dropped.
    pub fn go_away(&self) -> Away {
        self.inner.calls.away.store(true, Ordering::SeqCst);
        Away(self.clone())
    }

    /// What happens when a replica that lacks these messages becomes the primary: they are gone, and
    /// their numbers are given to others.
    pub fn lose(&self, messages: &[MessageId]) {
        let mut state = self.lock();
        let lost = |row: &Row| messages.contains(&row.message_id());
        let first = state.outbox.values().find(|row| lost(row));
        if let Some(first) = first.map(|row| row.seq) {
            state.outbox.retain(|_, row| !lost(row));
            state.give_numbers_from(first);
        }
    }

    pub(super) async fn begin_call(&self, operation: &'static str) -> Result<()> {
        *self.counted().entry(operation).or_default() += 1;
        self.pass(operation, Point::Before).await;
        if self.inner.calls.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unreachable("the store is away".into()));
        }
        Ok(())
    }

    pub(super) async fn pass(&self, operation: &'static str, point: Point) {
        let calls = &self.inner.calls;
        let mut held = calls.held.subscribe();
        let free = |held: &Vec<(&'static str, Point)>| !held.contains(&(operation, point));
        if free(&held.borrow()) {
            return;
        }
        let waiting = &calls.waiting;
        waiting.send_modify(|waiting| *waiting.entry(operation).or_default() += 1);
        // The sender lives as long as the store.
        let _ = held.wait_for(free).await;
    }

    fn counted(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, u64>> {
        let counted = &self.inner.calls.counted;
        counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the store away until it is dropped.
#[derive(Debug)]
pub struct Away(MemoryStore);

impl Drop for Away {
    fn drop(&mut self) {
        self.0.inner.calls.away.store(false, Ordering::SeqCst);
    }
}

impl Hold {
    /// Waits until a call of the operation has waited somewhere, now or before.
    pub async fn reached(&self) {
        let mut waiting = self.store.inner.calls.waiting.subscribe();
        let _ = waiting
            .wait_for(|waiting| waiting.contains_key(self.operation))
            .await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let key = (self.operation, self.point);
        let held = &self.store.inner.calls.held;
        held.send_modify(|held| {
            if let Some(n) = held.iter().position(|h| *h == key) {
                held.remove(n);
            }
        });
    }
}
