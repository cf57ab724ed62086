//! Settling: sent, again later, held, parked, rerouted.
//!
//! # Promise
//! A settlement is one transaction. It first locks the ownership of its shards, in order and shared,
//! and compares their fencing numbers; then it locks its rows, by number ascending. A row that is
//! gone by then is passed over, and nothing is written about it.

use std::collections::HashMap;

use counterfoil_core::span::micros;
use counterfoil_core::store::{Fence, Park, Result, Retry, Settled, Settlement, ShardSet};
use counterfoil_core::{Code, MessageId};

use crate::write::WriteTx;
use crate::{MysqlStore, classify, enqueue, json};

/// A line for a message's history: number, id, attempt, code, detail.
pub(crate) type Line<'a> = (i64, String, Option<u32>, Option<&'a str>, Option<&'a str>);

/// A row that is there, and locked.
pub(crate) struct Locked {
    pub(crate) redriven: bool,
    pub(crate) attempts: u32,
    pub(crate) id: String,
}

impl MysqlStore {
    pub(crate) async fn apply(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        let mut tx = self.begin().await?;
        let (held, redriven) = lock_fence(&mut tx, fence).await?;
        let ours = settlement.restrict(held);
        if ours.only_sent() && !ours.keep_sent && !redriven {
            delete(&mut tx, &ours.sent).await?;
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

    pub(crate) async fn count_crash(&self, fence: &Fence, seq: i64) -> Result<Option<u32>> {
        let mut tx = self.begin().await?;
        let (held, _) = lock_fence(&mut tx, fence).await?;
        let found: Option<(i16, i32)> = sqlx::query_as(
            "SELECT shard, crashes FROM counterfoil_outbox WHERE seq = ? FOR UPDATE",
        )
        .bind(seq)
        .fetch_optional(&mut *tx)
        .await
        .map_err(classify)?;
        let Some((_, crashes)) = found.filter(|f| held.contains(f.0.cast_unsigned())) else {
            return Ok(None);
        };
        let crashes = count(u32::try_from(crashes).unwrap_or(0).saturating_add(1));
        sqlx::query("UPDATE counterfoil_outbox SET crashes = ? WHERE seq = ?")
            .bind(crashes)
            .bind(seq)
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
    let rows = lock_rows(tx, ours.rows().collect()).await?;
    ours.sent.retain(|s| rows.contains_key(&s.0));
    ours.hold.retain(|h| rows.contains_key(&h.0));
    ours.schedule.retain(|s| rows.contains_key(&s.0));
    ours.defer.retain(|d| rows.contains_key(&d.0));
    ours.retry.retain(|r| rows.contains_key(&r.seq));
    ours.park.retain(|p| rows.contains_key(&p.seq));
    ours.reroute.retain(|r| rows.contains_key(&r.seq));

    sent(tx, fence, &ours, &rows).await?;
    retry(tx, fence, &ours.retry).await?;
    move_to(tx, "held", &ours.hold).await?;
    move_to(tx, "scheduled", &ours.schedule).await?;
    defer(tx, &ours).await?;
    park(tx, fence, &ours.park).await?;
    reroute(tx, &ours).await
}

/// Locks rows, ascending, and answers those that are there.
pub(crate) async fn lock_rows(
    tx: &mut WriteTx,
    mut rows: Vec<(i64, u16)>,
) -> Result<HashMap<i64, Locked>> {
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    rows.sort_unstable();
    let found: Vec<(i64, i8, i64, String)> = sqlx::query_as(include_str!("../sql/lock_rows.sql"))
        .bind(json(&rows)?)
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(found
        .into_iter()
        .map(|(seq, redriven, attempts, id)| {
            let attempts = u32::try_from(attempts).unwrap_or(0);
            (
                seq,
                Locked {
                    redriven: redriven != 0,
                    attempts,
                    id,
                },
            )
        })
        .collect())
}

async fn sent(
    tx: &mut WriteTx,
    fence: &Fence,
    s: &Settlement,
    rows: &HashMap<i64, Locked>,
) -> Result<()> {
    if s.keep_sent {
        to_history(tx, &s.sent, 1, "sent", None).await?;
    }
    let arrived: Vec<Line<'_>> = s
        .sent
        .iter()
        .filter_map(|(seq, _)| rows.get(seq).map(|row| (*seq, row)))
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
    delete(tx, &s.sent).await
}

async fn retry(tx: &mut WriteTx, fence: &Fence, retry: &[Retry]) -> Result<()> {
    if retry.is_empty() {
        return Ok(());
    }
    let batch: Vec<_> = retry
        .iter()
        .map(|r| {
            (
                r.seq,
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
        .map(|r| line(r.seq, r.id, r.attempts, &r.code, &r.error))
        .collect();
    tell(tx, "retry", fence.relay.as_str(), &lines).await
}

async fn move_to(tx: &mut WriteTx, state: &str, rows: &[(i64, u16)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(include_str!("../sql/move.sql"))
        .bind(json(&rows)?)
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
    let batch: Vec<_> = s.defer.iter().map(|d| (d.0, micros(d.2))).collect();
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
                p.seq,
                p.id.to_string(),
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
        .map(|p| line(p.seq, p.id, p.attempts, &p.code, &p.error))
        .collect();
    tell(tx, "parked", fence.relay.as_str(), &lines).await?;
    let rows: Vec<_> = park.iter().map(|p| (p.seq, p.shard)).collect();
    delete(tx, &rows).await?;
    for keyed in park.iter().filter_map(Park::keyed_follow_up) {
        enqueue::insert_keyed(&mut *tx, &keyed).await?;
    }
    Ok(())
}

async fn reroute(tx: &mut WriteTx, s: &Settlement) -> Result<()> {
    let copies: Vec<_> = s
        .reroute
        .iter()
        .flat_map(|r| {
            r.copies
                .iter()
                .map(|(id, queue)| (r.seq, id.to_string(), queue))
        })
        .collect();
    if copies.is_empty() {
        return Ok(());
    }
    execute(tx, include_str!("../sql/reroute.sql"), json(&copies)?).await?;
    let replaced: Vec<_> = s
        .reroute
        .iter()
        .filter(|r| !r.copies.is_empty())
        .map(|r| (r.seq, r.shard))
        .collect();
    delete(tx, &replaced).await
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

pub(crate) async fn delete(tx: &mut WriteTx, rows: &[(i64, u16)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    execute(tx, include_str!("../sql/delete_rows.sql"), json(&rows)?).await
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

fn line<'a>(seq: i64, id: MessageId, attempt: u32, code: &'a Code, error: &'a str) -> Line<'a> {
    (
        seq,
        id.to_string(),
        Some(count(attempt)),
        Some(code.as_str()),
        Some(error),
    )
}

/// A writer may have left any number; ours stop at what the column holds.
fn count(attempts: u32) -> u32 {
    attempts.min(i32::MAX.cast_unsigned())
}
