//! Writes that may be repeated, and say plainly what came of them.
//!
//! # Promise
//! Each helper answers one of three: the write took effect now, it had taken effect before, or it
//! cannot. A repeat changes nothing. They run in the caller's transaction and keep no record: the
//! rows themselves tell. Where that is enough, no guard is needed.

use sqlx::{Executor, IntoArguments, Transaction};

use crate::builder::Error;
use crate::database::Database;

/// What came of a write that may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It took effect now.
    Now,
    /// It had taken effect before.
    Already,
    /// It cannot: the condition does not hold, or the row is not there.
    Refused,
}

impl Applied {
    /// Whether the effect is there, from now or from before.
    pub fn is_there(self) -> bool {
        self != Applied::Refused
    }
}

type Query<'q, D> = sqlx::query::Query<
    'q,
    <D as Database>::Sqlx,
    <<D as Database>::Sqlx as sqlx::Database>::Arguments,
>;

/// Updates under a condition: `UPDATE stock SET qty = qty - 3 WHERE sku = ? AND qty >= 3`.
///
/// When nothing was changed, `already` tells whether it was done before: a SELECT that finds a row
/// then and only then (`SELECT 1 FROM reservations WHERE request = ?`).
pub async fn update_if<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    update: Query<'_, D>,
    already: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    let classify = |e| Error::Store(D::classify(e));
    let changed = update.execute(&mut **tx).await.map_err(classify)?;
    if D::rows(&changed) > 0 {
        return Ok(Applied::Now);
    }
    let found = already.fetch_optional(&mut **tx).await.map_err(classify)?;
    Ok(match found {
        Some(_) => Applied::Already,
        None => Applied::Refused,
    })
}

/// Updates a row that has a version: `UPDATE … SET …, version = 8 WHERE id = ? AND version = 7`.
///
/// When nothing was changed, `current` reads the version that is there (`SELECT version …`): at or
/// above `new` it was done before; below, or without a row, it cannot be done.
pub async fn update_version<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    update: Query<'_, D>,
    new: i64,
    current: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
    i64: for<'r> sqlx::Decode<'r, D::Sqlx> + sqlx::Type<D::Sqlx>,
    usize: sqlx::ColumnIndex<<D::Sqlx as sqlx::Database>::Row>,
{
    use sqlx::Row as _;
    let classify = |e| Error::Store(D::classify(e));
    let changed = update.execute(&mut **tx).await.map_err(classify)?;
    if D::rows(&changed) > 0 {
        return Ok(Applied::Now);
    }
    let Some(row) = current.fetch_optional(&mut **tx).await.map_err(classify)? else {
        return Ok(Applied::Refused);
    };
    let there: i64 = row.try_get(0).map_err(classify)?;
    Ok(if there >= new {
        Applied::Already
    } else {
        Applied::Refused
    })
}

/// Updates, or inserts when there is no row. The update has a condition, so that an older write
/// does not replace a newer one (`UPDATE settings SET …, version = 9 WHERE id = ? AND version < 9`);
/// when it does not hold, the answer is [`Applied::Already`].
///
/// Two statements and not one, because databases do not agree on how many rows a statement that
/// does both has changed.
pub async fn upsert<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    update: Query<'_, D>,
    insert: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    let changed = update
        .execute(&mut **tx)
        .await
        .map_err(|e| Error::Store(D::classify(e)))?;
    if D::rows(&changed) > 0 || crate::insert_once::<D>(tx, insert).await?.is_first() {
        return Ok(Applied::Now);
    }
    Ok(Applied::Already)
}

/// Inserts behind a savepoint. When a unique constraint refuses it, `same` tells whether what is
/// there is the same (`SELECT 1 FROM orders WHERE id = ? AND total = ?`): then it was done before.
pub async fn insert_or_duplicate<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    insert: Query<'_, D>,
    same: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    if crate::insert_once::<D>(tx, insert).await?.is_first() {
        return Ok(Applied::Now);
    }
    let found = same
        .fetch_optional(&mut **tx)
        .await
        .map_err(|e| Error::Store(D::classify(e)))?;
    Ok(match found {
        Some(_) => Applied::Already,
        None => Applied::Refused,
    })
}
