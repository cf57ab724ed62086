//! Benchmarks of Counterfoil.
//!
//! # Promise
//! Every figure stands next to a baseline that was measured in the same run on the same machine,
//! the two interleaved; what is reported first is their ratio. Nothing here talks to anything but
//! the servers that it was given.

pub mod brokers;
pub mod drain;
pub mod endpoint;
pub mod latency;
pub mod proxy;
pub mod subject;

use std::time::Duration;

/// What was measured, by name.
#[derive(Default)]
pub struct Report(serde_json::Map<String, serde_json::Value>);

impl Report {
    /// Notes and prints one figure.
    pub fn put(&mut self, key: &str, value: f64) {
        let rounded = self.note(key, value);
        println!("{key:<24} {rounded}");
    }

    /// Notes one figure, and answers it as it is noted.
    pub fn note(&mut self, key: &str, value: f64) -> f64 {
        let rounded = if value >= 1_000.0 {
            value.round()
        } else {
            (value * 1_000.0).round() / 1_000.0
        };
        self.0.insert(key.into(), serde_json::json!(rounded));
        rounded
    }

    /// All of it as one JSON object.
    pub fn json(self) -> serde_json::Value {
        serde_json::Value::Object(self.0)
    }
}

/// The middle of some measurements.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The value below which this part of the measurements lies, in milliseconds.
pub fn percentile(values: &mut [Duration], part: f64) -> f64 {
    values.sort_unstable();
    if values.is_empty() {
        return 0.0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = ((values.len() - 1) as f64 * part).round() as usize;
    values[at].as_secs_f64() * 1_000.0
}

/// Memory of this process in MB: now, or at its highest.
pub fn memory_mb(field: &str) -> f64 {
    memory_of("/proc/self/status", field)
}

/// The same of any process.
pub(crate) fn memory_of(status: &str, field: &str) -> f64 {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let line = status
        .lines()
        .find(|l| l.starts_with(field))
        .unwrap_or_default();
    let kb: f64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    kb / 1_024.0
}

/// Forgets the highest memory so far.
pub fn reset_peak_memory() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// CPU time that this process has used.
pub fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|n| n.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}
