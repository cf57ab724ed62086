//! The inbox: three steps on the transaction of a consumer. See [`counterfoil_core::inbox`].
//!
//! SQLite has one writer at a time. Whoever has begun with [`begin`] is alone until the transaction
//! ends, whatever its keys and aggregates are.

use std::collections::{HashMap, HashSet};

use counterfoil_core::Code;
use counterfoil_core::inbox::{
    Admitted, Deferred, Keep, Lane, Mode, Redriven, check_names, highest, queue_of,
};
use counterfoil_core::message::{Aggregate, Payload};
use counterfoil_core::span::millis;
use counterfoil_core::store::{Result, StoreError};
use sqlx::Transaction;
use sqlx::sqlite::{Sqlite, SqlitePool};

use crate::settle::clean;
use crate::{check_before_commit, classify};

/// Begins the transaction of a consumer: it holds the write lock.
pub async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>> {
    crate::write::begin(pool).await
}

/// Writes the ledger rows and locks the aggregates. Keys and aggregates stand once each, in
/// ascending order. A name that cannot be stored is refused before anything is written.
pub async fn admit(
    tx: &mut Transaction<'_, Sqlite>,
    consumer: &str,
    mode: Mode,
    keys: &[&str],
    aggregates: &[&Aggregate],
) -> Result<Admitted> {
    check_names(consumer, keys, aggregates)?;
    check_before_commit(tx).await?;
    let sql = match mode {
        Mode::Arrival => include_str!("../sql/inbox/arrive.sql"),
        Mode::Retry => include_str!("../sql/inbox/retry.sql"),
    };
    let mut fresh = HashSet::with_capacity(keys.len());
    for key in keys {
        if run(tx, sql, &[consumer, key]).await? == 1 {
            fresh.insert((*key).to_owned());
        }
    }
    let queue = queue_of(consumer);
    let mut lanes = HashMap::with_capacity(aggregates.len());
    for aggregate in aggregates {
        let mut lane = lane(tx, consumer, &queue, aggregate).await?;
        lane.taken &= mode == Mode::Arrival;
        lanes.insert((*aggregate).clone(), lane);
    }
    Ok(Admitted { fresh, lanes })
}

async fn lane(
    tx: &mut Transaction<'_, Sqlite>,
    consumer: &str,
    queue: &str,
    aggregate: &Aggregate,
) -> Result<Lane> {
    let names = [consumer, &aggregate.kind, &aggregate.id];
    run(tx, include_str!("../sql/inbox/add_lane.sql"), &names).await?;
    let (applied, taken) = sqlx::query_as(include_str!("../sql/inbox/lane.sql"))
        .bind(consumer)
        .bind(&aggregate.kind)
        .bind(&aggregate.id)
        .bind(queue)
        .fetch_one(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(Lane { applied, taken })
}

/// Puts messages off: their ledger rows wait, and the outbox has them.
pub async fn defer(
    tx: &mut Transaction<'_, Sqlite>,
    consumer: &str,
    deferred: &[Deferred],
) -> Result<()> {
    for one in deferred {
        one.message.validate()?;
    }
    check_before_commit(tx).await?;
    let queue = queue_of(consumer);
    let (mut noted, wait) = (0, include_str!("../sql/inbox/wait.sql"));
    for one in deferred {
        noted += run(tx, wait, &[consumer, &one.key]).await?;
        insert(tx, &queue, one).await?;
    }
    exactly(noted, deferred.len())
}

async fn insert(tx: &mut Transaction<'_, Sqlite>, queue: &str, one: &Deferred) -> Result<()> {
    let message = &one.message;
    let aggregate = message.aggregate.as_ref();
    let (text, bin) = match &message.payload {
        Payload::Json(text) => (Some(text.as_str()), None),
        Payload::Opaque(bytes) => (None, Some(bytes.as_ref())),
    };
    sqlx::query(include_str!("../sql/inbox/defer.sql"))
        .bind(message.id.to_string())
        .bind(queue)
        .bind(aggregate.map(|a| a.kind.as_str()))
        .bind(aggregate.map(|a| a.id.as_str()))
        .bind(message.version)
        .bind(&message.event_type)
        .bind(message.headers.to_json())
        .bind(text)
        .bind(bin)
        .bind(if one.held { "held" } else { "retrying" })
        .bind(millis(one.delay))
        .bind(one.attempts)
        .bind(one.code.as_ref().map(Code::as_str))
        .bind(one.error.as_deref().map(clean))
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

/// Notes the versions that were applied. The last step before the commit: in a transaction that
/// cannot be committed it fails.
pub async fn finish(
    tx: &mut Transaction<'_, Sqlite>,
    consumer: &str,
    applied: &[(&Aggregate, i64)],
) -> Result<()> {
    check_before_commit(tx).await?;
    let (versions, mut noted) = (highest(applied), 0);
    for (aggregate, version) in &versions {
        let done = sqlx::query(include_str!("../sql/inbox/finish.sql"))
            .bind(consumer)
            .bind(&aggregate.kind)
            .bind(&aggregate.id)
            .bind(version)
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        noted += done.rows_affected();
    }
    exactly(noted, versions.len())
}

/// What an operator has overruled, when this row was redriven.
pub async fn redriven(tx: &mut Transaction<'_, Sqlite>, seq: i64) -> Result<Option<Redriven>> {
    let found: Option<(String, bool)> = sqlx::query_as(include_str!("../sql/inbox/redriven.sql"))
        .bind(seq)
        .fetch_optional(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(found.map(|(code, confirmed)| Redriven {
        code: Code::custom(&code),
        confirmed,
    }))
}

/// How many messages the consumer has put off, counted up to `most`.
pub async fn waiting(pool: &SqlitePool, consumer: &str, most: u32) -> Result<u64> {
    let count: i64 = sqlx::query_scalar(include_str!("../sql/inbox/waiting.sql"))
        .bind(queue_of(consumer))
        .bind(i64::from(most))
        .fetch_one(pool)
        .await
        .map_err(classify)?;
    Ok(count.cast_unsigned())
}

/// Forgets at most one batch of what was processed longer ago than this, and of aggregates that
/// nobody has touched since. Answers how many rows went.
pub async fn purge(pool: &SqlitePool, consumer: &str, keep: Keep, batch: u32) -> Result<u64> {
    let mut removed = 0;
    for (sql, keep) in [
        (include_str!("../sql/inbox/purge.sql"), Some(keep.processed)),
        (
            include_str!("../sql/inbox/purge_lanes.sql"),
            keep.aggregates,
        ),
    ] {
        let Some(keep) = keep else { continue };
        let done = sqlx::query(sql)
            .bind(consumer)
            .bind(millis(keep))
            .bind(batch)
            .execute(pool)
            .await
            .map_err(classify)?;
        removed += done.rows_affected();
    }
    Ok(removed)
}

async fn run(tx: &mut Transaction<'_, Sqlite>, sql: &'static str, names: &[&str]) -> Result<u64> {
    let query = sqlx::query(sql);
    let query = names.iter().fold(query, |query, name| query.bind(*name));
    let done = query.execute(&mut **tx).await.map_err(classify)?;
    Ok(done.rows_affected())
}

/// A transaction that was rolled back under our feet has none of the rows that it had.
fn exactly(found: u64, wanted: usize) -> Result<()> {
    match usize::try_from(found) == Ok(wanted) {
        true => Ok(()),
        false => Err(StoreError::Doomed(format!(
            "{wanted} rows of the inbox were to be changed and {found} were"
        ))),
    }
}
