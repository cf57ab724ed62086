//! An outbox in memory: for the tests of applications, and the model that other stores are
//! compared with.
//!
//! # Promise
//! It keeps every promise of a store except one: what it holds dies with the process. Its clock is
//! the test's to move.
//!
//! ```
//! use std::time::Duration;
//! use counterfoil_core::Message;
//! use counterfoil_testkit::memory::MemoryStore;
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let store = MemoryStore::new();
//! let mut tx = store.begin();
//! tx.enqueue(&[Message::json("order", 7, "OrderPaid", &7)?.queue("billing")]).await?;
//! tx.commit().await?;
//!
//! store.clock().advance(Duration::from_secs(60));
//! # Ok::<(), counterfoil_core::StoreError>(())
//! # }).unwrap();
//! ```

mod calls;
mod clock;
mod desk;
mod guard;
mod harness;
mod looking;
mod ownership;
mod presence;
mod reading;
mod relay;
mod settle;
mod state;
mod topic;
mod tx;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counterfoil_core::store::{Settlement, StoreError};
use tokio::sync::{Notify, watch};

pub use calls::{Away, Hold, Point};
pub use clock::Clock;
pub use guard::MemoryGuard;
pub use harness::MemoryHarness;
pub use topic::Topic;
pub use tx::{MemoryTx, Savepoint};

use calls::Calls;
use state::State;

/// The outbox. Clones are handles on the same one.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    clock: Clock,
    /// A transaction has ended: whoever waits for its keys looks again.
    ended: Notify,
    /// The number of commits, for those who listen.
    committed: watch::Sender<u64>,
    calls: Calls,
    refusal: Mutex<Option<Refusal>>,
}

/// What a test lets the store say to a settlement, instead of applying it.
struct Refusal(Box<Refuse>);

type Refuse = dyn FnMut(&Settlement) -> Option<StoreError> + Send;

impl std::fmt::Debug for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusal")
    }
}

impl MemoryStore {
    /// An empty outbox whose clock runs with the machine's.
    pub fn new() -> Self {
        Self::with_clock(Clock::running())
    }

    /// An empty outbox with this clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(State::new()),
                clock,
                ended: Notify::new(),
                committed: watch::Sender::new(0),
                calls: Calls::default(),
                refusal: Mutex::new(None),
            }),
        }
    }

    /// The clock of leases and due times.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// From now on a settlement for which `refusal` has an error is not applied.
    pub fn refuse_settlements(
        &self,
        refusal: impl FnMut(&Settlement) -> Option<StoreError> + Send + 'static,
    ) {
        *self.refusal() = Some(Refusal(Box::new(refusal)));
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        let refusal = self.inner.refusal.lock();
        refusal.unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a transaction of the application.
    pub fn begin(&self) -> MemoryTx {
        MemoryTx::new(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}
