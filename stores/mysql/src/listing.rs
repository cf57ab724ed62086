//! What operators see, from the columns of the lists.

use chrono::{DateTime, Utc};
use counterfoil_core::desk::{Detail, Entry, Event, shown_id};
use counterfoil_core::explain::{Blocker, Pending};
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::RowState;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::rows::instant;
use crate::text;

/// The fourteen columns that all lists share, from column `at` on.
pub(crate) fn entry(row: &MySqlRow, at: usize) -> sqlx::Result<Entry> {
    let kind: Option<String> = row.try_get(at + 3)?;
    let id: Option<String> = row.try_get(at + 4)?;
    let attempts: i64 = row.try_get(at + 8)?;
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
        attempts: u32::try_from(attempts).unwrap_or(0),
        available_at: time(row, at + 9)?,
        created_at: time(row, at + 10)?.unwrap_or(DateTime::UNIX_EPOCH),
        ended_at: time(row, at + 11)?,
        code: row.try_get(at + 12)?,
        error: row.try_get(at + 13)?,
    })
}

pub(crate) fn detail(row: &MySqlRow) -> sqlx::Result<Detail> {
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

pub(crate) fn event(row: &MySqlRow) -> sqlx::Result<Event> {
    let attempt: Option<i32> = row.try_get(2)?;
    Ok(Event {
        at: time(row, 0)?.unwrap_or(DateTime::UNIX_EPOCH),
        kind: row.try_get(1)?,
        attempt: attempt.map(i32::cast_unsigned),
        code: row.try_get(3)?,
        detail: row.try_get(4)?,
        actor: row.try_get(5)?,
    })
}

/// Everything but the number of relays.
pub(crate) fn pending(row: &MySqlRow, entry: Entry) -> sqlx::Result<Pending> {
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
    let early: i64 = row.try_get(0)?;
    let owner: Option<Vec<u8>> = row.try_get(9)?;
    let until = time(row, 10)?;
    Ok(Pending {
        queue: entry.queue,
        event_type: entry.event_type,
        state: RowState::parse(Some(&entry.state)),
        attempts: entry.attempts,
        available_at: entry.available_at,
        early: early != 0,
        code: entry.code,
        behind: blocker(1)?,
        parked: blocker(4)?,
        paused: row.try_get(7)?,
        unavailable_since: time(row, 8)?,
        breaker: None,
        owner: owner.map(|relay| (text(&relay), until)),
        relays: 0,
    })
}

fn time(row: &MySqlRow, at: usize) -> sqlx::Result<Option<DateTime<Utc>>> {
    Ok(row.try_get::<Option<i64>, _>(at)?.map(instant))
}
