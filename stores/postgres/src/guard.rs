//! Records of the guard, and claims inside the application's transaction.
//!
//! # How a key is claimed in a transaction
//! One message to the server takes a lock on the key, looks again whether the record is still as it
//! was seen, and begins the transaction; the record itself is written at the end, finished. A lock
//! of this kind ends with its transaction, whatever happens to the process. When the lock is taken
//! or the record has changed, the message fails *before* its BEGIN, so that the connection is not
//! left inside a broken transaction.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use counterfoil_core::guard::columns::GUARD_TABLE;
use counterfoil_core::guard::columns::{self, attempts, check_table};
use counterfoil_core::guard::{
    Change, Digest, Expect, Fingerprint, Found, GuardStats, Key, Mark, Record, RecordFilter,
    Records, Snapshot, State, Write,
};
use counterfoil_core::span::micros;
use counterfoil_core::store::{Result, StoreError};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnection, PgPool, PgRow};
use sqlx::{AssertSqlSafe, Postgres, Row, Transaction};

use crate::classify;
use crate::clerk::Clerk;
use crate::ending::Ending;
use crate::enqueue;
use crate::handy::Handy;
use crate::held::{self, Held};
use crate::together::{self, Claims, Endings};

/// What the procedures say when the key is not free.
const NOT_FREE: &str = "CF001";
/// Of the 63 bytes of a session's name, 12 say whose it is.
const LONGEST_NAME: usize = 48;

/// Records in a table of a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresGuard {
    pub(crate) pool: PgPool,
    handy: Arc<Handy>,
    held: Option<Arc<Held>>,
    sql: Arc<Statements>,
    claims: Arc<Clerk<Claims>>,
    endings: Arc<Clerk<Endings>>,
}

struct Statements {
    /// The name of the constraint.
    key: String,
    begin_first: String,
    begin_again: String,
    ending: Ending,
    look: Arc<str>,
    insert: Arc<str>,
    swap: Arc<str>,
    heartbeat: Arc<str>,
    doubt: Arc<str>,
    release: Arc<str>,
    forget: Arc<str>,
    list: Arc<str>,
    stuck: Arc<str>,
    stats: Arc<str>,
    purge: Arc<str>,
}

impl PostgresGuard {
    /// The central table, over the application's own pool.
    pub fn new(pool: PgPool) -> Self {
        Self::with_name(pool, GUARD_TABLE)
    }

    /// A table of one domain. Its name is letters, digits and `_`, with a schema in front or
    /// without.
    pub fn table(pool: PgPool, name: &str) -> Result<Self> {
        check_table(name, 2)?;
        Ok(Self::with_name(pool, name))
    }

    fn with_name(pool: PgPool, name: &str) -> Self {
        let of = |sql: &str| -> Arc<str> { renamed(sql, name).into() };
        let table = name.rsplit('.').next().unwrap_or(name);
        let sql = Statements {
            key: format!("{table}_pkey"),
            begin_first: renamed(include_str!("../sql/guard/begin_first.sql"), name),
            begin_again: renamed(include_str!("../sql/guard/begin_again.sql"), name),
            ending: Ending {
                first: renamed(include_str!("../sql/guard/end_first.sql"), name),
                any: renamed(include_str!("../sql/guard/end.sql"), name),
            },
            look: of(include_str!("../sql/guard/look.sql")),
            insert: of(include_str!("../sql/guard/insert.sql")),
            swap: of(include_str!("../sql/guard/swap.sql")),
            heartbeat: of(include_str!("../sql/guard/heartbeat.sql")),
            doubt: of(include_str!("../sql/guard/doubt.sql")),
            release: of(include_str!("../sql/guard/release.sql")),
            forget: of(include_str!("../sql/guard/forget.sql")),
            list: of(include_str!("../sql/guard/list.sql")),
            stuck: of(include_str!("../sql/guard/stuck.sql")),
            stats: of(include_str!("../sql/guard/stats.sql")),
            purge: of(include_str!("../sql/guard/purge.sql")),
        };
        let options = pool.connect_options().as_ref().clone();
        let handy = Arc::new(Handy::new(options));
        let claims = Claims {
            handy: Arc::clone(&handy),
            sql: of(include_str!("../sql/guard/claim_all.sql")),
        };
        let endings = Endings {
            handy: Arc::clone(&handy),
            sql: of(include_str!("../sql/guard/end_all.sql")),
        };
        Self {
            pool,
            handy,
            held: None,
            sql: Arc::new(sql),
            claims: Clerk::new(claims),
            endings: Clerk::new(endings),
        }
    }

