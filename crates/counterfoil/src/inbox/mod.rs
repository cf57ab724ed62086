//! The inbox: every message takes effect once, in order per aggregate.
//!
//! ```ignore
//! async fn on_paid(mut tx: Tx<Postgres>, paid: Event<OrderPaid>) -> Result<(), HandleError> {
//!     sqlx::query("UPDATE stock SET left = left - $1 WHERE item = $2")
//!         .bind(paid.content.count)
//!         .bind(paid.content.item)
//!         .execute(&mut **tx)
//!         .await?;
//!     Ok(())
//! }
//!
//! let consumer = cf.consumer("stock", source).on("OrderPaid", on_paid).start().await?;
//! ```
//!
//! # What happens to a message
//! In one transaction: its row in the ledger is written first, then the handler runs, then all of it
//! commits. Then the broker is told. A repeat finds the row and does nothing. Several messages may
//! share a transaction; when one fails, each is tried by itself.
//!
//! A message whose handler fails is stored, and tried again with backoff, ten times; then it is
//! parked. The broker does not wait for it. Later messages of its aggregate are stored behind it,
//! others go on. What can never pass (no id, no handler, content that does not fit, a version older
//! than one that was applied) is parked at once.
//!
//! With [`Builder::dead_letters`] what the broker itself has given up is parked as well.
//!
//! # Effects outside the database
//! A handler may run more than once: only what it writes in its transaction is taken back. Give
//! another system [`Event::id`] as its key, so that a repeat overwrites.

mod apply;
mod handlers;
mod import;
mod retry;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::inbox::{Keep, queue_of};
use counterfoil_core::message::check_name;
use counterfoil_core::policy::Backoff;
use counterfoil_core::source::{Source, SourceError};
use counterfoil_core::store::StoreError;
use counterfoil_engine::consume::{Consumer as Running, ConsumerSettings, Reporter};
use counterfoil_engine::pipeline::Registry;
use counterfoil_engine::{
    Engine, EngineBuilder, HandlerAnswer, Nudge, OnPark, QueueSpec, Settings, SettingsError,
};
use serde::de::DeserializeOwned;
use sqlx::Pool;

use crate::Tx;
use crate::builder::Error;
use crate::database::Database;
use apply::Inbox;
use handlers::Handlers;

pub use counterfoil_core::inbox::{Gate, Versions};
pub use counterfoil_core::incoming::{Dedup, Incoming, Mapping, Place, PlaceError};
pub use counterfoil_core::presence::ConsumerStatus;
pub use counterfoil_engine::TaskError as HandleError;
pub use counterfoil_engine::consume::Monitor;
pub use handlers::Event;

/// How often what is over is looked for.
const PURGE_EVERY: Duration = Duration::from_secs(600);
/// How many rows go at once.
const PURGE_BATCH: u32 = 5_000;

/// What becomes of messages that can never pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Poison {
    /// They go to the parking lot, where they can be seen, redriven and audited.
    #[default]
    Park,
    /// They go to the dead letters of their broker. What a handler has tried is parked all the same.
    DeadLetter,
}

/// A consumer that is to be started.
///
/// | setting | default |
/// |---|---|
/// | `workers` | 8 transactions at a time |
/// | `batch` | 100 messages in a transaction |
/// | `held` | 2,000 messages received and not settled |
/// | `backoff` | 1 s, doubling, at most 5 min, 10 attempts |
/// | `versions` | rising: gaps are no error |
/// | `on_park` | hold |
/// | `poison` | park |
/// | `keep` | 30 days |
/// | `timeout` | 30 s for one message |
/// | `most_waiting` | 10,000 messages put off |
/// | `mapping` | the envelope; dedup by id |
/// | `dead_letters` | nobody imports them |
#[must_use]
pub struct Builder<D: Database> {
    pool: Pool<D::Sqlx>,
    source: Arc<dyn Source>,
    consume: ConsumerSettings,
    engine: Settings,
    registry: Registry,
    outbox: Nudge,
    handlers: Handlers<D>,
    backoff: Backoff,
    versions: Versions,
    on_park: OnPark,
    poison: Poison,
    dead_letters: Option<Arc<dyn Source>>,
    keep: Duration,
    timeout: Duration,
    most_waiting: u32,
    gate: Option<Arc<dyn Gate>>,
    wrong: Option<SettingsError>,
}

