//! Start, nudge, drain.
//!
//! [`EngineBuilder::start`] checks the settings and the schema, then starts a handful of tasks:
//! the relay, its heartbeat, the listener for other processes' commits, the voice that tells them
//! about ours, and the sweeper. [`Engine::stop`] lets the relay finish, then ends the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::route::Routes;
use counterfoil_core::store::{RelayId, Store, StoreError};
use counterfoil_core::{Capabilities, Delivery, Destination, Outcome};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::bounded::Bounded;
use crate::pipeline::keep::Keeper;
use crate::pipeline::{Dependency, Registry};
use crate::relay::{Lease, Relay, Signals, beat, margin};
use crate::settings::{QueueSpec, Settings, SettingsError};
use crate::tasks::TaskRegistry;

/// The queue of messages that no route has taken yet.
pub(crate) const UNROUTED: &str = "";
/// At most one `NOTIFY` in this time.
const VOICE_PAUSE: Duration = Duration::from_millis(10);

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Tells relays, here and elsewhere, that something was committed. Cheap; call it after commits.
#[derive(Clone, Default)]
pub struct Nudge {
    local: Arc<Notify>,
    voice: Arc<Notify>,
}

impl Nudge {
    /// Something was committed.
    pub fn nudge(&self) {
        self.local.notify_one();
        self.voice.notify_one();
    }
}

/// What is to be started.
pub struct EngineBuilder {
    store: Arc<dyn Store>,
    settings: Settings,
    queues: Vec<QueueSpec>,
    tasks: TaskRegistry,
    routes: Routes,
    registry: Registry,
    migrate: bool,
}

impl EngineBuilder {
    /// An engine for this store, with nothing to serve yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            settings: Settings::default(),
            queues: Vec::new(),
            tasks: TaskRegistry::new(),
            routes: Routes::default(),
            registry: Registry::new(),
            migrate: false,
        }
    }

    /// Replaces the settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Serves a queue.
    #[must_use]
    pub fn queue(mut self, queue: QueueSpec) -> Self {
        self.queues.push(queue);
        self
    }

    /// Serves the scenes of these handlers.
    #[must_use]
    pub fn tasks(mut self, tasks: TaskRegistry) -> Self {
        self.tasks = tasks;
        self
    }

    /// Routes messages that were enqueued without a queue.
    #[must_use]
    pub fn routes(mut self, routes: Routes) -> Self {
        self.routes = routes;
        self
    }

    /// Lists the destinations here, beside others of the process.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Creates or upgrades the tables first.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Checks everything and starts.
    pub async fn start(self) -> Result<Engine, StartError> {
        let mut queues = self.queues;
        queues.extend(self.tasks.queues()?);
        if !self.routes.is_empty() {
            queues.push(QueueSpec::new(UNROUTED, Arc::new(Router)));
        }
        self.settings.validate(&queues)?;
        if self.migrate {
            self.store.migrate().await?;
        }
        self.store.check().await?;
        let mut served = Vec::with_capacity(queues.len());
        for queue in queues {
            let dependency = dependency(&self.registry, &queue)?;
            served.push((queue, dependency));
        }
        Engine::start(
            self.store,
            self.settings,
            served,
            self.routes,
            self.registry,
        )
        .await
    }
}

/// A running engine.
pub struct Engine {
    nudge: Nudge,
    registry: Registry,
    stop: watch::Sender<bool>,
    relay: Option<JoinHandle<()>>,
    /// Ends by itself when the relay has ended.
    heart: Option<JoinHandle<()>>,
    beside: Vec<JoinHandle<()>>,
}

