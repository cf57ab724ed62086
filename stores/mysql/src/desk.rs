//! The operator's side: look, explain, pause, cancel, redrive, ignore, audit.

use async_trait::async_trait;
use counterfoil_core::desk::{
    Audit, Desk, Detail, Entry, Event, Filter, Ignored, QueueStats, Redriven, number,
};
use counterfoil_core::explain::Facts;
use counterfoil_core::message::MessageId;
use counterfoil_core::presence::{ConsumerEntry, RelayEntry};
use counterfoil_core::store::{Kept, Result, Store};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::listing;
use crate::settle::{self, Line};
use crate::{MysqlStore, classify, json, text};

#[async_trait]
impl Desk for MysqlStore {
    async fn stats(&self) -> Result<Vec<QueueStats>> {
        let stats = self.count_queues().await?;
        Ok(QueueStats::with_breakers(
            stats,
            &self.kept_breakers().await?,
        ))
    }

    async fn consumers(&self) -> Result<Vec<ConsumerEntry>> {
        self.list_consumers().await
    }

    async fn relays(&self) -> Result<Vec<RelayEntry>> {
        self.list_relays().await
    }

    async fn outbox(&self, filter: &Filter) -> Result<Vec<Entry>> {
        self.list(
            include_str!("../sql/list_outbox.sql"),
            filter,
            filter.state.as_deref(),
        )
        .await
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Entry>> {
        // Without a state: what waits for a decision.
        let state = match filter.state.as_deref() {
            None => Some("pending"),
            Some("all") => None,
            given => given,
        };
        self.list(include_str!("../sql/list_parked.sql"), filter, state)
            .await
    }

    async fn show(&self, id: &str) -> Result<Option<Detail>> {
        let mut query = sqlx::query(include_str!("../sql/show.sql"));
        let spellings = spellings(id);
        for _ in 0..3 {
            for spelling in &spellings {
                query = query.bind(spelling);
            }
            query = query.bind(number(id));
        }
        let found = query.fetch_optional(self.pool()).await.map_err(classify)?;
        let Some(row) = found else { return Ok(None) };
        let mut detail = listing::detail(&row).map_err(classify)?;
        let events: Vec<MySqlRow> = sqlx::query(
            "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at), kind, attempt, code, detail, actor
             FROM counterfoil_events WHERE seq = ? ORDER BY n",
        )
        .bind(detail.entry.seq)
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        detail.events = events
            .iter()
            .map(listing::event)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)?;
        Ok(Some(detail))
    }

    async fn facts(&self, id: &str) -> Result<Facts> {
        let Some(detail) = self.show(id).await? else {
            return Ok(Facts::Unknown {
                in_ledger: self.in_ledger(id).await?,
            });
        };
        let entry = detail.entry;
        let at = entry.ended_at.unwrap_or(entry.created_at);
        match (detail.place, entry.state.as_str()) {
            ("history", "cancelled") => Ok(Facts::Cancelled {
                at,
                why: entry.error,
            }),
            ("history", _) | ("parked", "delivered") => Ok(Facts::Sent { at }),
            ("parked", _) => Ok(Facts::Parked {
                at,
                holds: self.waiting_behind(entry.seq).await?,
                state: entry.state,
                code: entry.code.unwrap_or_default(),
                error: entry.error,
                attempts: entry.attempts,
            }),
            _ => self.pending_facts(entry).await,
        }
    }

    async fn note(&self, subject: &str, kind: &str, detail: &str, by: &str) -> Result<()> {
        self.note_line(subject, kind, detail, by).await
    }

    async fn pause_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        Store::pause(self, queue, reason, by).await
    }

    async fn resume_queue(&self, queue: &str, by: &str) -> Result<bool> {
        self.start_queue(queue, by).await
    }

    async fn queue_history(&self, queue: &str) -> Result<Vec<Event>> {
        self.queue_story(queue).await
    }

    async fn cancel(&self, id: &str, reason: &str, by: &str) -> Result<bool> {
        let mut rows = self.find_pending(id).await?;
        let mut tx = self.begin().await?;
        rows.sort_unstable();
        let locked: Vec<(i64, String)> = sqlx::query_as(include_str!("../sql/lock_pending.sql"))
            .bind(json(&rows)?)
            .fetch_all(&mut *tx)
            .await
            .map_err(classify)?;
        rows.retain(|r| locked.iter().any(|l| l.0 == r.0));
        if rows.is_empty() {
            return Ok(false);
        }
        settle::to_history(
            &mut tx,
            &rows,
            0,
            "cancelled",
            Some(&format!("{reason} (by {by})")),
        )
        .await?;
        sqlx::query(
            "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
             STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
             SET p.state = 'ignored', p.updated_at = UTC_TIMESTAMP(6) WHERE p.state = 'redriven'",
        )
        .bind(json(&rows)?)
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        let lines: Vec<Line<'_>> = locked
            .iter()
            .map(|(seq, id)| (*seq, id.clone(), None, None, Some(reason)))
            .collect();
        settle::tell(&mut tx, "cancelled", by, &lines).await?;
        settle::delete(&mut tx, rows).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn redrive(&self, ids: &[String], confirmed: bool, by: &str) -> Result<Redriven> {
        self.put_back(ids, confirmed, by).await
    }

    async fn ignore(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        self.give_up(ids, reason, by).await
    }

    async fn audit(&self) -> Result<Audit> {
        let row: MySqlRow = sqlx::query(include_str!("../sql/audit.sql"))
            .fetch_one(self.pool())
            .await
            .map_err(classify)?;
        let count = |n: usize| {
            row.try_get::<i64, _>(n)
                .map(i64::cast_unsigned)
                .map_err(classify)
        };
        Ok(Audit {
            pending: count(0)?,
            sent_kept: count(1)?,
            cancelled: count(2)?,
            parked: count(3)?,
            ignored: count(4)?,
            ledger: count(5)?,
            in_two_places: count(6)?,
            redriven_lost: count(7)?,
            ledger_missing: count(8)?,
            held_orphans: count(9)?,
        })
    }
}

