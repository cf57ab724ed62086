//! Who is there: consumers that report, and relays with what they own.

use chrono::{DateTime, Utc};
use counterfoil_core::presence::{self, ConsumerEntry, ConsumerReport, ConsumerStatus, RelayEntry};
use counterfoil_core::span::millis;
use counterfoil_core::store::{RelayId, Result};

use crate::{PostgresStore, classify};

impl PostgresStore {
    pub(crate) async fn note_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        sqlx::query(include_str!("../sql/presence/report.sql"))
            .bind(report.member.as_str())
            .bind(report.consumer)
            .bind(report.status.to_json())
            .bind(millis(report.lease))
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn drop_consumer(&self, member: &RelayId) -> Result<()> {
        sqlx::query("DELETE FROM counterfoil_consumers WHERE member = $1")
            .bind(member.as_str())
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn list_consumers(&self) -> Result<Vec<ConsumerEntry>> {
        type Row = (String, String, bool, DateTime<Utc>, String);
        let rows: Vec<Row> = sqlx::query_as(include_str!("../sql/presence/consumers.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let entry = |(consumer, member, alive, reported_at, status): Row| ConsumerEntry {
            consumer,
            member,
            alive,
            reported_at,
            status: ConsumerStatus::of_json(&status),
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    pub(crate) async fn list_relays(&self) -> Result<Vec<RelayEntry>> {
        type Row = (String, bool, Vec<String>, DateTime<Utc>);
        let known: Vec<Row> = sqlx::query_as(include_str!("../sql/presence/relays.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let owned: Vec<(String, i16, String)> =
            sqlx::query_as(include_str!("../sql/presence/owned.sql"))
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        let known = known
            .into_iter()
            .map(|(relay, alive, queues, until)| RelayEntry {
                relay,
                alive,
                queues,
                lease_until: Some(until),
                ..RelayEntry::default()
            });
        let owned = owned
            .into_iter()
            .map(|(queue, shard, owner)| (queue, shard.cast_unsigned(), owner));
        Ok(presence::relays(known.collect(), owned))
    }
}
