//! Which handler an event goes to.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::incoming::{Defect, Incoming};
use counterfoil_core::message::{Aggregate, Headers, MessageId};
use counterfoil_core::route::matches;
use counterfoil_core::store::{Disposition, StoreError};
use counterfoil_core::{BoxError, Code};
use counterfoil_engine::{Current, HandlerAnswer, TaskError, chain, panic_text};
use futures_util::FutureExt;
use serde::de::DeserializeOwned;

use crate::database::Database;
use crate::tx::{Slot, Tx};

/// What a handler is given.
#[derive(Debug, Clone)]
pub struct Event<T> {
    /// The identity of the message: the same on every attempt. Use it as the key of effects
    /// outside the database.
    pub id: MessageId,
    /// What happened.
    pub event_type: String,
    /// What its order is kept for.
    pub aggregate: Option<Aggregate>,
    /// The producer's number within the aggregate.
    pub version: Option<i64>,
    /// The content.
    pub content: T,
    /// Trace context, idempotency key, correlation and causation ids.
    pub headers: Headers,
    /// Where it stood at the broker.
    pub position: String,
}

type BoxFuture = Pin<Box<dyn Future<Output = HandlerAnswer> + Send>>;
type Handler<D> = Arc<dyn Fn(Tx<D>, &Incoming) -> Result<BoxFuture, String> + Send + Sync>;

pub(super) struct Handlers<D: Database> {
    consumer: String,
    by_type: HashMap<String, Handler<D>>,
    any: Option<Handler<D>>,
    skipped: Vec<String>,
}

/// What a handler could not do.
#[derive(Debug)]
pub(super) enum Failure {
    /// The database is in trouble, not the message.
    Store(StoreError),
    /// It failed and may be tried again.
    Again {
        code: Code,
        error: String,
        after: Option<Duration>,
    },
    /// The handler has asked to park it.
    Park(String),
}

/// Where a message goes.
pub(super) enum Way<'a, D: Database> {
    To(&'a Handler<D>),
    /// Nobody wants it, and that is fine.
    Nowhere,
    /// It can never pass.
    Wrong(Defect),
}

impl<D: Database> Handlers<D> {
    pub(super) fn new(consumer: &str) -> Self {
        Self {
            consumer: consumer.to_owned(),
            by_type: HashMap::new(),
            any: None,
            skipped: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.any.is_none()
    }

    /// False when there is one for this type already.
    pub(super) fn add<T, F, Fut>(&mut self, event_type: &str, handler: F) -> bool
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Tx<D>, Event<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        let handler: Handler<D> = Arc::new(move |tx, incoming| {
            let event = decode::<T>(incoming)?;
            Ok(Box::pin(handler(tx, event)))
        });
        let before = self.by_type.insert(event_type.to_owned(), handler);
        before.is_none()
    }

    pub(super) fn any<F, Fut>(&mut self, handler: F)
    where
        F: Fn(Tx<D>, Incoming) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        self.any = Some(Arc::new(move |tx, incoming| {
            Ok(Box::pin(handler(tx, incoming.clone())))
        }));
    }

    pub(super) fn skip(&mut self, pattern: &str) {
        self.skipped.push(pattern.to_owned());
    }

    pub(super) fn way(&self, incoming: &Incoming) -> Way<'_, D> {
        if let Some(defect) = &incoming.defect {
            return Way::Wrong(defect.clone());
        }
        let event_type = incoming.event_type.as_str();
        if let Some(handler) = self.by_type.get(event_type) {
            return Way::To(handler);
        }
        if self.skipped.iter().any(|p| matches(p, event_type)) {
            return Way::Nowhere;
        }
        match &self.any {
            Some(handler) => Way::To(handler),
            None => Way::Wrong(Defect {
                code: Code::UNKNOWN_TYPE,
                error: format!(
                    "the consumer {:?} has no handler for {event_type:?}",
                    self.consumer
                ),
            }),
        }
    }
}

