//! The application's side: writing messages inside its own transaction.

use counterfoil_core::message::{Message, MessageId, Payload, check_name};
use counterfoil_core::store::{Enqueued, Keyed, Result, StoreError};
use sqlx::Transaction;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};

use crate::classify;

// Not a transaction inside the transaction: when its caller goes away while one begins, the driver
// rolls the outer one back and says nothing.
const MARK: &str = "SAVEPOINT counterfoil_step";
const UNDO: &str = "ROLLBACK TO SAVEPOINT counterfoil_step";
const UNMARK: &str = "RELEASE SAVEPOINT counterfoil_step";

/// Writes messages in the caller's open transaction. They exist when it commits, and not before.
///
/// All of them or none: a message that cannot be stored is refused before anything is written, and
/// the transaction stays usable.
///
/// A bare connection is not accepted, because it would commit the messages by themselves:
///
/// ```compile_fail
/// # async fn f(mut connection: sqlx::SqliteConnection, m: counterfoil_core::Message) {
/// counterfoil_sqlite::enqueue(&mut connection, &[m]).await;
/// # }
/// ```
///
/// With a transaction it is:
///
/// ```no_run
/// # async fn f(pool: sqlx::SqlitePool, m: counterfoil_core::Message) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// counterfoil_sqlite::enqueue(&mut tx, &[m]).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub async fn enqueue(tx: &mut Transaction<'_, Sqlite>, messages: &[Message]) -> Result<()> {
    for message in messages {
        message.validate()?;
    }
    check_before_commit(tx).await?;
    match messages {
        [] => Ok(()),
        [_] => insert(tx, messages).await,
        many => {
            run(tx, MARK).await?;
            let done = insert(tx, many).await;
            all_or_nothing(tx, done).await
        }
    }
}

/// Writes a message whose key must not have been used before. When it was, nothing is written.
pub async fn enqueue_keyed(tx: &mut Transaction<'_, Sqlite>, keyed: &Keyed) -> Result<Enqueued> {
    validate(keyed)?;
    check_before_commit(tx).await?;
    run(tx, MARK).await?;
    let done = insert_keyed(tx, keyed).await;
    all_or_nothing(tx, done).await
}

/// Keeps what was done since the mark, or takes all of it back.
async fn all_or_nothing<T>(tx: &mut Transaction<'_, Sqlite>, done: Result<T>) -> Result<T> {
    if done.is_err() && run(tx, UNDO).await.is_err() {
        // SQLite has rolled everything back by itself: the mark is gone with the rest.
        return done;
    }
    run(tx, UNMARK).await?;
    done
}

async fn run(tx: &mut Transaction<'_, Sqlite>, sql: &'static str) -> Result<()> {
    sqlx::raw_sql(sql)
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

/// Notes a key in the ledger. Answers true the first time.
pub async fn once(tx: &mut Transaction<'_, Sqlite>, scope: &str, key: &str) -> Result<bool> {
    check_name("scope", scope)?;
    check_name("key", key)?;
    check_before_commit(tx).await?;
    note_key(tx, scope, key, "").await
}

/// Makes sure that a commit will be one.
///
/// After some errors, a full disk among them, SQLite rolls the whole transaction back by itself.
/// When such an error is swallowed, every later statement commits on its own, and the COMMIT at the
/// end fails too late. So this is asked before each write of ours and should be asked before a
/// commit: it costs a few microseconds.
pub async fn check_before_commit(tx: &mut Transaction<'_, Sqlite>) -> Result<()> {
    // There is no statement that tells; but a transaction cannot begin inside another one.
    match sqlx::query("BEGIN").execute(&mut **tx).await {
        Err(sqlx::Error::Database(e)) if e.message().contains("within a transaction") => {
            nothing_was_cut_off(tx).await
        }
        Err(other) => Err(classify(other)),
        Ok(_) => {
            sqlx::query("ROLLBACK")
                .execute(&mut **tx)
                .await
                .map_err(classify)?;
            let why = "after an earlier error SQLite has rolled it back by itself";
            Err(StoreError::Doomed(why.into()))
        }
    }
}

/// A mark that is still there is from a step whose caller went away in the middle.
async fn nothing_was_cut_off(tx: &mut Transaction<'_, Sqlite>) -> Result<()> {
    match sqlx::raw_sql(UNMARK).execute(&mut **tx).await {
        Err(sqlx::Error::Database(e)) if e.message().contains("no such savepoint") => Ok(()),
        Err(other) => Err(classify(other)),
        Ok(_) => {
            // Whoever asks again is told the same.
            run(tx, MARK).await?;
            let why = "some of the messages of a call that was cut off may be written: roll back";
            Err(StoreError::Doomed(why.into()))
        }
    }
}

pub(crate) fn validate(keyed: &Keyed) -> Result<()> {
    keyed.message.validate()?;
    if let Some((scope, key)) = &keyed.key {
        check_name("scope", scope)?;
        check_name("key", key)?;
    }
    Ok(())
}

/// Both rows or none is up to the caller's transaction. The message has been validated.
pub(crate) async fn insert_keyed(
    connection: &mut SqliteConnection,
    keyed: &Keyed,
) -> Result<Enqueued> {
    let message = &keyed.message;
    if let Some((scope, key)) = &keyed.key
        && !note_key(connection, scope, key, &message.id.to_string()).await?
    {
        let first: String =
            sqlx::query_scalar("SELECT id FROM counterfoil_ledger WHERE scope = ?1 AND key = ?2")
                .bind(scope)
                .bind(key)
                .fetch_one(connection)
                .await
                .map_err(classify)?;
        return Ok(Enqueued::Duplicate(
            MessageId::parse(&first).unwrap_or(message.id),
        ));
    }
    insert(connection, std::slice::from_ref(message)).await?;
    Ok(Enqueued::First(message.id))
}

async fn note_key(
    connection: &mut SqliteConnection,
    scope: &str,
    key: &str,
    id: &str,
) -> Result<bool> {
    let done = sqlx::query(
        "INSERT INTO counterfoil_ledger (scope, key, id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
    )
    .bind(scope)
    .bind(key)
    .bind(id)
    .execute(connection)
    .await
    .map_err(classify)?;
    Ok(done.rows_affected() == 1)
}

/// All or none is up to the caller's transaction. The messages have been validated.
pub(crate) async fn insert(connection: &mut SqliteConnection, messages: &[Message]) -> Result<()> {
    let (eights, rest) = messages.as_chunks::<8>();
    for eight in eights {
        let query = sqlx::query(include_str!("../sql/enqueue_eight.sql"));
        eight
            .iter()
            .fold(query, bind)
            .execute(&mut *connection)
            .await
            .map_err(classify)?;
    }
    for message in rest {
        let query = sqlx::query(include_str!("../sql/enqueue_one.sql"));
        bind(query, message)
            .execute(&mut *connection)
            .await
            .map_err(classify)?;
    }
    Ok(())
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

fn bind<'q>(query: Query<'q>, m: &'q Message) -> Query<'q> {
    let (text, bin) = match &m.payload {
        Payload::Json(text) => (Some(text.as_str()), None),
        Payload::Opaque(bytes) => (None, Some(bytes.as_ref())),
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
        .bind(m.available_at.map(|at| at.timestamp_millis()))
}
