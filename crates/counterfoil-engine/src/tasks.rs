//! Local tasks: handlers in this process as a destination.
//!
//! # Promise
//! A task is a message whose destination is a handler. One delivery calls the handler exactly once.
//! Done → finished. Failed or an error → tried again with backoff up to the maximum, which is
//! enforced by the relay, then parked. What the handler is given and what it answers is in
//! [`Task`] and [`TaskError`].

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::message::{Aggregate, Message, MessageError, Payload};
use counterfoil_core::policy::Backoff;
use counterfoil_core::store::Keyed;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Headers, MessageId, Outcome};
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::publish::panic_text;
use crate::settings::{OnPark, QueueSpec, SettingsError};

/// The event type of every task.
pub(crate) const EVENT_TYPE: &str = "task";

/// The queue in which the tasks of a scene wait.
pub fn queue_of_scene(scene: &str) -> String {
    format!("task:{scene}")
}

/// A task as a message with its key, ready to be enqueued in the application's transaction.
pub fn task_message<T: Serialize + ?Sized>(
    scene: &str,
    business_id: &str,
    content: &T,
) -> Result<Keyed, MessageError> {
    let text =
        serde_json::to_string(content).map_err(|e| MessageError::NotSerializable(e.to_string()))?;
    let message = Message::new(EVENT_TYPE, Payload::Json(text))
        .queue(queue_of_scene(scene))
        .aggregate(Aggregate::new(scene, business_id));
    Ok(Keyed {
        message,
        key: Some((queue_of_scene(scene), business_id.to_owned())),
    })
}

/// What a handler is given.
#[derive(Debug, Clone)]
pub struct Task<T> {
    /// The identity of the message: the same on every attempt. Use it as the key of effects
    /// outside the database.
    pub id: MessageId,
    /// The scene.
    pub scene: String,
    /// The business id: unique within the scene.
    pub business_id: String,
    /// The content that was enqueued.
    pub content: T,
    /// Trace context, idempotency key, correlation and causation ids.
    pub headers: Headers,
    /// Which attempt this is, counted from one.
    pub attempt: u32,
    /// The fencing number of this delivery.
    pub epoch: i64,
}

/// How a handler says that it is not done.
///
/// Any error turns into [`TaskError::Error`] with `?`, which is why this type is not one itself.
#[derive(Debug)]
#[non_exhaustive]
pub enum TaskError {
    /// The business said no, perhaps not for ever: recorded as failed with this message, retried.
    Failed(String),
    /// Something broke: recorded as an error, retried.
    Error(counterfoil_core::BoxError),
    /// Not before this much time has passed.
    RetryAfter {
        /// Why.
        reason: String,
        /// How long to wait at least.
        delay: Duration,
    },
    /// Never again without a person: parked at once; its redrive needs a confirmation.
    Park(String),
}

impl TaskError {
    /// Failed, with a message.
    pub fn failed(message: impl Into<String>) -> Self {
        TaskError::Failed(message.into())
    }
}

impl<E: Into<counterfoil_core::BoxError>> From<E> for TaskError {
    fn from(error: E) -> Self {
        TaskError::Error(error.into())
    }
}

tokio::task_local! {
    static CURRENT: Current;
}

/// The task that is running, as messages that it enqueues need to know it.
#[derive(Debug, Clone)]
pub struct Current {
    /// The id of the task's message.
    pub id: MessageId,
    /// Its headers.
    pub headers: Headers,
}

impl Current {
    /// Runs something as the handling of this message: what it enqueues has it as its cause.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// The task in whose handler the caller runs.
    pub fn get() -> Option<Current> {
        CURRENT.try_with(Clone::clone).ok()
    }
}

/// What a handler answers.
pub type HandlerAnswer = Result<(), TaskError>;

type BoxFuture = Pin<Box<dyn Future<Output = HandlerAnswer> + Send>>;
type BoxHandler = Arc<dyn Fn(&Delivery) -> Result<BoxFuture, String> + Send + Sync>;

/// How the tasks of a scene are run.
///
/// | setting | default |
/// |---|---|
/// | `concurrency` | 8 |
/// | `backoff` | 1 s, doubling, at most 5 min, 10 attempts |
/// | `timeout` | none: the handler bounds itself |
/// | `on_park` | hold |
#[derive(Debug, Clone)]
pub struct TaskOptions {
    /// What the scene is for, for people.
    pub description: String,
    /// How many run at once in this process.
    pub concurrency: usize,
    /// When to try again, and how often.
    pub backoff: Backoff,
    /// A run is given up after this time and tried again. Must be shorter than the lease.
    pub timeout: Option<Duration>,
    /// What parking does to later tasks of the same business id.
    pub on_park: OnPark,
    /// The scene that is started when a task of this one is given up.
    pub compensation: Option<String>,
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self {
            description: String::new(),
            concurrency: 8,
            backoff: Backoff::DEFAULT,
            timeout: None,
            on_park: OnPark::Hold,
            compensation: None,
        }
    }
}

