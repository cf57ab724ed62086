//! The application's side: writing messages inside its own transaction.

use counterfoil_core::message::{Message, MessageId, Payload};
use counterfoil_core::store::{Enqueued, Keyed, Result, StoreError};
use sqlx::{PgConnection, Postgres, Transaction};

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

/// Makes sure that a commit will be one.
///
/// After a failed statement whose error was swallowed, PostgreSQL turns COMMIT into ROLLBACK and
/// the driver still says that all is well. Any statement fails in such a transaction; so the last
/// one before the commit is this.
pub async fn check_before_commit(tx: &mut Transaction<'_, Postgres>) -> Result<()> {
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
    message.validate()?;
    counterfoil_core::message::check_name("scope", scope)?;
    counterfoil_core::message::check_name("key", key)?;
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
    let found: Option<(String,)> =
        sqlx::query_as("SELECT id FROM counterfoil_ledger WHERE scope = $1 AND key = $2")
            .bind(scope)
            .bind(key)
            .fetch_optional(connection)
            .await
            .map_err(classify)?;
    let first = found
        .and_then(|(id,)| MessageId::parse(&id))
        .unwrap_or(message.id);
    Ok(Enqueued::Duplicate(first))
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

async fn insert_many(connection: &mut PgConnection, many: &[Message]) -> Result<()> {
    let list = |f: fn(&Message) -> Option<&str>| many.iter().map(f).collect::<Vec<_>>();
    let headers: Vec<Option<String>> = many.iter().map(|m| m.headers.to_json()).collect();
    let times: Vec<_> = many.iter().map(|m| m.available_at).collect();
    sqlx::query(include_str!("../sql/enqueue_many.sql"))
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