    /// Lets a connection that has committed a request begin the next one without the way through the
    /// pool in between: a message to the server less for each request. It goes back to the pool
    /// after a few milliseconds or requests.
    ///
    /// What the pool was told to do between two uses of a connection (`before_acquire`,
    /// `after_release`, `test_before_acquire`) is left out then. Do not use it where those clean up
    /// something that one request leaves in the session and another must not see.
    #[must_use]
    pub fn back_to_back(mut self) -> Self {
        self.held = Some(Arc::new(Held::new(self.pool.clone())));
        self
    }

    /// The statements that create a table of one domain.
    pub fn print_table(name: &str) -> Result<String> {
        check_table(name, 2)?;
        let steps = concat!(
            include_str!("../migrations/0002_guard.sql"),
            "\n",
            include_str!("../migrations/0005_guard_steps.sql"),
            "\n",
            include_str!("../migrations/0007_guard_first.sql"),
            "\n",
            include_str!("../migrations/0008_guard_purge.sql")
        );
        Ok(renamed(steps, name))
    }

    /// Claims a key and begins the application's transaction. `None` when another request with
    /// this key is under way, or when the record is not as expected any more: look again.
    pub async fn begin(
        &self,
        key: &Key,
        expect: Expect,
    ) -> Result<Option<Transaction<'static, Postgres>>> {
        let (digest, encoded) = (key.digest(), key.encoded());
        let (sql, expected) = match expect {
            Expect::Absent => (&self.sql.begin_first, 0),
            Expect::Fence(fence) => (&self.sql.begin_again, fence),
        };
        // Everything that is put in is a number, a hash or percent-encoded.
        let sql = columns::filled(sql, |name, out| {
            let _ = match name {
                "key" => out.write_str(&encoded),
                "session" => write!(out, "counterfoil:{}", short(&encoded)),
                "digest" => write!(out, "{digest}"),
                "lock" => write!(out, "{}", digest.number()),
                _ => write!(out, "{expected}"),
            };
        });
        if let Some(begun) = self.begin_at_once(&sql).await {
            return begun;
        }
        // A task of its own: the driver does not roll back when its caller goes away in the middle
        // of this message, and the connection would go back to the pool with the lock.
        let pool = self.pool.clone();
        // In a box first: it is large, and would be copied at every step of being spawned.
        let begun = Box::pin(async move { pool.begin_with(AssertSqlSafe(sql)).await });
        let begun = tokio::spawn(begun);
        match begun.await.map_err(|e| StoreError::Database(e.into()))? {
            Ok(tx) => Ok(Some(tx)),
            Err(sqlx::Error::Database(e)) if e.code().as_deref() == Some(NOT_FREE) => Ok(None),
            Err(error) => Err(classify(error)),
        }
    }

    /// As [`PostgresGuard::begin`], on a connection that has just committed. `None` when there is
    /// none, or it is gone. The driver believes in a transaction all the time: it rolls back when
    /// the caller goes away in the middle.
    async fn begin_at_once(
        &self,
        sql: &str,
    ) -> Option<Result<Option<Transaction<'static, Postgres>>>> {
        let held = self.held.as_ref()?;
        let mut tx = held.take()?;
        let begun = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await;
        match begun {
            Ok(_) => Some(Ok(Some(tx))),
            Err(sqlx::Error::Database(e)) if e.code().as_deref() == Some(NOT_FREE) => {
                match held.place() {
                    Some(place) => held.keep(tx, place),
                    None => drop(tokio::spawn(held::give_back(tx))),
                }
                Some(Ok(None))
            }
            // Wherever it failed, the driver rolls back.
            Err(sqlx::Error::Database(e)) if !is_the_end(&*e) => {
                Some(Err(classify(sqlx::Error::Database(e))))
            }
            Err(error) => {
                tracing::debug!(%error, "a connection of the guard is gone");
                None
            }
        }
    }

    /// Takes back what the business has written, and keeps the claim.
    pub async fn undo(&self, tx: &mut Transaction<'static, Postgres>) -> Result<()> {
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT counterfoil")
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        Ok(())
    }

    /// Writes the finished record and commits, in one message. `false` when another record is
    /// there: nothing is committed then. It fails when an earlier statement failed and its error was
    /// swallowed.
    pub async fn commit(
        &self,
        mut tx: Transaction<'static, Postgres>,
        write: &Write,
    ) -> Result<bool> {
        enqueue::is_open(&tx)?;
        let place = self.held.as_ref().and_then(|held| held.place());
        let Some(sql) = self.sql.ending.message(write, place.is_some()) else {
            // Without a transaction there is no savepoint, and the record would stay alone.
            sqlx::raw_sql("RELEASE SAVEPOINT counterfoil")
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
            let finished = self.finish(&mut tx, write).await?;
            if finished {
                tx.commit().await.map_err(classify)?;
            }
            return Ok(finished);
        };
        // The driver believes in a transaction until it has ended it itself. It gets an empty one,
        // which it rolls back together with what it asks when the connection returns to its pool;
        // unless the connection stays here.
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await {
            Ok(_) => {
                if let (Some(held), Some(place)) = (&self.held, place) {
                    held.keep(tx, place);
                }
                Ok(true)
            }
            Err(sqlx::Error::Database(e)) if self.another_is_there(&*e) => Ok(false),
            Err(error) => Err(classify(error)),
        }
    }

    /// Writes the finished record, as the last statement before the commit. It fails when an
    /// earlier statement failed and its error was swallowed.
    pub async fn finish(
        &self,
        tx: &mut Transaction<'static, Postgres>,
        write: &Write,
    ) -> Result<bool> {
        Ok(self.put_on(tx, write).await?.is_some())
    }

    /// A unique key of the business, which is checked at the commit, is another matter.
    fn another_is_there(&self, error: &dyn DatabaseError) -> bool {
        error.code().as_deref() == Some(NOT_FREE)
            || error.is_unique_violation() && error.constraint() == Some(&self.sql.key)
    }

    async fn put_on(&self, connection: &mut PgConnection, write: &Write) -> Result<Option<i64>> {
        let digest = write.key.digest();
        let (sql, prior) = match write.expect {
            Expect::Absent => (&self.sql.insert, None),
            Expect::Fence(fence) => (&self.sql.swap, Some(fence)),
        };
        let (status, headers, body) = columns::snapshot(write.snapshot.as_ref());
        let mut query = sqlx::query_as::<_, (i64,)>(AssertSqlSafe(Arc::clone(sql)))
            .bind(digest.as_bytes())
            .bind(micros(write.keep))
            .bind(write.lease.map(micros))
            .bind(write.retry_in.map(micros))
            .bind(attempts(write.attempt))
            .bind(status)
            .bind(write.state.as_str())
            .bind(write.key.scope())
            .bind(write.key.business_type())
            .bind(write.key.key())
            .bind(write.fingerprint.as_bytes())
            .bind(headers)
            .bind(body);
        if let Some(prior) = prior {
            query = query.bind(prior);
        }
        let fence = query.fetch_optional(connection).await.map_err(classify)?;
        Ok(fence.map(|(n,)| n))
    }
}

