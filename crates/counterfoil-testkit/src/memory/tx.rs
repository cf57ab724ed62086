//! The application's side: a transaction on the memory store.

use counterfoil_core::message::{Message, check_name};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Enqueued, Keyed, Result};

use super::MemoryStore;
use super::state::{Columns, Key, LedgerEntry, Row};

/// An open transaction. Dropping it rolls it back.
///
/// Numbers are taken when a message is enqueued and become visible at the commit, so that a
/// transaction that commits late looks to a relay as it does in a database.
#[derive(Debug)]
pub struct MemoryTx {
    store: MemoryStore,
    /// Taken at the first write.
    id: Option<u64>,
    rows: Vec<Row>,
    keys: Vec<(Key, LedgerEntry)>,
}

/// A place in a transaction to which it can go back.
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    rows: usize,
    keys: usize,
}

impl MemoryTx {
    pub(super) fn new(store: MemoryStore) -> Self {
        Self {
            store,
            id: None,
            rows: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Writes messages, which exist when the transaction commits.
    pub async fn enqueue(&mut self, messages: &[Message]) -> Result<()> {
        for message in messages {
            message.validate()?;
        }
        for message in messages {
            self.insert(Columns::from(message), |row| {
                row.available_at = message.available_at;
            });
        }
        Ok(())
    }

    /// Writes a message unless its key was used before. While another open transaction has used
    /// the key, waits for that one's end.
    pub async fn enqueue_keyed(&mut self, keyed: &Keyed) -> Result<Enqueued> {
        let message = &keyed.message;
        if let Some((scope, key)) = &keyed.key {
            message.validate()?;
            check_name("scope", scope)?;
            check_name("key", key)?;
            if let Some(first) = self.claim(&(scope.clone(), key.clone()), message).await {
                return Ok(first);
            }
        }
        self.enqueue(std::slice::from_ref(message)).await?;
        Ok(Enqueued::First(message.id))
    }

    /// Notes a key, or tells whose it is.
    async fn claim(&mut self, key: &Key, message: &Message) -> Option<Enqueued> {
        let own = self.transaction_id();
        loop {
            let somebody_ended = self.store.inner.ended.notified();
            {
                let mut state = self.store.lock();
                let noted = state.ledger.get(key).map(|e| e.id);
                let ours = || self.keys.iter().find(|(k, _)| k == key).map(|(_, e)| e.id);
                if let Some(first) = noted.or_else(ours) {
                    return Some(Enqueued::Duplicate(first));
                }
                if !state.claimed.contains_key(key) {
                    state.claimed.insert(key.clone(), own);
                    let created_at = self.store.clock().now();
                    self.keys.push((
                        key.clone(),
                        LedgerEntry {
                            id: message.id,
                            created_at,
                        },
                    ));
                    return None;
                }
            }
            somebody_ended.await;
        }
    }

    /// Marks a place to go back to.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            rows: self.rows.len(),
            keys: self.keys.len(),
        }
    }

    /// Undoes what came after the savepoint. The transaction goes on.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.rows.truncate(savepoint.rows);
        let undone = self.keys.split_off(savepoint.keys.min(self.keys.len()));
        let mut state = self.store.lock();
        for (key, _) in undone {
            state.claimed.remove(&key);
        }
        drop(state);
        self.store.inner.ended.notify_waiters();
    }

    /// Makes the messages visible, all at once.
    pub async fn commit(mut self) -> Result<()> {
        let (rows, keys) = (
            std::mem::take(&mut self.rows),
            std::mem::take(&mut self.keys),
        );
        let mut state = self.store.lock();
        for (key, entry) in keys {
            state.claimed.remove(&key);
            state.ledger.insert(key, entry);
        }
        for row in rows {
            state.outbox.insert(row.seq, row);
        }
        drop(state);
        let store = self.store.clone();
        drop(self);
        store.inner.committed.send_modify(|n| *n += 1);
        Ok(())
    }

    /// Forgets everything.
    pub fn rollback(self) {}

    /// Writes a row as it is given.
    pub(super) fn insert(&mut self, columns: Columns, set: impl FnOnce(&mut Row)) {
        self.transaction_id();
        let seq = self.store.lock().take_seq();
        let mut row = Row::new(seq, columns, self.store.clock().now());
        row.state = RowState::New;
        set(&mut row);
        self.rows.push(row);
    }

    fn transaction_id(&mut self) -> u64 {
        let store = &self.store;
        *self.id.get_or_insert_with(|| {
            let mut state = store.lock();
            let id = state.take_tx();
            state.open.insert(id);
            id
        })
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        for (key, _) in &self.keys {
            state.claimed.remove(key);
        }
        if let Some(id) = self.id {
            state.open.remove(&id);
        }
        drop(state);
        self.store.inner.ended.notify_waiters();
    }
}
