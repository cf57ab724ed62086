//! Whether somebody retries in a storm.
//!
//! # Promise
//! The share of repeats among the requests of a minute is compared with what is usual. A sudden rise
//! is told once, and its end is told once. A rate that was always high is no storm, and few requests
//! say nothing. Pure: who asks brings the time.

use std::time::{Duration, Instant};

/// Rates are compared over this time.
const WINDOW: Duration = Duration::from_secs(60);
/// Fewer requests in a window say nothing.
const ENOUGH: u32 = 20;
/// A lower share of repeats is no storm, however unusual.
const LOWEST: f64 = 0.2;
/// So many times more than usual is a storm.
const RISE: f64 = 3.0;
/// Each quiet window counts so much for what is usual.
const WEIGHT: f64 = 0.2;

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weather {
    /// Repeats have risen suddenly.
    Storm {
        /// The share of repeats in the last window.
        rate: f64,
        /// What was usual.
        usual: f64,
    },
    /// It is as it was.
    Calm {
        /// The share of repeats in the last window.
        rate: f64,
    },
}

/// The requests of one kind.
#[derive(Debug, Clone)]
pub struct Storm {
    begun: Instant,
    requests: u32,
    repeats: u32,
    usual: Option<f64>,
    raging: bool,
}

impl Storm {
    /// Nothing is known yet.
    pub fn new(now: Instant) -> Self {
        Self {
            begun: now,
            requests: 0,
            repeats: 0,
            usual: None,
            raging: false,
        }
    }

    /// Takes a request into account, and tells what has changed by the windows before it.
    pub fn saw(&mut self, repeat: bool, now: Instant) -> Option<Weather> {
        let change = if now.saturating_duration_since(self.begun) >= WINDOW {
            self.turn(now)
        } else {
            None
        };
        self.requests = self.requests.saturating_add(1);
        self.repeats = self.repeats.saturating_add(u32::from(repeat));
        change
    }

    fn turn(&mut self, now: Instant) -> Option<Weather> {
        let requests = std::mem::take(&mut self.requests);
        let repeats = std::mem::take(&mut self.repeats);
        self.begun = now;
        let rate = f64::from(repeats) / f64::from(requests.max(1));
        if requests < ENOUGH {
            // Too few to learn from; and too few to be a storm.
            return std::mem::take(&mut self.raging).then_some(Weather::Calm { rate });
        }
        let usual = *self.usual.get_or_insert(rate);
        let high = rate >= LOWEST && rate >= usual * RISE;
        if !high {
            self.usual = Some(usual + (rate - usual) * WEIGHT);
        }
        match (high, std::mem::replace(&mut self.raging, high)) {
            (true, false) => Some(Weather::Storm { rate, usual }),
            (false, true) => Some(Weather::Calm { rate }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays minutes with so many requests and repeats each, and collects what is told.
    fn told(minutes: &[(u32, u32)]) -> Vec<&'static str> {
        let mut now = Instant::now();
        let mut storm = Storm::new(now);
        let mut told = Vec::new();
        for (requests, repeats) in minutes.iter().chain(&[(1, 0)]) {
            for n in 0..*requests {
                match storm.saw(n < *repeats, now) {
                    Some(Weather::Storm { .. }) => told.push("storm"),
                    Some(Weather::Calm { .. }) => told.push("calm"),
                    None => {}
                }
            }
            now += WINDOW;
        }
        told
    }

    #[test]
    fn a_sudden_rise_is_told_once_and_so_is_its_end() {
        let quiet = (100, 2);
        let storm = (300, 200);

        let minutes = [quiet, quiet, quiet, storm, storm, storm, quiet, quiet];

        assert_eq!(told(&minutes), ["storm", "calm"]);
    }

    #[test]
    fn what_was_always_so_is_no_storm() {
        assert!(told(&[(100, 60); 30]).is_empty());
        assert!(told(&[(100, 0); 30]).is_empty());
    }

    #[test]
    fn few_requests_say_nothing() {
        let minutes = [(100, 1), (ENOUGH - 1, ENOUGH - 1), (100, 1)];

        assert!(told(&minutes).is_empty());
    }

    #[test]
    fn a_small_share_is_no_storm_however_unusual() {
        assert!(told(&[(1_000, 0), (1_000, 150)]).is_empty());
        assert_eq!(told(&[(1_000, 0), (1_000, 250)]), ["storm"]);
    }

    #[test]
    fn a_slow_rise_becomes_usual() {
        let minutes: Vec<(u32, u32)> = (0..200).map(|n| (1_000, 100 + n * 2)).collect();

        assert!(told(&minutes).is_empty());
    }

    #[test]
    fn a_storm_does_not_become_usual() {
        let mut minutes = vec![(100, 1); 5];
        minutes.extend([(100, 90); 100]);
        minutes.extend([(100, 1); 2]);
        minutes.extend([(100, 90); 3]);

        assert_eq!(told(&minutes), ["storm", "calm", "storm"]);
    }
}