impl Engine {
    async fn start(
        store: Arc<dyn Store>,
        settings: Settings,
        queues: Vec<(QueueSpec, Arc<Dependency>)>,
        routes: Routes,
        registry: Registry,
    ) -> Result<Self, StartError> {
        describe_metrics();
        let bounded = Arc::new(Bounded::new(store, settings.lease));
        let store: Arc<dyn Store> = Arc::clone(&bounded) as _;
        let mut keeper = Keeper::new(Arc::clone(&store), registry.clone());
        keeper.beside_relay(!queues.is_empty());
        keeper.sync().await?;
        let nudge = Nudge::default();
        let alone = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = watch::channel(false);
        let mut beside = vec![
            tokio::spawn(speak(
                Arc::clone(&store),
                Arc::clone(&nudge.voice),
                Arc::clone(&alone),
            )),
            tokio::spawn(sweep(Arc::clone(&store), settings.clone())),
            tokio::spawn(keeper.run()),
        ];
        let (mut relay, mut heart) = (None, None);
        if !queues.is_empty() {
            let names: Vec<Arc<str>> = queues.iter().map(|(q, _)| Arc::clone(&q.name)).collect();
            let (lease, first) = join(&*store, &settings, &names).await?;
            let (tell, lease) = watch::channel(lease);
            let signals = Signals {
                nudge: Arc::clone(&nudge.local),
                voice: Arc::clone(&nudge.voice),
                alone,
                lease,
            };
            tracing::info!(relay = %first, queues = names.len(), store = store.describe(), "the relay starts");
            heart = Some(tokio::spawn(heartbeat(
                Arc::clone(&bounded),
                settings.clone(),
                names,
                tell,
            )));
            beside.push(tokio::spawn(listen(bounded, Arc::clone(&nudge.local))));
            let running = Relay::new(store, settings, queues, routes, signals).run(stopped);
            relay = Some(tokio::spawn(running));
        }
        Ok(Self {
            nudge,
            registry,
            stop,
            relay,
            heart,
            beside,
        })
    }

    /// The handle by which commits are told.
    pub fn nudge(&self) -> Nudge {
        self.nudge.clone()
    }

    /// The destinations of this engine: their breakers and budgets.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Finishes what has begun, within the limit of the settings, and gives the shards back.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        if let Some(relay) = self.relay.take()
            && let Err(error) = relay.await
        {
            tracing::error!(%error, "the relay ended badly");
        }
        for task in self.heart.take().into_iter().chain(self.beside.drain(..)) {
            task.abort();
            // Waits until the task has let go of its connection.
            let _ = task.await;
        }
    }
}

/// The breaker and the budget of a queue's destination. Routing is our own work and needs none that
/// an operator sees.
fn dependency(registry: &Registry, queue: &QueueSpec) -> Result<Arc<Dependency>, StartError> {
    let known = match &*queue.name {
        UNROUTED => Dependency::new("(routes)", queue.limits()),
        name => registry.dependency(name, queue.limits()),
    };
    known.map_err(|error| {
        StartError::Settings(SettingsError::Limits {
            queue: queue.name.to_string(),
            error,
        })
    })
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The relay drains and leaves; its heart beats until then.
        let _ = self.stop.send(true);
        self.beside.iter().for_each(JoinHandle::abort);
    }
}

/// The meaning of every metric that the engine emits.
fn describe_metrics() {
    for (name, meaning) in [
        (
            "counterfoil_delivered_total",
            "Messages that their destination has stored",
        ),
        (
            "counterfoil_failures_total",
            "Deliveries that failed, by outcome",
        ),
        (
            "counterfoil_parked_total",
            "Messages that were parked, by code",
        ),
        (
            "counterfoil_fenced_total",
            "Settlements that came too late because the shard had a new owner",
        ),
        (
            "counterfoil_store_errors_total",
            "Operations on the database that failed and are tried again",
        ),
    ] {
        metrics::describe_counter!(name, meaning);
    }
    metrics::describe_gauge!("counterfoil_owned_shards", "Shards that this relay owns");
}

async fn join(
    store: &dyn Store,
    settings: &Settings,
    queues: &[Arc<str>],
) -> Result<(Lease, RelayId), StoreError> {
    let relay = RelayId::new(&settings.label);
    let sent = Instant::now();
    store.join(&relay, queues, settings.lease).await?;
    let until = Some(sent + settings.lease - margin(settings.lease));
    Ok((
        Lease {
            relay: relay.clone(),
            until,
        },
        relay,
    ))
}

