//! The bridge: consumers that the configuration file describes, for services in any language.
//!
//! # Promise
//! What the inbox promises. A message takes effect once: either as one statement in the transaction
//! of the inbox, or as one message in the queue of a destination, written in that transaction.
//!
//! | module | what lives there |
//! |---|---|
//! | `statement` | a statement with named parameters |
//! | `value` | from a message to the values of the parameters |
//! | `sql` | what is different on each database |

mod sql;
pub(crate) mod statement;
mod value;

use std::sync::Arc;

use counterfoil::inbox::{self, HandleError, Incoming};
use counterfoil::{Message, Nudge, Tx};
use counterfoil_engine::pipeline::Registry;
use counterfoil_engine::{HandlerAnswer, Settings as Engine};

use crate::args::Dialect;
use crate::config::{Consumer, Effect};
use crate::database::Place;
use crate::failure::{Failure, Result};
use sql::{Prepared, Sql};

/// What consumers share with the relay beside them.
pub(crate) struct Beside {
    /// How relays work.
    pub(crate) engine: Engine,
    /// What is known of destinations.
    pub(crate) registry: Registry,
    /// Wakes the relay that has the destinations.
    pub(crate) nudge: Nudge,
}

/// Consumers at work.
#[derive(Default)]
pub(crate) struct Running(Vec<inbox::Consumer>);

impl Running {
    /// How they are.
    pub(crate) fn monitors(&self) -> Vec<inbox::Monitor> {
        self.0.iter().flat_map(inbox::Consumer::monitors).collect()
    }

    /// Finishes what has begun, and gives everything else back to the brokers.
    pub(crate) async fn stop(self) {
        let all = self.0.into_iter().map(inbox::Consumer::stop);
        futures_util::future::join_all(all).await;
    }
}

/// Checks and starts all of them. A broker that does not answer is no error.
pub(crate) async fn start(
    place: &Place,
    consumers: Vec<Consumer>,
    beside: &Beside,
) -> Result<Running> {
    match place.dialect() {
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => start_on::<counterfoil::Sqlite>(place, consumers, beside).await,
        #[cfg(feature = "postgres")]
        Dialect::Postgres => start_on::<counterfoil::Postgres>(place, consumers, beside).await,
        #[cfg(feature = "mysql")]
        Dialect::Mysql => start_on::<counterfoil::MySql>(place, consumers, beside).await,
        #[allow(unreachable_patterns, reason = "reachable when a store was left out")]
        other => Err(crate::database::left_out(other)),
    }
}

async fn start_on<D: Sql>(
    place: &Place,
    consumers: Vec<Consumer>,
    beside: &Beside,
) -> Result<Running> {
    // Together, so that a broker that does not answer keeps nobody waiting.
    let all = consumers.into_iter().map(|c| one::<D>(place, c, beside));
    let mut running = Running::default();
    let mut failed = None;
    for started in futures_util::future::join_all(all).await {
        match started {
            Ok(consumer) => running.0.push(consumer),
            Err(failure) => failed = Some(failure),
        }
    }
    match failed {
        None => Ok(running),
        Some(failure) => {
            running.stop().await;
            Err(failure)
        }
    }
}

async fn one<D: Sql>(
    place: &Place,
    consumer: Consumer,
    beside: &Beside,
) -> Result<inbox::Consumer> {
    let name = consumer.name.clone();
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::config(format!("[[consumer]] `{name}`: {why}").replace('\n', " "))
    };
    let pool = D::pool(place, consumer.workers).map_err(|e| wrong(&e))?;
    let effect = match consumer.effect {
        Effect::Enqueue(queue) => Work::Enqueue(queue),
        Effect::Run {
            statement,
            expect_rows,
        } => {
            let prepared = D::prepare(&pool, &statement).await;
            let prepared = prepared.map_err(|error| match error {
                sqlx::Error::Database(error) => wrong(&format!(
                    "the database does not understand the statement: {}",
                    error.message()
                )),
                sqlx::Error::Protocol(why) => wrong(&format!("the statement: {why}")),
                error => Failure::failed(format!(
                    "[[consumer]] `{name}`: the statement cannot be checked: {error}"
                )),
            })?;
            Work::Run {
                parameters: statement.parameters().to_vec(),
                prepared,
                expect_rows,
            }
        }
    };
    let effect = Arc::new(effect);
    let mut builder = inbox::Builder::<D>::new(
        &consumer.name,
        consumer.source,
        pool,
        beside.engine.clone(),
        beside.registry.clone(),
        beside.nudge.clone(),
    )
    .mapping(consumer.mapping)
    .workers(consumer.workers)
    .batch(consumer.batch)
    .held(consumer.held)
    .most_waiting(consumer.most_waiting)
    .backoff(consumer.backoff)
    .versions(consumer.versions)
    .on_park(consumer.on_park)
    .poison(consumer.poison)
    .keep(consumer.keep)
    .timeout(consumer.timeout)
    .on_any(move |tx, incoming| {
        let effect = Arc::clone(&effect);
        async move { effect.apply::<D>(tx, incoming).await }
    });
    for pattern in &consumer.skip {
        builder = builder.skip(pattern);
    }
    if let Some(dead_letters) = consumer.dead_letters {
        builder = builder.dead_letters(dead_letters);
    }
    if let Some(gate) = consumer.gate {
        builder = builder.gate(gate);
    }
    builder.start().await.map_err(|error| match error {
        counterfoil::Error::Store(error) => Failure::from(error),
        other => wrong(&other),
    })
}

/// What becomes of a message.
enum Work {
    /// It goes to a destination.
    Enqueue(Arc<str>),
    /// A statement runs.
    Run {
        parameters: Vec<statement::Parameter>,
        prepared: Prepared,
        expect_rows: bool,
    },
}

impl Work {
    async fn apply<D: Sql>(&self, mut tx: Tx<D>, incoming: Incoming) -> HandlerAnswer {
        match self {
            Work::Enqueue(queue) => {
                let message = forwarded(incoming, queue);
                let enqueued = D::enqueue(&mut tx, std::slice::from_ref(&message)).await;
                enqueued.map_err(|error| counterfoil::Error::Store(error).into())
            }
            Work::Run {
                parameters,
                prepared,
                expect_rows,
            } => {
                let values = value::values(parameters, &incoming);
                let values = values.map_err(|why| HandleError::Park(why.into()))?;
                let changed = D::run(&mut tx, prepared, values).await?;
                match *expect_rows && changed == 0 {
                    true => Err(HandleError::failed("the statement has changed no row")),
                    false => Ok(()),
                }
            }
        }
    }
}

/// The same message, on its way to a destination.
fn forwarded(incoming: Incoming, queue: &str) -> Message {
    let mut message = Message::new(&incoming.event_type, incoming.payload)
        .id(incoming.id)
        .queue(queue);
    message.aggregate = incoming.aggregate;
    message.version = incoming.version;
    message.headers = incoming.headers;
    message
}
