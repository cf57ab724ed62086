//! Records of the guard, and claims inside the application's transaction.
//!
//! # How a key is claimed in a transaction
//! The transaction begins by inserting the claim, a record that is processing. The business follows
//! behind a savepoint, and the finished record replaces the claim at the end. An insert of a key
//! that somebody else has claimed would wait for the end of that transaction, as long as the
//! session is patient: 50 seconds, unless somebody chose otherwise. So the session's
//! `innodb_lock_wait_timeout` is lowered for this one statement and restored in the same message:
//! to zero on MariaDB, which then answers at once, and to one second on MySQL, which knows no less.
//!
//! After a deadlock the server has rolled the whole transaction back. Then the savepoint and the
//! claim are gone too, and that shows at the end. Some statements, such as `CREATE TABLE`, commit
//! whatever is open: then the savepoint is gone, the claim stays, and it is uncertain.
//!
//! # Sessions
//! The connections are the application's, and nothing is known about their settings. See
//! [`Session`].

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use counterfoil_core::guard::columns::GUARD_TABLE;
use counterfoil_core::guard::columns::{self, attempts, renamed};
use counterfoil_core::guard::{
    Change, Digest, Expect, Fingerprint, Found, GuardStats, Key, Mark, Record, RecordFilter,
    Records, Snapshot, State, Write,
};
use counterfoil_core::hex::Hex;
use counterfoil_core::span::micros;
use counterfoil_core::store::{Result, StoreError};
use sqlx::mysql::{MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, Row, Transaction};

use crate::enqueue::number;
use crate::rows::instant;
use crate::session::{Query, Session};
use crate::{classify, text};

/// Gives the session its patience back.
const PATIENCE: &str = include_str!("../sql/guard/patience.sql");
/// Records that are deleted in one statement.
const CHUNK: usize = 500;

/// Records in a table of a MySQL or MariaDB database.
#[derive(Clone)]
pub struct MysqlGuard {
    pub(crate) pool: MySqlPool,
    sql: Arc<Statements>,
}

struct Statements {
    look: Arc<str>,
    insert: Arc<str>,
    swap: Arc<str>,
    claim: Arc<str>,
    claim_again: Arc<str>,
    finish: Arc<str>,
    heartbeat: Arc<str>,
    end: Arc<str>,
    doubt: Arc<str>,
    release: Arc<str>,
    forget: Arc<str>,
    list: Arc<str>,
    stuck: Arc<str>,
    stats: Arc<str>,
    purge_find: Arc<str>,
    purge: Arc<str>,
}

impl MysqlGuard {
    /// The central table, over the application's own pool.
    pub fn new(pool: MySqlPool) -> Self {
        Self::with_name(pool, GUARD_TABLE)
    }

    /// A table of one domain. Its name is letters, digits and `_`, with a database in front or
    /// without.
    pub fn table(pool: MySqlPool, name: &str) -> Result<Self> {
        columns::check_table(name, 2)?;
        Ok(Self::with_name(pool, name))
    }

    fn with_name(pool: MySqlPool, name: &str) -> Self {
        let of = |sql: &str| -> Arc<str> { renamed(sql, name).into() };
        let sql = Statements {
            look: of(include_str!("../sql/guard/look.sql")),
            insert: of(include_str!("../sql/guard/insert.sql")),
            swap: of(include_str!("../sql/guard/swap.sql")),
            claim: of(include_str!("../sql/guard/claim.sql")),
            claim_again: of(include_str!("../sql/guard/claim_again.sql")),
            finish: of(include_str!("../sql/guard/finish.sql")),
            heartbeat: of(include_str!("../sql/guard/heartbeat.sql")),
            end: of(include_str!("../sql/guard/end.sql")),
            doubt: of(include_str!("../sql/guard/doubt.sql")),
            release: of(include_str!("../sql/guard/release.sql")),
            forget: of(include_str!("../sql/guard/forget.sql")),
            list: of(include_str!("../sql/guard/list.sql")),
            stuck: of(include_str!("../sql/guard/stuck.sql")),
            stats: of(include_str!("../sql/guard/stats.sql")),
            purge_find: of(include_str!("../sql/guard/purge_find.sql")),
            purge: of(include_str!("../sql/guard/purge.sql")),
        };
        Self {
            pool,
            sql: Arc::new(sql),
        }
    }

