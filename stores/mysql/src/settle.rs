//! Settling: sent, again later, held, parked, rerouted.
//!
//! # Promise
//! A settlement is one transaction. It first locks the ownership of its shards, in order and shared,
//! and compares their fencing numbers; then it locks its rows, by number ascending. A row that is
//! gone by then is passed over, and nothing is written about it.

use std::collections::HashMap;

use counterfoil_core::Code;
use counterfoil_core::row::RowKey;
use counterfoil_core::span::micros;
use counterfoil_core::store::{Fence, Park, Result, Retry, Settled, Settlement, ShardSet};

use crate::write::WriteTx;
use crate::{MysqlStore, classify, enqueue, json};

/// A line for a message's history: number, id, attempt, code, detail.
pub(crate) type Line<'a> = (i64, String, Option<u32>, Option<&'a str>, Option<&'a str>);

/// A row that is there, and locked.
pub(crate) struct Locked {
    key: RowKey,
    redriven: bool,
    attempts: u32,
    crashes: u32,
    /// The beginning of its id as it stands there.
    id: String,
}

impl MysqlStore {
    pub(crate) async fn apply(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        let mut tx = self.begin().await?;
        let (held, redriven) = lock_fence(&mut tx, fence).await?;
        let ours = settlement.restrict(held);
        if ours.only_sent() && !ours.keep_sent && !redriven {
            delete_sent(&mut tx, &ours.sent).await?;
        } else {
            apply(&mut tx, fence, ours).await?;
        }
        tx.commit().await?;
        let lost = fence
            .shards
            .iter()
            .map(|s| s.0)
            .filter(|s| !held.contains(*s))
            .collect();
        Ok(Settled { lost, stamp: None })
    }

    pub(crate) async fn count_crash(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        let mut tx = self.begin().await?;
        let (held, _) = lock_fence(&mut tx, fence).await?;
        let rows = lock_rows(&mut tx, std::iter::once(row)).await?;
        let Some(found) = rows.get(&row.seq).filter(|_| held.contains(row.shard)) else {
            return Ok(None);
        };
        let crashes = count(found.crashes.saturating_add(1));
        sqlx::query("UPDATE counterfoil_outbox SET crashes = ? WHERE seq = ?")
            .bind(crashes)
            .bind(row.seq)
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        tx.commit().await?;
        Ok(Some(crashes))
    }
}

/// Locks the ownership of the fence's shards. Answers which of them hold, and whether any redriven
/// message is on its way.
async fn lock_fence(tx: &mut WriteTx, fence: &Fence) -> Result<(ShardSet, bool)> {
    let mut shards = fence.shards.clone();
    shards.sort_unstable();
    let rows: Vec<(i16, i64)> = sqlx::query_as(include_str!("../sql/fence.sql"))
        .bind(json(&shards)?)
        .bind(fence.queue.as_bytes())
        .bind(fence.relay.as_str().as_bytes())
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    let redriven = rows.iter().any(|r| r.1 != 0);
    Ok((rows.iter().map(|r| r.0.cast_unsigned()).collect(), redriven))
}

async fn apply(tx: &mut WriteTx, fence: &Fence, mut ours: Settlement) -> Result<()> {
    let rows = lock_rows(tx, ours.rows()).await?;
    // From here on a number is enough to name a row: nobody else changes what is locked.
    ours.retain(|row| rows.get(&row.seq).is_some_and(|found| found.key == *row));

    sent(tx, fence, &ours, &rows).await?;
    retry(tx, fence, &ours.retry).await?;
    move_to(tx, "held", &ours.hold).await?;
    move_to(tx, "scheduled", &ours.schedule).await?;
    defer(tx, &ours).await?;
    park(tx, fence, &ours.park).await?;
    reroute(tx, fence, &ours, &rows).await
}

