//! What is known of whole queues, and what is removed when it is over.

use std::time::Duration;

use counterfoil_core::store::{Result, Retention};

use crate::{MysqlStore, classify, json, micros, text};

impl MysqlStore {
    pub(crate) async fn paused_queues(&self) -> Result<Vec<String>> {
        let paused: Vec<(Vec<u8>,)> =
            sqlx::query_as("SELECT queue FROM counterfoil_queues WHERE paused_at IS NOT NULL")
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        Ok(paused.iter().map(|(queue,)| text(queue)).collect())
    }

    /// The first reason stays. Assignments are made from left to right, so the time comes last.
    pub(crate) async fn stop_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        sqlx::query(
            "INSERT INTO counterfoil_queues (queue, paused_at, paused_reason, paused_by)
             VALUES (?, UTC_TIMESTAMP(6), ?, ?)
             ON DUPLICATE KEY UPDATE
                 paused_reason = IF(paused_at IS NULL, ?, paused_reason),
                 paused_by = IF(paused_at IS NULL, ?, paused_by),
                 paused_at = COALESCE(paused_at, UTC_TIMESTAMP(6))",
        )
        .bind(queue.as_bytes())
        .bind(reason)
        .bind(by)
        .bind(reason)
        .bind(by)
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn start_queue(&self, queue: &str) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE counterfoil_queues SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
             WHERE queue = ? AND paused_at IS NOT NULL",
        )
        .bind(queue.as_bytes())
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    pub(crate) async fn available(&self, queue: &str) -> Result<()> {
        sqlx::query("UPDATE counterfoil_queues SET unavailable_since = NULL WHERE queue = ?")
            .bind(queue.as_bytes())
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn unavailable(&self, queue: &str) -> Result<Duration> {
        sqlx::query(
            "INSERT INTO counterfoil_queues (queue, unavailable_since) VALUES (?, UTC_TIMESTAMP(6))
             ON DUPLICATE KEY UPDATE unavailable_since = COALESCE(unavailable_since, UTC_TIMESTAMP(6))",
        )
        .bind(queue.as_bytes())
        .execute(self.pool())
        .await
        .map_err(classify)?;
        let (since,): (Option<i64>,) = sqlx::query_as(
            "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, unavailable_since, UTC_TIMESTAMP(6)))
             FROM counterfoil_queues WHERE queue = ?",
        )
        .bind(queue.as_bytes())
        .fetch_one(self.pool())
        .await
        .map_err(classify)?;
        Ok(Duration::from_micros(
            since.unwrap_or(0).max(0).cast_unsigned(),
        ))
    }

    /// Looks first and deletes by key: a sweep never stands in anybody's way.
    pub(crate) async fn remove_old(&self, retention: &Retention) -> Result<u64> {
        let batch = i64::from(retention.batch);
        let mut removed = 0;
        let old = self.older(
            "SELECT seq FROM counterfoil_history
             WHERE ended_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY ended_at LIMIT ?",
            retention.history,
            batch,
        );
        removed += self
            .delete(
                "DELETE h FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) j
                 STRAIGHT_JOIN counterfoil_history h FORCE INDEX (PRIMARY) ON h.seq = j.seq",
                json(&old.await?)?,
            )
            .await?;
        let old = self.older(
            include_str!("../sql/sweep_events.sql"),
            retention.history.max(retention.ledger),
            batch,
        );
        removed += self
            .delete(
                "DELETE e FROM JSON_TABLE(?, '$[*]' COLUMNS (n BIGINT PATH '$')) j
                 STRAIGHT_JOIN counterfoil_events e FORCE INDEX (PRIMARY) ON e.n = j.n",
                json(&old.await?)?,
            )
            .await?;
        Ok(removed + self.sweep_ledger(retention.ledger, batch).await?)
    }

    async fn sweep_ledger(&self, age: Duration, batch: i64) -> Result<u64> {
        let old: Vec<(Vec<u8>, Vec<u8>)> = sqlx::query_as(
            "SELECT scope, name FROM counterfoil_ledger
             WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY created_at LIMIT ?",
        )
        .bind(micros(age))
        .bind(batch)
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let mut keys: Vec<(String, String)> = old.iter().map(|(s, n)| (text(s), text(n))).collect();
        keys.sort_unstable();
        self.delete(include_str!("../sql/sweep_ledger.sql"), json(&keys)?)
            .await
    }

    async fn older(&self, sql: &'static str, age: Duration, batch: i64) -> Result<Vec<i64>> {
        let found: Vec<(i64,)> = sqlx::query_as(sql)
            .bind(micros(age))
            .bind(batch)
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let mut keys: Vec<i64> = found.into_iter().map(|f| f.0).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    async fn delete(&self, sql: &'static str, keys: String) -> Result<u64> {
        if keys == "[]" {
            return Ok(0);
        }
        let done = sqlx::query(sql)
            .bind(keys)
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(done.rows_affected())
    }
}
