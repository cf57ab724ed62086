//! The first time, or again: what unique keys answer.

use counterfoil_core::store::StoreError;
use sqlx::Transaction;

use crate::builder::Error;
use crate::database::Database;

/// What a unique key answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Once {
    /// For the first time.
    First,
    /// It was there (or gone) before: nothing has changed.
    Duplicate,
}

impl Once {
    /// Whether this call made the change.
    pub fn is_first(self) -> bool {
        self == Once::First
    }

    /// Reads the number of rows that an insert or a delete by unique key has changed.
    pub fn from_rows(changed: u64) -> Self {
        Self::from(changed > 0)
    }
}

impl From<bool> for Once {
    fn from(first: bool) -> Self {
        if first { Once::First } else { Once::Duplicate }
    }
}

/// Runs an insert behind a savepoint; a unique constraint that refuses it answers
/// [`Once::Duplicate`], and the transaction stays usable.
///
/// ```ignore
/// let insert = sqlx::query("INSERT INTO coupons (user_id, coupon_id) VALUES ($1, $2)").bind(7).bind(1);
/// if insert_once::<Postgres>(&mut tx, insert).await?.is_first() { give(); }
/// ```
pub async fn insert_once<'q, D>(
    tx: &mut Transaction<'_, D::Sqlx>,
    insert: sqlx::query::Query<'q, D::Sqlx, <D::Sqlx as sqlx::Database>::Arguments>,
) -> Result<Once, Error>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: sqlx::Executor<'c, Database = D::Sqlx>,
    <D::Sqlx as sqlx::Database>::Arguments: sqlx::IntoArguments<D::Sqlx>,
{
    // Not a transaction inside the transaction: when its caller goes away while one begins, the
    // driver rolls the outer one back and says nothing.
    let classify = |e| Error::Store(D::classify(e));
    run::<D>(tx, "SAVEPOINT counterfoil_once")
        .await
        .map_err(classify)?;
    let done = insert.execute(&mut **tx).await;
    if let Err(error) = &done {
        let undone = run::<D>(tx, "ROLLBACK TO SAVEPOINT counterfoil_once").await;
        // The first error is the one that tells what happened.
        if let Err(second) = undone {
            return Err(Error::Store(StoreError::Doomed(format!(
                "{error}; {second}"
            ))));
        }
    }
    run::<D>(tx, "RELEASE SAVEPOINT counterfoil_once")
        .await
        .map_err(classify)?;
    match done {
        Ok(_) => Ok(Once::First),
        Err(sqlx::Error::Database(refused)) if refused.is_unique_violation() => Ok(Once::Duplicate),
        Err(error) => Err(classify(error)),
    }
}

async fn run<D>(tx: &mut Transaction<'_, D::Sqlx>, sql: &'static str) -> sqlx::Result<()>
where
    D: Database,
    for<'c> &'c mut <D::Sqlx as sqlx::Database>::Connection: sqlx::Executor<'c, Database = D::Sqlx>,
{
    use sqlx::Executor as _;
    (&mut **tx).execute(sql).await?;
    Ok(())
}