/// Locks rows, ascending, and answers those that are there, by number.
async fn lock_rows<'a>(
    tx: &mut WriteTx,
    rows: impl Iterator<Item = &'a RowKey>,
) -> Result<HashMap<i64, Locked>> {
    let mut rows: Vec<&RowKey> = rows.collect();
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    rows.sort_unstable_by_key(|row| (row.seq, row.shard));
    let list: Vec<_> = (0i64..)
        .zip(&rows)
        .map(|(place, row)| (row.seq, row.shard, row.token(), place))
        .collect();
    let found: Vec<(i64, i8, i64, i32, String)> =
        sqlx::query_as(include_str!("../sql/lock_rows.sql"))
            .bind(json(&list)?)
            .fetch_all(&mut **tx)
            .await
            .map_err(classify)?;
    let locked = |(place, redriven, attempts, crashes, id): (i64, i8, i64, i32, String)| {
        let key = (**rows.get(usize::try_from(place).ok()?)?).clone();
        let locked = Locked {
            redriven: redriven != 0,
            attempts: u32::try_from(attempts).unwrap_or(0),
            crashes: u32::try_from(crashes).unwrap_or(0),
            id,
            key,
        };
        Some((locked.key.seq, locked))
    };
    Ok(found.into_iter().filter_map(locked).collect())
}

async fn sent(
    tx: &mut WriteTx,
    fence: &Fence,
    s: &Settlement,
    rows: &HashMap<i64, Locked>,
) -> Result<()> {
    if s.keep_sent {
        to_history(tx, &pairs(&s.sent), 1, "sent", None).await?;
    }
    let arrived: Vec<Line<'_>> = s
        .sent
        .iter()
        .filter_map(|key| rows.get(&key.seq).map(|row| (key.seq, row)))
        .filter(|(_, row)| row.redriven)
        .map(|(seq, row)| {
            (
                seq,
                row.id.clone(),
                Some(count(row.attempts.saturating_add(1))),
                None,
                None,
            )
        })
        .collect();
    if !arrived.is_empty() {
        execute(tx, include_str!("../sql/delivered.sql"), json(&arrived)?).await?;
        tell(tx, "delivered", fence.relay.as_str(), &arrived).await?;
    }
    delete(tx, pairs(&s.sent)).await
}

async fn retry(tx: &mut WriteTx, fence: &Fence, retry: &[Retry]) -> Result<()> {
    if retry.is_empty() {
        return Ok(());
    }
    let batch: Vec<_> = retry
        .iter()
        .map(|r| {
            (
                r.row.seq,
                count(r.attempts),
                r.code.as_str(),
                &r.error,
                micros(r.delay),
            )
        })
        .collect();
    execute(tx, include_str!("../sql/retry.sql"), json(&batch)?).await?;
    let lines: Vec<_> = retry
        .iter()
        .map(|r| line(&r.row, r.attempts, &r.code, &r.error))
        .collect();
    tell(tx, "retry", fence.relay.as_str(), &lines).await
}