#[async_trait]
impl Records for PostgresGuard {
    fn claims_look(&self) -> bool {
        true
    }

    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        let mut lent = self.handy.lend().await?;
        let row = loop {
            let answer = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql.look)))
                .bind(digest.as_bytes())
                .fetch_optional(lent.connection())
                .await
                .map_err(classify);
            match answer {
                Ok(row) => break row,
                Err(error) if lent.renew(&error).await? => {}
                Err(error) => return Err(error),
            }
        };
        lent.keep();
        row.map(|row| found(&row)).transpose()
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        if write.expect == Expect::Absent {
            return self.claims.ask(write.clone()).await;
        }
        let mut lent = self.handy.lend().await?;
        let fence = self.put_on(lent.connection(), write).await?;
        lent.keep();
        Ok(fence)
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        let (statement, lease) = match change {
            Change::Heartbeat { lease } => (&self.sql.heartbeat, Some(*lease)),
            Change::End {
                state,
                snapshot,
                keep,
                retry_in,
            } => {
                let ending = together::Ending {
                    digest: mark.digest,
                    fence: mark.fence,
                    state: *state,
                    snapshot: snapshot.clone(),
                    keep: *keep,
                    retry_in: *retry_in,
                    seen: mark.seen,
                };
                return self.endings.ask(ending).await;
            }
            Change::Doubt => (&self.sql.doubt, None),
            Change::Release => (&self.sql.release, None),
        };
        let query = sqlx::query(AssertSqlSafe(Arc::clone(statement)))
            .bind(mark.digest.as_bytes())
            .bind(mark.fence);
        let query = match lease {
            Some(lease) => query.bind(micros(lease)),
            None => query,
        }
        .bind(mark.seen);
        let mut lent = self.handy.lend().await?;
        let done = query.execute(lent.connection()).await.map_err(classify)?;
        lent.keep();
        Ok(done.rows_affected() == 1)
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        let done = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql.forget)))
            .bind(digest.as_bytes())
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        let rows = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql.list)))
            .bind(&filter.business_type)
            .bind(&filter.scope)
            .bind(&filter.key)
            .bind(filter.state.map(State::as_str))
            .bind(i64::from(filter.page()))
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter().map(found).collect()
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        let last = after.map(|f| f.record.key.digest());
        let rows = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql.stuck)))
            .bind(micros(idle))
            .bind(i64::from(limit))
            .bind(after.map(|f| f.record.updated_at))
            .bind(last.as_ref().map(Digest::as_bytes))
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter().map(found).collect()
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        let rows = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql.stats)))
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter()
            .map(stats)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let done = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql.purge)))
            .bind(i64::from(batch))
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected())
    }
}

