//! The engine's side.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::Code;
use counterfoil_core::desk::Event;
use counterfoil_core::fit::{self, Fit, Found};
use counterfoil_core::mark::{Horizon, Reach};
use counterfoil_core::message::Aggregate;
use counterfoil_core::presence::ConsumerReport;
use counterfoil_core::row::{RawRow, RowKey, RowState};
use counterfoil_core::store::{
    Enqueued, Fence, Held, Kept, Keyed, LaneCursor, Occupied, Read, RelayId, Remember, Result,
    Retention, Runnable, Settled, Settlement, ShardRef, Store, Survey, Taken, Waiting, Wake, Want,
};
use tokio::sync::watch;

use super::MemoryStore;
use super::calls::Point;
use super::settle::event;
use super::state::{Row, SHARDS};

fn fitting(rows: Vec<RawRow>, bytes: usize) -> Fit {
    let found = rows.into_iter().map(|row| Found {
        row,
        left_out: None,
    });
    fit::fit(found, bytes)
}

#[async_trait]
impl Store for MemoryStore {
    fn describe(&self) -> String {
        "memory".into()
    }

    fn shards(&self) -> u16 {
        SHARDS
    }

    async fn check(&self) -> Result<()> {
        self.begin_call("check").await?;
        Ok(())
    }

    async fn migrate(&self) -> Result<()> {
        self.begin_call("migrate").await?;
        Ok(())
    }

    async fn join(&self, relay: &RelayId, queues: &[Arc<str>], lease: Duration) -> Result<()> {
        self.begin_call("join").await?;
        self.lock().join(relay, queues, lease, self.clock().now());
        Ok(())
    }

    async fn heartbeat(&self, relay: &RelayId, lease: Duration) -> Result<bool> {
        self.begin_call("heartbeat").await?;
        Ok(self.lock().heartbeat(relay, lease, self.clock().now()))
    }

    async fn survey(&self, _relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey> {
        self.begin_call("survey").await?;
        let survey = self.lock().survey(queues, self.clock().now());
        self.pass("survey", Point::After).await;
        Ok(survey)
    }

    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        self.begin_call("report_consumer").await?;
        self.lock().report(report, self.clock().now());
        Ok(())
    }

    async fn forget_consumer(&self, member: &RelayId) -> Result<()> {
        self.begin_call("forget_consumer").await?;
        self.lock().consumers.remove(member);
        Ok(())
    }

