//! The operator's side: look, explain, pause, cancel, redrive, ignore, audit.

use async_trait::async_trait;
use counterfoil_core::desk::{
    Audit, Desk, Detail, Entry, Event, Filter, HISTORY_PAGE, Ignored, QueueStats, Redriven,
    number as number_of, shown_id,
};
use counterfoil_core::explain::{Blocker, Facts, Pending};
use counterfoil_core::message::{Aggregate, MessageId};
use counterfoil_core::presence::{ConsumerEntry, RelayEntry};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Kept, Result, Store};
use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::rows::{count, moment};
use crate::settle::{array, delete, run};
use crate::{SqliteStore, classify};

#[async_trait]
impl Desk for SqliteStore {
    async fn stats(&self) -> Result<Vec<QueueStats>> {
        let (_, served) = self.who_serves().await?;
        let rows = sqlx::query(include_str!("../sql/stats.sql"))
            .bind(served)
            .fetch_all(self.reader())
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
        let mut snapshot = self.reader().begin().await.map_err(classify)?;
        let query = match number_of(id) {
            Some(number) => sqlx::query(include_str!("../sql/show_number.sql")).bind(number),
            None => sqlx::query(include_str!("../sql/show.sql")).bind(spellings(id)),
        };
        let found = query
            .fetch_optional(&mut *snapshot)
            .await
            .map_err(classify)?;
        let Some(row) = found else { return Ok(None) };
        let mut detail = detail(&row).map_err(classify)?;
        let events = sqlx::query(
            "SELECT at, kind, attempt, code, detail, actor FROM counterfoil_events WHERE seq = ?1 ORDER BY n",
        )
        .bind(detail.entry.seq)
        .fetch_all(&mut *snapshot)
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
            let in_ledger = sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM counterfoil_ledger WHERE id IN (SELECT value FROM json_each(?1)))",
            )
            .bind(spellings(id))
            .fetch_one(self.reader())
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
        let mut tx = self.write().await?;
        note_queue(&mut tx, subject, kind, Some(detail), by).await?;
        tx.commit().await
    }

    async fn pause_queue(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        Store::pause(self, queue, reason, by).await
    }

    async fn resume_queue(&self, queue: &str, by: &str) -> Result<bool> {
        let mut tx = self.write().await?;
        let done = sqlx::query(
            "UPDATE counterfoil_queues SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
             WHERE queue = ?1 AND paused_at IS NOT NULL",
        )
        .bind(queue)
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        let resumed = done.rows_affected() == 1;
        if resumed {
            note_queue(&mut tx, queue, "resumed", None, by).await?;
        }
        tx.commit().await?;
        Ok(resumed)
    }

    async fn queue_history(&self, queue: &str) -> Result<Vec<Event>> {
        let lines = sqlx::query(
            "SELECT at, kind, attempt, code, detail, actor FROM counterfoil_events
             WHERE seq = 0 AND id = ?1 ORDER BY n DESC LIMIT ?2",
        )
        .bind(queue)
        .bind(i64::from(HISTORY_PAGE))
        .fetch_all(self.reader())
        .await
        .map_err(classify)?;
        let oldest_first = lines.iter().rev().map(event);
        oldest_first.collect::<sqlx::Result<_>>().map_err(classify)
    }

    async fn cancel(&self, id: &str, reason: &str, by: &str) -> Result<bool> {
        let mut tx = self.write().await?;
        let seqs: Vec<i64> = sqlx::query_scalar(
            "SELECT seq FROM counterfoil_outbox INDEXED BY counterfoil_outbox_id
             WHERE id IN (SELECT value FROM json_each(?1))
             UNION SELECT seq FROM counterfoil_outbox NOT INDEXED WHERE seq = ?2",
        )
        .bind(spellings(id))
        .bind(number_of(id))
        .fetch_all(&mut *tx)
        .await
        .map_err(classify)?;
        let list = array(seqs.iter().copied());
        let words = [list.clone(), reason.to_owned(), by.to_owned()];
        run(&mut tx, include_str!("../sql/cancel.sql"), words.clone()).await?;
        run(
            &mut tx,
            "UPDATE counterfoil_parked SET state = 'ignored', updated_at = (SELECT ms FROM counterfoil_now)
             WHERE state = 'redriven' AND seq IN (SELECT value FROM json_each(?1))",
            [list],
        )
        .await?;
        run(
            &mut tx,
            "INSERT INTO counterfoil_events (seq, id, kind, detail, actor)
             SELECT o.seq, coalesce(CAST(o.id AS TEXT), ''), 'cancelled', ?2, ?3
             FROM json_each(?1) CROSS JOIN counterfoil_outbox o NOT INDEXED ON o.seq = value",
            words,
        )
        .await?;
        delete(&mut tx, seqs.iter().copied()).await?;
        tx.commit().await?;
        Ok(!seqs.is_empty())
    }

    async fn redrive(&self, ids: &[String], confirmed: bool, by: &str) -> Result<Redriven> {
        self.put_back(ids, confirmed, by).await
    }

    async fn ignore(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        self.give_up(ids, reason, by).await
    }

    async fn audit(&self) -> Result<Audit> {
        let row = sqlx::query(include_str!("../sql/audit.sql"))
            .fetch_one(self.reader())
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

impl SqliteStore {
    /// Live relays, and the queues that they serve, once for each relay: two JSON arrays.
    async fn who_serves(&self) -> Result<(String, String)> {
        let live = self.live_relays().await?;
        let relays: Vec<&str> = live.iter().map(|(relay, _)| relay.as_str()).collect();
        let served: Vec<&str> = live
            .iter()
            .flat_map(|(_, queues)| queues.iter().map(AsRef::as_ref))
            .collect();
        Ok((json!(relays).to_string(), json!(served).to_string()))
    }

    async fn list(&self, sql: &'static str, filter: &Filter) -> Result<Vec<Entry>> {
        let rows = sqlx::query(sql)
            .bind(&filter.queue)
            .bind(&filter.state)
            .bind(&filter.aggregate_id)
            .bind(&filter.code)
            .bind(filter.after)
            .bind(i64::from(filter.page()))
            .fetch_all(self.reader())
            .await
            .map_err(classify)?;
        rows.iter()
            .map(entry)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)
    }

    async fn waiting_behind(&self, parked: i64) -> Result<u64> {
        let n: i64 = sqlx::query_scalar(include_str!("../sql/waiting_behind.sql"))
            .bind(parked)
            .fetch_one(self.reader())
            .await
            .map_err(classify)?;
        Ok(n.cast_unsigned())
    }

    async fn pending_facts(&self, entry: Entry) -> Result<Facts> {
        let (relays, served) = self.who_serves().await?;
        let found = sqlx::query(include_str!("../sql/pending_facts.sql"))
            .bind(entry.seq)
            .bind(relays)
            .bind(served)
            .fetch_optional(self.reader())
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

/// A line for the history of a queue. Events of queues have the number zero.
pub(crate) async fn note_queue(
    tx: &mut SqliteConnection,
    queue: &str,
    kind: &str,
    reason: Option<&str>,
    by: &str,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO counterfoil_events (seq, id, kind, detail, actor) VALUES (0, ?1, ?2, ?3, ?4)",
    )
    .bind(queue)
    .bind(kind)
    .bind(reason)
    .bind(by)
    .execute(tx)
    .await
    .map_err(classify)?;
    Ok(())
}

/// The spellings under which an id may stand in the table, as given and as we write it: a JSON array.
pub(crate) fn spellings(id: &str) -> String {
    let given = id.trim();
    let mut all = vec![given.to_owned(), given.to_lowercase(), given.to_uppercase()];
    if let Some(parsed) = MessageId::parse(given) {
        all.push(parsed.to_string());
        all.push(parsed.to_string().to_uppercase());
    }
    json!(all).to_string()
}

fn queue_stats(row: &SqliteRow) -> sqlx::Result<QueueStats> {
    let count = |n: usize| row.try_get::<i64, _>(n).map(i64::cast_unsigned);
    Ok(QueueStats {
        queue: text(row, 0)?.unwrap_or_default(),
        new: count(1)?,
        scheduled: count(2)?,
        retrying: count(3)?,
        held: count(4)?,
        parked: count(5)?,
        kept: count(6)?,
        oldest_seconds: row.try_get(7)?,
        paused: row.try_get(8)?,
        unavailable_since: row.try_get::<Option<i64>, _>(9)?.map(moment),
        breaker: None,
        relays: count(10)?,
        no_route: count(11)?,
    })
}

/// A text as it stands there, whatever a foreign writer put in.
fn text(row: &SqliteRow, column: usize) -> sqlx::Result<Option<String>> {
    let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
    Ok(bytes.map(|b| String::from_utf8_lossy(b).into_owned()))
}

fn number(row: &SqliteRow, column: usize) -> sqlx::Result<Option<i64>> {
    row.try_get_unchecked(column)
}

/// The fourteen columns that all lists begin with.
fn entry(row: &SqliteRow) -> sqlx::Result<Entry> {
    let kind = text(row, 3)?.unwrap_or_default();
    let seq = row.try_get(0)?;
    Ok(Entry {
        seq,
        id: shown_id(text(row, 1)?, seq),
        queue: text(row, 2)?.unwrap_or_default(),
        aggregate: text(row, 4)?.map(|id| Aggregate { kind, id }),
        version: number(row, 5)?,
        event_type: text(row, 6)?.unwrap_or_default(),
        state: text(row, 7)?.unwrap_or_default(),
        attempts: number(row, 8)?.map_or(0, count),
        available_at: number(row, 9)?.map(moment),
        created_at: number(row, 10)?.map_or_else(chrono::Utc::now, moment),
        ended_at: number(row, 11)?.map(moment),
        code: text(row, 12)?,
        error: text(row, 13)?,
    })
}

fn detail(row: &SqliteRow) -> sqlx::Result<Detail> {
    Ok(Detail {
        place: match row.try_get(14)? {
            "outbox" => "outbox",
            "parked" => "parked",
            _ => "history",
        },
        entry: entry(row)?,
        payload: text(row, 15)?,
        payload_bin_bytes: number(row, 16)?.map(i64::cast_unsigned),
        headers: text(row, 17)?,
        events: Vec::new(),
    })
}

fn event(row: &SqliteRow) -> sqlx::Result<Event> {
    Ok(Event {
        at: moment(row.try_get(0)?),
        kind: row.try_get(1)?,
        attempt: number(row, 2)?.map(count),
        code: text(row, 3)?,
        detail: text(row, 4)?,
        actor: text(row, 5)?,
    })
}

fn pending(row: &SqliteRow, entry: Entry) -> sqlx::Result<Pending> {
    let aggregate = entry
        .aggregate
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let blocker = |at: usize| -> sqlx::Result<Option<Blocker>> {
        let id = text(row, at)?.unwrap_or_default();
        let (version, code) = (number(row, at + 1)?, text(row, at + 2)?);
        let there: bool = row.try_get(at + 3)?;
        Ok(there.then(|| Blocker {
            id,
            version,
            aggregate: aggregate.clone(),
            code,
        }))
    };
    let relays: i64 = row.try_get(12)?;
    Ok(Pending {
        queue: entry.queue,
        event_type: entry.event_type,
        state: RowState::parse(Some(&entry.state)),
        attempts: entry.attempts,
        available_at: entry.available_at,
        early: row.try_get(0)?,
        code: entry.code,
        behind: blocker(1)?,
        parked: blocker(5)?,
        paused: row.try_get(9)?,
        unavailable_since: number(row, 10)?.map(moment),
        breaker: None,
        // No lease: the owner lives as long as its lock is held.
        owner: text(row, 11)?.map(|relay| (relay, None)),
        relays: relays.cast_unsigned(),
    })
}
