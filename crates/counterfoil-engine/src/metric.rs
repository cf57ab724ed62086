//! Metrics that are told of with every call.
//!
//! # Promise
//! A metric is looked up once in a second, and not with every call: that takes longer than to tell
//! it. A recorder that is installed later hears of everything from a second later on.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Key, Level, Metadata};

const ABOUT: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
/// How long a metric that was found is used.
const FOR: Duration = Duration::from_secs(1);

/// A metric by its name.
#[derive(Debug)]
struct Named<M> {
    key: Key,
    found: Mutex<Option<(Instant, M)>>,
}

impl<M> Named<M> {
    fn new(key: Key) -> Self {
        Self {
            key,
            found: Mutex::new(None),
        }
    }

    fn with(&self, find: impl Fn(&Key) -> M, tell: impl Fn(&M)) {
        let now = Instant::now();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match &*found {
            Some((since, metric)) if now.saturating_duration_since(*since) < FOR => tell(metric),
            _ => tell(&found.insert((now, find(&self.key))).1),
        }
    }
}

/// A counter that is told of often.
#[derive(Debug)]
pub struct OftenCounted(Named<Counter>);

impl OftenCounted {
    /// The counter of this name.
    pub fn new(key: Key) -> Self {
        Self(Named::new(key))
    }

    /// Counts one more.
    pub fn increment(&self) {
        let find = |key: &Key| metrics::with_recorder(|r| r.register_counter(key, &ABOUT));
        self.0.with(find, |counter| counter.increment(1));
    }
}

/// A gauge that is set often.
#[derive(Debug)]
pub struct OftenSet(Named<Gauge>);

impl OftenSet {
    /// The gauge of this name.
    pub fn new(key: Key) -> Self {
        Self(Named::new(key))
    }

    /// Sets it.
    pub fn set(&self, value: f64) {
        let find = |key: &Key| metrics::with_recorder(|r| r.register_gauge(key, &ABOUT));
        self.0.with(find, |gauge| gauge.set(value));
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn what_is_told_arrives_under_its_name() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let counter = OftenCounted::new(Key::from_name("told_total"));
            let gauge = OftenSet::new(Key::from_name("held"));
            for n in 1..=3 {
                counter.increment();
                gauge.set(f64::from(n) * 2.0);
            }
        });
        let shown = shown.render();
        assert!(shown.contains("told_total 3"), "{shown}");
        assert!(shown.contains("held 6"), "{shown}");
    }

    #[test]
    fn a_recorder_that_comes_later_is_found() {
        let counter = OftenCounted::new(Key::from_name("late_total"));
        counter.increment();
        // As if a second had passed.
        if let Some((since, _)) = &mut *counter.0.found.lock().unwrap() {
            *since = since.checked_sub(FOR).unwrap();
        }
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        metrics::with_local_recorder(&recorder, || counter.increment());
        assert!(shown.render().contains("late_total 1"));
    }
}