    /// The statements that create a table of one domain.
    pub fn print_table(name: &str) -> Result<String> {
        columns::check_table(name, 2)?;
        Ok(renamed(include_str!("../migrations/0002_guard.sql"), name))
    }

    /// Claims a key and begins the application's transaction. `None` when another request with
    /// this key is under way, or when the record is not as expected any more: look again.
    pub async fn begin(
        &self,
        key: &Key,
        expect: Expect,
    ) -> Result<Option<Transaction<'static, MySql>>> {
        // Everything that is put in is a number, hexadecimal or percent-encoded.
        let (sql, expected) = match expect {
            Expect::Absent => (&self.sql.claim, 0),
            Expect::Fence(fence) => (&self.sql.claim_again, fence),
        };
        let sql = columns::filled(sql, |name, out| {
            let _ = match name {
                "key" => out.write_str(&key.encoded()),
                "digest" => write!(out, "{}", key.digest()),
                "scope" => write!(out, "{}", Hex(key.scope().as_bytes())),
                "business_type" => write!(out, "{}", Hex(key.business_type().as_bytes())),
                "name" => write!(out, "{}", Hex(key.key().as_bytes())),
                _ => write!(out, "{expected}"),
            };
        });
        // A task of its own: when the caller goes away in the middle, the session still gets its
        // patience back, and the transaction is rolled back.
        tokio::spawn(claim(self.pool.clone(), sql))
            .await
            .map_err(|e| StoreError::Database(e.into()))?
    }

    /// Takes back what the business has written, and keeps the claim.
    pub async fn undo(&self, tx: &mut Transaction<'static, MySql>) -> Result<()> {
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT counterfoil")
            .execute(&mut **tx)
            .await
            .map_err(savepoint_gone)?;
        Ok(())
    }

    /// Writes the finished record and commits.
    pub async fn commit(&self, mut tx: Transaction<'static, MySql>, write: &Write) -> Result<bool> {
        let finished = self.finish(&mut tx, write).await?;
        if finished {
            tx.commit().await.map_err(classify)?;
        }
        Ok(finished)
    }

    /// Writes the finished record, as the last statement before the commit. It fails when the
    /// server has rolled the transaction back and that error was swallowed.
    pub async fn finish(
        &self,
        tx: &mut Transaction<'static, MySql>,
        write: &Write,
    ) -> Result<bool> {
        // Asked first: when all was rolled back, the update could wait for another claim.
        sqlx::raw_sql("RELEASE SAVEPOINT counterfoil")
            .execute(&mut **tx)
            .await
            .map_err(savepoint_gone)?;
        let digest = write.key.digest();
        let done = bind_update(statement(&self.sql.finish), &digest, write)
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        if done.rows_affected() == 1 {
            Ok(true)
        } else {
            Err(StoreError::Doomed("the claim of the key is gone".into()))
        }
    }
}

async fn claim(pool: MySqlPool, sql: String) -> Result<Option<Transaction<'static, MySql>>> {
    let mut tx = pool.begin().await.map_err(classify)?;
    let error = match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await {
        Ok(done) if done.rows_affected() == 1 => return Ok(Some(tx)),
        Ok(_) => None,
        Err(error) => {
            sqlx::raw_sql(PATIENCE)
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
            Some(error)
        }
    };
    tx.rollback().await.map_err(classify)?;
    match error {
        Some(error) if !taken(&error) => Err(classify(error)),
        _ => Ok(None),
    }
}

/// Whether a claim failed because somebody else has the key: it is there, or it is locked. Who lost
/// a deadlock over it has written nothing yet.
pub(crate) fn taken(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1062 | 1205 | 1213 | 1020 | 3572))
}

fn savepoint_gone(error: sqlx::Error) -> StoreError {
    if number(&error) == Some(1305) {
        StoreError::Doomed(
            "the server has ended it: after a deadlock whose error was swallowed, or for a \
             statement that commits"
                .into(),
        )
    } else {
        classify(error)
    }
}

