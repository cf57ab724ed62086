//! Figures of the queues, for Prometheus.
//!
//! # Promise
//! Counting never takes more than a twentieth of the database's time: it is done every ten seconds,
//! and less often when it takes long. What strangers call their queues cannot fill the memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::desk::QueueStats;
use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::database::Outbox;

const OFTEN: Duration = Duration::from_secs(10);
const SHARE: u32 = 20;
/// More queues than this are added up under one name.
const QUEUES: usize = 500;
const OTHERS: &str = "(others)";

/// Samples until it is aborted.
pub(super) async fn sample(outbox: Arc<dyn Outbox>, metrics: PrometheusHandle) {
    describe();
    let mut known = BTreeSet::new();
    let mut no_route = 0;
    loop {
        let started = Instant::now();
        match outbox.stats().await {
            Ok(stats) => {
                no_route = warn_about_routes(&stats, no_route);
                publish(&folded(stats, &mut known), &known);
            }
            Err(error) => tracing::debug!(error = error.one_line(), "cannot count messages"),
        }
        metrics.run_upkeep();
        tokio::time::sleep(OFTEN.max(started.elapsed().saturating_mul(SHARE))).await;
    }
}

/// Says when there are more messages without a route than before. Answers how many there are.
fn warn_about_routes(stats: &[QueueStats], before: u64) -> u64 {
    let messages = stats.iter().map(|queue| queue.no_route).sum();
    if messages > before {
        tracing::warn!(
            messages,
            "messages wait that no route matches: see `counterfoil outbox list --code NO_ROUTE`"
        );
    }
    gauge!("counterfoil_no_route").set(messages as f64);
    messages
}

fn describe() {
    describe_gauge!(
        "counterfoil_pending",
        "Messages that are not delivered yet, by state"
    );
    describe_gauge!(
        "counterfoil_oldest_seconds",
        "Age of the oldest undelivered message"
    );
    describe_gauge!(
        "counterfoil_parked",
        "Messages in the parking lot that wait for a decision"
    );
    describe_gauge!(
        "counterfoil_unserved",
        "Messages that wait and that no live relay can deliver"
    );
    describe_gauge!(
        "counterfoil_no_route",
        "Messages that wait because no route matches their event type"
    );
    describe_gauge!("counterfoil_paused", "1 when the queue is paused");
}

/// Queues by their own names as long as there are few names; the rest is added up.
fn folded(mut stats: Vec<QueueStats>, known: &mut BTreeSet<String>) -> Vec<QueueStats> {
    // Those that somebody serves are the ones that somebody watches.
    stats.sort_by_key(|queue| queue.relays == 0);
    let mut others: Option<QueueStats> = None;
    stats.retain(|queue| {
        let named = known.contains(&queue.queue) || known.len() < QUEUES;
        if named {
            known.insert(queue.queue.clone());
        } else {
            let empty = || QueueStats {
                queue: OTHERS.into(),
                ..QueueStats::default()
            };
            add(others.get_or_insert_with(empty), queue);
        }
        named
    });
    stats.extend(others);
    stats
}

fn add(sum: &mut QueueStats, queue: &QueueStats) {
    sum.new += queue.new;
    sum.scheduled += queue.scheduled;
    sum.retrying += queue.retrying;
    sum.held += queue.held;
    sum.parked += queue.parked;
    let oldest = queue.oldest_seconds.unwrap_or(0.0);
    sum.oldest_seconds = Some(sum.oldest_seconds.unwrap_or(0.0).max(oldest));
}

fn publish(stats: &[QueueStats], known: &BTreeSet<String>) {
    // A queue that has nothing any more is still there for whoever watches it.
    let others = (known.len() >= QUEUES).then(|| OTHERS.to_owned());
    for gone in known.iter().chain(&others) {
        if !stats.iter().any(|queue| queue.queue == *gone) {
            set(&QueueStats {
                queue: gone.clone(),
                ..QueueStats::default()
            });
        }
    }
    stats.iter().for_each(set);
}

fn set(queue: &QueueStats) {
    let name = || queue.queue.clone();
    let states = [
        ("new", queue.new),
        ("scheduled", queue.scheduled),
        ("retrying", queue.retrying),
        ("held", queue.held),
    ];
    for (state, count) in states {
        gauge!("counterfoil_pending", "queue" => name(), "state" => state).set(count as f64);
    }
    let unserved = if queue.unserved() { queue.pending() } else { 0 };
    let paused = if queue.paused.is_some() { 1.0 } else { 0.0 };
    gauge!("counterfoil_oldest_seconds", "queue" => name())
        .set(queue.oldest_seconds.unwrap_or(0.0));
    gauge!("counterfoil_parked", "queue" => name()).set(queue.parked as f64);
    gauge!("counterfoil_unserved", "queue" => name()).set(unserved as f64);
    gauge!("counterfoil_paused", "queue" => name()).set(paused);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_queues_become_one_and_nothing_is_left_out() {
        let stats = (0..QUEUES as u64 + 100).map(|n| QueueStats {
            queue: n.to_string(),
            new: 1,
            relays: n % 2,
            ..QueueStats::default()
        });

        let folded = folded(stats.collect(), &mut BTreeSet::new());

        assert_eq!(folded.len(), QUEUES + 1);
        assert_eq!(
            folded.iter().map(|queue| queue.new).sum::<u64>(),
            QUEUES as u64 + 100
        );
        assert_eq!(
            folded.iter().filter(|queue| queue.relays > 0).count(),
            (QUEUES + 100) / 2
        );
    }
}
