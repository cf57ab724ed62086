//! Figures of queues.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil_core::desk::QueueStats;
use counterfoil_core::store::Result;

use crate::rows::instant;
use crate::{MysqlStore, classify, text};

type Queues = BTreeMap<String, QueueStats>;

impl MysqlStore {
    /// Several looks, not one snapshot: each figure is right by itself.
    pub(crate) async fn count_queues(&self) -> Result<Vec<QueueStats>> {
        let mut queues = Queues::new();
        self.count_pending(&mut queues).await?;
        self.count_over(&mut queues).await?;
        self.note_pauses(&mut queues).await?;
        for (_, served) in self.live_relays().await? {
            for queue in served {
                of(&mut queues, queue).relays += 1;
            }
        }
        Ok(queues.into_values().collect())
    }

    async fn count_pending(&self, queues: &mut Queues) -> Result<()> {
        let rows: Vec<(Vec<u8>, i8, i64, Option<i64>)> =
            sqlx::query_as(include_str!("../sql/stats_pending.sql"))
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        for (queue, standing, count, age) in rows {
            let stats = of(queues, text(&queue));
            let count = count.cast_unsigned();
            match standing {
                1 => stats.scheduled = count,
                2 => stats.retrying = count,
                3 => stats.held = count,
                _ => stats.new = count,
            }
            if let Some(age) = age.filter(|_| standing != 1) {
                let seconds = Duration::from_micros(age.max(0).cast_unsigned()).as_secs_f64();
                stats.oldest_seconds =
                    Some(stats.oldest_seconds.map_or(seconds, |s| s.max(seconds)));
            }
        }
        let (unrouted,): (i64,) = sqlx::query_as(
            "SELECT COUNT(*) FROM counterfoil_outbox WHERE queue_key = '' AND waiting = 1 AND code = 'NO_ROUTE'",
        )
        .fetch_one(self.pool())
        .await
        .map_err(classify)?;
        if let Some(stats) = queues.get_mut("") {
            stats.no_route = unrouted.cast_unsigned();
        }
        Ok(())
    }

    async fn count_over(&self, queues: &mut Queues) -> Result<()> {
        let parked: Vec<(Vec<u8>, i64)> = sqlx::query_as(
            "SELECT queue_key, COUNT(*) FROM counterfoil_parked WHERE state = 'pending' GROUP BY queue_key",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        for (queue, count) in parked {
            of(queues, text(&queue)).parked = count.cast_unsigned();
        }
        let kept: Vec<(Vec<u8>, i64)> = sqlx::query_as(
            "SELECT h.queue_key, COUNT(*)
             FROM (SELECT LEFT(CAST(queue AS BINARY), 256) AS queue_key FROM counterfoil_history WHERE state = 'sent') h
             GROUP BY h.queue_key",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        for (queue, count) in kept {
            of(queues, text(&queue)).kept = count.cast_unsigned();
        }
        Ok(())
    }

    async fn note_pauses(&self, queues: &mut Queues) -> Result<()> {
        type Row = (Vec<u8>, i64, Option<String>, Option<String>, Option<i64>);
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT queue, paused_at IS NOT NULL, paused_reason, paused_by,
                    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', unavailable_since)
             FROM counterfoil_queues WHERE paused_at IS NOT NULL OR unavailable_since IS NOT NULL",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        for (queue, paused, reason, by, since) in rows {
            let stats = of(queues, text(&queue));
            stats.paused = (paused != 0).then(|| {
                let by = by.as_deref().unwrap_or("somebody");
                format!("{} (by {by})", reason.unwrap_or_default())
            });
            stats.unavailable_since = since.map(instant);
        }
        Ok(())
    }
}

fn of(queues: &mut Queues, queue: String) -> &mut QueueStats {
    queues.entry(queue).or_insert_with_key(|queue| QueueStats {
        queue: queue.clone(),
        ..QueueStats::default()
    })
}
