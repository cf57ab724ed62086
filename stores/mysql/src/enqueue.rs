//! The application's side: writing messages inside its own transaction.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, NaiveDate, Utc};
use counterfoil_core::message::{Message, MessageId, Payload, check_name};
use counterfoil_core::store::{Enqueued, Keyed, Result, StoreError};
use sqlx::mysql::{MySqlArguments, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Transaction};

use crate::{classify, json};

/// The most messages in one statement. Their number is a power of two, so that the caller's cache
/// meets seven statement texts, not one for each number of messages.
const ROWS: usize = 64;
/// The most bytes of content in one statement, unless one message alone is larger.
const BYTES: usize = 1024 * 1024;
/// The savepoint of [`check_before_commit`].
const PROBE: &str = "SAVEPOINT counterfoil_check; RELEASE SAVEPOINT counterfoil_check";

/// Writes messages in the caller's open transaction. They exist when it commits, and not before.
///
/// Many messages, up to a megabyte of content, travel in one statement. A message that cannot be stored is
/// refused before anything is written, and the transaction stays usable. After
/// [`StoreError::Busy`] it does not: roll it back.
///
/// A bare connection is not accepted, because it would commit the messages by themselves:
///
/// ```compile_fail
/// # async fn f(mut connection: sqlx::MySqlConnection, m: counterfoil_core::Message) {
/// counterfoil_mysql::enqueue(&mut connection, &[m]).await;
/// # }
/// ```
pub async fn enqueue(tx: &mut Transaction<'_, MySql>, messages: &[Message]) -> Result<()> {
    insert(tx, messages).await
}

/// Writes a message whose key must not have been used before. When it was, nothing is written.
pub async fn enqueue_keyed(tx: &mut Transaction<'_, MySql>, keyed: &Keyed) -> Result<Enqueued> {
    insert_keyed(tx, keyed).await
}

/// Notes a key in the ledger. Answers true the first time.
pub async fn once(tx: &mut Transaction<'_, MySql>, scope: &str, key: &str) -> Result<bool> {
    note_key(tx, scope, key, "").await
}

/// Makes sure that a commit will be one.
///
/// After a deadlock the server has rolled back the whole transaction. When its error was swallowed,
/// the statements that followed committed by themselves, and COMMIT still says that all is well.
/// A savepoint outside a transaction is forgotten at once, and that shows.
pub async fn check_before_commit(tx: &mut Transaction<'_, MySql>) -> Result<()> {
    match sqlx::raw_sql(PROBE).execute(&mut **tx).await {
        Ok(_) => Ok(()),
        Err(error) if number(&error) == Some(1305) => Err(StoreError::Doomed(
            "the server has rolled it back after a deadlock, and that error was swallowed".into(),
        )),
        Err(error) => Err(classify(error)),
    }
}

pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    Some(database.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

pub(crate) async fn insert(connection: &mut MySqlConnection, messages: &[Message]) -> Result<()> {
    for message in messages {
        message.validate()?;
    }
    let mut rest = messages;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(portion(sizes(rest)));
        insert_some(connection, now).await?;
        rest = later;
    }
    Ok(())
}

fn sizes(messages: &[Message]) -> impl Iterator<Item = usize> {
    messages.iter().map(|m| m.payload.len())
}

/// How many of the contents of these sizes go into one statement.
pub(crate) fn portion(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |size: &usize| {
        bytes += size;
        bytes <= BYTES
    };
    let most = sizes.take(ROWS).take_while(fits).count().max(1);
    1 << most.ilog2()
}

async fn insert_some(connection: &mut MySqlConnection, messages: &[Message]) -> Result<()> {
    let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"; messages.len()].join(", ");
    let sql = format!("{}{rows}", include_str!("../sql/enqueue.sql"));
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for message in messages {
        query = bind(query, message);
    }
    query.execute(connection).await.map_err(classify)?;
    Ok(())
}

pub(crate) async fn insert_keyed(
    connection: &mut MySqlConnection,
    keyed: &Keyed,
) -> Result<Enqueued> {
    let message = &keyed.message;
    message.validate()?;
    if let Some((scope, key)) = &keyed.key
        && !note_key(connection, scope, key, &message.id.to_string()).await?
    {
        let first = first_id(connection, scope, key).await?;
        return Ok(Enqueued::Duplicate(first.unwrap_or(message.id)));
    }
    insert_some(connection, std::slice::from_ref(message)).await?;
    Ok(Enqueued::First(message.id))
}

/// Stores a whole batch: its keys in one statement, in their own order, so that two batches cannot
/// wait for each other in a circle; a look at what stands under them; then the messages.
pub(crate) async fn insert_batch(
    connection: &mut MySqlConnection,
    batch: &[Keyed],
) -> Result<Vec<Enqueued>> {
    let mut keys: BTreeMap<(&str, &str), MessageId> = BTreeMap::new();
    for keyed in batch {
        keyed.message.validate()?;
        if let Some((scope, key)) = &keyed.key {
            check_name("scope", scope)?;
            check_name("key", key)?;
            keys.entry((scope, key)).or_insert(keyed.message.id);
        }
    }
    let mut known = note_keys(connection, &keys).await?;
    let (mut answers, mut stored) = (Vec::with_capacity(batch.len()), Vec::new());
    for Keyed { message, key } in batch {
        let key = key
            .as_ref()
            .map(|(scope, key)| (scope.as_str(), key.as_str()));
        let first = key.and_then(|key| known.get(&key).copied());
        answers.push(match first {
            Some(first) => Enqueued::Duplicate(first.unwrap_or(message.id)),
            None => Enqueued::First(message.id),
        });
        if first.is_none() {
            stored.push(message.clone());
            // What follows in the batch under the same key is a repeat.
            known.extend(key.map(|key| (key, Some(message.id))));
        }
    }
    insert(connection, &stored).await?;
    Ok(answers)
}