/// Handlers by scene.
#[derive(Default, Clone)]
pub struct TaskRegistry {
    scenes: BTreeMap<String, (TaskOptions, BoxHandler)>,
}

impl TaskRegistry {
    /// No handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a handler; an earlier one for the same scene is refused with its name.
    pub fn add<T, F, Fut>(
        &mut self,
        scene: &str,
        options: TaskOptions,
        handler: F,
    ) -> Result<(), SettingsError>
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerAnswer> + Send + 'static,
    {
        let name = scene.to_owned();
        let handler: BoxHandler = Arc::new(move |delivery| {
            let task = decode::<T>(&name, delivery)?;
            Ok(Box::pin(handler(task)))
        });
        if self
            .scenes
            .insert(scene.to_owned(), (options, handler))
            .is_some()
        {
            return Err(SettingsError::QueueTwice(queue_of_scene(scene)));
        }
        Ok(())
    }

    /// The scenes and what they are for.
    pub fn scenes(&self) -> impl Iterator<Item = (&str, &TaskOptions)> {
        self.scenes
            .iter()
            .map(|(name, (options, _))| (name.as_str(), options))
    }

    /// One queue for each scene.
    pub fn queues(&self) -> Result<Vec<QueueSpec>, SettingsError> {
        let mut queues = Vec::new();
        for (scene, (options, handler)) in &self.scenes {
            if let Some(compensation) = &options.compensation
                && !self.scenes.contains_key(compensation)
            {
                return Err(SettingsError::UnknownCompensation {
                    scene: scene.clone(),
                    compensation: compensation.clone(),
                });
            }
            let destination = Arc::new(Handler {
                scene: scene.clone(),
                options: options.clone(),
                call: handler.clone(),
            });
            queues.push(QueueSpec {
                backoff: options.backoff,
                on_park: options.on_park,
                compensation: options.compensation.clone(),
                ..QueueSpec::new(&queue_of_scene(scene), destination)
            });
        }
        Ok(queues)
    }
}

fn decode<T: DeserializeOwned>(scene: &str, delivery: &Delivery) -> Result<Task<T>, String> {
    let content = serde_json::from_slice(delivery.payload.as_bytes())
        .map_err(|e| format!("the content does not fit the handler of {scene:?}: {e}"))?;
    Ok(Task {
        id: delivery.id,
        scene: scene.to_owned(),
        business_id: delivery
            .aggregate
            .as_ref()
            .map(|a| a.id.clone())
            .unwrap_or_default(),
        content,
        headers: delivery.headers.clone(),
        attempt: delivery.attempt,
        epoch: delivery.epoch,
    })
}

struct Handler {
    scene: String,
    options: TaskOptions,
    call: BoxHandler,
}

impl Handler {
    async fn run(&self, delivery: &Delivery) -> Outcome {
        let future = match std::panic::catch_unwind(AssertUnwindSafe(|| (self.call)(delivery))) {
            Ok(Ok(future)) => future,
            Ok(Err(undecodable)) => return Outcome::refused(Code::VALIDATION_ERROR, undecodable),
            Err(panic) => return Outcome::retry(Code::PANIC, panic_text(panic.as_ref())),
        };
        let current = Current {
            id: delivery.id,
            headers: delivery.headers.clone(),
        };
        let run = AssertUnwindSafe(current.scope(future)).catch_unwind();
        let answer = match self.options.timeout {
            Some(limit) => match tokio::time::timeout(limit, run).await {
                Ok(answer) => answer,
                Err(_) => {
                    return Outcome::retry(Code::TIMEOUT, format!("not done within {limit:?}"));
                }
            },
            None => run.await,
        };
        match answer {
            Ok(Ok(())) => Outcome::Stored,
            Ok(Err(TaskError::Failed(message))) => Outcome::retry(Code::TASK_FAILED, message),
            Ok(Err(TaskError::Error(error))) => {
                Outcome::retry(Code::TASK_ERROR, chain(error.as_ref()))
            }
            Ok(Err(TaskError::RetryAfter { reason, delay })) => Outcome::Retry {
                code: Code::TASK_FAILED,
                error: reason,
                after: Some(delay),
            },
            Ok(Err(TaskError::Park(reason))) => Outcome::Refused {
                code: Code::PARKED_BY_HANDLER,
                error: reason,
                confirm: true,
            },
            Err(panic) => Outcome::retry(Code::PANIC, panic_text(panic.as_ref())),
        }
    }
}

/// An error and its sources in one text.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

#[async_trait]
impl Destination for Handler {
    fn describe(&self) -> String {
        format!("task {}", self.scene)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::single(self.options.concurrency, self.options.timeout)
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            let span = tracing::info_span!(
                "task",
                scene = self.scene.as_str(),
                id = %delivery.id,
                attempt = delivery.attempt,
                traceparent = delivery.headers.get("traceparent").unwrap_or_default(),
            );
            outcomes.push(tracing::Instrument::instrument(self.run(delivery), span).await);
        }
        outcomes
    }
}
