//! Rows as the driver gives them.
//!
//! # Promise
//! SQLite keeps whatever a writer puts into a column: a blob where a text belongs, a text where a
//! number does, bytes that are no UTF-8. Every row is read; what cannot be understood is named, so
//! that the row is parked with a reason.

use chrono::{DateTime, Utc};
use counterfoil_core::fit::{Content, Found};
use counterfoil_core::message::{MAX_NAME, MessageId};
use counterfoil_core::row::{RawRow, RowState, WrittenId};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, TypeInfo, ValueRef};

/// The last moment that a text can show.
const LATEST: i64 = 253_402_300_799_999;

/// Reads a row of `sql/read*.sql`.
///
/// `birth` is a number of the database. The id of a row without an id comes from its number and its
/// time; where the writer left out both, `birth` stands for the time: it stays the same over
/// retries, and it is not the same in two databases.
pub(crate) fn decode(row: &SqliteRow, birth: i64) -> sqlx::Result<Found> {
    let mut cells = Cells { row, odd: None };
    let seq = row.try_get_unchecked(0)?;
    let created = cells.created(12)?;
    let mut id = cells.text(1, "id")?;
    let written_id = WrittenId::of(row.try_get_unchecked::<Option<&[u8]>, _>(1)?);
    if id.is_none() && created.is_none() {
        id = Some(MessageId::of_row(seq, birth.saturating_mul(1_000)).to_string());
    }
    let early: i64 = row.try_get_unchecked(13)?;
    if early == 2 {
        cells.note("available_at is neither a number nor a time");
    }
    let behind: bool = row.try_get_unchecked(14)?;
    let (aggregate_type, aggregate_id) = cells.aggregate()?;
    let left_out: Option<i64> = row.try_get_unchecked(15)?;
    let row = RawRow {
        seq,
        shard: 0,
        id,
        written_id,
        behind: behind && has_lane(aggregate_type.as_deref(), aggregate_id.as_deref()),
        aggregate_type,
        aggregate_id,
        version: cells.integer(4, "version")?,
        event_type: cells.text(5, "event_type")?,
        payload: cells.text(6, "payload")?,
        payload_bin: row.try_get_unchecked(7)?,
        headers: cells.text(8, "headers")?,
        state: cells.state(9)?,
        attempts: cells.integer(10, "attempts")?.map_or(0, count),
        crashes: row
            .try_get_unchecked::<Option<i64>, _>(11)?
            .map_or(0, count),
        early: early == 1,
        created_at: created.unwrap_or_else(Utc::now),
        unreadable: cells.odd,
    };
    Ok(Found {
        row,
        left_out: left_out.map(|bytes| usize::try_from(bytes).unwrap_or(0)),
    })
}

/// Reads a row of `sql/contents.sql`.
pub(crate) fn content(row: &SqliteRow) -> sqlx::Result<(i64, Content)> {
    let mut cells = Cells { row, odd: None };
    let content = Content {
        payload: cells.text(1, "payload")?,
        payload_bin: row.try_get_unchecked(2)?,
        headers: cells.text(3, "headers")?,
        unreadable: cells.odd,
    };
    Ok((row.try_get_unchecked(0)?, content))
}

/// The cells of one row, and what was odd about them.
struct Cells<'r> {
    row: &'r SqliteRow,
    odd: Option<String>,
}

impl Cells<'_> {
    fn note(&mut self, what: &str) {
        match &mut self.odd {
            Some(all) => {
                all.push_str("; ");
                all.push_str(what);
            }
            none => *none = Some(what.to_owned()),
        }
    }

    fn text(&mut self, column: usize, name: &str) -> sqlx::Result<Option<String>> {
        let Some(bytes) = self.row.try_get_unchecked::<Option<&[u8]>, _>(column)? else {
            return Ok(None);
        };
        Ok(Some(match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => {
                self.note(&format!("{name} is not UTF-8"));
                String::from_utf8_lossy(bytes).into_owned()
            }
        }))
    }

    /// Nothing can wait behind a name that cannot be read, so there is no aggregate then.
    fn aggregate(&mut self) -> sqlx::Result<(Option<String>, Option<String>)> {
        let before = self.odd.take();
        let pair = (
            self.text(2, "aggregate_type")?,
            self.text(3, "aggregate_id")?,
        );
        let odd = std::mem::replace(&mut self.odd, before);
        match odd {
            None => Ok(pair),
            Some(odd) => {
                self.note(&odd);
                Ok((None, None))
            }
        }
    }

    fn integer(&mut self, column: usize, name: &str) -> sqlx::Result<Option<i64>> {
        match kind(self.row, column)? {
            Kind::Null => Ok(None),
            Kind::Integer => self.row.try_get_unchecked(column).map(Some),
            Kind::Other => {
                self.note(&format!("{name} is not a whole number"));
                Ok(None)
            }
        }
    }

    /// The statement has made a number of every time that SQLite understands.
    fn created(&mut self, column: usize) -> sqlx::Result<Option<DateTime<Utc>>> {
        match kind(self.row, column)? {
            Kind::Null => Ok(None),
            Kind::Integer => self
                .row
                .try_get_unchecked(column)
                .map(|ms| Some(moment(ms))),
            Kind::Other => {
                self.note("created_at is neither a number nor a time");
                Ok(None)
            }
        }
    }

    fn state(&mut self, column: usize) -> sqlx::Result<RowState> {
        let is_blob = self.row.try_get_raw(column)?.type_info().name() == "BLOB";
        let word = self.text(column, "state")?;
        if is_blob {
            // Its bytes may spell a word of ours, but no statement takes it for one.
            return Ok(RowState::Unknown(format!(
                "blob {}",
                word.unwrap_or_default()
            )));
        }
        Ok(RowState::parse(word.as_deref()))
    }
}

enum Kind {
    Null,
    Integer,
    Other,
}

fn kind(row: &SqliteRow, column: usize) -> sqlx::Result<Kind> {
    let value = row.try_get_raw(column)?;
    Ok(match value.type_info().name() {
        _ if value.is_null() => Kind::Null,
        "INTEGER" => Kind::Integer,
        _ => Kind::Other,
    })
}

/// Nothing can wait in a lane whose name is missing or endless.
pub(crate) fn has_lane(kind: Option<&str>, id: Option<&str>) -> bool {
    id.is_some_and(|id| id.len() <= MAX_NAME) && kind.is_none_or(|kind| kind.len() <= MAX_NAME)
}

/// A count as stored, made one.
pub(crate) fn count(n: i64) -> u32 {
    u32::try_from(n.clamp(0, i64::from(i32::MAX))).unwrap_or(0)
}

/// A moment as stored, within what can be shown.
pub(crate) fn moment(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(ms.clamp(0, LATEST)).unwrap_or_default()
}