async fn move_to(tx: &mut WriteTx, state: &str, rows: &[RowKey]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(include_str!("../sql/move.sql"))
        .bind(json(&pairs(rows))?)
        .bind(state)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

async fn defer(tx: &mut WriteTx, s: &Settlement) -> Result<()> {
    if s.defer.is_empty() {
        return Ok(());
    }
    let batch: Vec<_> = s.defer.iter().map(|d| (d.0.seq, micros(d.1))).collect();
    execute(tx, include_str!("../sql/defer.sql"), json(&batch)?).await
}

async fn park(tx: &mut WriteTx, fence: &Fence, park: &[Park]) -> Result<()> {
    if park.is_empty() {
        return Ok(());
    }
    let batch: Vec<_> = park
        .iter()
        .map(|p| {
            let (hold, confirm) = (u8::from(p.hold), u8::from(p.confirm));
            (
                p.row.seq,
                p.row.id.to_string(),
                count(p.attempts),
                p.code.as_str(),
                &p.error,
                hold,
                confirm,
            )
        })
        .collect();
    let batch = json(&batch)?;
    // Also a redriven row whose record was removed by hand gets one: it leaves the outbox now.
    execute(tx, include_str!("../sql/park_again.sql"), batch.clone()).await?;
    execute(tx, include_str!("../sql/park.sql"), batch).await?;
    let lines: Vec<_> = park
        .iter()
        .map(|p| line(&p.row, p.attempts, &p.code, &p.error))
        .collect();
    tell(tx, "parked", fence.relay.as_str(), &lines).await?;
    delete(tx, pairs(park.iter().map(|p| &p.row))).await?;
    for keyed in park.iter().filter_map(Park::keyed_follow_up) {
        enqueue::insert_keyed(&mut *tx, &keyed).await?;
    }
    Ok(())
}

async fn reroute(
    tx: &mut WriteTx,
    fence: &Fence,
    s: &Settlement,
    rows: &HashMap<i64, Locked>,
) -> Result<()> {
    let copies: Vec<_> = s
        .reroute
        .iter()
        .flat_map(|r| {
            r.copies
                .iter()
                .map(|(id, queue)| (r.row.seq, id.to_string(), queue))
        })
        .collect();
    if copies.is_empty() {
        return Ok(());
    }
    execute(tx, include_str!("../sql/reroute.sql"), json(&copies)?).await?;
    let replaced = s.reroute.iter().filter(|r| !r.copies.is_empty());
    let closed: Vec<Line<'_>> = replaced
        .clone()
        .filter_map(|r| rows.get(&r.row.seq).filter(|row| row.redriven))
        .map(|row| (row.key.seq, row.id.clone(), None, None, None))
        .collect();
    if !closed.is_empty() {
        execute(tx, include_str!("../sql/delivered.sql"), json(&closed)?).await?;
        tell(tx, "rerouted", fence.relay.as_str(), &closed).await?;
    }
    delete(tx, pairs(replaced.map(|r| &r.row))).await
}

/// Copies rows to the history. The caller has locked them, and deletes them next.
pub(crate) async fn to_history(
    tx: &mut WriteTx,
    rows: &[(i64, u16)],
    more_attempts: i32,
    state: &str,
    detail: Option<&str>,
) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(include_str!("../sql/to_history.sql"))
        .bind(more_attempts)
        .bind(state)
        .bind(detail)
        .bind(json(&rows)?)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

/// Deletes rows that are locked.
pub(crate) async fn delete(tx: &mut WriteTx, mut rows: Vec<(i64, u16)>) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    rows.sort_unstable();
    execute(tx, include_str!("../sql/delete_rows.sql"), json(&rows)?).await
}

/// The common case: deletes rows without locking them first.
async fn delete_sent(tx: &mut WriteTx, rows: &[RowKey]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut rows: Vec<_> = rows
        .iter()
        .map(|row| (row.seq, row.shard, row.token()))
        .collect();
    rows.sort_unstable();
    execute(tx, include_str!("../sql/delete_sent.sql"), json(&rows)?).await
}

fn pairs<'a>(rows: impl IntoIterator<Item = &'a RowKey>) -> Vec<(i64, u16)> {
    rows.into_iter().map(|row| (row.seq, row.shard)).collect()
}

pub(crate) async fn tell(
    tx: &mut WriteTx,
    kind: &str,
    actor: &str,
    lines: &[Line<'_>],
) -> Result<()> {
    sqlx::query(include_str!("../sql/events.sql"))
        .bind(kind)
        .bind(actor)
        .bind(json(&lines)?)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

pub(crate) async fn execute(tx: &mut WriteTx, sql: &'static str, batch: String) -> Result<()> {
    sqlx::query(sql)
        .bind(batch)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

fn line<'a>(row: &RowKey, attempt: u32, code: &'a Code, error: &'a str) -> Line<'a> {
    (
        row.seq,
        row.id.to_string(),
        Some(count(attempt)),
        Some(code.as_str()),
        Some(error),
    )
}

/// A writer may have left any number; ours stop at what the column holds.
fn count(attempts: u32) -> u32 {
    attempts.min(i32::MAX.cast_unsigned())
}
