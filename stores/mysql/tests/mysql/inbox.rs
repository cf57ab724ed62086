//! The conformance suite of the inbox on MySQL or MariaDB.

use async_trait::async_trait;
use counterfoil_core::inbox::{Admitted, Deferred, Keep, Mode, Redriven};
use counterfoil_core::message::Aggregate;
use counterfoil_core::store::Result;
use counterfoil_mysql::{classify, inbox};
use counterfoil_testkit::inbox::harness::InboxHarness;
use sqlx::{AssertSqlSafe, MySql, Transaction};

use super::harness::MysqlHarness;

counterfoil_testkit::inbox_suite!(MysqlHarness);

type Tx = Transaction<'static, MySql>;

#[async_trait]
impl InboxHarness for MysqlHarness {
    async fn prepare(&self) {
        self.run(
            "CREATE TABLE business (id BIGINT PRIMARY KEY) ENGINE = InnoDB;
             CREATE TABLE account (id INT PRIMARY KEY, value INT) ENGINE = InnoDB;
             INSERT INTO account VALUES (1, 0), (2, 0)",
        )
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
        sqlx::query("INSERT INTO business (id) VALUES (?)")
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

    /// A deadlock: both hold one row and want the other's. The server ends the one that has written
    /// less, so the other one writes much.
    async fn swallow(&self, tx: &mut Tx) {
        let mut heavy = self.pool.begin().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO account SELECT seq, 0 FROM (
                 WITH RECURSIVE n (seq) AS (SELECT 1000 UNION ALL SELECT seq + 1 FROM n WHERE seq < 1400)
                 SELECT seq FROM n) many",
        )
        .execute(&mut *heavy)
        .await
        .unwrap();
        let set = "UPDATE account SET value = value + 1 WHERE id = ";
        let one = |n: i32| AssertSqlSafe(format!("{set}{n}"));
        sqlx::raw_sql(one(1)).execute(&mut *heavy).await.unwrap();
        sqlx::raw_sql(one(2)).execute(&mut **tx).await.unwrap();
        let (mine, theirs) = tokio::join!(
            sqlx::raw_sql(one(1)).execute(&mut **tx),
            sqlx::raw_sql(one(2)).execute(&mut *heavy)
        );
        assert!(mine.is_err(), "no deadlock");
        theirs.unwrap();
        heavy.rollback().await.unwrap();
    }

    async fn age_inbox(&self, days: u32) {
        self.run(format!(
            "UPDATE counterfoil_inbox SET processed_at = processed_at - INTERVAL {days} DAY;
             UPDATE counterfoil_inbox_lanes SET touched = touched - INTERVAL {days} DAY"
        ))
        .await;
    }
}
