//! How long a message takes from commit to delivery.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::{Capabilities, Delivery, Destination, MessageId, Outcome};
use tokio::time::MissedTickBehavior;

use crate::drain;
use crate::subject::Subject;

#[derive(Default)]
struct Clock {
    committed: HashMap<MessageId, Instant>,
    delivered: HashMap<MessageId, Instant>,
}

/// Notes when something is confirmed: at once, or when the destination behind it says so.
#[derive(Default)]
struct Stopwatch {
    clock: Mutex<Clock>,
    behind: Option<Arc<dyn Destination>>,
}

impl Stopwatch {
    fn all_arrived(&self) -> bool {
        let clock = self.lock();
        clock.delivered.len() >= clock.committed.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Destination for Stopwatch {
    fn describe(&self) -> String {
        "stopwatch".into()
    }

    fn capabilities(&self) -> Capabilities {
        if let Some(behind) = &self.behind {
            return behind.capabilities();
        }
        Capabilities {
            max_batch: 500,
            concurrency: 4,
            timeout: Some(Duration::from_secs(5)),
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let outcomes = match &self.behind {
            Some(behind) => behind.publish(batch).await,
            None => vec![Outcome::Stored; batch.len()],
        };
        let now = Instant::now();
        let mut clock = self.lock();
        for (delivery, outcome) in batch.iter().zip(&outcomes) {
            if *outcome == Outcome::Stored {
                clock.delivered.insert(delivery.id, now);
            }
        }
        drop(clock);
        outcomes
    }
}

/// Sends at a steady rate for a while; answers the time from commit to delivery of each message.
pub async fn at_rate(
    subject: Arc<dyn Subject>,
    per_second: u32,
    for_time: Duration,
) -> anyhow::Result<Vec<Duration>> {
    measure(Stopwatch::default(), subject, per_second, for_time).await
}

/// The same to a destination: until it has confirmed.
pub async fn to(
    destination: Arc<dyn Destination>,
    subject: Arc<dyn Subject>,
    per_second: u32,
    for_time: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let watch = Stopwatch {
        behind: Some(destination),
        ..Stopwatch::default()
    };
    measure(watch, subject, per_second, for_time).await
}

async fn measure(
    watch: Stopwatch,
    subject: Arc<dyn Subject>,
    per_second: u32,
    for_time: Duration,
) -> anyhow::Result<Vec<Duration>> {
    const PRODUCERS: u32 = 8;
    let watch = Arc::new(watch);
    let engine = drain::engine(&*subject, Arc::clone(&watch) as Arc<dyn Destination>).await?;
    let end = Instant::now() + for_time;
    let mut producers = tokio::task::JoinSet::new();
    for producer in 0..PRODUCERS {
        let (watch, nudge) = (Arc::clone(&watch), engine.nudge());
        let mut connected = subject.producer().await?;
        producers.spawn(async move {
            // One after the other: a steady rate, not a volley of all producers at each tick.
            let first =
                tokio::time::Instant::now() + Duration::from_secs(1) * producer / per_second;
            let period = Duration::from_secs(1) * PRODUCERS / per_second;
            let mut ticks = tokio::time::interval_at(first, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut n = i64::from(producer);
            while Instant::now() < end {
                ticks.tick().await;
                let id = MessageId::new();
                connected.transaction(id, n).await?;
                watch.lock().committed.insert(id, Instant::now());
                nudge.nudge();
                n += i64::from(PRODUCERS);
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    let limit = Instant::now() + Duration::from_secs(10);
    while !watch.all_arrived() && Instant::now() < limit {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.stop().await;
    let clock = watch.lock();
    anyhow::ensure!(
        clock.delivered.len() == clock.committed.len(),
        "some messages never arrived"
    );
    // The first tenth warms up statements, plans and connections.
    let mut times: Vec<(Instant, Duration)> = clock
        .committed
        .iter()
        .filter_map(|(id, at)| {
            clock
                .delivered
                .get(id)
                .map(|d| (*at, d.saturating_duration_since(*at)))
        })
        .collect();
    times.sort_unstable_by_key(|t| t.0);
    Ok(times.iter().skip(times.len() / 10).map(|t| t.1).collect())
}
