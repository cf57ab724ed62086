//! What was put off, tried again: the queue of a consumer ends here.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::inbox::{Judge, Mode, Verdict};
use counterfoil_core::incoming::{Defect, Incoming};
use counterfoil_core::store::{Disposition, Result, StoreError};
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};

use super::apply::Inbox;
use super::handlers::{Called, Failure, Way, call};
use crate::database::Database;
use crate::tx::Slot;

/// How often one message is tried again at once when a lock stood in its way.
const BUSY_TRIES: u32 = 3;

pub(super) struct Again<D: Database> {
    pub(super) inbox: Arc<Inbox<D>>,
    pub(super) concurrency: usize,
}

#[async_trait]
impl<D: Database> Destination for Again<D> {
    fn describe(&self) -> String {
        format!("consumer {}", self.inbox.name)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::single(self.concurrency, None)
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            outcomes.push(self.offer(delivery).await);
        }
        outcomes
    }
}

impl<D: Database> Again<D> {
    async fn offer(&self, delivery: &Delivery) -> Outcome {
        let incoming = Incoming::of_delivery(delivery);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.once(delivery, &incoming).await {
                Ok(outcome) => return outcome,
                Err(StoreError::Busy(_)) if tries < BUSY_TRIES => {}
                Err(error) => {
                    let error = error.one_line();
                    return Outcome::Unavailable { error };
                }
            }
        }
    }

    /// One transaction. Unless it commits, it leaves nothing behind.
    async fn once(&self, delivery: &Delivery, incoming: &Incoming) -> Result<Outcome> {
        let inbox = &*self.inbox;
        let handler = match inbox.handlers.way(incoming) {
            Way::To(handler) => Some(handler),
            Way::Nowhere => None,
            Way::Wrong(defect) => return Ok(refused(defect)),
        };
        let lane = incoming.aggregate.as_ref();
        let lanes: Vec<_> = lane.into_iter().collect();
        let mut tx = D::inbox_begin(&inbox.pool).await?;
        let keys = [incoming.key.as_str()];
        let admitted = D::inbox_admit(&mut tx, &inbox.name, Mode::Retry, &keys, &lanes).await?;
        let mut judge = Judge::new(admitted);
        match judge.judge(&incoming.key, lane, incoming.version) {
            // It was committed, and the relay died before it could say so.
            Verdict::Repeat => return Ok(Outcome::Stored),
            Verdict::Stale(applied) => {
                if !D::inbox_forced(&mut tx, delivery.seq, &Code::VERSION_CONFLICT).await? {
                    return Ok(stale(incoming.version, applied));
                }
            }
            Verdict::Apply | Verdict::Behind => {}
        }
        let slot = Slot::<D>::new(Some(tx));
        if let Some(handler) = handler {
            match call(handler, &slot, incoming, inbox.timeout).await {
                Called::Done => {}
                Called::Wrong(defect) => return Ok(refused(defect)),
                Called::Failed(Failure::Store(error)) => return Err(error),
                Called::Failed(Failure::Again { code, error, after }) => {
                    return Ok(Outcome::Retry { code, error, after });
                }
                Called::Failed(Failure::Park(error)) => {
                    return Ok(Outcome::Refused {
                        code: Code::PARKED_BY_HANDLER,
                        error,
                        confirm: true,
                    });
                }
            }
        }
        judge.applied(lane, incoming.version);
        match self.commit(&slot, &judge).await {
            Ok(()) => Ok(Outcome::Stored),
            Err(error) if error.disposition() == Disposition::Retry => Err(error),
            // The handler has spoiled the transaction.
            Err(error) => Ok(Outcome::retry(Code::TASK_ERROR, error.one_line())),
        }
    }

    async fn commit(&self, slot: &Slot<D>, judge: &Judge) -> Result<()> {
        let kept = || StoreError::Doomed("a handler has kept the transaction".into());
        let mut tx = slot.take().ok_or_else(kept)?;
        D::inbox_finish(&mut tx, &self.inbox.name, &judge.risen()).await?;
        tx.commit().await.map_err(D::classify)?;
        self.inbox.outbox.nudge();
        Ok(())
    }
}

fn refused(defect: Defect) -> Outcome {
    Outcome::refused(defect.code, defect.error)
}

fn stale(version: Option<i64>, applied: i64) -> Outcome {
    let version = version.unwrap_or_default();
    Outcome::Refused {
        code: Code::VERSION_CONFLICT,
        error: format!("version {version} came after version {applied} had been applied"),
        confirm: true,
    }
}
