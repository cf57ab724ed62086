//! The operator's side: look, explain, pause, cancel, redrive, ignore, audit.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use counterfoil_core::desk::{
    Audit, Desk, Detail, Entry, Event, Filter, HISTORY_PAGE, Ignored, QueueStats, Redriven, number,
    shown_id,
};
use counterfoil_core::explain::{Blocker, Facts, Pending};
use counterfoil_core::message::{Aggregate, MessageId};
use counterfoil_core::presence::{ConsumerEntry, RelayEntry};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Kept, Result, Store};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::{PostgresStore, classify};

#[async_trait]
impl Desk for PostgresStore {
    async fn stats(&self) -> Result<Vec<QueueStats>> {
        let rows: Vec<PgRow> = sqlx::query(include_str!("../sql/stats.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let stats = rows
            .iter()
            .map(queue_stats)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)?;
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
        self.list(include_str!("../sql/list_outbox.sql"), filter)
            .await
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Entry>> {
        self.list(include_str!("../sql/list_parked.sql"), filter)
            .await
    }

    async fn show(&self, id: &str) -> Result<Option<Detail>> {
        let found: Option<PgRow> = sqlx::query(include_str!("../sql/show.sql"))
            .bind(spellings(id))
            .bind(number(id))
            .fetch_optional(self.pool())
            .await
            .map_err(classify)?;
        let Some(row) = found else { return Ok(None) };
        let mut detail = detail(&row).map_err(classify)?;
        let events: Vec<PgRow> = sqlx::query(
            "SELECT at, kind, attempt, code, detail, actor FROM counterfoil_events WHERE seq = $1 ORDER BY n",
        )
        .bind(detail.entry.seq)
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        detail.events = events
            .iter()
            .map(event)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)?;
        Ok(Some(detail))
    }

    async fn facts(&self, id: &str) -> Result<Facts> {
        let Some(detail) = self.show(id).await? else {
            let (in_ledger,): (bool,) = sqlx::query_as(
                "SELECT EXISTS (SELECT FROM counterfoil_ledger WHERE id = ANY ($1))",
            )
            .bind(spellings(id))
            .fetch_one(self.pool())
            .await
            .map_err(classify)?;
            return Ok(Facts::Unknown { in_ledger });
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
        sqlx::query(
            "INSERT INTO counterfoil_events (seq, id, kind, detail, actor) VALUES (0, $1, $2, $3, $4)",
        )
        .bind(subject)
        .bind(kind)
        .bind(detail)
        .bind(by)
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(())
    }

    async fn pause_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        Store::pause(self, queue, reason, by).await
    }

    async fn resume_queue(&self, queue: &str, by: &str) -> Result<bool> {
        let done = sqlx::query(
            "WITH done AS (
                 UPDATE counterfoil_queues SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
                 WHERE queue = $1 AND paused_at IS NOT NULL
                 RETURNING queue)
             INSERT INTO counterfoil_events (seq, id, kind, actor) SELECT 0, queue, 'resumed', $2 FROM done",
        )
        .bind(queue)
        .bind(by)
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    async fn queue_history(&self, queue: &str) -> Result<Vec<Event>> {
        let lines: Vec<PgRow> = sqlx::query(
            "SELECT at, kind, attempt, code, detail, actor FROM counterfoil_events
             WHERE seq = 0 AND id = $1 ORDER BY n DESC LIMIT $2",
        )
        .bind(queue)
        .bind(i64::from(HISTORY_PAGE))
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let oldest_first = lines.iter().rev().map(event);
        oldest_first.collect::<sqlx::Result<_>>().map_err(classify)
    }

    async fn cancel(&self, id: &str, reason: &str, by: &str) -> Result<bool> {
        let (cancelled,): (i64,) = sqlx::query_as(include_str!("../sql/cancel.sql"))
            .bind(spellings(id))
            .bind(reason)
            .bind(by)
            .bind(number(id))
            .fetch_one(self.pool())
            .await
            .map_err(classify)?;
        Ok(cancelled > 0)
    }

    async fn redrive(&self, ids: &[String], confirmed: bool, by: &str) -> Result<Redriven> {
        self.put_back(ids, confirmed, by).await
    }

    async fn ignore(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        self.give_up(ids, reason, by).await
    }

    async fn audit(&self) -> Result<Audit> {
        let row: PgRow = sqlx::query(include_str!("../sql/audit.sql"))
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

impl PostgresStore {
    async fn list(&self, sql: &'static str, filter: &Filter) -> Result<Vec<Entry>> {
        let rows: Vec<PgRow> = sqlx::query(sql)
            .bind(&filter.queue)
            .bind(&filter.state)
            .bind(&filter.aggregate_id)
            .bind(&filter.code)
            .bind(filter.after)
            .bind(i64::from(filter.page()))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        rows.iter()
            .map(|row| entry(row, 0))
            .collect::<sqlx::Result<_>>()
            .map_err(classify)
    }

    async fn waiting_behind(&self, parked: i64) -> Result<u64> {
        let (n,): (i64,) = sqlx::query_as(
            "SELECT count(*) FROM counterfoil_outbox o JOIN counterfoil_parked p
                ON coalesce(o.queue, '') = p.queue AND o.aggregate_id = p.aggregate_id
               AND coalesce(o.aggregate_type, '') = coalesce(p.aggregate_type, '')
             WHERE p.seq = $1 AND p.hold AND p.state IN ('pending', 'redriven') AND o.seq <> p.seq
               AND o.state IS DISTINCT FROM 'scheduled'",
        )
        .bind(parked)
        .fetch_one(self.pool())
        .await
        .map_err(classify)?;
        Ok(n.cast_unsigned())
    }

    async fn pending_facts(&self, entry: Entry) -> Result<Facts> {
        let found: Option<PgRow> = sqlx::query(include_str!("../sql/pending_facts.sql"))
            .bind(entry.seq)
            .fetch_optional(self.pool())
            .await
            .map_err(classify)?;
        // Settled between two looks.
        let Some(row) = found else {
            return Ok(Facts::Unknown { in_ledger: false });
        };
        let mut pending = pending(&row, entry).map_err(classify)?;
        pending.breaker = Kept::find_open(&self.kept_breakers().await?, &pending.queue);
        Ok(Facts::Pending(pending))
    }
}

/// The spellings under which an id may stand in the table: as given, and as we write it.
pub(crate) fn spellings(id: &str) -> Vec<String> {
    let given: String = id.trim().chars().take(64).collect();
    let mut all = vec![given.to_lowercase(), given.to_uppercase()];
    if let Some(parsed) = MessageId::parse(&given) {
        all.push(parsed.to_string());
        all.push(parsed.to_string().to_uppercase());
    }
    all.push(given);
    all
}

fn queue_stats(row: &PgRow) -> sqlx::Result<QueueStats> {
    let count = |n: usize| row.try_get::<i64, _>(n).map(i64::cast_unsigned);
    Ok(QueueStats {
        queue: row.try_get(0)?,
        new: count(1)?,
        scheduled: count(2)?,
        retrying: count(3)?,
        held: count(4)?,
        parked: count(5)?,
        kept: count(6)?,
        oldest_seconds: row.try_get(7)?,
        paused: row.try_get(8)?,
        unavailable_since: row.try_get(9)?,
        breaker: None,
        relays: count(10)?,
        no_route: count(11)?,
    })
}

/// The fourteen columns that all lists share, from column `at` on.
fn entry(row: &PgRow, at: usize) -> sqlx::Result<Entry> {
    let kind: Option<String> = row.try_get(at + 3)?;
    let id: Option<String> = row.try_get(at + 4)?;
    let attempts: i32 = row.try_get(at + 8)?;
    let seq = row.try_get(at)?;
    Ok(Entry {
        seq,
        id: shown_id(row.try_get(at + 1)?, seq),
        queue: row.try_get(at + 2)?,
        aggregate: id.map(|id| Aggregate {
            kind: kind.unwrap_or_default(),
            id,
        }),
        version: row.try_get(at + 5)?,
        event_type: row.try_get(at + 6)?,
        state: row.try_get(at + 7)?,
        attempts: attempts.cast_unsigned(),
        available_at: row.try_get(at + 9)?,
        created_at: row.try_get(at + 10)?,
        ended_at: row.try_get(at + 11)?,
        code: row.try_get(at + 12)?,
        error: row.try_get(at + 13)?,
    })
}

fn detail(row: &PgRow) -> sqlx::Result<Detail> {
    let place: &str = row.try_get(0)?;
    let bin: Option<i64> = row.try_get(16)?;
    Ok(Detail {
        place: match place {
            "outbox" => "outbox",
            "parked" => "parked",
            _ => "history",
        },
        entry: entry(row, 1)?,
        payload: row.try_get(15)?,
        payload_bin_bytes: bin.map(i64::cast_unsigned),
        headers: row.try_get(17)?,
        events: Vec::new(),
    })
}

fn event(row: &PgRow) -> sqlx::Result<Event> {
    let attempt: Option<i32> = row.try_get(2)?;
    Ok(Event {
        at: row.try_get(0)?,
        kind: row.try_get(1)?,
        attempt: attempt.map(i32::cast_unsigned),
        code: row.try_get(3)?,
        detail: row.try_get(4)?,
        actor: row.try_get(5)?,
    })
}

fn pending(row: &PgRow, entry: Entry) -> sqlx::Result<Pending> {
    let aggregate = entry
        .aggregate
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let blocker = |at: usize| -> sqlx::Result<Option<Blocker>> {
        let id: Option<String> = row.try_get(at)?;
        let (version, code) = (row.try_get(at + 1)?, row.try_get(at + 2)?);
        Ok(id.map(|id| Blocker {
            id,
            version,
            aggregate: aggregate.clone(),
            code,
        }))
    };
    let owner: Option<String> = row.try_get(9)?;
    let until: Option<DateTime<Utc>> = row.try_get(10)?;
    let relays: i64 = row.try_get(11)?;
    Ok(Pending {
        queue: entry.queue,
        event_type: entry.event_type,
        state: RowState::parse(Some(&entry.state)),
        attempts: entry.attempts,
        available_at: entry.available_at,
        early: row.try_get::<Option<bool>, _>(0)?.unwrap_or(false),
        code: entry.code,
        behind: blocker(1)?,
        parked: blocker(4)?,
        paused: row.try_get(7)?,
        unavailable_since: row.try_get(8)?,
        breaker: None,
        owner: owner.map(|relay| (relay, until)),
        relays: relays.cast_unsigned(),
    })
}
