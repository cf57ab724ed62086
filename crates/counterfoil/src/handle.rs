//! The handle that an application keeps.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use counterfoil_core::desk::Desk;
use counterfoil_core::message::{Message, MessageId};
use counterfoil_core::route::Routes;
use counterfoil_core::source::Source;
use counterfoil_core::store::Enqueued;
use counterfoil_engine::pipeline::Registry;
use counterfoil_engine::{Engine, Nudge, Settings, task_message};
use serde::Serialize;
use sqlx::{Pool, Transaction};

use crate::after;
use crate::builder::{Builder, Error};
use crate::database::Database;
use crate::once::Once;

/// Counterfoil inside an application: enqueue in your own transactions, run tasks after commit.
///
/// Cheap to clone. When the last clone is dropped the engine drains in the background;
/// [`Counterfoil::stop`] waits for it.
pub struct Counterfoil<D: Database> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Database> {
    pool: Pool<D::Sqlx>,
    desk: Arc<dyn Desk>,
    routes: Routes,
    settings: Settings,
    nudge: Nudge,
    registry: Registry,
    engine: Mutex<Option<Engine>>,
}

impl<D: Database> Clone for Counterfoil<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

#[cfg(feature = "postgres")]
impl Counterfoil<crate::Postgres> {
    /// On the PostgreSQL database of this pool.
    pub fn postgres(pool: sqlx::PgPool) -> Builder<crate::Postgres> {
        Builder::new(pool)
    }
}

#[cfg(feature = "mysql")]
impl Counterfoil<crate::MySql> {
    /// On the MySQL or MariaDB database of this pool.
    pub fn mysql(pool: sqlx::MySqlPool) -> Builder<crate::MySql> {
        Builder::new(pool)
    }
}

#[cfg(feature = "sqlite")]
impl Counterfoil<crate::Sqlite> {
    /// On the SQLite file of this pool.
    pub fn sqlite(pool: sqlx::SqlitePool) -> Builder<crate::Sqlite> {
        Builder::new(pool)
    }
}

impl<D: Database> Counterfoil<D> {
    pub(crate) fn new(
        pool: Pool<D::Sqlx>,
        desk: Arc<dyn Desk>,
        routes: Routes,
        settings: Settings,
        engine: Engine,
    ) -> Self {
        let nudge = engine.nudge();
        let registry = engine.registry().clone();
        let engine = Mutex::new(Some(engine));
        Self {
            inner: Arc::new(Inner {
                pool,
                desk,
                routes,
                settings,
                nudge,
                registry,
                engine,
            }),
        }
    }

    /// Writes a message in the caller's open transaction. It exists when that commits, not before.
    ///
    /// Without a queue the routes decide: one destination keeps the message's id, several get a
    /// copy each under derived ids. Inside a task handler the message inherits trace context,
    /// correlation id and idempotency key, and names the task as its cause.
    pub async fn enqueue(
        &self,
        tx: &mut Transaction<'_, D::Sqlx>,
        message: &Message,
    ) -> Result<MessageId, Error> {
        self.enqueue_all(tx, std::slice::from_ref(message)).await?;
        Ok(message.id)
    }

    /// Writes several messages in one round trip, in their order.
    pub async fn enqueue_all(
        &self,
        tx: &mut Transaction<'_, D::Sqlx>,
        messages: &[Message],
    ) -> Result<(), Error> {
        let mut rows = Vec::with_capacity(messages.len());
        for message in messages {
            self.route(after::inherit(message.clone()), &mut rows);
        }
        Ok(D::enqueue(tx, &rows).await?)
    }

    fn route(&self, message: Message, rows: &mut Vec<Message>) {
        if message.queue.is_some() {
            return rows.push(message);
        }
        match self.inner.routes.queues(&message.event_type).as_slice() {
            [] => rows.push(message),
            [one] => rows.push(message.queue(*one)),
            many => {
                for queue in many {
                    let id = message.id.derive(queue);
                    rows.push(message.clone().id(id).queue(*queue));
                }
            }
        }
    }

