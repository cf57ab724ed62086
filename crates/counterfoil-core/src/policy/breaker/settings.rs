//! When a breaker opens, and for how long.

use std::time::Duration;

use crate::policy::ratio::Ratio;

/// The settings of a breaker.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | `window` | 10 s | shares are counted over this time |
/// | `min_calls` | 20 | with fewer calls in the window a share says nothing |
/// | `failure_ratio` | 50 % | opens when this share of the calls failed |
/// | `consecutive` | 20 | opens after so many failures in a row; absent: never for that |
/// | `slow` | absent | opens when this share of the calls was slow |
/// | `open_for` | 1 s | how long it is open the first time; doubles with every failed probe |
/// | `open_cap` | 10 s | and never longer than this |
/// | `probe_every` | 1 s | half open: one probe in this time |
/// | `probes` | 1 | so many good probes close it |
/// | `throttles` | 5 | so many throttled answers in a row make everybody pause |
/// | `throttle_cap` | 30 s | the longest pause, and the longest open time, that a server can ask for |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Shares are counted over this time.
    pub window: Duration,
    /// With fewer calls in the window a share says nothing.
    pub min_calls: u32,
    /// Opens when this share of the calls failed.
    pub failure_ratio: Ratio,
    /// Opens after so many failures in a row.
    pub consecutive: Option<u32>,
    /// Opens when too many calls are slow.
    pub slow: Option<Slow>,
    /// How long it is open the first time.
    pub open_for: Duration,
    /// The longest time that it is open before the next probe.
    pub open_cap: Duration,
    /// Half open: one probe in this time.
    pub probe_every: Duration,
    /// So many good probes close it.
    pub probes: u32,
    /// So many throttled answers in a row make everybody pause.
    pub throttles: u32,
    /// The longest time that a server can ask for at once.
    pub throttle_cap: Duration,
}

/// What is slow, and how much of it is too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// A call that takes so long is slow.
    pub longer_than: Duration,
    /// This share of slow calls opens the breaker.
    pub ratio: Ratio,
}

impl Settings {
    /// The default settings.
    pub const DEFAULT: Settings = Settings {
        window: Duration::from_secs(10),
        min_calls: 20,
        failure_ratio: Ratio::percent(50),
        consecutive: Some(20),
        slow: None,
        open_for: Duration::from_secs(1),
        open_cap: Duration::from_secs(10),
        probe_every: Duration::from_secs(1),
        probes: 1,
        throttles: 5,
        throttle_cap: Duration::from_secs(30),
    };

    /// Refuses what cannot work.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let zero_slow = self.slow.is_some_and(|s| s.longer_than.is_zero());
        for (name, zero) in [
            ("window", self.window < Duration::from_millis(1)),
            ("min-calls", self.min_calls == 0),
            ("consecutive", self.consecutive == Some(0)),
            ("open-for", self.open_for.is_zero()),
            ("probe-every", self.probe_every.is_zero()),
            ("probes", self.probes == 0),
            ("throttles", self.throttles == 0),
            ("slow-after", zero_slow),
        ] {
            if zero {
                return Err(SettingsError::Zero(name));
            }
        }
        let zero_slow = self.slow.is_some_and(|s| s.ratio == Ratio::ZERO);
        for (name, zero) in [
            ("failure-ratio", self.failure_ratio == Ratio::ZERO),
            ("slow-ratio", zero_slow),
        ] {
            if zero {
                return Err(SettingsError::Always(name));
            }
        }
        if self.open_cap < self.open_for {
            return Err(SettingsError::CapBelowOpen {
                open_for: self.open_for,
                open_cap: self.open_cap,
            });
        }
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Settings of a breaker that cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A time or a number is zero.
    #[error("{0} of a breaker must be greater than zero")]
    Zero(&'static str),
    /// A share of nothing is always reached.
    #[error("{0} of a breaker must be greater than zero: it would open on the first call")]
    Always(&'static str),
    /// The longest open time is shorter than the first.
    #[error(
        "the open cap of a breaker ({open_cap:?}) must not be shorter than its open time ({open_for:?})"
    )]
    CapBelowOpen {
        /// The first open time.
        open_for: Duration,
        /// The longest open time.
        open_cap: Duration,
    },
}
