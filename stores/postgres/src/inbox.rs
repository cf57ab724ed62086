//! The inbox: three steps on the transaction of a consumer. See [`counterfoil_core::inbox`].
//!
//! The transaction is READ COMMITTED, as [`begin`] begins it: what others have put off must be seen
//! as soon as they let an aggregate go.

use std::collections::{HashMap, HashSet};

use counterfoil_core::Code;
use counterfoil_core::inbox::{
    Admitted, Deferred, Keep, Lane, Mode, Redriven, check_names, highest, queue_of,
};
use counterfoil_core::message::{Aggregate, Payload};
use counterfoil_core::span::millis;
use counterfoil_core::store::{Result, StoreError};
use sqlx::{PgPool, Postgres, Row, Transaction};

use crate::classify;
use crate::relay::clean;

/// Begins the transaction of a consumer, at READ COMMITTED.
pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    // A task of its own: the driver does not roll back when its caller goes away in the middle.
    let begun = tokio::spawn(async move {
        pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED")
            .await
    });
    let begun = begun.await.map_err(|e| StoreError::Database(e.into()))?;
    begun.map_err(classify)
}

/// Writes the ledger rows and locks the aggregates. Keys and aggregates stand once each, in
/// ascending order. A name that cannot be stored is refused before anything is written.
pub async fn admit(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &str,
    mode: Mode,
    keys: &[&str],
    aggregates: &[&Aggregate],
) -> Result<Admitted> {
    check_names(consumer, keys, aggregates)?;
    let sql = match mode {
        Mode::Arrival => include_str!("../sql/inbox/arrive.sql"),
        Mode::Retry => include_str!("../sql/inbox/retry.sql"),
    };
    let fresh: Vec<String> = match keys {
        [] => {
            let mark = sqlx::query(include_str!("../sql/inbox/mark.sql"));
            mark.execute(&mut **tx).await.map_err(classify)?;
            Vec::new()
        }
        keys => sqlx::query_scalar(sql)
            .bind(consumer)
            .bind(keys)
            .fetch_all(&mut **tx)
            .await
            .map_err(classify)?,
    };
    let lanes = match aggregates {
        [] => HashMap::new(),
        some => lanes(tx, consumer, mode, some).await?,
    };
    Ok(Admitted {
        fresh: HashSet::from_iter(fresh),
        lanes,
    })
}

async fn lanes(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &str,
    mode: Mode,
    aggregates: &[&Aggregate],
) -> Result<HashMap<Aggregate, Lane>> {
    let mut found = lock(tx, consumer, aggregates).await?;
    let missing: Vec<&Aggregate> = aggregates
        .iter()
        .copied()
        .filter(|a| !found.contains_key(*a))
        .collect();
    if !missing.is_empty() {
        let (kinds, ids) = columns(&missing);
        sqlx::query(include_str!("../sql/inbox/add_lanes.sql"))
            .bind(consumer)
            .bind(kinds)
            .bind(ids)
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        found.extend(lock(tx, consumer, &missing).await?);
    }
    if mode == Mode::Arrival {
        let (kinds, ids) = columns(aggregates);
        let taken: Vec<i64> = sqlx::query_scalar(include_str!("../sql/inbox/taken_lanes.sql"))
            .bind(queue_of(consumer))
            .bind(kinds)
            .bind(ids)
            .fetch_all(&mut **tx)
            .await
            .map_err(classify)?;
        for n in taken {
            if n == 0 {
                let why = "the inbox needs the isolation READ COMMITTED";
                return Err(StoreError::Doomed(why.into()));
            }
            if let Some(lane) = place(aggregates, n).and_then(|a| found.get_mut(a)) {
                lane.taken = true;
            }
        }
    }
    match found.len() == aggregates.len() {
        true => Ok(found),
        // A sweep was faster: it is over by the time of the next attempt.
        false => Err(StoreError::Busy("an aggregate's row has gone".into())),
    }
}

async fn lock(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &str,
    aggregates: &[&Aggregate],
) -> Result<HashMap<Aggregate, Lane>> {
    let (kinds, ids) = columns(aggregates);
    let rows = sqlx::query(include_str!("../sql/inbox/lock_lanes.sql"))
        .bind(consumer)
        .bind(kinds)
        .bind(ids)
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let n: i64 = row.try_get(0).map_err(classify)?;
        let applied: Option<i64> = row.try_get(1).map_err(classify)?;
        if let Some(aggregate) = place(aggregates, n) {
            let lane = Lane {
                applied,
                taken: false,
            };
            found.insert(aggregate.clone(), lane);
        }
    }
    Ok(found)
}

