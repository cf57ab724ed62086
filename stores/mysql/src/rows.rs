//! Reading: first the numbers, from an index alone, then the rows under these numbers.
//!
//! # Promise
//! One statement finds the numbers for all wants, so they come from one snapshot; rows that are in
//! flight already (`skip`) are dropped before their content is read. The rows come a moment later,
//! so what is told of each (gone, early, behind) is at least as new as its finding.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use counterfoil_core::fit::{self, Content, Fit};
use counterfoil_core::mark::Reach;
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::{RawRow, RowState, WrittenId};
use counterfoil_core::store::{Held, Result, Want};
use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, Row};

use crate::{MysqlStore, classify, json};

/// The states of the generated column `waiting`, as bits.
const NEW: i64 = 1;
const DUE: i64 = 1 << 1 | 1 << 2;
const HELD: i64 = 1 << 3;

/// The most lanes looked for in one statement.
const LANES: usize = 16;

type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

/// The number of a row, the want that it answers, and when it came due.
#[derive(Debug, Clone, Copy)]
struct Found {
    want: i64,
    seq: i64,
    due: i64,
}

/// The rows of each want, in their order, and how far each read came.
pub(crate) struct Sorted {
    pub(crate) rows: Vec<Vec<RawRow>>,
    pub(crate) reach: Vec<Reach>,
}

/// What a statement over an index found.
#[derive(Default)]
struct Numbers {
    found: Vec<Found>,
    /// Wants whose queues are paused.
    paused: Vec<i64>,
}