type Keys<'a, T> = BTreeMap<(&'a str, &'a str), T>;

/// Notes keys. Answers those that were used before, with the id under each. A key that was counted
/// as a repeat is not new; nobody else can count it before our transaction ends.
async fn note_keys<'a>(
    connection: &mut MySqlConnection,
    keys: &Keys<'a, MessageId>,
) -> Result<Keys<'a, Option<MessageId>>> {
    if keys.is_empty() {
        return Ok(Keys::new());
    }
    let list: Vec<_> = keys.iter().map(|(key, id)| (key.0, key.1, id)).collect();
    let list = json(&list)?;
    sqlx::query(include_str!("../sql/note_keys.sql"))
        .bind(&list)
        .execute(&mut *connection)
        .await
        .map_err(classify)?;
    let used: Vec<(i64, String)> = sqlx::query_as(include_str!("../sql/used_keys.sql"))
        .bind(&list)
        .fetch_all(connection)
        .await
        .map_err(classify)?;
    let mut known = Keys::new();
    let mut used: HashMap<i64, String> = used.into_iter().collect();
    for (place, key) in (1..).zip(keys.keys()) {
        if let Some(id) = used.remove(&place) {
            known.insert(*key, MessageId::parse(&id));
        }
    }
    Ok(known)
}

/// Answers whether the key is new. One row is affected by an insert, and two by an update that
/// changes something, whether or not the client counts found rows.
async fn note_key(
    connection: &mut MySqlConnection,
    scope: &str,
    key: &str,
    id: &str,
) -> Result<bool> {
    check_name("scope", scope)?;
    check_name("key", key)?;
    let done = sqlx::query(
        "INSERT INTO counterfoil_ledger (scope, name, id) VALUES (?, ?, ?)
         ON DUPLICATE KEY UPDATE repeats = repeats + 1",
    )
    .bind(scope.as_bytes())
    .bind(key.as_bytes())
    .bind(id)
    .execute(connection)
    .await
    .map_err(classify)?;
    Ok(done.rows_affected() == 1)
}

/// A locking read: the snapshot of the caller's transaction may be older than the first use.
async fn first_id(
    connection: &mut MySqlConnection,
    scope: &str,
    key: &str,
) -> Result<Option<MessageId>> {
    let found: Option<(String,)> = sqlx::query_as(
        "SELECT id FROM counterfoil_ledger WHERE scope = ? AND name = ? LOCK IN SHARE MODE",
    )
    .bind(scope.as_bytes())
    .bind(key.as_bytes())
    .fetch_optional(connection)
    .await
    .map_err(classify)?;
    Ok(found.and_then(|(id,)| MessageId::parse(&id)))
}

type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

fn bind<'q>(query: Query<'q>, m: &'q Message) -> Query<'q> {
    let (text, bin) = match &m.payload {
        Payload::Json(text) => (Some(text.as_str()), None),
        Payload::Opaque(bytes) => (None, Some(&bytes[..])),
    };
    query
        .bind(m.id.to_string())
        .bind(m.queue.as_deref())
        .bind(m.aggregate.as_ref().map(|a| a.kind.as_str()))
        .bind(m.aggregate.as_ref().map(|a| a.id.as_str()))
        .bind(m.version)
        .bind(&m.event_type)
        .bind(m.headers.to_json())
        .bind(text)
        .bind(bin)
        .bind(m.available_at.map(storable))
}

/// The nearest time that a column can hold.
fn storable(at: DateTime<Utc>) -> DateTime<Utc> {
    let last = NaiveDate::from_ymd_opt(9999, 12, 31).and_then(|d| d.and_hms_opt(0, 0, 0));
    let last = last.map_or(DateTime::<Utc>::MAX_UTC, |t| t.and_utc());
    at.clamp(DateTime::UNIX_EPOCH, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Message {
        Message::opaque("order", 1, "Paid", "text/plain", vec![b'x'; bytes])
    }

    #[test]
    fn a_statement_takes_a_power_of_two_up_to_a_megabyte() {
        let portion = |messages: Vec<Message>| portion(sizes(&messages));

        assert_eq!(portion(vec![message(1); 250]), ROWS);
        assert_eq!(portion(vec![message(1); 63]), 32);
        assert_eq!(portion(vec![message(BYTES / 3); 4]), 2);
        let large = vec![message(2 * BYTES), message(1)];
        assert_eq!(portion(large), 1, "a large one goes alone");
    }

    #[test]
    fn times_beyond_the_column_are_brought_to_its_ends() {
        assert_eq!(storable(DateTime::<Utc>::MIN_UTC), DateTime::UNIX_EPOCH);
        assert_eq!(
            storable(DateTime::<Utc>::MAX_UTC).to_string(),
            "9999-12-31 00:00:00 UTC"
        );
    }
}