impl MysqlStore {
    async fn list(
        &self,
        sql: &'static str,
        filter: &Filter,
        state: Option<&str>,
    ) -> Result<Vec<Entry>> {
        let (queue, aggregate) = (filter.queue.as_deref(), filter.aggregate_id.as_deref());
        let mut query = sqlx::query(sql);
        for wanted in [queue, state, aggregate, filter.code.as_deref()] {
            let wanted = wanted.map(str::as_bytes);
            query = query.bind(wanted).bind(wanted);
        }
        let rows: Vec<MySqlRow> = query
            .bind(filter.after)
            .bind(i64::from(filter.page()))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        rows.iter()
            .map(|row| listing::entry(row, 0))
            .collect::<sqlx::Result<_>>()
            .map_err(classify)
    }

    async fn in_ledger(&self, id: &str) -> Result<bool> {
        let mut query = sqlx::query_as(
            "SELECT EXISTS (SELECT 1 FROM counterfoil_ledger WHERE id IN (?, ?, ?, ?, ?))",
        );
        for spelling in spellings(id) {
            query = query.bind(spelling);
        }
        let (found,): (i64,) = query.fetch_one(self.pool()).await.map_err(classify)?;
        Ok(found != 0)
    }

    async fn waiting_behind(&self, parked: i64) -> Result<u64> {
        let (n,): (i64,) = sqlx::query_as(
            "SELECT COUNT(*) FROM counterfoil_parked p
             JOIN counterfoil_outbox o ON o.queue_key = p.queue_key AND o.lane = p.blocks
             WHERE p.seq = ? AND o.seq <> p.seq AND o.waiting <> 1",
        )
        .bind(parked)
        .fetch_one(self.pool())
        .await
        .map_err(classify)?;
        Ok(n.cast_unsigned())
    }

    async fn pending_facts(&self, entry: Entry) -> Result<Facts> {
        let found: Option<MySqlRow> = sqlx::query(include_str!("../sql/pending_facts.sql"))
            .bind(entry.seq)
            .fetch_optional(self.pool())
            .await
            .map_err(classify)?;
        // Settled between two looks.
        let Some(row) = found else {
            return Ok(Facts::Unknown { in_ledger: false });
        };
        let queue: Vec<u8> = row.try_get(11).map_err(classify)?;
        let queue = text(&queue);
        let relays = self
            .live_relays()
            .await?
            .iter()
            .filter(|(_, served)| served.contains(&queue))
            .count();
        let mut pending = listing::pending(&row, entry).map_err(classify)?;
        pending.relays = u64::try_from(relays).unwrap_or(u64::MAX);
        pending.breaker = Kept::find_open(&self.kept_breakers().await?, &queue);
        Ok(Facts::Pending(pending))
    }

    async fn find_pending(&self, id: &str) -> Result<Vec<(i64, u16)>> {
        let mut query = sqlx::query_as(
            "SELECT seq, shard FROM counterfoil_outbox WHERE id IN (?, ?, ?, ?, ?)
             UNION SELECT seq, shard FROM counterfoil_outbox WHERE seq = ?",
        );
        for spelling in spellings(id) {
            query = query.bind(spelling);
        }
        query = query.bind(number(id));
        let found: Vec<(i64, i16)> = query.fetch_all(self.pool()).await.map_err(classify)?;
        Ok(found
            .into_iter()
            .map(|(seq, shard)| (seq, shard.cast_unsigned()))
            .collect())
    }
}

/// The spellings under which an id may stand in the table: as given, and as we write it.
pub(crate) fn spellings(id: &str) -> [String; 5] {
    let given = id.trim();
    let ours = MessageId::parse(given).map_or_else(|| given.to_owned(), |id| id.to_string());
    [
        given.to_lowercase(),
        given.to_uppercase(),
        ours.to_uppercase(),
        ours,
        given.to_owned(),
    ]
}
