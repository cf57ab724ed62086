//! Who is there: consumers that report, and relays with what they own.

use counterfoil_core::presence::{self, ConsumerEntry, ConsumerReport, ConsumerStatus, RelayEntry};
use counterfoil_core::span::micros;
use counterfoil_core::store::{RelayId, Result};

use crate::rows::instant;
use crate::{MysqlStore, classify, text};

impl MysqlStore {
    pub(crate) async fn note_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        sqlx::query(include_str!("../sql/presence/report.sql"))
            .bind(report.member.as_str().as_bytes())
            .bind(report.consumer.as_bytes())
            .bind(report.status.to_json())
            .bind(micros(report.lease))
            .execute(self.pool())
            .await
            .map_err(classify)?;
        let silent: Vec<(Vec<u8>,)> = sqlx::query_as(include_str!("../sql/presence/silent.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        // By primary key, so that nobody else's row is locked.
        for (member,) in silent {
            self.drop_consumer(&RelayId::stored(&text(&member))).await?;
        }
        Ok(())
    }

    pub(crate) async fn drop_consumer(&self, member: &RelayId) -> Result<()> {
        sqlx::query("DELETE FROM counterfoil_consumers WHERE member = ?")
            .bind(member.as_str().as_bytes())
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn list_consumers(&self) -> Result<Vec<ConsumerEntry>> {
        type Row = (Vec<u8>, Vec<u8>, i64, i64, String);
        let rows: Vec<Row> = sqlx::query_as(include_str!("../sql/presence/consumers.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let entry = |(consumer, member, alive, reported, status): Row| ConsumerEntry {
            consumer: text(&consumer),
            member: text(&member),
            alive: alive != 0,
            reported_at: instant(reported),
            status: ConsumerStatus::of_json(&status),
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    pub(crate) async fn list_relays(&self) -> Result<Vec<RelayEntry>> {
        type Row = (Vec<u8>, i64, String, i64);
        let known: Vec<Row> = sqlx::query_as(include_str!("../sql/presence/relays.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let owned: Vec<(Vec<u8>, i16, Vec<u8>)> =
            sqlx::query_as(include_str!("../sql/presence/owned.sql"))
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        let known = known
            .into_iter()
            .map(|(relay, alive, queues, until)| RelayEntry {
                relay: text(&relay),
                alive: alive != 0,
                queues: serde_json::from_str(&queues).unwrap_or_default(),
                lease_until: Some(instant(until)),
                ..RelayEntry::default()
            });
        let owned = owned
            .into_iter()
            .map(|(queue, shard, owner)| (text(&queue), shard.cast_unsigned(), text(&owner)));
        Ok(presence::relays(known.collect(), owned))
    }
}
