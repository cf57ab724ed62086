//! Rows as the driver gives them.

use chrono::{DateTime, TimeDelta, Utc};
use counterfoil_core::fit::{self, Content, Fit, Found};
use counterfoil_core::mark::{Horizon, Reach};
use counterfoil_core::row::{RawRow, RowState, WrittenId};
use counterfoil_core::store::Want;
use futures_util::{Stream, TryStreamExt};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

/// The columns of every statement in `sql/read*.sql`, in their order.
pub(crate) struct ReadRow {
    want: usize,
    horizon: u64,
    /// Absent where the queue of the want is paused.
    pub(crate) row: Option<Found>,
}

/// Takes the columns without asking each time whether their types fit: the tables are ours, and
/// asking costs as much as the rest.
pub(crate) fn decode(row: &PgRow) -> sqlx::Result<ReadRow> {
    let place: i32 = row.try_get_unchecked(0)?;
    let horizon: i64 = row.try_get_unchecked(1)?;
    let (place, horizon) = (place.cast_unsigned(), horizon.cast_unsigned());
    let want = usize::try_from(place >> 8).unwrap_or(0);
    let Some(seq) = row.try_get_unchecked(2)? else {
        let row = None;
        return Ok(ReadRow { want, horizon, row });
    };
    let state: Option<&str> = row.try_get_unchecked(11)?;
    let attempts: Option<i32> = row.try_get_unchecked(12)?;
    let crashes: i32 = row.try_get_unchecked(13)?;
    let created: Option<i64> = row.try_get_unchecked(14)?;
    let left_out: Option<i64> = row.try_get_unchecked(15)?;
    let id: Option<String> = row.try_get_unchecked(3)?;
    let row = RawRow {
        seq,
        shard: u16::try_from((place >> 2) & 63).unwrap_or(0),
        written_id: WrittenId::of(id.as_deref().map(str::as_bytes)),
        id,
        aggregate_type: row.try_get_unchecked(4)?,
        aggregate_id: row.try_get_unchecked(5)?,
        version: row.try_get_unchecked(6)?,
        event_type: row.try_get_unchecked(7)?,
        payload: row.try_get_unchecked(8)?,
        payload_bin: row.try_get_unchecked(9)?,
        headers: row.try_get_unchecked(10)?,
        state: RowState::parse(state),
        attempts: u32::try_from(attempts.unwrap_or(0)).unwrap_or(0),
        crashes: u32::try_from(crashes).unwrap_or(0),
        early: place & 2 != 0,
        behind: place & 1 != 0,
        created_at: time(created),
        unreadable: None,
    };
    let left_out = left_out.map(|bytes| usize::try_from(bytes).unwrap_or(0));
    Ok(ReadRow {
        want,
        horizon,
        row: Some(Found { row, left_out }),
    })
}

/// A time as the server sends it, in microseconds since 2000. What a foreign writer has left out, or
/// made infinite, becomes a time that everybody can write.
fn time(micros: Option<i64>) -> DateTime<Utc> {
    const EPOCH: i64 = 946_684_800_000_000;
    const LAST: i64 = 253_402_214_400_000_000;
    let since_1970 = micros.map_or(0, |micros| micros.saturating_add(EPOCH));
    DateTime::UNIX_EPOCH + TimeDelta::microseconds(since_1970.clamp(0, LAST))
}

/// What one statement found.
pub(crate) struct Sorted {
    /// For each want, in its order.
    pub(crate) found: Vec<Vec<Found>>,
    /// Wants whose queues are paused.
    paused: Vec<usize>,
    pub(crate) horizon: Horizon,
}

/// Sorts the rows of one statement to the wants that asked for them (numbered from one).
pub(crate) async fn by_want(
    mut rows: impl Stream<Item = sqlx::Result<PgRow>> + Unpin,
    wants: &[Want<'_>],
) -> sqlx::Result<Sorted> {
    let mut sorted = Sorted {
        found: wants.iter().map(|_| Vec::new()).collect(),
        paused: Vec::new(),
        horizon: Horizon::Unknown,
    };
    while let Some(row) = rows.try_next().await? {
        let read = decode(&row)?;
        sorted.horizon = Horizon::Below(read.horizon);
        let Some(n) = read.want.checked_sub(1).filter(|n| *n < wants.len()) else {
            continue;
        };
        match read.row {
            Some(found) => sorted.found[n].push(found),
            None => sorted.paused.push(n),
        }
    }
    Ok(sorted)
}

/// The rows of each want that fit into its bytes, and how far it was answered.
pub(crate) async fn bring(
    connection: &mut PgConnection,
    sorted: Sorted,
    wants: &[Want<'_>],
) -> sqlx::Result<(Vec<Vec<RawRow>>, Vec<Reach>)> {
    let (mut rows, mut reach) = (Vec::new(), Vec::new());
    for (n, (want, found)) in wants.iter().zip(sorted.found).enumerate() {
        let fit = fit::fit(found, want.bytes);
        reach.push(match Reach::of(fit.rows.len(), want.limit) {
            _ if sorted.paused.contains(&n) => Reach::Paused,
            _ if fit.cut => Reach::Limit,
            reach => reach,
        });
        rows.push(fill(connection, fit).await?);
    }
    Ok((rows, reach))
}

/// Reads the contents that were left out.
pub(crate) async fn fill(connection: &mut PgConnection, fit: Fit) -> sqlx::Result<Vec<RawRow>> {
    if fit.left_out.is_empty() {
        return Ok(fit.rows);
    }
    let mut rows = sqlx::query(include_str!("../sql/contents.sql"))
        .bind(&fit.left_out)
        .fetch(connection);
    let mut contents = Vec::with_capacity(fit.left_out.len());
    while let Some(row) = rows.try_next().await? {
        let content = Content {
            payload: row.try_get_unchecked(1)?,
            payload_bin: row.try_get_unchecked(2)?,
            headers: row.try_get_unchecked(3)?,
            unreadable: None,
        };
        contents.push((row.try_get_unchecked(0)?, content));
    }
    Ok(fit.fill(contents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_nobody_can_write_become_the_first_or_the_last_one() {
        let text = |micros| time(micros).to_rfc3339();

        assert_eq!(text(Some(0)), "2000-01-01T00:00:00+00:00");
        assert_eq!(text(None), "1970-01-01T00:00:00+00:00");
        assert_eq!(text(Some(i64::MIN)), "1970-01-01T00:00:00+00:00");
        assert_eq!(text(Some(i64::MAX)), "9999-12-31T00:00:00+00:00");
    }
}
