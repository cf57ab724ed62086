//! Where there is work, and which lanes can go on.

use std::collections::BTreeMap;

use counterfoil_core::message::Aggregate;
use counterfoil_core::store::{LaneCursor, Occupied, Result, Runnable, StoreError, Want};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::reading::{as_i64, paused_queues};
use crate::{SqliteStore, classify};

impl SqliteStore {
    pub(crate) async fn find_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        let by_name: BTreeMap<&str, usize> = (0..)
            .zip(wants)
            .filter(|(_, want)| want.shards.contains(0))
            .map(|(place, want)| (want.queue, place))
            .collect();
        let begin = from.map_or("", |cursor| &cursor.queue);
        let mut runnable = Runnable::default();
        let mut left = at_most;
        let mut snapshot = self.reader().begin().await.map_err(classify)?;
        for (queue, place) in by_name.range(begin..) {
            let after = from.filter(|cursor| cursor.queue == *queue);
            let lanes = lanes_after(&mut snapshot, queue, after, left).await?;
            left = left.saturating_sub(lanes.len());
            runnable
                .lanes
                .extend(lanes.iter().filter_map(free).map(|lane| (*place, lane)));
            if left == 0 {
                let last = lanes.last().map(place_of).transpose().map_err(classify)?;
                runnable.next = last.map(|(id, kind)| LaneCursor {
                    queue: (*queue).to_owned(),
                    lane: format!("{}.{}", hex(&id), hex(&kind)),
                });
                break;
            }
        }
        snapshot.commit().await.map_err(classify)?;
        Ok(runnable)
    }

    pub(crate) async fn find_occupied(&self) -> Result<Occupied> {
        let mut snapshot = self.reader().begin().await.map_err(classify)?;
        let found = sqlx::query(include_str!("../sql/occupied.sql"))
            .fetch_all(&mut *snapshot)
            .await
            .map_err(classify)?;
        let mut occupied = Occupied {
            paused: paused_queues(&mut snapshot).await?,
            ..Occupied::default()
        };
        snapshot.commit().await.map_err(classify)?;
        for row in &found {
            let kind: i64 = row.try_get_unchecked(0).map_err(classify)?;
            // Nobody serves a queue whose name is no UTF-8.
            let Ok(queue) = row.try_get_unchecked::<String, _>(1) else {
                continue;
            };
            match kind {
                0 => occupied.new.push(queue),
                1 => occupied.due.push(queue),
                _ => occupied.held.push(queue),
            }
        }
        Ok(occupied)
    }
}

async fn lanes_after(
    tx: &mut SqliteConnection,
    queue: &str,
    after: Option<&LaneCursor>,
    limit: usize,
) -> Result<Vec<SqliteRow>> {
    let after = after.map(|cursor| unhex(&cursor.lane)).transpose()?;
    let (id, kind) = after.unzip();
    sqlx::query(include_str!("../sql/runnable_lanes.sql"))
        .bind(queue)
        .bind(as_i64(limit))
        .bind(id)
        .bind(kind)
        .fetch_all(tx)
        .await
        .map_err(classify)
}

/// The id and the type of a lane, whatever bytes they are.
fn place_of(row: &SqliteRow) -> sqlx::Result<(Vec<u8>, Vec<u8>)> {
    Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?))
}

/// A lane that nothing holds back. A name that is no UTF-8 is no lane: such a row is parked when it is
/// read.
fn free(row: &SqliteRow) -> Option<Aggregate> {
    let free: bool = row.try_get_unchecked(2).ok()?;
    let (id, kind) = place_of(row).ok().filter(|_| free)?;
    Some(Aggregate {
        kind: String::from_utf8(kind).ok()?,
        id: String::from_utf8(id).ok()?,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(lane: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    let bytes = |digits: &str| -> Option<Vec<u8>> {
        (0..digits.len())
            .step_by(2)
            .map(|n| u8::from_str_radix(digits.get(n..n + 2)?, 16).ok())
            .collect()
    };
    let parts = lane.split_once('.');
    parts
        .and_then(|(id, kind)| Some((bytes(id)?, bytes(kind)?)))
        .ok_or_else(|| StoreError::Database("a cursor of another store".into()))
}
