//! What a relay gets to see.
//!
//! # Why numbers become visible in order here
//! Rows are numbered inside the write transaction, and there is one write transaction at a time: the
//! next one begins after the last one has ended, on top of everything that it committed (a
//! transaction that read an older state is not allowed to write). `AUTOINCREMENT` gives a number
//! above every number that was ever committed, also of rows that are gone. A transaction or a
//! savepoint that is rolled back gives its numbers back, and they are given again; but nobody outside
//! has seen them, because uncommitted rows are visible to their own connection only (the store does
//! not use a shared cache). So whoever commits later has higher numbers: [`Horizon::Ordered`]. What
//! breaks this is a writer that chooses `seq` itself, which the contract leaves out; and a redrive,
//! which puts a row back under its old number, but as a retry, which is not looked for by number.

use counterfoil_core::fit::{self, Fit, Found};
use counterfoil_core::mark::{Horizon, Reach};
use counterfoil_core::message::Aggregate;
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{Held, Read, Result, Waiting, Want};
use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::packed::{Unpacked, unpack};
use crate::settle::array;
use crate::{SqliteStore, classify, rows};

/// Larger content than this is not packed together with that of other rows.
const PACKED: i64 = 65_536;

impl SqliteStore {
    pub(crate) async fn read_queues(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        let (skip, birth) = (array(skip.iter().copied()), self.birth().await?);
        // One transaction is one snapshot.
        let mut snapshot = self.reader().begin().await.map_err(classify)?;
        let paused = paused_queues(&mut snapshot).await?;
        let (mut rows, mut reach) = (Vec::new(), Vec::new());
        for want in wants {
            let found = read_new(&mut snapshot, want, &skip, birth).await?;
            let fit = fit::fit(found, want.bytes);
            reach.push(match Reach::of(fit.rows.len(), want.limit) {
                _ if paused.iter().any(|queue| queue == want.queue) => Reach::Paused,
                _ if fit.cut => Reach::Limit,
                reach => reach,
            });
            rows.push(fill(&mut snapshot, fit).await?);
        }
        snapshot.commit().await.map_err(classify)?;
        Ok(Read {
            rows,
            reach,
            horizon: Horizon::Ordered,
        })
    }

    pub(crate) async fn read_due(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        let (skip, birth) = (array(skip.iter().copied()), self.birth().await?);
        let mut snapshot = self.reader().begin().await.map_err(classify)?;
        let mut waiting = Waiting::default();
        for want in wants {
            let query = sqlx::query(include_str!("../sql/read_waiting.sql"))
                .bind(want.queue)
                .bind(limit(want))
                .bind(&skip)
                .bind(fit::share(want.bytes, want.limit));
            let found = query.fetch_all(&mut *snapshot).await.map_err(classify)?;
            let fit = fit::fit(decode(&found, birth)?, want.bytes);
            waiting.rows.push(fill(&mut snapshot, fit).await?);
        }
        waiting.paused = paused_queues(&mut snapshot).await?;
        snapshot.commit().await.map_err(classify)?;
        Ok(waiting)
    }

    pub(crate) async fn read_held(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        let birth = self.birth().await?;
        let share = fit::share(bytes, per_lane.saturating_mul(lanes.len()));
        let mut snapshot = self.reader().begin().await.map_err(classify)?;
        let lanes = lanes
            .iter()
            .map(|a| json!([a.kind, a.id]))
            .collect::<serde_json::Value>();
        let found = sqlx::query(include_str!("../sql/read_lanes.sql"))
            .bind(queue)
            .bind(lanes.to_string())
            .bind(as_i64(per_lane))
            .bind(share)
            .fetch_all(&mut *snapshot)
            .await
            .map_err(classify)?;
        let mut found = decode(&found, birth)?;
        found.sort_unstable_by_key(|found| found.row.seq);
        let fit = fit::fit(found, bytes);
        let cut = fit.cut;
        let rows = fill(&mut snapshot, fit).await?;
        snapshot.commit().await.map_err(classify)?;
        Ok(Held { rows, cut })
    }
}