impl<D: Database> Builder<D> {
    /// A consumer beside an engine that runs already, whose settings it works with, whose
    /// destinations it knows and which it wakes. With a handle it is [`crate::Counterfoil::consumer`].
    pub fn new(
        name: &str,
        source: Arc<dyn Source>,
        pool: Pool<D::Sqlx>,
        engine: Settings,
        registry: Registry,
        outbox: Nudge,
    ) -> Self {
        Self {
            pool,
            source,
            consume: ConsumerSettings::new(name),
            engine,
            registry,
            outbox,
            handlers: Handlers::new(name),
            backoff: Backoff::DEFAULT,
            versions: Versions::Rising,
            on_park: OnPark::Hold,
            poison: Poison::Park,
            dead_letters: None,
            keep: Duration::from_secs(30 * 86_400),
            timeout: Duration::from_secs(30),
            most_waiting: 10_000,
            gate: None,
            wrong: None,
        }
    }

    /// Handles events of this type, whose content is JSON.
    pub fn on<T, F, Fut>(mut self, event_type: &str, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Tx<D>, Event<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        if !self.handlers.add(event_type, handler) {
            let twice = format!("{event_type} of {}", queue_of(&self.consume.name));
            self.wrong.get_or_insert(SettingsError::QueueTwice(twice));
        }
        self
    }

    /// Handles every event that has no handler of its own, as it came.
    pub fn on_any<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Tx<D>, Incoming) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        self.handlers.any(handler);
        self
    }

    /// Acknowledges events whose type matches the pattern (`*` and `?`) and does nothing. Without
    /// this, and without a handler, an event is parked.
    pub fn skip(mut self, pattern: &str) -> Self {
        self.handlers.skip(pattern);
        self
    }

    /// Where the id and the like are found, and by what a repeat is recognised.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.consume.mapping = mapping;
        self
    }

    /// The most transactions at one time.
    pub fn workers(mut self, workers: usize) -> Self {
        self.consume.workers = workers;
        self
    }

    /// The most messages in one transaction.
    pub fn batch(mut self, batch: usize) -> Self {
        self.consume.batch = batch;
        self
    }

    /// The most messages that are received and not settled.
    pub fn held(mut self, held: usize) -> Self {
        self.consume.held = held;
        self
    }

    /// When to try again, and how often.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// What is expected of the versions of an aggregate. With [`Versions::Gapless`] a version that
    /// comes before its time waits as a message does that fails, and is parked when the one before
    /// it does not come.
    pub fn versions(mut self, versions: Versions) -> Self {
        self.versions = versions;
        self
    }

    /// Takes over what the broker itself has given up: everything in these dead letters is parked,
    /// to be seen, redriven and audited like the rest. What this consumer has processed meanwhile is
    /// passed over.
    pub fn dead_letters(mut self, source: Arc<dyn Source>) -> Self {
        self.dead_letters = Some(source);
        self
    }

    /// What parking does to later messages of the same aggregate.
    pub fn on_park(mut self, on_park: OnPark) -> Self {
        self.on_park = on_park;
        self
    }

    /// What becomes of messages that can never pass.
    pub fn poison(mut self, poison: Poison) -> Self {
        self.poison = poison;
        self
    }

    /// How long a repeat is recognised. Not shorter than the broker keeps messages.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// How long one message may take. Then it is rolled back and tried again later.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// When so many messages are put off, because they fail or wait behind one that does, nothing
    /// more is received: the broker keeps the rest.
    pub fn most_waiting(mut self, most: u32) -> Self {
        self.most_waiting = most;
        self
    }

    /// A fast gate in front of the ledger.
    pub fn gate(mut self, gate: Arc<dyn Gate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Checks everything and starts. A broker that does not answer is no error: it is asked again.
    pub async fn start(self) -> Result<Consumer, Error> {
        self.check()?;
        match self.source.retention().await {
            Ok(Some(retention)) if retention > self.keep => {
                return Err(Error::Consumer(format!(
                    "the consumer {:?} would forget what it has processed after {:?}, and {} keeps messages for {:?}: \
                     a repeat would take effect twice. Raise `keep`, or lower the broker's retention",
                    self.consume.name,
                    self.keep,
                    self.source.describe(),
                    retention,
                )));
            }
            Err(SourceError::Refused(why)) => {
                tracing::warn!(
                    source = self.source.describe(),
                    why,
                    "the broker's retention cannot be seen"
                );
            }
            _ => {}
        }
        if !self.source.features().dead_letters && self.poison == Poison::DeadLetter {
            let source = self.source.describe();
            return Err(Error::Consumer(format!(
                "{source} has no dead letters: park them instead"
            )));
        }
        if self.versions != Versions::Rising && self.on_park == OnPark::Skip {
            return Err(Error::Consumer(format!(
                "the consumer {:?} waits for every version, and is told to go on without those that are parked: \
                 choose one of the two",
                self.consume.name
            )));
        }
        let (store, _) = D::open(&self.pool)?;
        let queue = queue_of(&self.consume.name);
        let inbox = Arc::new(Inbox::<D> {
            pool: self.pool.clone(),
            name: Arc::clone(&self.consume.name),
            queue: queue.clone(),
            handlers: self.handlers,
            backoff: self.backoff,
            versions: self.versions,
            poison: self.poison,
            timeout: self.timeout,
            most_waiting: self.most_waiting,
            gate: self.gate,
            retries: std::sync::OnceLock::new(),
            outbox: self.outbox,
        });
        let again = retry::Again {
            inbox: Arc::clone(&inbox),
            concurrency: self.consume.workers,
        };
        let spec = QueueSpec {
            backoff: self.backoff,
            on_park: self.on_park,
            ..QueueSpec::new(&queue, Arc::new(again))
        };
        let label = self.engine.label.clone();
        let engine = EngineBuilder::new(Arc::clone(&store))
            .settings(self.engine)
            .registry(self.registry)
            .queue(spec)
            .start()
            .await?;
        let _ = inbox.retries.set(engine.nudge());
        let purge = tokio::spawn(purge::<D>(
            self.pool,
            Arc::clone(&self.consume.name),
            Arc::clone(&self.source),
            self.keep,
            self.versions,
        ));
        let mut running = Vec::new();
        if let Some(dead) = self.dead_letters {
            let import = Arc::new(import::Import {
                described: dead.describe(),
                inbox: Arc::clone(&inbox),
                keep: self.keep,
            });
            let consume = ConsumerSettings {
                // In the figures they are apart.
                name: format!("{}.dead-letters", self.consume.name).into(),
                ..self.consume.clone()
            };
            running.push(Running::start(dead, import, consume));
        }
        running.push(Running::start(self.source, inbox, self.consume));
        let report =
            |running: &Running| Reporter::start(Arc::clone(&store), &label, running.monitor());
        Ok(Consumer {
            reporters: running.iter().map(report).collect(),
            running,
            engine: Some(engine),
            purge,
        })
    }

    /// Starts, and consumes until `end` is over, for example a signal. Then finishes what has begun.
    pub async fn run_until(self, end: impl Future) -> Result<(), Error> {
        let consumer = self.start().await?;
        end.await;
        consumer.stop().await;
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone().into());
        }
        check_name("consumer", &self.consume.name)?;
        // The name of its queue is longer.
        check_name("consumer", &queue_of(&self.consume.name))?;
        for (what, zero) in [
            ("workers", self.consume.workers == 0),
            ("batch", self.consume.batch == 0),
            ("held", self.consume.held == 0),
            ("keep", self.keep.is_zero()),
            ("timeout", self.timeout.is_zero()),
            ("most_waiting", self.most_waiting == 0),
        ] {
            if zero {
                return Err(SettingsError::Zero(what).into());
            }
        }
        if self.handlers.is_empty() {
            return Err(Error::Consumer(format!(
                "the consumer {:?} has no handler: every message would be parked",
                self.consume.name
            )));
        }
        Ok(())
    }
}

