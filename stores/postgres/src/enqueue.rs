//! The application's side: writing messages inside its own transaction.

use counterfoil_core::message::{Message, MessageId, Payload};
use counterfoil_core::store::{Enqueued, Keyed, Result, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Postgres, Row, Transaction};

use crate::classify;

/// Writes messages in the caller's open transaction. They exist when it commits, and not before.
///
/// One round trip however many messages there are. A message that cannot be stored is refused
/// before anything is written, and the transaction stays usable.
///
/// A bare connection is not accepted, because it would commit the messages by themselves:
///
/// ```compile_fail
/// # async fn f(mut connection: sqlx::PgConnection, m: counterfoil_core::Message) {
/// counterfoil_postgres::enqueue(&mut connection, &[m]).await;
/// # }
/// ```
pub async fn enqueue(tx: &mut Transaction<'_, Postgres>, messages: &[Message]) -> Result<()> {
    insert(tx, messages).await
}

/// Writes a message whose key must not have been used before. When it was, nothing is written.
pub async fn enqueue_keyed(tx: &mut Transaction<'_, Postgres>, keyed: &Keyed) -> Result<Enqueued> {
    insert_keyed(tx, keyed).await
}

/// Notes a key in the ledger. Answers true the first time.
pub async fn once(tx: &mut Transaction<'_, Postgres>, scope: &str, key: &str) -> Result<bool> {
    counterfoil_core::message::check_name("scope", scope)?;
    counterfoil_core::message::check_name("key", key)?;
    let done = sqlx::query(
        "INSERT INTO counterfoil_ledger (scope, key, id) VALUES ($1, $2, '') ON CONFLICT DO NOTHING",
    )
    .bind(scope)
    .bind(key)
    .execute(&mut **tx)
    .await
    .map_err(classify)?;
    Ok(done.rows_affected() == 1)
}

/// Fails when the driver has rolled back by itself.
pub(crate) fn is_open(tx: &Transaction<'_, Postgres>) -> Result<()> {
    match tx.is_in_transaction() {
        true => Ok(()),
        false => Err(StoreError::Doomed(
            "the driver has rolled it back: a savepoint was cut off while it began".into(),
        )),
    }
}

/// Makes sure that a commit will be one.
///
/// After a failed statement whose error was swallowed, PostgreSQL turns COMMIT into ROLLBACK and
/// the driver still says that all is well. Any statement fails in such a transaction; so the last
/// one before the commit is this. And when the caller of a transaction inside this one went away
/// while that began, the driver has rolled this one back.
pub async fn check_before_commit(tx: &mut Transaction<'_, Postgres>) -> Result<()> {
    is_open(tx)?;
    let (one,): (i32,) = sqlx::query_as("SELECT 1")
        .fetch_one(&mut **tx)
        .await
        .map_err(classify)?;
    if one == 1 {
        Ok(())
    } else {
        Err(StoreError::Doomed("the transaction does not answer".into()))
    }
}

pub(crate) async fn insert(connection: &mut PgConnection, messages: &[Message]) -> Result<()> {
    for message in messages {
        message.validate()?;
    }
    match messages {
        [] => Ok(()),
        [message] => {
            let sql = include_str!("../sql/enqueue_one.sql");
            bind_one(sqlx::query(sql), message)
                .execute(connection)
                .await
                .map_err(classify)?;
            Ok(())
        }
        many => insert_many(connection, many).await,
    }
}

pub(crate) async fn insert_keyed(connection: &mut PgConnection, keyed: &Keyed) -> Result<Enqueued> {
    let message = &keyed.message;
    let Some((scope, key)) = &keyed.key else {
        insert(connection, std::slice::from_ref(message)).await?;
        return Ok(Enqueued::First(message.id));
    };
    validate(keyed)?;
    let sql = include_str!("../sql/enqueue_keyed.sql");
    let done = bind_one(sqlx::query(sql), message)
        .bind(scope)
        .bind(key)
        .execute(&mut *connection)
        .await
        .map_err(classify)?;
    if done.rows_affected() == 1 {
        return Ok(Enqueued::First(message.id));
    }
    let first = first_id(connection, scope, key).await?;
    Ok(Enqueued::Duplicate(first.unwrap_or(message.id)))
}