pub(crate) async fn paused_queues(tx: &mut SqliteConnection) -> Result<Vec<String>> {
    sqlx::query_scalar("SELECT queue FROM counterfoil_queues WHERE paused_at IS NOT NULL")
        .fetch_all(tx)
        .await
        .map_err(classify)
}

/// Rows that nobody has put aside: the plain ones at once, the others one by one.
async fn read_new(
    tx: &mut SqliteConnection,
    want: &Want<'_>,
    skip: &str,
    birth: i64,
) -> Result<Vec<Found>> {
    let plain = |row| Found {
        row,
        left_out: None,
    };
    let mut found = match read_packed(tx, want, skip).await? {
        Some(Unpacked { rows, apart }) => {
            let mut found: Vec<Found> = rows.into_iter().map(plain).collect();
            if !apart.is_empty() {
                let only = array(apart.into_iter());
                found.extend(read_one_by_one(tx, want, skip, Some(only), birth).await?);
            }
            found
        }
        None => read_one_by_one(tx, want, skip, None, birth).await?,
    };
    found.sort_unstable_by_key(|found| found.row.seq);
    Ok(found)
}

/// Reads the contents that were left out.
async fn fill(tx: &mut SqliteConnection, fit: Fit) -> Result<Vec<RawRow>> {
    if fit.left_out.is_empty() {
        return Ok(fit.rows);
    }
    let mut contents = Vec::with_capacity(fit.left_out.len());
    for seq in &fit.left_out {
        // One by one: the driver reads ahead.
        let query =
            sqlx::query(include_str!("../sql/contents.sql")).bind(array([*seq].into_iter()));
        if let Some(row) = query.fetch_optional(&mut *tx).await.map_err(classify)? {
            contents.push(rows::content(&row).map_err(classify)?);
        }
    }
    Ok(fit.fill(contents))
}

/// Absent when one of the rows is not plain.
async fn read_packed(
    tx: &mut SqliteConnection,
    want: &Want<'_>,
    skip: &str,
) -> Result<Option<Unpacked>> {
    let query = sqlx::query(include_str!("../sql/read_packed.sql"))
        .bind(want.queue)
        .bind(want.after)
        .bind(limit(want))
        .bind(skip)
        .bind(fit::share(want.bytes, want.limit).min(PACKED));
    let row = match query.fetch_one(tx).await {
        Ok(row) => row,
        Err(error) if cannot_be_packed(&error) => return Ok(None),
        Err(error) => return Err(classify(error)),
    };
    let value: Option<&[u8]> = row.try_get_unchecked(0).map_err(classify)?;
    Ok(unpack(value.unwrap_or_default()))
}

async fn read_one_by_one(
    tx: &mut SqliteConnection,
    want: &Want<'_>,
    skip: &str,
    only: Option<String>,
    birth: i64,
) -> Result<Vec<Found>> {
    let query = sqlx::query(include_str!("../sql/read.sql"))
        .bind(want.queue)
        .bind(want.after)
        .bind(limit(want))
        .bind(skip)
        .bind(only)
        .bind(fit::share(want.bytes, want.limit));
    decode(&query.fetch_all(tx).await.map_err(classify)?, birth)
}

/// A blob where a text belongs, or more than one value can hold.
fn cannot_be_packed(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return false;
    };
    error.message().contains("JSON cannot hold BLOB") || error.code().as_deref() == Some("18")
}

fn decode(found: &[SqliteRow], birth: i64) -> Result<Vec<Found>> {
    found
        .iter()
        .map(|row| rows::decode(row, birth))
        .collect::<sqlx::Result<_>>()
        .map_err(classify)
}

fn limit(want: &Want<'_>) -> i64 {
    if want.shards.contains(0) {
        as_i64(want.limit)
    } else {
        0
    }
}

pub(crate) fn as_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