    /// Saves a task in the caller's open transaction; it runs right after the commit, and only
    /// then. (scene, business id) is unique: a repeat is answered with [`Enqueued::Duplicate`].
    pub async fn enqueue_task<T: Serialize + ?Sized>(
        &self,
        tx: &mut Transaction<'_, D::Sqlx>,
        scene: &str,
        business_id: &str,
        content: &T,
    ) -> Result<Enqueued, Error> {
        let mut keyed = task_message(scene, business_id, content)?;
        keyed.message = after::inherit(keyed.message);
        Ok(D::enqueue_keyed(tx, &keyed).await?)
    }

    /// Saves and starts a task at once, outside any transaction of the caller's.
    pub async fn start_task<T: Serialize + ?Sized>(
        &self,
        scene: &str,
        business_id: &str,
        content: &T,
    ) -> Result<Enqueued, Error> {
        let mut tx = D::begin(&self.inner.pool).await?;
        let answer = self
            .enqueue_task(&mut tx, scene, business_id, content)
            .await?;
        self.commit(tx).await?;
        Ok(answer)
    }

    /// Notes a key in the ledger, in the caller's transaction. A repeat within 30 days is
    /// [`Once::Duplicate`].
    pub async fn once(
        &self,
        tx: &mut Transaction<'_, D::Sqlx>,
        scope: &str,
        key: &str,
    ) -> Result<Once, Error> {
        Ok(Once::from(D::once(tx, scope, key).await?))
    }

    /// Makes sure that the transaction can be committed, commits it, and nudges the relay.
    ///
    /// The check matters: after a failed statement whose error was swallowed a database may turn
    /// COMMIT into ROLLBACK and still say that all is well. Here that is an error.
    pub async fn commit(&self, tx: Transaction<'_, D::Sqlx>) -> Result<(), Error> {
        D::commit(tx).await?;
        self.nudge();
        Ok(())
    }

    /// Commits, then runs something that is *not* retried: no row stands behind it. It is lost
    /// when the process dies; for what must happen use a task.
    pub async fn commit_then<F>(
        &self,
        tx: Transaction<'_, D::Sqlx>,
        callback: F,
    ) -> Result<F::Output, Error>
    where
        F: Future,
    {
        self.commit(tx).await?;
        Ok(callback.await)
    }

    /// Tells relays, here and elsewhere, that something was committed. [`Counterfoil::commit`]
    /// does so by itself; without it messages are found by polling.
    pub fn nudge(&self) {
        self.inner.nudge.nudge();
    }

    /// The nudge by itself, for code that does not know the database.
    pub fn nudge_handle(&self) -> Nudge {
        self.inner.nudge.clone()
    }

    /// A guard on the same database: what its handlers enqueue is delivered right after the
    /// commit.
    pub fn guard(
        &self,
        rules: counterfoil_core::guard::Rules,
    ) -> Result<crate::Guard<D>, crate::guard::GuardError> {
        Ok(crate::Guard::new(&self.inner.pool, rules)?.nudging(self.nudge_handle()))
    }

    /// A consumer on the same database: what it processes takes effect once. See
    /// [`crate::inbox`].
    pub fn consumer(&self, name: &str, source: impl Source) -> crate::inbox::Builder<D> {
        self.consumer_of(name, Arc::new(source))
    }

    /// The same, for a source whose kind is known only at run time.
    pub fn consumer_of(&self, name: &str, source: Arc<dyn Source>) -> crate::inbox::Builder<D> {
        let inner = &self.inner;
        crate::inbox::Builder::new(
            name,
            source,
            inner.pool.clone(),
            inner.settings.clone(),
            inner.registry.clone(),
            inner.nudge.clone(),
        )
    }

    /// Look, explain, pause, cancel, redrive, audit.
    pub fn desk(&self) -> &Arc<dyn Desk> {
        &self.inner.desk
    }

    /// The breakers and budgets of the destinations. Dependencies of the application's own can be
    /// added: they are kept through restarts, too.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Finishes what has begun, within the limit of the settings, and gives the shards back.
    pub async fn stop(&self) {
        let engine = self
            .inner
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(engine) = engine {
            engine.stop().await;
        }
    }
}
