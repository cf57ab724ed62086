//! Records of the guard, and claims inside the application's transaction.
//!
//! # How a key is claimed in a transaction
//! The transaction takes the write lock at its beginning and then writes the claim: a record that is
//! processing. The business follows behind a savepoint, and the finished record replaces the claim
//! at the end. SQLite has one writer at a time, so whoever comes meanwhile, with whatever key,
//! waits for the lock at its beginning, and is told [`StoreError::Busy`] when its patience (the
//! pool's `busy_timeout`) is over. That says nothing about its key.
//!
//! A file that was deleted or replaced is not used any more, although it is still open: what is written
//! there, nobody else would ever find.
//!
//! After some errors SQLite rolls a transaction back by itself. Then the claim is gone too, and
//! that shows at the end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
pub use counterfoil_core::guard::columns::GUARD_TABLE;
use counterfoil_core::guard::columns::{self, renamed};
use counterfoil_core::guard::{
    Change, Digest, Expect, Fingerprint, Found, GuardStats, Key, Mark, Record, RecordFilter,
    Records, Snapshot, State, Write,
};
use counterfoil_core::span::millis;
use counterfoil_core::store::{Result, StoreError};
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row, Transaction};

use crate::identity::Identity;
use crate::rows::{count, moment};
use crate::{check_before_commit, classify, write};

/// Records in a table of a SQLite database.
#[derive(Clone)]
pub struct SqliteGuard {
    pub(crate) pool: SqlitePool,
    sql: Arc<Statements>,
    file: Arc<Identity>,
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
    purge: Arc<str>,
}

impl SqliteGuard {
    /// The central table, over the application's own pool.
    pub fn new(pool: SqlitePool) -> Self {
        Self::with_name(pool, GUARD_TABLE)
    }

    /// A table of one domain. Its name is letters, digits and `_`.
    pub fn table(pool: SqlitePool, name: &str) -> Result<Self> {
        check_table(name)?;
        Ok(Self::with_name(pool, name))
    }

    fn with_name(pool: SqlitePool, name: &str) -> Self {
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
            purge: of(include_str!("../sql/guard/purge.sql")),
        };
        let file = Identity::of(pool.connect_options().get_filename());
        Self {
            pool,
            sql: Arc::new(sql),
            file: Arc::new(file),
        }
    }

    /// The statements that create a table of one domain.
    pub fn print_table(name: &str) -> Result<String> {
        check_table(name)?;
        Ok(renamed(include_str!("../migrations/0002_guard.sql"), name))
    }

    /// Claims a key and begins the application's transaction. `None` when the record is not as
    /// expected any more: look again. [`StoreError::Busy`] when somebody else writes for too long.
    pub async fn begin(
        &self,
        key: &Key,
        expect: Expect,
    ) -> Result<Option<Transaction<'static, Sqlite>>> {
        self.file.check()?;
        let mut tx = write::begin(&self.pool).await?;
        if !self.claim(&mut tx, key, expect).await? {
            tx.rollback().await.map_err(classify)?;
            return Ok(None);
        }
        let savepoint = format!(
            "/* counterfoil key={} */ SAVEPOINT counterfoil",
            key.encoded()
        );
        sqlx::raw_sql(AssertSqlSafe(savepoint))
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        Ok(Some(tx))
    }

    async fn claim(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        expect: Expect,
    ) -> Result<bool> {
        let digest = key.digest();
        let query = match expect {
            Expect::Absent => statement(&self.sql.claim)
                .bind(digest.as_bytes())
                .bind(key.scope())
                .bind(key.business_type())
                .bind(key.key()),
            Expect::Fence(fence) => statement(&self.sql.claim_again)
                .bind(digest.as_bytes())
                .bind(fence),
        };
        let done = query
            .bind(clock())
            .execute(connection)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    /// Takes back what the business has written, and keeps the claim.
    pub async fn undo(&self, tx: &mut Transaction<'static, Sqlite>) -> Result<()> {
        self.still_open(tx).await?;
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT counterfoil")
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        Ok(())
    }

    /// Writes the finished record and commits.
    pub async fn commit(
        &self,
        mut tx: Transaction<'static, Sqlite>,
        write: &Write,
    ) -> Result<bool> {
        let finished = self.finish(&mut tx, write).await?;
        if finished {
            tx.commit().await.map_err(classify)?;
        }
        Ok(finished)
    }

    /// Writes the finished record, as the last statement before the commit. It fails when SQLite
    /// has rolled the transaction back by itself and that error was swallowed.
    pub async fn finish(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        write: &Write,
    ) -> Result<bool> {
        self.still_open(tx).await?;
        let digest = write.key.digest();
        let done = bind(statement(&self.sql.finish), &digest, write)
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
        if done.rows_affected() == 1 {
            Ok(true)
        } else {
            Err(StoreError::Doomed("the claim of the key is gone".into()))
        }
    }

    async fn still_open(&self, tx: &mut Transaction<'static, Sqlite>) -> Result<()> {
        let open = check_before_commit(tx).await;
        if matches!(open, Err(StoreError::Doomed(_))) {
            // The driver believes that there is one, and can end it only when it is right.
            sqlx::raw_sql("BEGIN")
                .execute(&mut **tx)
                .await
                .map_err(classify)?;
        }
        open
    }
}