    async fn members(&self) -> Result<Vec<RelayId>> {
        self.begin_call("members").await?;
        let survey = self.lock().survey(&[], self.clock().now());
        Ok(survey.members.into_iter().map(|m| m.0).collect())
    }

    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>> {
        self.begin_call("take").await?;
        Ok(self.lock().take(relay, wanted, self.clock().now()))
    }

    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        self.begin_call("give").await?;
        self.lock().give(relay, given);
        Ok(())
    }

    async fn leave(&self, relay: &RelayId) -> Result<()> {
        self.begin_call("leave").await?;
        self.lock().leave(relay);
        Ok(())
    }

    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        self.begin_call("read").await?;
        let (state, now) = (self.lock(), self.clock().now());
        let (mut rows, mut reach) = (Vec::new(), Vec::new());
        for want in wants {
            let found = fitting(state.read(want, skip, now), want.bytes);
            reach.push(match Reach::of(found.rows.len(), want.limit) {
                _ if state.paused(want.queue) => Reach::Paused,
                _ if found.cut => Reach::Limit,
                reach => reach,
            });
            rows.push(found.rows);
        }
        Ok(Read {
            rows,
            reach,
            horizon: Horizon::Below(state.horizon()),
        })
    }

    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        self.begin_call("read_waiting").await?;
        let (state, now) = (self.lock(), self.clock().now());
        let paused = state.queues.iter().filter(|(_, q)| q.paused.is_some());
        Ok(Waiting {
            rows: wants
                .iter()
                .map(|want| fitting(state.read_waiting(want, skip, now), want.bytes).rows)
                .collect(),
            paused: paused.map(|(name, _)| name.clone()).collect(),
        })
    }

    async fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        self.begin_call("read_lanes").await?;
        let found = fitting(self.lock().read_lanes(queue, lanes, per_lane), bytes);
        Ok(Held {
            rows: found.rows,
            cut: found.cut,
        })
    }

    async fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        self.begin_call("runnable_lanes").await?;
        Ok(self.lock().runnable_lanes(wants, from, at_most))
    }

    async fn occupied(&self) -> Result<Occupied> {
        self.begin_call("occupied").await?;
        Ok(self.lock().occupied(self.clock().now()))
    }

    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        self.begin_call("suspect").await?;
        let mut state = self.lock();
        let held = state.holding(fence);
        let row = state.row_mut(row).filter(|row| held.contains(row.shard()));
        Ok(row.map(|row| {
            row.crashes += 1;
            row.crashes
        }))
    }

    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        self.begin_call("settle").await?;
        if let Some(refusal) = &mut *self.refusal()
            && let Some(error) = (refusal.0)(settlement)
        {
            return Err(error);
        }
        Ok(self.lock().settle(fence, settlement, self.clock().now()))
    }

    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>> {
        self.begin_call("enqueue").await?;
        let mut tx = self.begin();
        let mut answers = Vec::with_capacity(messages.len());
        for keyed in messages {
            answers.push(tx.enqueue_keyed(keyed).await?);
        }
        tx.commit().await?;
        Ok(answers)
    }

    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>> {
        self.begin_call("note_unavailable").await?;
        let (mut state, now) = (self.lock(), self.clock().now());
        let noted = &mut state
            .queues
            .entry(queue.to_owned())
            .or_default()
            .unavailable_since;
        if !unavailable {
            *noted = None;
            return Ok(None);
        }
        let since = *noted.get_or_insert(now);
        Ok(Some((now - since).to_std().unwrap_or_default()))
    }

    async fn breakers(&self) -> Result<Vec<Kept>> {
        self.begin_call("breakers").await?;
        Ok(self.lock().breakers.values().cloned().collect())
    }

    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        self.begin_call("remember_breaker").await?;
        let mut state = self.lock();
        let kept = state.breakers.entry(destination.to_owned()).or_default();
        kept.destination = destination.to_owned();
        match what {
            Remember::Forced { forced, by } => {
                kept.snapshot.forced = *forced;
                kept.by = Some(by.clone());
            }
            Remember::Open {
                until,
                open_for,
                outage,
            } => {
                kept.outage.clone_from(outage);
                kept.snapshot.open_until = *until;
                kept.snapshot.open_for = *open_for;
            }
        }
        Ok(())
    }

    async fn look_again(&self, limit: u32) -> Result<u64> {
        self.begin_call("look_again").await?;
        let (mut state, now) = (self.lock(), self.clock().now());
        let unwanted = |row: &&mut Row| {
            row.queue().is_empty()
                && row.state == RowState::Scheduled
                && row.code.as_deref() == Some(Code::NO_ROUTE.as_str())
                && row.available_at.is_some_and(|at| at > now)
        };
        let some = state.outbox.values_mut().filter(unwanted);
        let changed = some
            .take(limit as usize)
            .map(|row| row.available_at = Some(now));
        Ok(changed.count() as u64)
    }

    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        self.begin_call("pause").await?;
        let (mut state, now) = (self.lock(), self.clock().now());
        let paused = &mut state.queues.entry(queue.to_owned()).or_default().paused;
        if paused.is_none() {
            *paused = Some((reason.to_owned(), by.to_owned()));
            let event = Event {
                detail: Some(reason.to_owned()),
                ..event("paused", by, now)
            };
            state.queue_events.push((queue.to_owned(), event));
        }
        Ok(())
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64> {
        self.begin_call("sweep").await?;
        Ok(self.lock().sweep(retention, self.clock().now()))
    }

    async fn announce(&self) -> Result<()> {
        self.begin_call("announce").await?;
        self.inner.committed.send_modify(|n| *n += 1);
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Wake>>> {
        self.begin_call("listen").await?;
        Ok(Some(Box::new(Listener(self.inner.committed.subscribe()))))
    }
}

struct Listener(watch::Receiver<u64>);

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) -> Result<()> {
        if self.0.changed().await.is_err() {
            // The store is gone: nothing will ever be committed.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}
