//! How fast messages leave the outbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::{Capabilities, Delivery, Destination, Outcome};
use counterfoil_engine::{Engine, EngineBuilder, QueueSpec, Settings};
use tokio::sync::Notify;

use crate::subject::{QUEUE, Subject};

/// A destination that stores everything at once, and counts.
#[derive(Default)]
pub struct Nowhere {
    delivered: AtomicU64,
    expected: AtomicU64,
    reached: Notify,
}

#[async_trait]
impl Destination for Nowhere {
    fn describe(&self) -> String {
        "nowhere".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 2_000,
            concurrency: 4,
            timeout: Some(Duration::from_secs(5)),
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let n = u64::try_from(batch.len()).unwrap_or(0);
        if self.delivered.fetch_add(n, Ordering::Relaxed) + n
            >= self.expected.load(Ordering::Relaxed)
        {
            self.reached.notify_one();
        }
        vec![Outcome::Stored; batch.len()]
    }
}

/// Starts an engine for the bench's queue.
pub async fn engine(
    subject: &dyn Subject,
    destination: Arc<dyn Destination>,
) -> anyhow::Result<Engine> {
    let settings = Settings {
        label: "bench".into(),
        ..Settings::default()
    };
    serve(subject, settings, destination, &[]).await
}

/// Starts an engine for the bench's queue and others beside it.
pub async fn engine_with(
    subject: &dyn Subject,
    destination: Arc<dyn Destination>,
    others: &[String],
) -> anyhow::Result<Engine> {
    let settings = Settings {
        label: "bench".into(),
        ..Settings::default()
    };
    serve(subject, settings, destination, others).await
}

async fn serve(
    subject: &dyn Subject,
    settings: Settings,
    destination: Arc<dyn Destination>,
    others: &[String],
) -> anyhow::Result<Engine> {
    let mut builder = EngineBuilder::new(subject.store()).settings(settings);
    for other in others {
        builder = builder.queue(QueueSpec::new(other, Arc::clone(&destination)));
    }
    let queue = QueueSpec::new(QUEUE, destination);
    Ok(builder.queue(queue).start().await?)
}

/// Drains the bench's queue while others are served beside it; answers messages per second.
pub async fn beside(
    subject: &dyn Subject,
    expected: u64,
    others: &[String],
) -> anyhow::Result<f64> {
    let destination = Arc::new(Nowhere::default());
    destination.expected.store(expected, Ordering::Relaxed);
    let begun = Instant::now();
    let to = Arc::clone(&destination) as Arc<dyn Destination>;
    let engine = engine_with(subject, to, others).await?;
    tokio::time::timeout(Duration::from_secs(600), destination.reached.notified()).await?;
    let rate = rate(expected, begun.elapsed());
    engine.stop().await;
    Ok(rate)
}

/// Drains what is there through the whole engine; answers messages per second. The last
/// settlement is part of the time.
pub async fn through_engine(subject: &dyn Subject, expected: u64) -> anyhow::Result<f64> {
    let destination = Arc::new(Nowhere::default());
    destination.expected.store(expected, Ordering::Relaxed);
    let begun = Instant::now();
    let engine = engine(subject, Arc::clone(&destination) as Arc<dyn Destination>).await?;
    tokio::time::timeout(Duration::from_secs(600), destination.reached.notified()).await?;
    engine.stop().await;
    let rate = rate(expected, begun.elapsed());
    let left = subject.pending().await?;
    anyhow::ensure!(left == 0, "{left} messages are still in the outbox");
    Ok(rate)
}

/// Drains what is there with the raw loop; answers messages per second.
pub async fn through_raw_loop(subject: &dyn Subject) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let drained = subject.raw_drain().await?;
    Ok(rate(drained, begun.elapsed()))
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(n: u64, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64()
}
