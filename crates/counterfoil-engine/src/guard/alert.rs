//! What a person should hear of.
//!
//! # Promise
//! A storm of repeats is told when it begins and when it ends, for each kind of business; a business
//! error that was marked as needing a person is told once, when it is recorded, and not for its
//! repeats. Each is a line in the log and a figure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use counterfoil_core::guard::Key;
use counterfoil_core::guard::storm::{Storm, Weather};

/// So many kinds of business are watched. Who makes up more of them is not.
const MOST: usize = 1_000;

/// Watches the share of repeats.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch(Arc<Mutex<HashMap<String, Storm>>>);

impl Watch {
    pub(super) fn saw(&self, business_type: &str, repeat: bool) {
        self.saw_at(business_type, repeat, Instant::now());
    }

    fn saw_at(&self, business_type: &str, repeat: bool, now: Instant) {
        let Some(change) = self.change(business_type, repeat, now) else {
            return;
        };
        let gauge = metrics::gauge!(
            "counterfoil_guard_storm", "business_type" => business_type.to_owned()
        );
        match change {
            Weather::Storm { rate, usual } => {
                gauge.set(1.0);
                tracing::warn!(business_type, rate, usual, "somebody retries in a storm");
            }
            Weather::Calm { rate } => {
                gauge.set(0.0);
                tracing::info!(business_type, rate, "the storm of retries is over");
            }
        }
    }

    fn change(&self, business_type: &str, repeat: bool, now: Instant) -> Option<Weather> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kinds.contains_key(business_type) {
            if kinds.len() >= MOST {
                return None;
            }
            kinds.insert(business_type.to_owned(), Storm::new(now));
        }
        kinds.get_mut(business_type)?.saw(repeat, now)
    }
}

/// A business error was recorded that somebody has to look at.
pub fn needs_person(key: &Key) {
    metrics::counter!(
        "counterfoil_guard_needs_person_total",
        "business_type" => key.business_type().to_owned()
    )
    .increment(1);
    tracing::error!(
        business_type = key.business_type(),
        key = key.encoded(),
        "a request has failed, and a person has to look at it"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use metrics_exporter_prometheus::PrometheusBuilder;

    /// A minute of requests, so many of them repeats.
    fn minute(watch: &Watch, kind: &str, now: &mut Instant, requests: u32, repeats: u32) {
        for n in 0..requests {
            watch.saw_at(kind, n < repeats, *now);
        }
        *now += Duration::from_secs(60);
    }

    #[test]
    fn a_storm_is_shown_until_it_is_over_and_for_its_kind_alone() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let _local = metrics::set_default_local_recorder(&recorder);
        let (watch, mut now, mut other) = (Watch::default(), Instant::now(), Instant::now());
        let storm = |on| format!("counterfoil_guard_storm{{business_type=\"pay\"}} {on}");

        for (requests, repeats) in [(100, 1), (100, 1), (100, 70), (100, 70)] {
            minute(&watch, "pay", &mut now, requests, repeats);
            minute(&watch, "ship", &mut other, 100, 1);
        }
        let during = handle.render();
        minute(&watch, "pay", &mut now, 100, 1);
        minute(&watch, "pay", &mut now, 1, 0);

        assert!(during.contains(&storm(1)), "{during}");
        assert!(!during.contains("ship"), "{during}");
        assert!(handle.render().contains(&storm(0)), "{}", handle.render());
    }

    #[test]
    fn kinds_without_end_are_not_remembered_without_end() {
        let (watch, now) = (Watch::default(), Instant::now());

        for n in 0..MOST * 2 {
            watch.saw_at(&n.to_string(), false, now);
        }

        assert_eq!(watch.0.lock().unwrap().len(), MOST);
    }
}