fn validate(keyed: &Keyed) -> Result<()> {
    keyed.message.validate()?;
    if let Some((scope, key)) = &keyed.key {
        counterfoil_core::message::check_name("scope", scope)?;
        counterfoil_core::message::check_name("key", key)?;
    }
    Ok(())
}

async fn first_id(
    connection: &mut PgConnection,
    scope: &str,
    key: &str,
) -> Result<Option<MessageId>> {
    let found: Option<(String,)> =
        sqlx::query_as("SELECT id FROM counterfoil_ledger WHERE scope = $1 AND key = $2")
            .bind(scope)
            .bind(key)
            .fetch_optional(connection)
            .await
            .map_err(classify)?;
    Ok(found.and_then(|(id,)| MessageId::parse(&id)))
}

/// Stores a whole batch in one round trip, all or none, as a transaction of its own.
pub(crate) async fn insert_batch(
    connection: &mut PgConnection,
    batch: &[Keyed],
) -> Result<Vec<Enqueued>> {
    batch.iter().try_for_each(validate)?;
    let keys = batch.iter().map(|k| k.key.as_ref());
    let (scopes, names): (Vec<_>, Vec<_>) = keys
        .map(|k| (k.map(|k| k.0.as_str()), k.map(|k| k.1.as_str())))
        .unzip();
    let messages: Vec<&Message> = batch.iter().map(|k| &k.message).collect();
    let sql = include_str!("../sql/enqueue_batch.sql");
    let told: Vec<PgRow> = bind_many(sqlx::query(sql), &messages)
        .bind(scopes)
        .bind(names)
        .fetch_all(&mut *connection)
        .await
        .map_err(classify)?;
    let mut answers = Vec::with_capacity(batch.len());
    for (keyed, told) in batch.iter().zip(told) {
        let stored: bool = told.try_get(0).map_err(classify)?;
        let first: Option<&str> = told.try_get(1).map_err(classify)?;
        answers.push(
            match (stored, first.and_then(MessageId::parse), &keyed.key) {
                (true, ..) => Enqueued::First(keyed.message.id),
                (false, Some(first), _) => Enqueued::Duplicate(first),
                (false, None, Some((scope, key))) => {
                    // Committed by somebody else while the statement ran.
                    let first = first_id(connection, scope, key).await?;
                    Enqueued::Duplicate(first.unwrap_or(keyed.message.id))
                }
                (false, None, None) => Enqueued::Duplicate(keyed.message.id),
            },
        );
    }
    Ok(answers)
}

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn bind_one<'q>(query: Query<'q>, m: &'q Message) -> Query<'q> {
    let (text, bin) = split(&m.payload);
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
        .bind(m.available_at)
}

fn bind_many<'q>(query: Query<'q>, many: &[&'q Message]) -> Query<'q> {
    let list =
        |f: fn(&'q Message) -> Option<&'q str>| many.iter().map(|m| f(m)).collect::<Vec<_>>();
    let headers: Vec<Option<String>> = many.iter().map(|m| m.headers.to_json()).collect();
    let times: Vec<_> = many.iter().map(|m| m.available_at).collect();
    query
        .bind(many.iter().map(|m| m.id.to_string()).collect::<Vec<_>>())
        .bind(list(|m| m.queue.as_deref()))
        .bind(list(|m| m.aggregate.as_ref().map(|a| a.kind.as_str())))
        .bind(list(|m| m.aggregate.as_ref().map(|a| a.id.as_str())))
        .bind(many.iter().map(|m| m.version).collect::<Vec<_>>())
        .bind(list(|m| Some(&m.event_type)))
        .bind(headers)
        .bind(list(|m| split(&m.payload).0))
        .bind(many.iter().map(|m| split(&m.payload).1).collect::<Vec<_>>())
        .bind(times)
}

async fn insert_many(connection: &mut PgConnection, many: &[Message]) -> Result<()> {
    let many: Vec<&Message> = many.iter().collect();
    bind_many(sqlx::query(include_str!("../sql/enqueue_many.sql")), &many)
        .execute(connection)
        .await
        .map_err(classify)?;
    Ok(())
}

fn split(payload: &Payload) -> (Option<&str>, Option<&[u8]>) {
    match payload {
        Payload::Json(text) => (Some(text), None),
        Payload::Opaque(bytes) => (None, Some(bytes)),
    }
}
