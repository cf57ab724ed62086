//! How a consumer is, for operators: as figures, and as a row in the database.
//!
//! # Promise
//! The row is written every few seconds, and at once when the consumer stops or begins to consume. It
//! is gone when the consumer was stopped in order; a consumer that died falls silent. Whoever cannot
//! write it tries again, and the consumer does not wait for it.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_core::presence::{ConsumerReport, ConsumerStatus};
use counterfoil_core::store::{RelayId, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Between two reports.
const EVERY: Duration = Duration::from_secs(5);
/// Between two reports of a consumer that changes all the time.
const AT_ONCE: Duration = Duration::from_millis(200);
/// For how long a report counts as a sign of life.
const LEASE: Duration = Duration::from_secs(30);

/// Looks at a running consumer.
#[derive(Debug, Clone)]
pub struct Monitor {
    name: Arc<str>,
    status: watch::Receiver<ConsumerStatus>,
}

impl Monitor {
    pub(super) fn new(name: Arc<str>, status: watch::Receiver<ConsumerStatus>) -> Self {
        Self { name, status }
    }

    /// The consumer's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is now.
    pub fn status(&self) -> ConsumerStatus {
        self.status.borrow().clone()
    }
}

/// Writes down how a consumer is.
///
/// # When it is dropped
/// It ends, and the row stays until it counts as silent.
pub struct Reporter {
    store: Arc<dyn Store>,
    member: RelayId,
    task: JoinHandle<()>,
}

impl Reporter {
    /// Begins. `label` stands before the name of the row.
    pub fn start(store: Arc<dyn Store>, label: &str, monitor: Monitor) -> Self {
        let member = RelayId::new(label);
        let task = tokio::spawn(report(Arc::clone(&store), member.clone(), monitor));
        Self {
            store,
            member,
            task,
        }
    }

    /// Ends, and removes the row.
    pub async fn stop(self) {
        self.task.abort();
        let forgotten = self.store.forget_consumer(&self.member);
        match tokio::time::timeout(EVERY, forgotten).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(
                error = error.one_line(),
                "a consumer that has ended is listed as silent"
            ),
            Err(_) => tracing::debug!("a consumer that has ended is listed as silent"),
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn report(store: Arc<dyn Store>, member: RelayId, monitor: Monitor) {
    let Monitor { name, mut status } = monitor;
    loop {
        let now = status.borrow_and_update().clone();
        let report = ConsumerReport {
            member: &member,
            consumer: &name,
            status: &now,
            lease: LEASE,
        };
        match tokio::time::timeout(EVERY, store.report_consumer(report)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(
                consumer = &*name,
                error = error.one_line(),
                "cannot write down how a consumer is"
            ),
            Err(_) => tracing::debug!(consumer = &*name, "cannot write down how a consumer is"),
        }
        tokio::time::sleep(AT_ONCE).await;
        let changed = |later: &ConsumerStatus| {
            later.connected != now.connected || later.is_consuming() != now.is_consuming()
        };
        let changed = status.wait_for(changed);
        if let Ok(Err(_)) = tokio::time::timeout(EVERY, changed).await {
            // The consumer has ended, and whoever has ended it stops us, too.
            return;
        }
    }
}

/// The same as figures.
pub(super) fn measure(name: &str, status: &ConsumerStatus) {
    let name = || name.to_owned();
    let seconds = |at: Option<DateTime<Utc>>| {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        at.map_or(0.0, |at| at.timestamp_millis() as f64 / 1_000.0)
    };
    let flag = |yes: bool| if yes { 1.0 } else { 0.0 };
    metrics::gauge!("counterfoil_consumer_connected", "consumer" => name())
        .set(flag(status.connected));
    let paused = status.full || status.resume_at.is_some();
    metrics::gauge!("counterfoil_consumer_paused", "consumer" => name()).set(flag(paused));
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    metrics::gauge!("counterfoil_consumer_in_progress", "consumer" => name())
        .set(status.in_progress as f64);
    metrics::gauge!("counterfoil_consumer_last_message_timestamp_seconds", "consumer" => name())
        .set(seconds(status.last_message_at));
    metrics::gauge!("counterfoil_consumer_last_error_timestamp_seconds", "consumer" => name())
        .set(seconds(status.last_error_at));
    if let Some(lag) = status.lag {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        metrics::gauge!("counterfoil_consumer_lag", "consumer" => name()).set(lag as f64);
    }
}

pub(super) fn describe_metrics() {
    metrics::describe_counter!(
        "counterfoil_consumed_total",
        "Messages received by a consumer, by what became of them"
    );
    metrics::describe_gauge!(
        "counterfoil_consumer_connected",
        "1 when the consumer is subscribed to its broker"
    );
    metrics::describe_gauge!(
        "counterfoil_consumer_paused",
        "1 when the consumer takes nothing in: the database does not answer, or too much is put off"
    );
    metrics::describe_gauge!(
        "counterfoil_consumer_in_progress",
        "Messages that a consumer has received and not settled"
    );
    metrics::describe_gauge!(
        "counterfoil_consumer_last_message_timestamp_seconds",
        "When a message last came; 0 when none has come yet"
    );
    metrics::describe_gauge!(
        "counterfoil_consumer_last_error_timestamp_seconds",
        "When the broker or the database last failed a consumer; 0 when they never have"
    );
    metrics::describe_gauge!(
        "counterfoil_consumer_lag",
        "Messages that wait at the broker for a consumer"
    );
}