/// A running consumer.
///
/// # When it is dropped
/// It ends at once. What was not committed comes again.
pub struct Consumer {
    running: Vec<Running>,
    reporters: Vec<Reporter>,
    engine: Option<Engine>,
    purge: tokio::task::JoinHandle<()>,
}

impl Consumer {
    /// How it is: one for what it consumes, and one more for the broker's dead letters, where those
    /// are taken over.
    pub fn monitors(&self) -> Vec<Monitor> {
        self.running.iter().map(Running::monitor).collect()
    }

    /// Finishes what has begun, tells the broker, and gives everything else back.
    pub async fn stop(mut self) {
        let running = self.running.drain(..).map(Running::stop);
        futures_util::future::join_all(running).await;
        let reporters = self.reporters.drain(..).map(Reporter::stop);
        futures_util::future::join_all(reporters).await;
        if let Some(engine) = self.engine.take() {
            engine.stop().await;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.purge.abort();
    }
}

/// Forgets what is older than the broker could repeat.
async fn purge<D: Database>(
    pool: Pool<D::Sqlx>,
    name: Arc<str>,
    source: Arc<dyn Source>,
    keep: Duration,
    versions: Versions,
) {
    loop {
        tokio::time::sleep(PURGE_EVERY).await;
        // It may have been raised since the start.
        let keep = match source.retention().await {
            Ok(retention) => keep.max(retention.unwrap_or_default()),
            Err(_) => continue,
        };
        let keep = Keep {
            processed: keep,
            aggregates: (versions == Versions::Rising).then_some(keep),
        };
        loop {
            match D::inbox_purge(&pool, &name, keep, PURGE_BATCH).await {
                Ok(gone) if gone >= u64::from(PURGE_BATCH) => {}
                Ok(_) => break,
                Err(error) => {
                    let error = StoreError::one_line(&error);
                    tracing::warn!(
                        consumer = &*name,
                        error,
                        "what is over could not be removed"
                    );
                    break;
                }
            }
        }
    }
}
