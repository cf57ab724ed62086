//! Rows as the driver gives them.

use chrono::{DateTime, Utc};
use counterfoil_core::row::{RawRow, RowState};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// The columns of every statement in `sql/read*.sql`, in their order.
pub(crate) struct ReadRow {
    pub(crate) want: usize,
    pub(crate) horizon: u64,
    pub(crate) row: RawRow,
}

pub(crate) fn decode(row: &PgRow) -> sqlx::Result<ReadRow> {
    let want: i32 = row.try_get(0)?;
    let horizon: i64 = row.try_get(1)?;
    let shard: i16 = row.try_get(3)?;
    let state: Option<&str> = row.try_get(12)?;
    let attempts: i32 = row.try_get(13)?;
    let crashes: i32 = row.try_get(14)?;
    let created_at: DateTime<Utc> = row.try_get(17)?;
    Ok(ReadRow {
        want: usize::try_from(want).unwrap_or(0),
        horizon: horizon.cast_unsigned(),
        row: RawRow {
            seq: row.try_get(2)?,
            shard: shard.cast_unsigned(),
            id: row.try_get(4)?,
            aggregate_type: row.try_get(5)?,
            aggregate_id: row.try_get(6)?,
            version: row.try_get(7)?,
            event_type: row.try_get(8)?,
            payload: row.try_get(9)?,
            payload_bin: row.try_get(10)?,
            headers: row.try_get(11)?,
            state: RowState::parse(state),
            attempts: attempts.cast_unsigned(),
            crashes: u32::try_from(crashes).unwrap_or(0),
            early: row.try_get(15)?,
            behind: row.try_get(16)?,
            created_at,
            unreadable: None,
        },
    })
}

/// Sorts the rows of one statement to the wants that asked for them (numbered from one).
pub(crate) fn by_want(
    rows: &[PgRow],
    wants: usize,
) -> sqlx::Result<(Vec<Vec<RawRow>>, Option<u64>)> {
    let mut sorted: Vec<Vec<RawRow>> = (0..wants).map(|_| Vec::new()).collect();
    let mut horizon = None;
    for row in rows {
        let read = decode(row)?;
        horizon = Some(read.horizon);
        if let Some(list) = read.want.checked_sub(1).and_then(|n| sorted.get_mut(n)) {
            list.push(read.row);
        }
    }
    Ok((sorted, horizon))
}
