//! Who is there: consumers that report, and relays with what they own.

use counterfoil_core::presence::{self, ConsumerEntry, ConsumerReport, ConsumerStatus, RelayEntry};
use counterfoil_core::span::millis;
use counterfoil_core::store::{RelayId, Result};

use crate::rows::moment;
use crate::{SqliteStore, classify};

impl SqliteStore {
    pub(crate) async fn note_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        let mut tx = self.write().await?;
        sqlx::query(include_str!("../sql/presence/report.sql"))
            .bind(report.member.as_str())
            .bind(report.consumer)
            .bind(report.status.to_json())
            .bind(millis(report.lease))
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        sqlx::query(include_str!("../sql/presence/silent.sql"))
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        tx.commit().await
    }

    pub(crate) async fn drop_consumer(&self, member: &RelayId) -> Result<()> {
        let mut tx = self.write().await?;
        sqlx::query("DELETE FROM counterfoil_consumers WHERE member = ?1")
            .bind(member.as_str())
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        tx.commit().await
    }

    pub(crate) async fn list_consumers(&self) -> Result<Vec<ConsumerEntry>> {
        type Row = (String, String, bool, i64, String);
        let rows: Vec<Row> = sqlx::query_as(include_str!("../sql/presence/consumers.sql"))
            .fetch_all(self.reader())
            .await
            .map_err(classify)?;
        let entry = |(consumer, member, alive, reported, status): Row| ConsumerEntry {
            consumer,
            member,
            alive,
            reported_at: moment(reported),
            status: ConsumerStatus::of_json(&status),
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    pub(crate) async fn list_relays(&self) -> Result<Vec<RelayEntry>> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as(include_str!("../sql/presence/relays.sql"))
                .fetch_all(self.reader())
                .await
                .map_err(classify)?;
        let owned: Vec<(String, i64, String)> =
            sqlx::query_as(include_str!("../sql/presence/owned.sql"))
                .fetch_all(self.reader())
                .await
                .map_err(classify)?;
        let mut known = Vec::with_capacity(rows.len());
        for (relay, queues, joined) in rows {
            known.push(RelayEntry {
                alive: self.locks().lives(&RelayId::stored(&relay))?,
                relay,
                queues: serde_json::from_str(&queues).unwrap_or_default(),
                since: Some(moment(joined)),
                ..RelayEntry::default()
            });
        }
        let owned = owned
            .into_iter()
            .map(|(queue, shard, owner)| (queue, u16::try_from(shard).unwrap_or(u16::MAX), owner));
        Ok(presence::relays(known, owned))
    }
}