/// Keeps the lease, as long as the relay can work. What counts is when a heartbeat was *sent*: the
/// answer may have been slow.
///
/// A relay that cannot work sends no heartbeat although it could, and does not join anew: so its
/// shards, and its share of them, go to relays that can.
async fn heartbeat(
    store: Arc<Bounded>,
    settings: Settings,
    queues: Vec<Arc<str>>,
    tell: watch::Sender<Lease>,
) {
    let mut pause = beat(settings.lease);
    let mut missed = 0u32;
    // Whether the end of the lease was reported.
    let mut over = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The relay has ended: nobody is left to be kept alive.
            () = tell.closed() => return,
        }
        pause = beat(settings.lease) / 4;
        if store.silent_for() > settings.lease {
            missed += 1;
            if missed == 1 {
                tracing::warn!(
                    "the database answers none of the relay's work: no heartbeat, so that other relays take its shards"
                );
            }
            continue;
        }
        let relay = tell.borrow().relay.clone();
        let sent = Instant::now();
        match store.heartbeat(&relay, settings.lease).await {
            Ok(true) => {
                let until = Some(sent + settings.lease - margin(settings.lease));
                tell.send_modify(|lease| lease.until = until);
            }
            Ok(false) if tell.is_closed() => return,
            Ok(false) => match join(&*store, &settings, &queues).await {
                Ok((lease, relay)) => {
                    tracing::warn!(%relay, "the lease had run out; joined anew");
                    tell.send_replace(lease);
                }
                Err(error) => tracing::error!(error = error.one_line(), "cannot join anew"),
            },
            Err(error) => {
                missed += 1;
                // That the database is away the relay says, once. The end of the lease is another matter.
                let until = tell.borrow().until;
                if !over && until.is_some_and(|until| Instant::now() >= until) {
                    over = true;
                    tracing::warn!(
                        error = error.one_line(),
                        "no heartbeat within the lease: nothing is delivered until the database answers"
                    );
                } else {
                    tracing::debug!(
                        error = error.one_line(),
                        missed,
                        "no heartbeat; trying again"
                    );
                }
                continue;
            }
        }
        pause = beat(settings.lease);
        (missed, over) = (0, false);
    }
}

/// Wakes the relay when another process has committed something.
async fn listen(store: Arc<Bounded>, nudge: Arc<Notify>) {
    let mut hang_ups = store.hang_ups();
    loop {
        let mut wake = match store.listen().await {
            Ok(Some(wake)) => wake,
            Ok(None) => return,
            Err(error @ StoreError::Unsupported { .. }) => {
                tracing::warn!(
                    error = error.one_line(),
                    "other processes' commits are found by polling only"
                );
                return;
            }
            Err(error) => {
                tracing::debug!(error = error.one_line(), "cannot listen");
                tokio::time::sleep(Duration::from_secs(2)).await;
                continue;
            }
        };
        hang_ups.mark_unchanged();
        loop {
            tokio::select! {
                woken = wake.wait() => match woken {
                    Ok(()) => nudge.notify_one(),
                    Err(_) => break,
                },
                // Other connections have fallen silent, and this one would not tell.
                _ = hang_ups.changed() => break,
            }
        }
    }
}

/// Tells other processes about commits of this one, at most once in [`VOICE_PAUSE`].
async fn speak(store: Arc<dyn Store>, voice: Arc<Notify>, alone: Arc<AtomicBool>) {
    loop {
        voice.notified().await;
        if !alone.load(Ordering::Relaxed)
            && let Err(error) = store.announce().await
        {
            tracing::debug!(error = error.one_line(), "could not tell other processes");
        }
        tokio::time::sleep(VOICE_PAUSE).await;
    }
}

/// Removes what is over, in small batches.
async fn sweep(store: Arc<dyn Store>, settings: Settings) {
    loop {
        tokio::time::sleep(settings.sweep).await;
        loop {
            match store.sweep(&settings.retention).await {
                Ok(removed) if removed >= u64::from(settings.retention.batch) => {
                    // Leave the database some air between two batches.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(error = error.one_line(), "could not sweep");
                    break;
                }
            }
        }
    }
}

/// Stands for the routes: the relay itself replaces unrouted rows, so nothing is ever published here.
struct Router;

#[async_trait]
impl Destination for Router {
    fn describe(&self) -> String {
        "routes".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 1_000,
            concurrency: 1,
            timeout: None,
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        batch
            .iter()
            .map(|_| Outcome::Unavailable {
                error: "not routed".into(),
            })
            .collect()
    }
}