#[async_trait]
impl Records for MysqlGuard {
    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        let sql = self.sql.look.replace("{digest}", &digest.to_string());
        let rows = Session::script(&self.pool, sql).await?;
        rows.first().map(found).transpose()
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        let digest = write.key.digest();
        let query = match write.expect {
            Expect::Absent => bind_insert(statement(&self.sql.insert), &digest, write),
            Expect::Fence(fence) => {
                bind_update(statement(&self.sql.swap), &digest, write).bind(fence)
            }
        };
        let mut session = Session::for_writing(&self.pool).await?;
        match query.execute(session.connection()).await {
            Ok(done) => {
                session.commit().await?;
                let fence = done.last_insert_id().cast_signed();
                Ok((done.rows_affected() == 1).then_some(fence))
            }
            Err(error) => {
                session.rollback().await?;
                if taken(&error) {
                    Ok(None)
                } else {
                    Err(classify(error))
                }
            }
        }
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        let query = match change {
            Change::Heartbeat { lease } => statement(&self.sql.heartbeat).bind(micros(*lease)),
            Change::End {
                state,
                snapshot,
                keep,
                retry_in,
            } => {
                let (status, headers, body) = snapshot_columns(snapshot.as_ref());
                statement(&self.sql.end)
                    .bind(state.as_str())
                    .bind(status)
                    .bind(headers)
                    .bind(body)
                    .bind(micros(*keep))
                    .bind(retry_in.map(micros))
            }
            Change::Doubt => statement(&self.sql.doubt),
            Change::Release => statement(&self.sql.release),
        };
        let query = query
            .bind(mark.digest.as_bytes())
            .bind(mark.fence)
            .bind(mark.seen.map(|at| at.timestamp_micros()));
        let done = Session::write(&self.pool, query).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        let query = statement(&self.sql.forget).bind(digest.as_bytes());
        let done = Session::write(&self.pool, query).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        let mut query = statement(&self.sql.list);
        for part in [
            filter.business_type.as_deref(),
            filter.scope.as_deref(),
            filter.key.as_deref(),
            filter.state.map(State::as_str),
        ] {
            let bytes = part.map(str::as_bytes);
            query = query.bind(bytes).bind(bytes);
        }
        let rows = Session::read(&self.pool, query.bind(filter.page())).await?;
        rows.iter().map(found).collect()
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        let last = after.map(|f| f.record.key.digest());
        let query = statement(&self.sql.stuck)
            .bind(micros(idle))
            .bind(after.map_or(0, |f| f.record.updated_at.timestamp_micros()))
            .bind(last.as_ref().map_or(&[][..], Digest::as_bytes))
            .bind(limit);
        let rows = Session::read(&self.pool, query).await?;
        rows.iter().map(found).collect()
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        let rows = Session::read(&self.pool, statement(&self.sql.stats)).await?;
        rows.iter()
            .map(stats)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let mut session = Session::for_writing(&self.pool).await?;
        match self.purge_in(&mut session, batch).await {
            Ok(gone) => {
                session.commit().await?;
                Ok(gone)
            }
            Err(error) => {
                session.rollback().await?;
                Err(classify(error))
            }
        }
    }
}

impl MysqlGuard {
    async fn purge_in(&self, session: &mut Session, batch: u32) -> sqlx::Result<u64> {
        let found = statement(&self.sql.purge_find)
            .bind(batch)
            .fetch_all(session.connection())
            .await?;
        let mut gone = 0;
        for rows in found.chunks(CHUNK) {
            let mut digests = String::new();
            for row in rows {
                let comma = if digests.is_empty() { "" } else { ", " };
                let _ = write!(digests, "{comma}X'{}'", Hex(row.try_get(0)?));
            }
            let sql = self.sql.purge.replace("{digests}", &digests);
            let done = sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(session.connection())
                .await?;
            gone += done.rows_affected();
        }
        Ok(gone)
    }
}

fn statement<'q>(sql: &Arc<str>) -> Query<'q> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

fn bind_insert<'q>(query: Query<'q>, digest: &'q Digest, write: &'q Write) -> Query<'q> {
    bind_content(query.bind(digest.as_bytes()), write)
}

fn bind_update<'q>(query: Query<'q>, digest: &'q Digest, write: &'q Write) -> Query<'q> {
    bind_content(query.bind(attempts(write.attempt)), write).bind(digest.as_bytes())
}

