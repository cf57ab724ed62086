//! What a store's tests supply so that the suite can run on it.
//!
//! A driver's `tests/conformance.rs` holds one implementation of [`Harness`] and one line:
//!
//! ```text
//! counterfoil_testkit::store_suite!(PostgresHarness);
//! ```
//!
//! [`MemoryHarness`](crate::memory::MemoryHarness) is the shortest example.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_core::desk::Desk;
use counterfoil_core::message::Message;
use counterfoil_core::store::{Enqueued, Keyed, RelayId, Result, Store};

/// One empty outbox, and the keys to everything that a test must be able to do with it.
///
/// The methods of transactions are those of an application: they go through the driver's public
/// functions. The hooks below go behind the driver's back, by plain SQL.
#[async_trait]
pub trait Harness: Send + Sync + Sized + 'static {
    /// The application's own transaction.
    type Tx: Send;

    /// A new, empty outbox with its tables. Absent when the server is missing: see
    /// [`server`](crate::server), which has then said so.
    async fn fresh() -> Option<Self>;

    /// Removes what [`fresh`](Harness::fresh) made. Called after each case, failed ones included.
    async fn clean_up(&self) {}

    /// The store, as the engine of this process uses it.
    fn store(&self) -> Arc<dyn Store>;

    /// The operator's side of the same store.
    fn desk(&self) -> Arc<dyn Desk>;

    /// Another handle on the same outbox, as another process would have it.
    async fn second_store(&self) -> Arc<dyn Store>;

    /// Whether ownership rests on leases that run out by the database's clock. Where it rests on a
    /// lock of the operating system, a living process cannot lapse.
    fn leases(&self) -> bool {
        true
    }

    /// Whether two transactions can write at the same time. With a single writer, the second one
    /// waits at its beginning or at its first message.
    fn concurrent_writers(&self) -> bool {
        true
    }

    /// Opens a transaction of the application.
    async fn begin(&self) -> Self::Tx;

    /// Enqueues in the transaction, all in one call.
    async fn enqueue(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<()>;

    /// Enqueues in the transaction, unless the key was used before.
    async fn enqueue_keyed(&self, tx: &mut Self::Tx, keyed: &Keyed) -> Result<Enqueued>;

    /// Inserts a row by plain SQL, as a program in another language would.
    async fn foreign(&self, tx: &mut Self::Tx, row: &ForeignRow) -> Result<(), BoxError>;

    /// Sets a savepoint. One at a time is enough.
    async fn savepoint(&self, tx: &mut Self::Tx);

    /// Goes back to the savepoint. The transaction goes on.
    async fn rollback_to(&self, tx: &mut Self::Tx);

    /// Commits.
    async fn commit(&self, tx: Self::Tx) -> Result<()>;

    /// Rolls back.
    async fn rollback(&self, tx: Self::Tx);

    /// Hook: moves the due time of every scheduled and retrying row one day back.
    async fn make_due(&self);

    /// Hook: makes the lease of a relay run out now. Not called when [`leases`](Harness::leases)
    /// is false.
    async fn expire_lease(&self, relay: &RelayId);

    /// Hook: makes everything in the history, the ledger, the parking lot and the events older.
    async fn age_history(&self, by: Duration);

    /// Hook: plants a fault that an audit must find. Answers false when it cannot be planted.
    async fn corrupt(&self, fault: &Fault) -> bool;
}

/// A row as a program in another language would write it. What is absent is left out of the
/// column list of the INSERT.
#[derive(Debug, Clone, Default)]
pub struct ForeignRow {
    /// Column `id`.
    pub id: Option<String>,
    /// Column `queue`.
    pub queue: Option<String>,
    /// Column `aggregate_type`.
    pub aggregate_type: Option<String>,
    /// Column `aggregate_id`.
    pub aggregate_id: Option<String>,
    /// Column `version`.
    pub version: Option<i64>,
    /// Column `event_type`.
    pub event_type: Option<String>,
    /// Column `payload`.
    pub payload: Option<String>,
    /// Column `payload_bin`.
    pub payload_bin: Option<Vec<u8>>,
    /// Column `headers`.
    pub headers: Option<String>,
    /// Column `state`.
    pub state: Option<String>,
    /// Column `attempts`.
    pub attempts: Option<i32>,
    /// Column `available_at`.
    pub available_at: Option<Due>,
    /// Write NULL into the absent columns, and into `created_at`, instead of leaving them out.
    pub nulls: bool,
}

/// One value of a [`ForeignRow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// A text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A time.
    Time(Due),
}

impl ForeignRow {
    /// The columns to write and their values. Without any, the INSERT has only defaults.
    pub fn columns(&self) -> Vec<(&'static str, Value)> {
        let text = |v: &Option<String>| v.clone().map(Value::Text);
        let mut columns = vec![
            ("id", text(&self.id)),
            ("queue", text(&self.queue)),
            ("aggregate_type", text(&self.aggregate_type)),
            ("aggregate_id", text(&self.aggregate_id)),
            ("version", self.version.map(Value::Number)),
            ("event_type", text(&self.event_type)),
            ("payload", text(&self.payload)),
            ("payload_bin", self.payload_bin.clone().map(Value::Bytes)),
            ("headers", text(&self.headers)),
            ("state", text(&self.state)),
            ("attempts", self.attempts.map(|n| Value::Number(n.into()))),
            ("available_at", self.available_at.map(Value::Time)),
        ];
        if self.nulls {
            columns.push(("created_at", None));
            columns
                .iter_mut()
                .for_each(|c| _ = c.1.get_or_insert(Value::Null));
        }
        columns
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// A due time as foreign writers write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The database's clock.
    Now,
    /// Ten years ago.
    Past,
    /// In the year 9999.
    FarFuture,
    /// The earliest value that the column takes, infinities included.
    Earliest,
    /// The latest value that the column takes, infinities included.
    Latest,
}

/// A fault that no sequence of calls should ever cause.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The pending message of this number also stands in the history as sent.
    AlsoInHistory(i64),
    /// The row of this number, which is in the outbox, vanishes without a trace.
    RowVanishes(i64),
    /// Another message stands in the outbox under this number: a replica that lacked the last
    /// transactions has become the primary, and has given the number away again.
    NumberComesBack {
        /// The number.
        seq: i64,
        /// The id of the other message.
        id: String,
    },
}
