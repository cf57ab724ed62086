//! An open transaction that is lent to a handler.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::Transaction;

use crate::database::Database;

/// Where a transaction lies while nobody uses it.
#[doc(hidden)]
pub struct Slot<D: Database>(Arc<Mutex<Option<Transaction<'static, D::Sqlx>>>>);

impl<D: Database> Clone for Slot<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Database> Slot<D> {
    /// With this transaction in it.
    pub fn new(tx: Option<Transaction<'static, D::Sqlx>>) -> Self {
        Self(Arc::new(Mutex::new(tx)))
    }

    /// Takes it out. Absent while somebody has it.
    pub fn take(&self) -> Option<Transaction<'static, D::Sqlx>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts it in.
    pub fn put(&self, tx: Transaction<'static, D::Sqlx>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tx);
    }

    /// Lends it. Absent while somebody has it.
    pub fn lend(&self) -> Option<Tx<D>> {
        let tx = self.take()?;
        Some(Tx {
            tx: Some(tx),
            slot: self.clone(),
        })
    }
}

/// The transaction in which a handler runs. What is written here commits together with what makes
/// it happen once, and is rolled back with an error. It goes back when it is dropped: do not commit
/// it, and do not keep it after the handler has returned.
pub struct Tx<D: Database> {
    tx: Option<Transaction<'static, D::Sqlx>>,
    slot: Slot<D>,
}

impl<D: Database> Deref for Tx<D> {
    type Target = Transaction<'static, D::Sqlx>;

    #[expect(clippy::expect_used, reason = "only drop takes it out")]
    fn deref(&self) -> &Self::Target {
        self.tx
            .as_ref()
            .expect("the transaction is there until the drop")
    }
}

impl<D: Database> DerefMut for Tx<D> {
    #[expect(clippy::expect_used, reason = "only drop takes it out")]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx
            .as_mut()
            .expect("the transaction is there until the drop")
    }
}

impl<D: Database> Drop for Tx<D> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.slot.put(tx);
        }
    }
}
