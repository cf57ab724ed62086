//! The suite's keys to the memory store: the shortest example of a harness.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use counterfoil_core::BoxError;
use counterfoil_core::desk::Desk;
use counterfoil_core::message::{Message, MessageId};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Enqueued, Keyed, RelayId, Result, Store};

use super::clock::span;
use super::state::{Columns, Ended};
use super::{MemoryStore, MemoryTx, Savepoint};
use crate::harness::{Due, Fault, ForeignRow, Harness};

/// A memory store under test.
#[derive(Debug)]
pub struct MemoryHarness {
    store: MemoryStore,
    savepoint: Mutex<Option<Savepoint>>,
}

#[async_trait]
impl Harness for MemoryHarness {
    type Tx = MemoryTx;

    async fn fresh() -> Option<Self> {
        Some(Self {
            store: MemoryStore::new(),
            savepoint: Mutex::new(None),
        })
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn desk(&self) -> Arc<dyn Desk> {
        Arc::new(self.store.clone())
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        self.store()
    }

    async fn begin(&self) -> MemoryTx {
        self.store.begin()
    }

    async fn enqueue(&self, tx: &mut MemoryTx, messages: &[Message]) -> Result<()> {
        tx.enqueue(messages).await
    }

    async fn enqueue_keyed(&self, tx: &mut MemoryTx, keyed: &Keyed) -> Result<Enqueued> {
        tx.enqueue_keyed(keyed).await
    }

    async fn foreign(&self, tx: &mut MemoryTx, row: &ForeignRow) -> Result<(), BoxError> {
        let default_id = (!row.nulls).then(|| MessageId::new().to_string());
        let columns = Columns {
            id: row.id.clone().or(default_id),
            queue: row.queue.clone(),
            aggregate_type: row.aggregate_type.clone(),
            aggregate_id: row.aggregate_id.clone(),
            version: row.version,
            event_type: row.event_type.clone(),
            payload: row.payload.clone(),
            payload_bin: row.payload_bin.clone(),
            headers: row.headers.clone(),
        };
        let now = self.store.clock().now();
        tx.insert(columns, |inserted| {
            inserted.state = RowState::parse(row.state.as_deref());
            inserted.attempts = row.attempts.unwrap_or(0);
            inserted.available_at = row.available_at.map(|due| moment(due, now));
        });
        Ok(())
    }

    async fn savepoint(&self, tx: &mut MemoryTx) {
        *self.savepoint.lock().unwrap() = Some(tx.savepoint());
    }

    async fn rollback_to(&self, tx: &mut MemoryTx) {
        let savepoint = self
            .savepoint
            .lock()
            .unwrap()
            .expect("no savepoint was set");
        tx.rollback_to(savepoint);
    }

    async fn commit(&self, tx: MemoryTx) -> Result<()> {
        tx.commit().await
    }

    async fn rollback(&self, tx: MemoryTx) {
        tx.rollback();
    }

    async fn make_due(&self) {
        for row in self
            .store
            .lock()
            .outbox
            .values_mut()
            .filter(|row| row.waits())
        {
            row.available_at = row.available_at.map(|at| at - TimeDelta::days(1));
        }
    }

    async fn expire_lease(&self, relay: &RelayId) {
        let now = self.store.clock().now();
        if let Some(member) = self.store.lock().relays.get_mut(relay) {
            member.lease_until = now - TimeDelta::seconds(1);
        }
    }

    async fn age_history(&self, by: Duration) {
        let mut state = self.store.lock();
        state.history.values_mut().for_each(|e| e.at -= span(by));
        state
            .ledger
            .values_mut()
            .for_each(|e| e.created_at -= span(by));
        state.events.iter_mut().for_each(|(_, e)| e.at -= span(by));
        let of_queues = state.queue_events.iter_mut();
        of_queues.for_each(|(_, e)| e.at -= span(by));
        state
            .parked
            .values_mut()
            .for_each(|p| p.updated_at -= span(by));
    }

    async fn corrupt(&self, fault: &Fault) -> bool {
        let at = self.store.clock().now();
        let mut state = self.store.lock();
        match fault {
            Fault::AlsoInHistory(seq) => {
                let row = state.outbox[seq].clone();
                state.history.insert(
                    *seq,
                    Ended {
                        row,
                        state: "sent",
                        detail: None,
                        at,
                    },
                );
            }
            Fault::RowVanishes(seq) => {
                state.outbox.remove(seq);
            }
            Fault::NumberComesBack { seq, id } => match state.outbox.get_mut(seq) {
                Some(row) => row.columns.id = Some(id.clone()),
                None => return false,
            },
        }
        true
    }
}

fn moment(due: Due, now: DateTime<Utc>) -> DateTime<Utc> {
    match due {
        Due::Now => now,
        Due::Past => now - TimeDelta::days(3_653),
        Due::FarFuture => Utc.with_ymd_and_hms(9999, 12, 31, 23, 59, 59).unwrap(),
        Due::Earliest => DateTime::<Utc>::MIN_UTC,
        Due::Latest => DateTime::<Utc>::MAX_UTC,
    }
}