#[async_trait]
impl Records for SqliteGuard {
    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        self.file.check()?;
        statement(&self.sql.look)
            .bind(digest.as_bytes())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?
            .map(|row| found(&row))
            .transpose()
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        self.file.check()?;
        let digest = write.key.digest();
        let query = match write.expect {
            Expect::Absent => bind(statement(&self.sql.insert), &digest, write).bind(clock()),
            Expect::Fence(fence) => bind(statement(&self.sql.swap), &digest, write)
                .bind(clock())
                .bind(fence),
        };
        // To the end: SQLite commits when the last row was asked for, and only then it may fail.
        let rows = query.fetch_all(&self.pool).await.map_err(classify)?;
        let fence = rows.first().map(|row| row.try_get(0)).transpose();
        fence.map_err(classify)
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        self.file.check()?;
        let sql = match change {
            Change::Heartbeat { .. } => &self.sql.heartbeat,
            Change::End { .. } => &self.sql.end,
            Change::Doubt => &self.sql.doubt,
            Change::Release => &self.sql.release,
        };
        let query = statement(sql).bind(mark.digest.as_bytes()).bind(mark.fence);
        let query = match change {
            Change::Heartbeat { lease } => query.bind(millis(*lease)),
            Change::End {
                state,
                snapshot,
                keep,
                retry_in,
            } => {
                let (status, headers, body) = columns::snapshot(snapshot.as_ref());
                query
                    .bind(state.as_str())
                    .bind(status)
                    .bind(headers)
                    .bind(body)
                    .bind(millis(*keep))
                    .bind(retry_in.map(millis))
            }
            Change::Doubt | Change::Release => query,
        };
        let query = query.bind(mark.seen.map(|at| at.timestamp_millis()));
        let done = query.execute(&self.pool).await.map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        let done = statement(&self.sql.forget)
            .bind(digest.as_bytes())
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        let rows = statement(&self.sql.list)
            .bind(&filter.business_type)
            .bind(&filter.scope)
            .bind(&filter.key)
            .bind(filter.state.map(State::as_str))
            .bind(filter.page())
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter().map(found).collect()
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        let last = after.map(|f| f.record.key.digest());
        let rows = statement(&self.sql.stuck)
            .bind(millis(idle))
            .bind(limit)
            .bind(after.map(|f| f.record.updated_at.timestamp_millis()))
            .bind(last.as_ref().map(Digest::as_bytes))
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter().map(found).collect()
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        let rows = statement(&self.sql.stats)
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter()
            .map(stats)
            .collect::<sqlx::Result<_>>()
            .map_err(classify)
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let done = statement(&self.sql.purge)
            .bind(batch)
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected())
    }
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

fn statement<'q>(sql: &Arc<str>) -> Query<'q> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// Binds the first thirteen parameters of `insert.sql` and its like.
fn bind<'q>(query: Query<'q>, digest: &'q Digest, write: &'q Write) -> Query<'q> {
    let (status, headers, body) = columns::snapshot(write.snapshot.as_ref());
    query
        .bind(digest.as_bytes())
        .bind(millis(write.keep))
        .bind(write.lease.map(millis))
        .bind(write.retry_in.map(millis))
        .bind(write.attempt)
        .bind(status)
        .bind(write.state.as_str())
        .bind(write.key.scope())
        .bind(write.key.business_type())
        .bind(write.key.key())
        .bind(write.fingerprint.as_bytes())
        .bind(headers)
        .bind(body)
}

/// SQLite keeps names that begin like its own for itself.
fn check_table(name: &str) -> Result<()> {
    if name.to_ascii_lowercase().starts_with("sqlite_") {
        return Err(StoreError::NotFound(format!(
            "{name:?} cannot be the name of a table: `sqlite_` is SQLite's own"
        )));
    }
    columns::check_table(name, 1)
}

fn found(row: &SqliteRow) -> Result<Found> {
    decode(row)
        .map_err(classify)?
        .ok_or_else(|| StoreError::Database("a record of the guard cannot be read".into()))
}

fn decode(row: &SqliteRow) -> sqlx::Result<Option<Found>> {
    let time = |name| row.try_get::<i64, _>(name).map(moment);
    let maybe = |name| row.try_get::<Option<i64>, _>(name).map(|ms| ms.map(moment));
    let status: Option<u16> = row.try_get("status")?;
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
        now: time("now")?,
        record: Record {
            key,
            fingerprint,
            state,
            fence: row.try_get("fence")?,
            attempts: count(row.try_get("attempts")?),
            lease_until: maybe("lease_until")?,
            retry_at: maybe("retry_at")?,
            expires_at: time("expires_at")?,
            created_at: time("created_at")?,
            updated_at: time("updated_at")?,
            snapshot: status.map(|s| Snapshot::from_columns(s, headers.as_deref(), body)),
        },
    }))
}

fn stats(row: &SqliteRow) -> sqlx::Result<GuardStats> {
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

/// The machine's clock, which is SQLite's too: but SQLite counts milliseconds only, and two numbers
/// of one millisecond must differ.
pub(crate) fn clock() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_sqlites_own_or_have_a_schema_are_refused() {
        for bad in ["sqlite_a", "SQLite_a", "main.a"] {
            assert!(SqliteGuard::print_table(bad).is_err(), "{bad}");
        }
        assert!(SqliteGuard::print_table("pay_guard").is_ok());
    }

    #[test]
    fn a_table_whose_name_begins_like_the_central_one_is_renamed_once() {
        let sql = SqliteGuard::print_table("counterfoil_guard_pay").unwrap_or_default();

        assert!(sql.contains("EXISTS counterfoil_guard_pay ("), "{sql}");
        assert!(sql.contains("counterfoil_guard_pay_over ON counterfoil_guard_pay ("));
        assert!(!sql.contains("pay_pay"));
    }
}
