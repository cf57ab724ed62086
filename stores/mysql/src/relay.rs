//! The engine's side.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::mark::Horizon;
use counterfoil_core::message::Aggregate;
use counterfoil_core::presence::ConsumerReport;
use counterfoil_core::row::RowKey;
use counterfoil_core::schema;
use counterfoil_core::store::{
    Enqueued, Fence, Held, Kept, Keyed, LaneCursor, Occupied, Read, RelayId, Remember, Result,
    Retention, Runnable, Settled, Settlement, ShardRef, Store, Survey, Taken, Waiting, Wake, Want,
};

use crate::rows::Sorted;
use crate::{MIGRATIONS, MysqlStore, SHARDS, classify, enqueue};

#[async_trait]
impl Store for MysqlStore {
    fn describe(&self) -> String {
        self.place()
    }

    fn shards(&self) -> u16 {
        SHARDS
    }

    fn hang_up(&self) {
        self.inner.trust.hang_up();
    }

    async fn check(&self) -> Result<()> {
        self.check_server().await?;
        self.check_settings().await?;
        schema::judge(MIGRATIONS, self.applied().await?)
    }

    async fn migrate(&self) -> Result<()> {
        self.run_migrations().await
    }

    async fn join(&self, relay: &RelayId, queues: &[Arc<str>], lease: Duration) -> Result<()> {
        self.add_relay(relay, queues, lease).await
    }

    async fn heartbeat(&self, relay: &RelayId, lease: Duration) -> Result<bool> {
        self.prolong(relay, lease).await
    }

    async fn survey(&self, _relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey> {
        self.look_around(queues).await
    }

    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        self.note_consumer(report).await
    }

    async fn forget_consumer(&self, member: &RelayId) -> Result<()> {
        self.drop_consumer(member).await
    }

    async fn members(&self) -> Result<Vec<RelayId>> {
        self.live_names().await
    }

    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>> {
        self.take_shards(relay, wanted).await
    }

    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        self.give_shards(relay, given).await
    }

    async fn leave(&self, relay: &RelayId) -> Result<()> {
        self.remove_relay(relay).await
    }

    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        let Sorted { rows, reach } = self.read_new(wants, skip).await?;
        Ok(Read {
            rows,
            reach,
            horizon: Horizon::Unknown,
        })
    }

    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        Ok(Waiting {
            rows: self.read_due(wants, skip).await?,
            paused: self.paused_queues().await?,
        })
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
        self.find_runnable(wants, from, at_most).await
    }

    async fn occupied(&self) -> Result<Occupied> {
        self.find_occupied().await
    }

    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        self.count_crash(fence, row).await
    }

    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        self.apply(fence, settlement).await
    }

    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>> {
        let mut tx = self.begin().await?;
        let answers = enqueue::insert_batch(&mut tx, messages).await?;
        tx.commit().await?;
        Ok(answers)
    }

    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>> {
        if unavailable {
            self.unavailable(queue).await.map(Some)
        } else {
            self.available(queue).await.map(|()| None)
        }
    }

    async fn breakers(&self) -> Result<Vec<Kept>> {
        self.kept_breakers().await
    }

    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        self.keep_breaker(destination, what).await
    }

    async fn look_again(&self, limit: u32) -> Result<u64> {
        let done = sqlx::query(include_str!("../sql/look_again.sql"))
            .bind(i64::from(limit))
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(done.rows_affected())
    }

    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        self.stop_queue(queue, reason, by).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64> {
        self.remove_old(retention).await
    }

    /// There is nothing to wake others with: they poll.
    async fn announce(&self) -> Result<()> {
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Wake>>> {
        Ok(None)
    }
}