fn decode<T: DeserializeOwned>(incoming: &Incoming) -> Result<Event<T>, String> {
    let content = serde_json::from_slice(incoming.payload.as_bytes()).map_err(|e| {
        format!(
            "the content does not fit the handler of {:?}: {e}",
            incoming.event_type
        )
    })?;
    Ok(Event {
        id: incoming.id,
        event_type: incoming.event_type.clone(),
        aggregate: incoming.aggregate.clone(),
        version: incoming.version,
        content,
        headers: incoming.headers.clone(),
        position: incoming.position.clone(),
    })
}

/// What came of calling a handler.
pub(super) enum Called {
    Done,
    /// The content does not fit: it can never pass.
    Wrong(Defect),
    Failed(Failure),
}

/// Calls a handler with the transaction of the slot.
pub(super) async fn call<D: Database>(
    handler: &Handler<D>,
    slot: &Slot<D>,
    incoming: &Incoming,
    timeout: Duration,
) -> Called {
    let Some(tx) = slot.lend() else {
        let kept = StoreError::Doomed("a handler has kept the transaction".into());
        return Called::Failed(Failure::Store(kept));
    };
    let panicked = |panic: Box<dyn std::any::Any + Send>| {
        Called::Failed(again(Code::PANIC, panic_text(panic.as_ref())))
    };
    let future = match std::panic::catch_unwind(AssertUnwindSafe(|| handler(tx, incoming))) {
        Ok(Ok(future)) => future,
        Ok(Err(error)) => {
            return Called::Wrong(Defect {
                code: Code::VALIDATION_ERROR,
                error,
            });
        }
        Err(panic) => return panicked(panic),
    };
    let current = Current {
        id: incoming.id,
        headers: incoming.headers.clone(),
    };
    let run = AssertUnwindSafe(current.scope(future)).catch_unwind();
    match tokio::time::timeout(timeout, run).await {
        Ok(Ok(Ok(()))) => Called::Done,
        Ok(Ok(Err(error))) => Called::Failed(failure::<D>(error)),
        Ok(Err(panic)) => panicked(panic),
        Err(_) => Called::Failed(again(Code::TIMEOUT, format!("not done within {timeout:?}"))),
    }
}

fn again(code: Code, error: String) -> Failure {
    Failure::Again {
        code,
        error,
        after: None,
    }
}

fn failure<D: Database>(error: TaskError) -> Failure {
    match error {
        TaskError::Failed(message) => again(Code::TASK_FAILED, message),
        TaskError::Error(error) => match of_the_database::<D>(error) {
            Ok(store) => Failure::Store(store),
            Err(error) => again(Code::TASK_ERROR, chain(error.as_ref())),
        },
        TaskError::RetryAfter { reason, delay } => Failure::Again {
            code: Code::TASK_FAILED,
            error: reason,
            after: Some(delay),
        },
        TaskError::Park(reason) => Failure::Park(reason),
        other => again(Code::TASK_ERROR, format!("{other:?}")),
    }
}

/// A deadlock or a lost connection says nothing about the message.
fn of_the_database<D: Database>(error: BoxError) -> Result<StoreError, BoxError> {
    let error = match error.downcast::<sqlx::Error>() {
        Ok(error) => {
            // Without what drivers add: PostgreSQL's names a line of the server's own source.
            let text = match &*error {
                sqlx::Error::Database(said) => said.message().to_owned(),
                other => other.to_string(),
            };
            let store = D::classify(*error);
            return match store.disposition() {
                Disposition::Retry => Ok(store),
                Disposition::Fail => Err(text.into()),
            };
        }
        Err(error) => error,
    };
    match error.downcast::<crate::Error>() {
        Ok(found) => match *found {
            crate::Error::Store(store) if store.disposition() == Disposition::Retry => Ok(store),
            other => Err(other.into()),
        },
        Err(error) => Err(error),
    }
}
