//! What is known of whole queues, and what is removed when it is over.

use std::time::Duration;

use counterfoil_core::desk::{Event, HISTORY_PAGE};
use counterfoil_core::span::micros;
use counterfoil_core::store::{Result, Retention};
use sqlx::mysql::MySqlRow;

use crate::{MysqlStore, classify, json, listing, settle, text};

impl MysqlStore {
    pub(crate) async fn paused_queues(&self) -> Result<Vec<String>> {
        let paused: Vec<(Vec<u8>,)> =
            sqlx::query_as("SELECT queue FROM counterfoil_queues WHERE paused_at IS NOT NULL")
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        Ok(paused.iter().map(|(queue,)| text(queue)).collect())
    }

    /// The first reason stays.
    pub(crate) async fn stop_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "INSERT INTO counterfoil_queues (queue) VALUES (?) ON DUPLICATE KEY UPDATE unavailable_since = unavailable_since",
        )
        .bind(queue.as_bytes())
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        let done = sqlx::query(
            "UPDATE counterfoil_queues SET paused_at = UTC_TIMESTAMP(6), paused_reason = ?, paused_by = ?
             WHERE queue = ? AND paused_at IS NULL",
        )
        .bind(reason)
        .bind(by)
        .bind(queue.as_bytes())
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        if done.rows_affected() == 1 {
            let line = (0, queue.to_owned(), None, None, Some(reason));
            settle::tell(&mut tx, "paused", by, &[line]).await?;
        }
        tx.commit().await
    }

    pub(crate) async fn start_queue(&self, queue: &str, by: &str) -> Result<bool> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "UPDATE counterfoil_queues SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
             WHERE queue = ? AND paused_at IS NOT NULL",
        )
        .bind(queue.as_bytes())
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        let resumed = done.rows_affected() == 1;
        if resumed {
            let line = (0, queue.to_owned(), None, None, None);
            settle::tell(&mut tx, "resumed", by, &[line]).await?;
        }
        tx.commit().await?;
        Ok(resumed)
    }

    pub(crate) async fn note_line(
        &self,
        subject: &str,
        kind: &str,
        detail: &str,
        by: &str,
    ) -> Result<()> {
        let mut tx = self.begin().await?;
        let line = (0, subject.to_owned(), None, None, Some(detail));
        settle::tell(&mut tx, kind, by, &[line]).await?;
        tx.commit().await
    }

    /// Events of queues have the number zero.
    pub(crate) async fn queue_story(&self, queue: &str) -> Result<Vec<Event>> {
        let lines: Vec<MySqlRow> = sqlx::query(
            "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at), kind, attempt, code, detail, actor
             FROM counterfoil_events WHERE seq = 0 AND CAST(id AS BINARY) = ? ORDER BY n DESC LIMIT ?",
        )
        .bind(queue.as_bytes())
        .bind(i64::from(HISTORY_PAGE))
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let oldest_first = lines.iter().rev().map(listing::event);
        oldest_first.collect::<sqlx::Result<_>>().map_err(classify)
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
        removed += self.sweep_parked(retention.parked, batch).await?;
        Ok(removed + self.sweep_ledger(retention.ledger, batch).await?)
    }

    /// What was delivered after a redrive, or ignored, goes with its events.
    async fn sweep_parked(&self, age: Duration, batch: i64) -> Result<u64> {
        let old = self.older(
            "SELECT seq FROM counterfoil_parked
             WHERE state IN ('delivered', 'ignored') AND updated_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
             ORDER BY updated_at LIMIT ?",
            age,
            batch,
        );
        let old = json(&old.await?)?;
        // It may have been redriven since.
        let removed = self
            .delete(
                "DELETE p FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) j
                 STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
                 WHERE p.state IN ('delivered', 'ignored')",
                old.clone(),
            )
            .await?;
        // A kill between the two leaves the events to the sweep of events.
        self.delete(include_str!("../sql/sweep_story.sql"), old)
            .await?;
        Ok(removed)
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
