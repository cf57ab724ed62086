//! What becomes of rows: sent, again later, aside, parked or rerouted, in one transaction.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use counterfoil_core::row::RowKey;
use counterfoil_core::span::millis;
use counterfoil_core::store::{Fence, Park, Result, Retry, Settled, Settlement, ShardSet};
use serde_json::json;
use sqlx::sqlite::SqliteConnection;

use crate::{SqliteStore, classify, enqueue};

/// Through a trigger, which finds each row by its number whatever statistics say.
const DELETE: &str = "INSERT INTO counterfoil_gone (seq) SELECT value FROM json_each(?1)";

impl SqliteStore {
    pub(crate) async fn settle_all(
        &self,
        fence: &Fence,
        settlement: &Settlement,
    ) -> Result<Settled> {
        let mut tx = self.write().await?;
        let (held, redriven) = check_fence(&mut tx, fence).await?;
        let mut ours = settlement.restrict(held);
        let only_delete = ours.only_sent() && !ours.keep_sent && !redriven;
        if !only_delete {
            let missing = missing(&mut tx, ours.rows()).await?;
            if !missing.is_empty() {
                ours.retain(|row| !missing.contains(row));
            }
        }
        if only_delete {
            let rows = named(&ours.sent);
            run(&mut tx, include_str!("../sql/delete_sent.sql"), [rows]).await?;
        } else if !ours.sent.is_empty() {
            sent(&mut tx, fence, &ours, redriven).await?;
        }
        if !ours.only_sent() {
            retry(&mut tx, fence, &ours.retry).await?;
            hold(&mut tx, &ours.hold).await?;
            schedule(&mut tx, &ours.schedule).await?;
            defer(&mut tx, &ours.defer).await?;
            park(&mut tx, fence, &ours.park).await?;
            reroute(&mut tx, fence, &ours, redriven).await?;
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
}

/// The shards that still hold, and whether any redriven message is on its way. The transaction has
/// the write lock, so nobody changes the answer before it ends.
pub(crate) async fn check_fence(
    tx: &mut SqliteConnection,
    fence: &Fence,
) -> Result<(ShardSet, bool)> {
    let (epoch, redriven): (Option<i64>, bool) = sqlx::query_as(
        "SELECT (SELECT epoch FROM counterfoil_shards WHERE queue = ?1 AND shard = 0 AND owner = ?2),
                EXISTS (SELECT 1 FROM counterfoil_parked WHERE state = 'redriven')",
    )
    .bind(&*fence.queue)
    .bind(fence.relay.as_str())
    .fetch_one(tx)
    .await
    .map_err(classify)?;
    let holds = |shard: &&(u16, i64)| shard.0 == 0 && Some(shard.1) == epoch;
    Ok((
        fence.shards.iter().filter(holds).map(|s| s.0).collect(),
        redriven,
    ))
}

/// Those of the rows that are not there any more. The transaction has the write lock: the others stay
/// as they are until it ends, and their numbers are enough to name them.
pub(crate) async fn missing(
    tx: &mut SqliteConnection,
    rows: impl Iterator<Item = &RowKey>,
) -> Result<HashSet<RowKey>> {
    let rows: Vec<&RowKey> = rows.collect();
    let list = named(rows.iter().copied());
    let places: Vec<i64> = sqlx::query_scalar(include_str!("../sql/missing.sql"))
        .bind(list)
        .fetch_all(tx)
        .await
        .map_err(classify)?;
    let at = |place: i64| usize::try_from(place).ok().and_then(|n| rows.get(n));
    Ok(places
        .into_iter()
        .filter_map(at)
        .map(|row| (*row).clone())
        .collect())
}

async fn sent(
    tx: &mut SqliteConnection,
    fence: &Fence,
    s: &Settlement,
    redriven: bool,
) -> Result<()> {
    let seqs = array(s.sent.iter().map(|row| row.seq));
    if redriven {
        close(tx, fence, seqs.clone(), "delivered").await?;
    }
    if s.keep_sent {
        run(tx, include_str!("../sql/keep_sent.sql"), [seqs.clone()]).await?;
    }
    run(tx, DELETE, [seqs]).await
}

/// Closes the parked records of those that were redriven.
async fn close(tx: &mut SqliteConnection, fence: &Fence, seqs: String, how: &str) -> Result<()> {
    let closed: Vec<i64> = sqlx::query_scalar(include_str!("../sql/close_redriven.sql"))
        .bind(seqs)
        .fetch_all(&mut *tx)
        .await
        .map_err(classify)?;
    let note = [
        array(closed.into_iter()),
        fence.relay.to_string(),
        how.to_owned(),
    ];
    run(tx, include_str!("../sql/note_delivered.sql"), note).await
}

async fn retry(tx: &mut SqliteConnection, fence: &Fence, rows: &[Retry]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let row = |r: &Retry| {
        json!([
            r.row.seq,
            r.row.id,
            r.attempts,
            r.code,
            clean(&r.error),
            millis(r.delay)
        ])
    };
    let list = rows
        .iter()
        .map(row)
        .collect::<serde_json::Value>()
        .to_string();
    run(tx, include_str!("../sql/retry.sql"), [list.clone()]).await?;
    let note = [list, "retry".into(), fence.relay.to_string()];
    run(tx, include_str!("../sql/note_failed.sql"), note).await
}

async fn hold(tx: &mut SqliteConnection, rows: &[RowKey]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let numbers = array(rows.iter().map(|row| row.seq));
    run(tx, include_str!("../sql/hold.sql"), [numbers]).await
}

async fn schedule(tx: &mut SqliteConnection, rows: &[RowKey]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let numbers = array(rows.iter().map(|row| row.seq));
    run(tx, include_str!("../sql/schedule.sql"), [numbers]).await
}

async fn defer(tx: &mut SqliteConnection, rows: &[(RowKey, Duration)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let list = rows
        .iter()
        .map(|r| json!([r.0.seq, millis(r.1)]))
        .collect::<serde_json::Value>();
    run(tx, include_str!("../sql/defer.sql"), [list.to_string()]).await
}

async fn park(tx: &mut SqliteConnection, fence: &Fence, rows: &[Park]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let row = |p: &Park| {
        json!([
            p.row.seq,
            p.row.id,
            p.attempts,
            p.code,
            clean(&p.error),
            p.hold,
            p.confirm
        ])
    };
    let list = rows
        .iter()
        .map(row)
        .collect::<serde_json::Value>()
        .to_string();
    run(tx, include_str!("../sql/park.sql"), [list.clone()]).await?;
    let note = [list, "parked".into(), fence.relay.to_string()];
    run(tx, include_str!("../sql/note_failed.sql"), note).await?;
    delete(tx, rows.iter().map(|p| p.row.seq)).await?;
    for keyed in rows.iter().filter_map(Park::keyed_follow_up) {
        keyed.message.validate()?;
        enqueue::insert_keyed(tx, &keyed).await?;
    }
    Ok(())
}

async fn reroute(
    tx: &mut SqliteConnection,
    fence: &Fence,
    s: &Settlement,
    redriven: bool,
) -> Result<()> {
    // A row without a copy is not replaced: it stays.
    let replaced = || s.reroute.iter().filter(|r| !r.copies.is_empty());
    if replaced().next().is_none() {
        return Ok(());
    }
    let copies =
        replaced().flat_map(|r| r.copies.iter().map(move |c| json!([r.row.seq, c.0, c.1])));
    let list = copies.collect::<serde_json::Value>().to_string();
    run(tx, include_str!("../sql/reroute.sql"), [list]).await?;
    if redriven {
        let seqs = array(replaced().map(|r| r.row.seq));
        close(tx, fence, seqs, "rerouted").await?;
    }
    delete(tx, replaced().map(|r| r.row.seq)).await
}

pub(crate) async fn delete(
    tx: &mut SqliteConnection,
    seqs: impl Iterator<Item = i64>,
) -> Result<()> {
    run(tx, DELETE, [array(seqs)]).await
}

pub(crate) async fn run<const N: usize>(
    tx: &mut SqliteConnection,
    sql: &'static str,
    arguments: [String; N],
) -> Result<()> {
    let query = arguments
        .into_iter()
        .fold(sqlx::query(sql), sqlx::query::Query::bind);
    query.execute(tx).await.map_err(classify)?;
    Ok(())
}

/// Rows as a JSON array of [number, id as it stands in the row].
fn named<'a>(rows: impl IntoIterator<Item = &'a RowKey>) -> String {
    let mut list = String::from("[");
    for (n, row) in rows.into_iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        // A token has only letters, digits and hyphens.
        let _ = match row.token() {
            Some(token) => write!(list, "{comma}[{},\"{token}\"]", row.seq),
            None => write!(list, "{comma}[{},null]", row.seq),
        };
    }
    list.push(']');
    list
}

/// Numbers as a JSON array, which is how SQLite takes a list.
pub(crate) fn array(numbers: impl Iterator<Item = i64>) -> String {
    let mut list = String::from("[");
    for (n, number) in numbers.enumerate() {
        if n > 0 {
            list.push(',');
        }
        let _ = write!(list, "{number}");
    }
    list.push(']');
    list
}

/// An error message may hold anything, and a text ends at NUL for some who read it.
pub(crate) fn clean(error: &str) -> String {
    error.replace('\0', " ")
}