fn bind_content<'q>(query: Query<'q>, write: &'q Write) -> Query<'q> {
    let (status, headers, body) = snapshot_columns(write.snapshot.as_ref());
    query
        .bind(micros(write.keep))
        .bind(write.lease.map(micros))
        .bind(write.retry_in.map(micros))
        .bind(attempts(write.attempt))
        .bind(status)
        .bind(write.state.as_str())
        .bind(write.key.scope().as_bytes())
        .bind(write.key.business_type().as_bytes())
        .bind(write.key.key().as_bytes())
        .bind(write.fingerprint.as_bytes())
        .bind(headers)
        .bind(body)
}

type Columns<'a> = (Option<i16>, Option<Vec<u8>>, Option<&'a [u8]>);

/// Header lines are stored as bytes, so that no session's character set can change them.
fn snapshot_columns(snapshot: Option<&Snapshot>) -> Columns<'_> {
    let (status, headers, body) = columns::snapshot(snapshot);
    (status, headers.map(String::into_bytes), body)
}

fn found(row: &MySqlRow) -> Result<Found> {
    decode(row)
        .map_err(classify)?
        .ok_or_else(|| StoreError::Database("a record of the guard cannot be read".into()))
}

fn decode(row: &MySqlRow) -> sqlx::Result<Option<Found>> {
    let time = |name| row.try_get::<i64, _>(name).map(instant);
    let maybe = |name| {
        row.try_get::<Option<i64>, _>(name)
            .map(|us| us.map(instant))
    };
    // Whatever the session calls the type of a column: bytes are bytes.
    let bytes = |name| row.try_get_unchecked::<Option<Vec<u8>>, _>(name);
    let words = |name| bytes(name).map(|b| text(&b.unwrap_or_default()));
    let status: Option<i16> = row.try_get("status")?;
    let headers = bytes("headers")?.map(|b| text(&b));
    let body = bytes("body")?;
    let key = Key::new(words("scope")?, words("business_type")?, words("name")?);
    let fingerprint = Fingerprint::from_bytes(&bytes("fingerprint")?.unwrap_or_default());
    let state = State::parse(&words("state")?);
    let (Ok(key), Some(fingerprint), Some(state)) = (key, fingerprint, state) else {
        return Ok(None);
    };
    Ok(Some(Found {
        now: time("now")?,
        record: Record {
            key,
            fingerprint,
            state,
            fence: row.try_get("fence")?,
            attempts: row.try_get::<i32, _>("attempts")?.cast_unsigned(),
            lease_until: maybe("lease_until")?,
            retry_at: maybe("retry_at")?,
            expires_at: time("expires_at")?,
            created_at: time("created_at")?,
            updated_at: time("updated_at")?,
            snapshot: status
                .map(|s| Snapshot::from_columns(s.cast_unsigned(), headers.as_deref(), body)),
        },
    }))
}

fn stats(row: &MySqlRow) -> sqlx::Result<GuardStats> {
    let count = |name| row.try_get::<i64, _>(name).map(i64::cast_unsigned);
    let oldest: Option<i64> = row.try_get("oldest")?;
    let business_type: Vec<u8> = row.try_get_unchecked("business_type")?;
    Ok(GuardStats {
        business_type: text(&business_type),
        processing: count("processing")?,
        succeeded: count("succeeded")?,
        retryable: count("retryable")?,
        failed: count("failed")?,
        uncertain: count("uncertain")?,
        oldest_open_seconds: oldest
            .map(|us| Duration::from_micros(us.max(0).cast_unsigned()).as_secs_f64()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_database_in_front_is_one_and_a_longer_one_is_not() {
        assert!(MysqlGuard::print_table("shop.pay_guard").is_ok());
        assert!(MysqlGuard::print_table("a.b.c").is_err());
    }

    #[test]
    fn a_table_of_another_database_has_indexes_without_its_name() {
        let sql = MysqlGuard::print_table("shop.counterfoil_guard_pay").unwrap_or_default();

        assert!(sql.contains("EXISTS shop.counterfoil_guard_pay ("), "{sql}");
        assert!(sql.contains("KEY counterfoil_guard_pay_over (over_at)"));
    }
}
