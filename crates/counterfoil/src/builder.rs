//! From a pool to a running engine.

use std::future::Future;
use std::sync::Arc;

use counterfoil_core::route::Routes;
use counterfoil_core::store::StoreError;
use counterfoil_core::{Destination, MessageError};
use counterfoil_engine::{
    EngineBuilder, HandlerAnswer, QueueSpec, Settings, SettingsError, StartError, Task,
    TaskOptions, TaskRegistry,
};
use serde::de::DeserializeOwned;
use sqlx::Pool;

use crate::database::Database;
use crate::handle::Counterfoil;

/// What may go wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database: [`StoreError::disposition`] says whether trying again can help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting that cannot work: change the code.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A message that cannot be stored: nothing was written.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A consumer that cannot work as it is set up: the text says what to change.
    #[error("{0}")]
    Consumer(String),
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Settings(error) => Error::Settings(error),
            StartError::Store(error) => Error::Store(error),
            other => Error::Store(StoreError::Database(other.into())),
        }
    }
}

/// What is to be started on a database. See [`Counterfoil`] for the ways to begin.
pub struct Builder<D: Database> {
    pool: Pool<D::Sqlx>,
    settings: Settings,
    tasks: TaskRegistry,
    queues: Vec<QueueSpec>,
    routes: Routes,
    migrate: bool,
    wrong: Option<SettingsError>,
}

impl<D: Database> Builder<D> {
    pub(crate) fn new(pool: Pool<D::Sqlx>) -> Self {
        Self {
            pool,
            settings: Settings::default(),
            tasks: TaskRegistry::new(),
            queues: Vec::new(),
            routes: Routes::default(),
            migrate: true,
            wrong: None,
        }
    }

    /// Runs the tasks of a scene in this process, with the default options.
    #[must_use]
    pub fn task<T, F, Fut>(self, scene: &str, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        self.task_with(scene, TaskOptions::default(), handler)
    }

    /// Runs the tasks of a scene in this process.
    #[must_use]
    pub fn task_with<T, F, Fut>(mut self, scene: &str, options: TaskOptions, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        if let Err(error) = self.tasks.add(scene, options, handler) {
            self.wrong.get_or_insert(error);
        }
        self
    }

    /// Registers every handler that carries the attribute [`macro@crate::task`].
    #[must_use]
    pub fn discover_tasks(mut self) -> Self {
        for found in crate::discovery::all() {
            if let Err(error) = (found.register)(&mut self.tasks) {
                self.wrong.get_or_insert(error);
            }
        }
        self
    }

    /// Delivers the messages of a queue to a destination, with the default policies.
    #[must_use]
    pub fn destination(self, queue: &str, destination: impl Destination) -> Self {
        self.queue(QueueSpec::new(queue, Arc::new(destination)))
    }

    /// Delivers the messages of a queue, with policies of its own.
    #[must_use]
    pub fn queue(mut self, queue: QueueSpec) -> Self {
        self.queues.push(queue);
        self
    }

    /// Sends events whose type matches the pattern (`*` and `?`) to these queues.
    #[must_use]
    pub fn route<Q: Into<String>>(
        mut self,
        events: &str,
        queues: impl IntoIterator<Item = Q>,
    ) -> Self {
        self.routes
            .add(events, queues.into_iter().map(Into::into).collect());
        self
    }

    /// Replaces the settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Whether to create or upgrade the tables at the start (yes by default). With `false` they
    /// must be there; `counterfoil migrate --print` gives the SQL.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Checks everything and starts the engine inside this process.
    pub async fn start(self) -> Result<Counterfoil<D>, Error> {
        if let Some(error) = self.wrong {
            return Err(error.into());
        }
        let (store, desk) = D::open(&self.pool)?;
        let mut engine = EngineBuilder::new(store)
            .settings(self.settings.clone())
            .tasks(self.tasks)
            .routes(self.routes.clone())
            .migrate(self.migrate);
        for queue in self.queues {
            engine = engine.queue(queue);
        }
        let engine = engine.start().await?;
        Ok(Counterfoil::new(
            self.pool,
            desk,
            self.routes,
            self.settings,
            engine,
        ))
    }
}