impl MysqlStore {
    pub(crate) async fn read_new(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Sorted> {
        let numbers = union_all(include_str!("../sql/numbers_new.sql"), wants.len());
        let paused = union_all(include_str!("../sql/paused.sql"), wants.len());
        let sql = format!("{numbers} UNION ALL {paused}");
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (place, want) in (0i64..).zip(wants) {
            let queue = want.queue.as_bytes();
            query = query
                .bind(place)
                .bind(queue)
                .bind(want.after)
                .bind(want.shards.bits())
                .bind(queue);
            query = query.bind(limit(want, skip));
        }
        for (place, want) in (0i64..).zip(wants) {
            query = query.bind(place).bind(want.queue.as_bytes());
        }
        self.by_want(query, wants, skip, NEW).await
    }

    pub(crate) async fn read_due(
        &self,
        wants: &[Want<'_>],
        skip: &[i64],
    ) -> Result<Vec<Vec<RawRow>>> {
        let sql = union_all(include_str!("../sql/numbers_due.sql"), wants.len());
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (place, want) in (0i64..).zip(wants) {
            let queue = want.queue.as_bytes();
            query = query
                .bind(place)
                .bind(queue)
                .bind(want.shards.bits())
                .bind(queue);
            query = query.bind(limit(want, skip));
        }
        Ok(self.by_want(query, wants, skip, DUE).await?.rows)
    }

    pub(crate) async fn read_held(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        let mut found = Vec::new();
        for some in lanes.chunks(LANES) {
            let sql = union_all(include_str!("../sql/numbers_lane.sql"), some.len());
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for (place, lane) in (0i64..).zip(some) {
                query = query.bind(place);
                for _ in 0..3 {
                    query = query
                        .bind(queue.as_bytes())
                        .bind(lane.kind.as_bytes())
                        .bind(lane.id.as_bytes());
                }
                query = query.bind(as_i64(per_lane));
            }
            found.extend(self.numbers(query).await?.found);
        }
        found.sort_unstable_by_key(|f| f.seq);
        found.dedup_by_key(|f| f.seq);
        let share = fit::share(bytes, per_lane.saturating_mul(lanes.len()));
        let rows = self.rows(&found, HELD, |_| share).await?;
        let fit = fit::fit(rows.into_iter().map(|(_, row)| row), bytes);
        let cut = fit.cut;
        let rows = self.fill(fit).await?;
        Ok(Held { rows, cut })
    }

    async fn by_want(
        &self,
        query: Query<'_>,
        wants: &[Want<'_>],
        skip: &[i64],
        states: i64,
    ) -> Result<Sorted> {
        let mut sorted = Sorted {
            rows: wants.iter().map(|_| Vec::new()).collect(),
            reach: Vec::new(),
        };
        if wants.is_empty() {
            return Ok(sorted);
        }
        let numbers = self.numbers(query).await?;
        let found = choose(numbers.found, wants, skip);
        // By the numbers, not by the rows: a row that is gone by now was found all the same.
        sorted.reach = (0i64..)
            .zip(wants)
            .map(|(place, want)| {
                if numbers.paused.contains(&place) {
                    return Reach::Paused;
                }
                let found = found.iter().filter(|f| f.want == place);
                Reach::of(found.count(), want.limit)
            })
            .collect();
        let asked = |place: i64| usize::try_from(place).ok().and_then(|n| wants.get(n));
        let share = |place| asked(place).map_or(0, |want| fit::share(want.bytes, want.limit));
        let mut rows: Vec<Vec<fit::Found>> = wants.iter().map(|_| Vec::new()).collect();
        for (want, row) in self.rows(&found, states, share).await? {
            if let Some(list) = usize::try_from(want).ok().and_then(|n| rows.get_mut(n)) {
                list.push(row);
            }
        }
        for (n, (want, rows)) in wants.iter().zip(rows).enumerate() {
            let fit = fit::fit(rows, want.bytes);
            if fit.cut {
                sorted.reach[n] = Reach::Limit;
            }
            sorted.rows[n] = self.fill(fit).await?;
        }
        Ok(sorted)
    }

    /// Reads the contents that were left out.
    async fn fill(&self, fit: Fit) -> Result<Vec<RawRow>> {
        if fit.left_out.is_empty() {
            return Ok(fit.rows);
        }
        let mut rows = sqlx::query(include_str!("../sql/contents.sql"))
            .bind(json(&fit.left_out)?)
            .fetch(self.pool());
        let mut contents = Vec::with_capacity(fit.left_out.len());
        while let Some(row) = rows.try_next().await.map_err(classify)? {
            contents.push(content(&row).map_err(classify)?);
        }
        Ok(fit.fill(contents))
    }

    async fn numbers(&self, query: Query<'_>) -> Result<Numbers> {
        let rows = query.fetch_all(self.pool()).await.map_err(classify)?;
        let mut numbers = Numbers::default();
        for row in rows {
            let want = row.try_get(0).map_err(classify)?;
            let Some(seq) = row.try_get(1).map_err(classify)? else {
                numbers.paused.push(want);
                continue;
            };
            // A date that is none has no distance from another: it is long due.
            let due: Option<i64> = row.try_get(2).map_err(classify)?;
            let due = due.unwrap_or(i64::MIN);
            numbers.found.push(Found { want, seq, due });
        }
        Ok(numbers)
    }

    /// The rows under these numbers, in their order, as far as they still stand where they did.
    async fn rows(
        &self,
        found: &[Found],
        states: i64,
        share: impl Fn(i64) -> i64,
    ) -> Result<Vec<(i64, fit::Found)>> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<(i64, i64, i64)> = found
            .iter()
            .map(|f| (f.want, f.seq, share(f.want)))
            .collect();
        let mut rows = sqlx::query(include_str!("../sql/rows.sql"))
            .bind(json(&numbers)?)
            .bind(states)
            .fetch(self.pool());
        let mut decoded: Vec<(u64, i64, fit::Found)> = Vec::with_capacity(found.len());
        while let Some(row) = rows.try_next().await.map_err(classify)? {
            decoded.push(decode(&row).map_err(classify)?);
        }
        decoded.sort_by_key(|d| d.0);
        Ok(decoded
            .into_iter()
            .map(|(_, want, row)| (want, row))
            .collect())
    }
}

/// At most as many as each want asks for, earliest first, without those in flight.
fn choose(mut found: Vec<Found>, wants: &[Want<'_>], skip: &[i64]) -> Vec<Found> {
    let skip: HashSet<i64> = skip.iter().copied().collect();
    found.sort_unstable_by_key(|f| (f.want, f.due, f.seq));
    let mut taken: HashMap<i64, usize> = HashMap::new();
    found.retain(|f| {
        let limit = usize::try_from(f.want)
            .ok()
            .and_then(|n| wants.get(n))
            .map_or(0, |w| w.limit);
        let taken = taken.entry(f.want).or_default();
        let keep = *taken < limit && !skip.contains(&f.seq);
        *taken += usize::from(keep);
        keep
    });
    found
}

/// Enough that, whatever is skipped, the want can be filled.
fn limit(want: &Want<'_>, skip: &[i64]) -> i64 {
    as_i64(want.limit.saturating_add(skip.len()))
}

pub(crate) fn union_all(branch: &str, times: usize) -> String {
    vec![format!("({branch})"); times].join(" UNION ALL ")
}

fn decode(row: &MySqlRow) -> sqlx::Result<(u64, i64, fit::Found)> {
    let shard: i16 = row.try_get(3)?;
    let state: Option<&str> = row.try_get(12)?;
    let attempts: i64 = row.try_get(13)?;
    let crashes: i32 = row.try_get(14)?;
    let flag = |n: usize| row.try_get::<i64, _>(n).map(|v| v != 0);
    let created_at: Option<i64> = row.try_get(17)?;
    let left_out: Option<i64> = row.try_get(18)?;
    let id: Option<String> = row.try_get(4)?;
    let raw = RawRow {
        seq: row.try_get(2)?,
        shard: shard.cast_unsigned(),
        written_id: WrittenId::of(id.as_deref().map(str::as_bytes)),
        id,
        aggregate_type: row.try_get(5)?,
        aggregate_id: row.try_get(6)?,
        version: row.try_get(7)?,
        event_type: row.try_get(8)?,
        payload: row.try_get(9)?,
        payload_bin: row.try_get(10)?,
        headers: row.try_get(11)?,
        state: RowState::parse(state),
        attempts: u32::try_from(attempts).unwrap_or(0),
        crashes: u32::try_from(crashes).unwrap_or(0),
        early: flag(15)?,
        behind: flag(16)?,
        // Not the present time: the id of a row without one is made from this, and must not change.
        created_at: created_at.map_or(DateTime::UNIX_EPOCH, instant),
        unreadable: None,
    };
    let found = fit::Found {
        row: raw,
        left_out: left_out.map(|bytes| usize::try_from(bytes).unwrap_or(0)),
    };
    Ok((ordinal(row)?, row.try_get(1)?, found))
}

fn content(row: &MySqlRow) -> sqlx::Result<(i64, Content)> {
    let content = Content {
        payload: row.try_get(1)?,
        payload_bin: row.try_get(2)?,
        headers: row.try_get(3)?,
        unreadable: None,
    };
    Ok((row.try_get(0)?, content))
}

/// `FOR ORDINALITY` is signed on MariaDB and unsigned on MySQL.
fn ordinal(row: &MySqlRow) -> sqlx::Result<u64> {
    row.try_get::<u64, _>(0)
        .or_else(|_| row.try_get::<i64, _>(0).map(i64::cast_unsigned))
}

/// Times are read as microseconds since 1970: dates that are none would not be read at all.
pub(crate) fn instant(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros.max(0)).unwrap_or(DateTime::UNIX_EPOCH)
}

pub(crate) fn as_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