/// The server has ended the session: an administrator did, or it shuts down.
fn is_the_end(error: &dyn DatabaseError) -> bool {
    error.code().is_some_and(|code| code.starts_with("57P"))
}

/// A key as part of the session's name: as much as fits, and not in the middle of a `%XX`.
fn short(encoded: &str) -> &str {
    let name = &encoded[..encoded.len().min(LONGEST_NAME)];
    match name.rfind('%').filter(|at| at + 3 > name.len()) {
        Some(at) => &name[..at],
        None => name,
    }
}

/// Statements for another table. An index is where its table is; a procedure must be told.
fn renamed(sql: &str, name: &str) -> String {
    const PROCEDURES: [(&str, &str, &str); 4] = [
        ("counterfoil_guard_claim", "\u{2}", "_claim"),
        ("counterfoil_guard_end", "\u{3}", "_end"),
        ("counterfoil_guard_free", "\u{4}", "_free"),
        ("counterfoil_guard_done", "\u{5}", "_done"),
    ];
    let mut sql = sql.to_owned();
    for (procedure, mark, _) in PROCEDURES {
        sql = sql.replace(procedure, mark);
    }
    sql = columns::renamed(&sql, name);
    for (_, mark, what) in PROCEDURES {
        sql = sql.replace(mark, &format!("{name}{what}"));
    }
    sql
}

fn found(row: &PgRow) -> Result<Found> {
    decode(row)
        .map_err(classify)?
        .ok_or_else(|| StoreError::Database("a record of the guard cannot be read".into()))
}

fn decode(row: &PgRow) -> sqlx::Result<Option<Found>> {
    let status: Option<i16> = row.try_get("status")?;
    let headers: Option<String> = row.try_get("headers")?;
    let body: Option<Vec<u8>> = row.try_get("body")?;
    let (scope, business_type, key): (String, String, String) = (
        row.try_get("scope")?,
        row.try_get("business_type")?,
        row.try_get("key")?,
    );
    let key = Key::new(scope, business_type, key);
    let fingerprint = Fingerprint::from_bytes(row.try_get("fingerprint")?);
    let state = State::parse(row.try_get("state")?);
    let (Ok(key), Some(fingerprint), Some(state)) = (key, fingerprint, state) else {
        return Ok(None);
    };
    Ok(Some(Found {
        now: row.try_get("now")?,
        record: Record {
            key,
            fingerprint,
            state,
            fence: row.try_get("fence")?,
            attempts: row.try_get::<i32, _>("attempts")?.cast_unsigned(),
            lease_until: row.try_get("lease_until")?,
            retry_at: row.try_get("retry_at")?,
            expires_at: row.try_get("expires_at")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
            snapshot: status
                .map(|s| Snapshot::from_columns(s.cast_unsigned(), headers.as_deref(), body)),
        },
    }))
}

fn stats(row: &PgRow) -> sqlx::Result<GuardStats> {
    let count = |name| row.try_get::<i64, _>(name).map(i64::cast_unsigned);
    Ok(GuardStats {
        business_type: row.try_get("business_type")?,
        processing: count("processing")?,
        succeeded: count("succeeded")?,
        retryable: count("retryable")?,
        failed: count("failed")?,
        uncertain: count("uncertain")?,
        oldest_open_seconds: row.try_get("oldest")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_another_schema_has_indexes_without_its_name() {
        let sql = PostgresGuard::print_table("shop.counterfoil_guard_pay").unwrap_or_default();

        assert!(sql.contains("EXISTS shop.counterfoil_guard_pay ("), "{sql}");
        assert!(sql.contains("counterfoil_guard_pay_over ON shop.counterfoil_guard_pay "));
    }

    #[test]
    fn the_longest_key_fits_into_the_name_of_a_session() {
        for raw in [
            "ä".repeat(127),
            "x".repeat(255),
            format!("x{}", "ä".repeat(50)),
        ] {
            let Ok(key) = Key::new("", "t", raw) else {
                continue;
            };
            let encoded = key.encoded();
            let name = short(&encoded);

            assert!(name.len() <= 48 && name.len() > 44, "{name}");
            let last = name.rfind('%').unwrap_or_default();
            assert!(name[last..].len() >= 3, "{name}");
        }
    }
}
