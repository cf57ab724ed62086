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
    if changes::<D>(tx, update).await? {
        return Ok(Applied::Now);
    }
    before::<D>(tx, already).await
}

/// Updates a row that has a version: `UPDATE … SET name = ?, version = 8 WHERE id = ? AND version = 7`.
///
/// When nothing was changed, somebody has changed the row: this write in an earlier try, or another
/// one. `same` tells which: a SELECT that finds the row if it is as this write leaves it (`SELECT 1 …
/// WHERE id = ? AND version = 8 AND name = ?`). The version alone does not tell, unless only one
/// writer counts it up: an event that carries its version may ask for `version >= 8`.
pub async fn update_version<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    update: Query<'_, D>,
    same: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    update_if::<D>(tx, update, same).await
}

/// Updates, or inserts when there is no row. The update has a condition, so that an older write
/// does not replace a newer one (`UPDATE settings SET …, version = 9 WHERE id = ? AND version < 9`).
///
/// When neither took effect, `same` tells whether this was written before (`SELECT 1 FROM settings
/// WHERE id = ? AND version = 9`); otherwise something newer is there, and it is refused.
///
/// Two statements and not one, because databases do not agree on how many rows a statement that
/// does both has changed.
pub async fn upsert<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    update: Query<'_, D>,
    insert: Query<'_, D>,
    same: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    if changes::<D>(tx, update).await? {
        return Ok(Applied::Now);
    }
    insert_or_duplicate::<D>(tx, insert, same).await
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
    before::<D>(tx, same).await
}

async fn changes<D>(tx: &mut Transaction<'_, D::Sqlx>, update: Query<'_, D>) -> Result<bool, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    let changed = update.execute(&mut **tx).await;
    Ok(D::rows(&changed.map_err(|e| Error::Store(D::classify(e)))?) > 0)
}

/// Nothing has changed: because it was done before, or because it cannot be done.
async fn before<D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    already: Query<'_, D>,
) -> Result<Applied, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: IntoArguments<D::Sqlx>,
{
    let found = already.fetch_optional(&mut **tx).await;
    Ok(match found.map_err(|e| Error::Store(D::classify(e)))? {
        Some(_) => Applied::Already,
        None => Applied::Refused,
    })
}
