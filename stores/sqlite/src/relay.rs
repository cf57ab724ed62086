//! The engine's side: ownership, reading, settling.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::message::Aggregate;
use counterfoil_core::presence::ConsumerReport;
use counterfoil_core::row::RowKey;
use counterfoil_core::schema;
use counterfoil_core::span::millis;
use counterfoil_core::store::{
    Enqueued, Fence, Held, Kept, Keyed, LaneCursor, Occupied, Read, RelayId, Remember, Result,
    Retention, Runnable, Settled, Settlement, ShardRef, Store, Survey, Taken, Waiting, Wake, Want,
};

use crate::desk::note_queue;
use crate::settle::{array, check_fence, missing, run};
use crate::{MIGRATIONS, SHARDS, SqliteStore, classify, enqueue, rows, wake};

#[async_trait]
impl Store for SqliteStore {
    fn describe(&self) -> String {
        format!("SQLite at {}", self.path().display())
    }

    fn shards(&self) -> u16 {
        SHARDS
    }

    async fn check(&self) -> Result<()> {
        self.check_library().await?;
        self.check_journal().await?;
        schema::judge(MIGRATIONS, self.applied().await?)
    }

    async fn migrate(&self) -> Result<()> {
        self.run_migrations().await
    }

    /// There is no lease: the relay lives as long as this handle holds its lock.
    async fn join(&self, relay: &RelayId, queues: &[Arc<str>], _lease: Duration) -> Result<()> {
        self.join_relay(relay, queues).await
    }

    /// Writes nothing, so that an idle relay costs nothing.
    async fn heartbeat(&self, relay: &RelayId, _lease: Duration) -> Result<bool> {
        let holds = self.locks().holds(relay);
        if !holds {
            // It has lost what it stood on: others, or itself under another name, may take its queues.
            self.locks().leave(relay);
        }
        Ok(holds)
    }

    async fn survey(&self, _relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey> {
        self.survey_queues(queues).await
    }

    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        self.note_consumer(report).await
    }

    async fn forget_consumer(&self, member: &RelayId) -> Result<()> {
        self.drop_consumer(member).await
    }

    async fn members(&self) -> Result<Vec<RelayId>> {
        let survey = self.survey_queues(&[]).await?;
        Ok(survey.members.into_iter().map(|m| m.0).collect())
    }

    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>> {
        self.take_queues(relay, wanted).await
    }

    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        self.give_queues(relay, given).await
    }

    async fn leave(&self, relay: &RelayId) -> Result<()> {
        self.leave_relay(relay).await
    }

    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        self.read_queues(wants, skip).await
    }

    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        self.read_due(wants, skip).await
    }

    async fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        self.read_held(queue, lanes, per_lane, bytes).await
    }

    async fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        self.find_lanes(wants, from, at_most).await
    }

    async fn occupied(&self) -> Result<Occupied> {
        self.find_occupied().await
    }

    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        let mut tx = self.write().await?;
        let (held, _) = check_fence(&mut tx, fence).await?;
        if !held.contains(0) || !missing(&mut tx, std::iter::once(row)).await?.is_empty() {
            return Ok(None);
        }
        let crashes: Option<i64> = sqlx::query_scalar(
            "UPDATE counterfoil_outbox SET crashes = coalesce(CAST(crashes AS INTEGER), 0) + 1
             WHERE seq = ?1 RETURNING crashes",
        )
        .bind(row.seq)
        .fetch_optional(&mut *tx)
        .await
        .map_err(classify)?;
        tx.commit().await?;
        Ok(crashes.map(rows::count))
    }

    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        self.settle_all(fence, settlement).await
    }

    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>> {
        messages.iter().try_for_each(enqueue::validate)?;
        let mut tx = self.write().await?;
        let mut answers = Vec::with_capacity(messages.len());
        for keyed in messages {
            answers.push(enqueue::insert_keyed(&mut tx, keyed).await?);
        }
        tx.commit().await?;
        Ok(answers)
    }

    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>> {
        let mut tx = self.write().await?;
        let since: Option<i64> = sqlx::query_scalar(if unavailable {
            "INSERT INTO counterfoil_queues (queue, unavailable_since) VALUES (?1, (SELECT ms FROM counterfoil_now))
             ON CONFLICT (queue) DO UPDATE SET unavailable_since = coalesce(unavailable_since, excluded.unavailable_since)
             RETURNING (SELECT ms FROM counterfoil_now) - unavailable_since"
        } else {
            "UPDATE counterfoil_queues SET unavailable_since = NULL WHERE queue = ?1 RETURNING NULL"
        })
        .bind(queue)
        .fetch_optional(&mut *tx)
        .await
        .map_err(classify)?
        .flatten();
        tx.commit().await?;
        Ok(since.map(|ms| Duration::from_millis(ms.max(0).cast_unsigned())))
    }

    async fn breakers(&self) -> Result<Vec<Kept>> {
        self.kept_breakers().await
    }

    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        self.keep_breaker(destination, what).await
    }

    async fn look_again(&self, limit: u32) -> Result<u64> {
        let mut tx = self.write().await?;
        let done = sqlx::query(include_str!("../sql/look_again.sql"))
            .bind(i64::from(limit))
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        let mut tx = self.write().await?;
        let done = sqlx::query(
            "INSERT INTO counterfoil_queues (queue, paused_at, paused_reason, paused_by)
             VALUES (?1, (SELECT ms FROM counterfoil_now), ?2, ?3)
             ON CONFLICT (queue) DO UPDATE
             SET paused_at = excluded.paused_at, paused_reason = excluded.paused_reason, paused_by = excluded.paused_by
             WHERE paused_at IS NULL",
        )
        .bind(queue)
        .bind(reason)
        .bind(by)
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        if done.rows_affected() == 1 {
            note_queue(&mut tx, queue, "paused", Some(reason), by).await?;
        }
        tx.commit().await
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64> {
        let (history, ledger) = (millis(retention.history), millis(retention.ledger));
        let mut tx = self.write().await?;
        let mut removed = 0;
        for (sql, age) in [
            (include_str!("../sql/sweep_history.sql"), history),
            (include_str!("../sql/sweep_ledger.sql"), ledger),
            (include_str!("../sql/sweep_events.sql"), history.max(ledger)),
        ] {
            let query = sqlx::query(sql).bind(age).bind(i64::from(retention.batch));
            removed += query
                .execute(&mut *tx)
                .await
                .map_err(classify)?
                .rows_affected();
        }
        let parked: Vec<i64> = sqlx::query_scalar(include_str!("../sql/sweep_parked.sql"))
            .bind(millis(retention.parked))
            .bind(i64::from(retention.batch))
            .fetch_all(&mut *tx)
            .await
            .map_err(classify)?;
        removed += parked.len() as u64;
        if !parked.is_empty() {
            let gone = [array(parked.into_iter())];
            run(&mut tx, include_str!("../sql/sweep_story.sql"), gone).await?;
        }
        tx.commit().await?;
        Ok(removed)
    }

    /// The commit itself is what others see.
    async fn announce(&self) -> Result<()> {
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Wake>>> {
        Ok(Some(Box::new(wake::Watch::open(self).await?)))
    }
}
