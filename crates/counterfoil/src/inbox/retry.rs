//! What was put off, tried again: the queue of a consumer ends here.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::inbox::{Judge, Mode, Verdict};
use counterfoil_core::incoming::{Defect, Incoming};
use counterfoil_core::store::{Disposition, Result, StoreError};
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};

use super::apply::{Inbox, gap};
use super::handlers::{Called, Failure, Way, call};
use crate::database::Database;
use crate::tx::Slot;

/// How often one message is tried again at once when a lock stood in its way.
const BUSY_TRIES: u32 = 3;

pub(super) struct Again<D: Database> {
    pub(super) inbox: Arc<Inbox<D>>,
    pub(super) concurrency: usize,
}

/// Why a transaction was rolled back.
enum Trouble {
    /// A statement of ours met it.
    Store(StoreError),
    /// A statement of the handler met it.
    Handler(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Trouble::Store(error)
    }
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
        let mut incoming = Incoming::of_delivery(delivery);
        let barred = incoming.defect.take_if(|defect| defect.can_be_forced());
        let mut tries = 0;
        loop {
            tries += 1;
            match self.once(delivery, &incoming, barred.as_ref()).await {
                Ok(outcome) => return outcome,
                Err(
                    Trouble::Handler(StoreError::Busy(_)) | Trouble::Store(StoreError::Busy(_)),
                ) if tries < BUSY_TRIES => {}
                // What stands in its way may stand in nobody else's.
                Err(Trouble::Handler(error) | Trouble::Store(error @ StoreError::Busy(_))) => {
                    return Outcome::Postponed {
                        code: Code::UNAVAILABLE,
                        error: error.one_line(),
                    };
                }
                Err(Trouble::Store(error)) => {
                    let error = error.one_line();
                    return Outcome::Unavailable { error };
                }
            }
        }
    }

    /// One transaction. Unless it commits, it leaves nothing behind.
    async fn once(
        &self,
        delivery: &Delivery,
        incoming: &Incoming,
        barred: Option<&Defect>,
    ) -> std::result::Result<Outcome, Trouble> {
        let inbox = &*self.inbox;
        let handler = match (inbox.handlers.way(incoming), barred) {
            (Way::To(handler), _) => Ok(Some(handler)),
            (Way::Nowhere, _) => Ok(None),
            (Way::Wrong(defect), Some(_)) => Err(defect),
            (Way::Wrong(defect), None) => return Ok(refused(defect)),
        };
        let lane = incoming.aggregate.as_ref();
        let lanes: Vec<_> = lane.into_iter().collect();
        let mut tx = D::inbox_begin(&inbox.pool).await?;
        let keys = [incoming.key.as_str()];
        let admitted = D::inbox_admit(&mut tx, &inbox.name, Mode::Retry, &keys, &lanes).await?;
        let mut judge = Judge::new(admitted, inbox.versions);
        let verdict = judge.judge(&incoming.key, lane, incoming.version);
        let asked = barred.is_some() || matches!(verdict, Verdict::Stale(_) | Verdict::Gap(_));
        let redriven = match asked {
            true => D::inbox_redriven(&mut tx, delivery.seq).await?,
            false => None,
        };
        let forced = |code| redriven.as_ref().is_some_and(|r| r.forces(code));
        if let (Some(defect), None) = (barred, &redriven)
            && verdict != Verdict::Repeat
        {
            return Ok(parked(defect.code.clone(), defect.error.clone()));
        }
        let handler = match handler {
            Ok(handler) => handler,
            Err(defect) => return Ok(refused(defect)),
        };
        match verdict {
            // It was committed, and the relay died before it could say so.
            Verdict::Repeat => return Ok(Outcome::Stored),
            Verdict::Gap(missing) if !forced(&Code::VERSION_GAP) => {
                return Ok(Outcome::retry(Code::VERSION_GAP, gap(missing)));
            }
            Verdict::Stale(applied) if !forced(&Code::VERSION_CONFLICT) => {
                return Ok(stale(incoming.version, applied));
            }
            _ => {}
        }
        let slot = Slot::<D>::new(Some(tx));
        if let Some(handler) = handler {
            match call(handler, &slot, incoming, inbox.timeout).await {
                Called::Done => {}
                Called::Wrong(defect) => return Ok(refused(defect)),
                Called::Failed(Failure::Store(error)) => return Err(Trouble::Handler(error)),
                Called::Failed(Failure::Again { code, error, after }) => {
                    return Ok(Outcome::Retry { code, error, after });
                }
                Called::Failed(Failure::Park(error)) => {
                    return Ok(parked(Code::PARKED_BY_HANDLER, error));
                }
            }
        }
        judge.applied(lane, incoming.version);
        match self.commit(&slot, &judge).await {
            Ok(()) => Ok(Outcome::Stored),
            Err(error) if error.disposition() == Disposition::Retry => Err(error.into()),
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
    let error = format!("version {version} came after version {applied} had been applied");
    parked(Code::VERSION_CONFLICT, error)
}

/// Until a person lets it pass.
fn parked(code: Code, error: String) -> Outcome {
    Outcome::Refused {
        code,
        error,
        confirm: true,
    }
}