/// Puts messages off: their ledger rows wait, and the outbox has them.
pub async fn defer(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &str,
    deferred: &[Deferred],
) -> Result<()> {
    for one in deferred {
        one.message.validate()?;
    }
    let of = |f: fn(&Deferred) -> Option<&str>| deferred.iter().map(f).collect::<Vec<_>>();
    let headers: Vec<_> = deferred
        .iter()
        .map(|d| d.message.headers.to_json())
        .collect();
    let bytes: Vec<Option<&[u8]>> = deferred
        .iter()
        .map(|d| match &d.message.payload {
            Payload::Opaque(bytes) => Some(&bytes[..]),
            Payload::Json(_) => None,
        })
        .collect();
    let ids: Vec<String> = deferred.iter().map(|d| d.message.id.to_string()).collect();
    let attempts: Vec<i32> = deferred
        .iter()
        .map(|d| d.attempts.try_into().unwrap_or(i32::MAX))
        .collect();
    let done = sqlx::query(include_str!("../sql/inbox/defer.sql"))
        .bind(consumer)
        .bind(of(|d| Some(&d.key)))
        .bind(ids)
        .bind(queue_of(consumer))
        .bind(of(|d| {
            d.message.aggregate.as_ref().map(|a| a.kind.as_str())
        }))
        .bind(of(|d| d.message.aggregate.as_ref().map(|a| a.id.as_str())))
        .bind(
            deferred
                .iter()
                .map(|d| d.message.version)
                .collect::<Vec<_>>(),
        )
        .bind(of(|d| Some(&d.message.event_type)))
        .bind(headers)
        .bind(of(|d| match &d.message.payload {
            Payload::Json(text) => Some(text),
            Payload::Opaque(_) => None,
        }))
        .bind(bytes)
        .bind(deferred.iter().map(|d| d.held).collect::<Vec<_>>())
        .bind(deferred.iter().map(|d| millis(d.delay)).collect::<Vec<_>>())
        .bind(attempts)
        .bind(of(|d| d.code.as_ref().map(Code::as_str)))
        .bind(
            deferred
                .iter()
                .map(|d| d.error.as_deref().map(clean))
                .collect::<Vec<_>>(),
        )
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    exactly(done.rows_affected(), deferred.len())
}

/// Notes the versions that were applied. The last step before the commit: in a transaction that
/// cannot be committed it fails.
pub async fn finish(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &str,
    applied: &[(&Aggregate, i64)],
) -> Result<()> {
    let versions = highest(applied);
    let aggregates: Vec<&Aggregate> = versions.keys().copied().collect();
    let (kinds, ids) = columns(&aggregates);
    let versions: Vec<i64> = versions.into_values().collect();
    let (same, noted): (bool, i64) = sqlx::query_as(include_str!("../sql/inbox/finish.sql"))
        .bind(consumer)
        .bind(kinds)
        .bind(ids)
        .bind(versions)
        .fetch_one(&mut **tx)
        .await
        .map_err(classify)?;
    if !same {
        let why = "it was ended by somebody else: by a statement that commits or rolls back";
        return Err(StoreError::Doomed(why.into()));
    }
    exactly(noted.cast_unsigned(), aggregates.len())
}

/// What an operator has overruled, when this row was redriven.
pub async fn redriven(tx: &mut Transaction<'_, Postgres>, seq: i64) -> Result<Option<Redriven>> {
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
pub async fn waiting(pool: &PgPool, consumer: &str, most: u32) -> Result<u64> {
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
pub async fn purge(pool: &PgPool, consumer: &str, keep: Keep, batch: u32) -> Result<u64> {
    // In a transaction: outside of one, a pooler may run a statement that is not kept where it was not
    // prepared.
    let mut tx = begin(pool).await?;
    // Planned each time: whether to look at every row depends on how many there are.
    let removed: i64 = sqlx::query_scalar(include_str!("../sql/inbox/purge.sql"))
        .persistent(false)
        .bind(consumer)
        .bind(millis(keep.processed).div_euclid(1_000))
        .bind(i64::from(batch))
        .bind(keep.aggregates.map(|keep| millis(keep).div_euclid(1_000)))
        .fetch_one(&mut *tx)
        .await
        .map_err(classify)?;
    tx.commit().await.map_err(classify)?;
    Ok(removed.cast_unsigned())
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

fn columns<'a>(aggregates: &[&'a Aggregate]) -> (Vec<&'a str>, Vec<&'a str>) {
    let pairs = aggregates.iter().map(|a| (a.kind.as_str(), a.id.as_str()));
    pairs.unzip()
}

fn place<'a>(aggregates: &[&'a Aggregate], n: i64) -> Option<&'a Aggregate> {
    let index = usize::try_from(n).ok()?.checked_sub(1)?;
    aggregates.get(index).copied()
}
