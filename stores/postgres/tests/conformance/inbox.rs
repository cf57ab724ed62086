//! The conformance suite of the inbox on PostgreSQL.

use async_trait::async_trait;
use counterfoil_core::inbox::{Admitted, Deferred, Keep, Mode, Redriven};
use counterfoil_core::message::Aggregate;
use counterfoil_core::store::Result;
use counterfoil_postgres::{classify, inbox};
use counterfoil_testkit::inbox::harness::InboxHarness;
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use super::{PostgresHarness, SuiteHarness};

counterfoil_testkit::inbox_suite!(PostgresHarness);

type Tx = Transaction<'static, Postgres>;

#[async_trait]
impl<const POOLED: bool> InboxHarness for SuiteHarness<POOLED> {
    async fn prepare(&self) {
        self.run("CREATE TABLE business (id bigint PRIMARY KEY)")
            .await;
    }

    async fn begin_consumer(&self) -> Result<Tx> {
        inbox::begin(&self.pool).await
    }

    async fn admit(
        &self,
        tx: &mut Tx,
        consumer: &str,
        mode: Mode,
        keys: &[&str],
        aggregates: &[&Aggregate],
    ) -> Result<Admitted> {
        inbox::admit(tx, consumer, mode, keys, aggregates).await
    }

    async fn defer(&self, tx: &mut Tx, consumer: &str, deferred: &[Deferred]) -> Result<()> {
        inbox::defer(tx, consumer, deferred).await
    }

    async fn finish(
        &self,
        tx: &mut Tx,
        consumer: &str,
        applied: &[(&Aggregate, i64)],
    ) -> Result<()> {
        inbox::finish(tx, consumer, applied).await
    }

    async fn redriven(&self, tx: &mut Tx, seq: i64) -> Result<Option<Redriven>> {
        inbox::redriven(tx, seq).await
    }

    async fn purge(&self, consumer: &str, keep: Keep, batch: u32) -> Result<u64> {
        inbox::purge(&self.pool, consumer, keep, batch).await
    }

    async fn plain_commit(&self, tx: Tx) -> Result<()> {
        tx.commit().await.map_err(classify)
    }

    async fn insert(&self, tx: &mut Tx, id: i64) -> Result<()> {
        sqlx::query("INSERT INTO business (id) VALUES ($1)")
            .bind(id)
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        Ok(())
    }

    async fn execute(&self, tx: &mut Tx, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut **tx).await.unwrap();
    }

    async fn rows(&self) -> Vec<i64> {
        sqlx::query_scalar("SELECT id FROM business ORDER BY id")
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    async fn swallow(&self, tx: &mut Tx) {
        let failed = sqlx::raw_sql("SELECT 1 / 0").execute(&mut **tx).await;
        assert!(failed.is_err());
    }

    async fn age_inbox(&self, days: u32) {
        sqlx::raw_sql(AssertSqlSafe(format!(
            "UPDATE counterfoil_inbox SET processed_at = processed_at - {days} * interval '1 day';
             UPDATE counterfoil_inbox_lanes SET touched = touched - {days}"
        )))
        .execute(&self.pool)
        .await
        .unwrap();
    }
}
