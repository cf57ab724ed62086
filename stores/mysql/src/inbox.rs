//! The inbox: three steps on the transaction of a consumer. See [`counterfoil_core::inbox`].
//!
//! The transaction is best begun with [`begin`]: what others have put off must be seen as soon as
//! they let an aggregate go.

use std::collections::{HashMap, HashSet};

use counterfoil_core::Code;
use counterfoil_core::inbox::{
    Admitted, Deferred, Keep, Lane, Mode, Redriven, check_names, highest, queue_of,
};
use counterfoil_core::message::{Aggregate, MessageId, Payload};
use counterfoil_core::span::micros;
use counterfoil_core::store::{Result, StoreError};
use sqlx::mysql::{MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, Row, Transaction};

use crate::enqueue::{number, portion};
use crate::session::{Query, Session};
use crate::{classify, json, text};

/// Set first and released last: it goes with everything else when the server rolls back.
const MARK: &str = "SAVEPOINT counterfoil_inbox";
const UNMARK: &str = "RELEASE SAVEPOINT counterfoil_inbox";

/// Begins the transaction of a consumer, at READ COMMITTED.
pub async fn begin(pool: &MySqlPool) -> Result<Transaction<'static, MySql>> {
    let pool = pool.clone();
    // A task of its own: when the caller goes away in the middle, the driver would not know that a
    // transaction is open.
    let begun = tokio::spawn(async move {
        let script = include_str!("../sql/inbox/begin.sql");
        pool.begin_with(script).await
    });
    let begun = begun.await.map_err(|e| StoreError::Database(e.into()))?;
    begun.map_err(classify)
}

/// Writes the ledger rows and locks the aggregates. Keys and aggregates stand once each, in
/// ascending order. A name that cannot be stored is refused before anything is written.
pub async fn admit(
    tx: &mut Transaction<'_, MySql>,
    consumer: &str,
    mode: Mode,
    keys: &[&str],
    aggregates: &[&Aggregate],
) -> Result<Admitted> {
    check_names(consumer, keys, aggregates)?;
    sqlx::raw_sql(MARK)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    let (mark, list) = (mark(), json(&keys)?);
    let query = match mode {
        Mode::Arrival => sqlx::query(include_str!("../sql/inbox/arrive.sql")),
        Mode::Retry => sqlx::query(include_str!("../sql/inbox/retry.sql")),
    };
    let query = query.bind(consumer.as_bytes()).bind(mark).bind(&list);
    let query = match mode {
        Mode::Arrival => query,
        Mode::Retry => query.bind(mark),
    };
    query.execute(&mut **tx).await.map_err(classify)?;
    // Before anything is read without a lock: in a transaction of the application's own isolation
    // the first such look decides what is seen later.
    let lanes = lanes(tx, consumer, mode, aggregates).await?;
    let fresh: Vec<i64> = sqlx::query_scalar(include_str!("../sql/inbox/fresh.sql"))
        .bind(&list)
        .bind(consumer.as_bytes())
        .bind(mark)
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    let fresh: HashSet<String> = fresh
        .into_iter()
        .filter_map(|n| place(keys, n))
        .map(str::to_owned)
        .collect();
    Ok(Admitted { fresh, lanes })
}

async fn lanes(
    tx: &mut Transaction<'_, MySql>,
    consumer: &str,
    mode: Mode,
    aggregates: &[&Aggregate],
) -> Result<HashMap<Aggregate, Lane>> {
    if aggregates.is_empty() {
        return Ok(HashMap::new());
    }
    let list = json(&pairs(aggregates))?;
    sqlx::query(include_str!("../sql/inbox/lock_lanes.sql"))
        .bind(consumer.as_bytes())
        .bind(&list)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    let rows: Vec<(i64, Option<i64>)> = sqlx::query_as(include_str!("../sql/inbox/lanes.sql"))
        .bind(&list)
        .bind(consumer.as_bytes())
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    let taken: HashSet<i64> = match mode {
        Mode::Arrival => taken(tx, consumer, &list).await?,
        Mode::Retry => HashSet::new(),
    };
    let found: HashMap<Aggregate, Lane> = rows
        .into_iter()
        .filter_map(|(n, applied)| {
            let taken = taken.contains(&n);
            Some((place(aggregates, n)?.clone(), Lane { applied, taken }))
        })
        .collect();
    match found.len() == aggregates.len() {
        true => Ok(found),
        false => Err(StoreError::Busy("an aggregate's row has gone".into())),
    }
}

async fn taken(
    tx: &mut Transaction<'_, MySql>,
    consumer: &str,
    list: &str,
) -> Result<HashSet<i64>> {
    let queue = queue_of(consumer);
    let taken: Vec<i64> = sqlx::query_scalar(include_str!("../sql/inbox/taken_lanes.sql"))
        .bind(list)
        .bind(queue.as_bytes())
        .bind(queue.as_bytes())
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(taken.into_iter().collect())
}

/// Puts messages off: their ledger rows wait, and the outbox has them.
pub async fn defer(
    tx: &mut Transaction<'_, MySql>,
    consumer: &str,
    deferred: &[Deferred],
) -> Result<()> {
    for one in deferred {
        one.message.validate()?;
    }
    let keys: Vec<&str> = deferred.iter().map(|d| d.key.as_str()).collect();
    let noted = sqlx::query(include_str!("../sql/inbox/wait.sql"))
        .bind(json(&keys)?)
        .bind(consumer.as_bytes())
        .bind(mark())
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    exactly(noted.rows_affected(), deferred.len())?;
    let (queue, mut rest) = (queue_of(consumer), deferred);
    while !rest.is_empty() {
        let sizes = rest.iter().map(|d| d.message.payload.len());
        let (now, later) = rest.split_at(portion(sizes));
        insert(tx, &queue, now).await?;
        rest = later;
    }
    Ok(())
}

async fn insert(tx: &mut Transaction<'_, MySql>, queue: &str, some: &[Deferred]) -> Result<()> {
    let row = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, ?, ?)";
    let rows = vec![row; some.len()].join(", ");
    let sql = format!("{}{rows}", include_str!("../sql/inbox/defer.sql"));
    let query = sqlx::query(AssertSqlSafe(sql));
    some.iter()
        .fold(query, |query, one| bind(query, queue, one))
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

fn bind<'q>(query: Query<'q>, queue: &'q str, one: &'q Deferred) -> Query<'q> {
    let message = &one.message;
    let aggregate = message.aggregate.as_ref();
    let (text, bin) = match &message.payload {
        Payload::Json(text) => (Some(text.as_str()), None),
        Payload::Opaque(bytes) => (None, Some(&bytes[..])),
    };
    query
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
        .bind(micros(one.delay))
        .bind(i32::try_from(one.attempts).unwrap_or(i32::MAX))
        .bind(one.code.as_ref().map(Code::as_str))
        .bind(one.error.as_deref())
}

/// Notes the versions that were applied. The last step before the commit: in a transaction that
/// cannot be committed it fails.
pub async fn finish(
    tx: &mut Transaction<'_, MySql>,
    consumer: &str,
    applied: &[(&Aggregate, i64)],
) -> Result<()> {
    // Asked first: when all was rolled back, the rows may be there and belong to somebody else.
    match sqlx::raw_sql(UNMARK).execute(&mut **tx).await {
        Ok(_) => {}
        Err(error) if number(&error) == Some(1305) => {
            return Err(StoreError::Doomed(
                "the server has ended it: after a deadlock whose error was swallowed, or for a \
                 statement that commits"
                    .into(),
            ));
        }
        Err(error) => return Err(classify(error)),
    }
    let versions = highest(applied);
    if versions.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = versions
        .iter()
        .map(|(a, version)| (&a.kind, &a.id, version))
        .collect();
    let done = sqlx::query(include_str!("../sql/inbox/finish.sql"))
        .bind(json(&list)?)
        .bind(consumer.as_bytes())
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    exactly(done.rows_affected(), versions.len())
}

/// What an operator has overruled, when this row was redriven.
pub async fn redriven(tx: &mut Transaction<'_, MySql>, seq: i64) -> Result<Option<Redriven>> {
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
pub async fn waiting(pool: &MySqlPool, consumer: &str, most: u32) -> Result<u64> {
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
pub async fn purge(pool: &MySqlPool, consumer: &str, keep: Keep, batch: u32) -> Result<u64> {
    let mut removed = 0;
    for (find, purge, keep) in [
        (
            include_str!("../sql/inbox/purge_find.sql"),
            include_str!("../sql/inbox/purge.sql"),
            Some(keep.processed),
        ),
        (
            include_str!("../sql/inbox/purge_find_lanes.sql"),
            include_str!("../sql/inbox/purge_lanes.sql"),
            keep.aggregates,
        ),
    ] {
        let Some(keep) = keep else { continue };
        let find = sqlx::query(find)
            .bind(consumer.as_bytes())
            .bind(micros(keep))
            .bind(batch);
        removed += purge_one(pool, consumer, find, purge).await?;
    }
    Ok(removed)
}

async fn purge_one(
    pool: &MySqlPool,
    consumer: &str,
    find: Query<'_>,
    purge: &'static str,
) -> Result<u64> {
    let mut session = Session::for_writing(pool).await?;
    let found = find
        .fetch_all(session.connection())
        .await
        .map_err(classify)?;
    let names = found
        .iter()
        .map(names)
        .collect::<sqlx::Result<Vec<_>>>()
        .map_err(classify)?;
    // One name each, or two.
    let list = match names.first().map(Vec::len) {
        Some(1) => json(&names.concat())?,
        _ => json(&names)?,
    };
    let done = sqlx::query(purge)
        .bind(list)
        .bind(consumer.as_bytes())
        .execute(session.connection())
        .await
        .map_err(classify)?;
    session.commit().await?;
    Ok(done.rows_affected())
}

fn names(row: &MySqlRow) -> sqlx::Result<Vec<String>> {
    (0..row.len())
        .map(|n| Ok(text(&row.try_get_unchecked::<Vec<u8>, _>(n)?)))
        .collect()
}

/// Tells the rows of one call from those of all others.
fn mark() -> i64 {
    MessageId::new().as_uuid().as_u64_pair().1.cast_signed()
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

fn pairs<'a>(aggregates: &[&'a Aggregate]) -> Vec<(&'a str, &'a str)> {
    let pairs = aggregates.iter().map(|a| (a.kind.as_str(), a.id.as_str()));
    pairs.collect()
}

fn place<'a, T: ?Sized>(list: &[&'a T], n: i64) -> Option<&'a T> {
    let index = usize::try_from(n).ok()?.checked_sub(1)?;
    list.get(index).copied()
}
