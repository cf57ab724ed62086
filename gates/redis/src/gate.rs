//! The fast gate of the guard.
//!
//! # Promise
//! Of many requests with one key the gate lets one go on at once, and decides nothing. Whoever it
//! lets in still has to claim the key in the database; whoever it keeps out is answered from there,
//! or waits a moment and claims the key there too, because the first one may be dead. A gate
//! that is slow, full, flushed or gone steps aside within [`Options::patience`], and for a second
//! after that it is not asked at all: the database decides alone.
//!
//! # In Redis
//! `SET cf:gate:<hash> <random> NX PX <ttl>`; released by a script that compares the value, so that
//! a slow owner never opens a gate that another one holds by now.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Digest, Gate, Gated};
use redis::{Cmd, FromRedisValue};

use crate::OptionsError;
use crate::link::{Failure, Link, Settings};

/// Deletes a key only if it still holds our value.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// How long a gate that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// How the gate works.
///
/// | setting | default |
/// |---|---|
/// | `prefix` | `cf:gate:` |
/// | `ttl` | 15 s |
/// | `patience` | 50 ms |
/// | `ca` | those of the system |
///
/// ```
/// use counterfoil_redis_gate::{Options, RedisGate};
///
/// let options = Options {
///     prefix: "shop:gate:".into(),
///     ..Options::default()
/// };
/// let gate = RedisGate::new("redis://127.0.0.1/", options)?;
/// # Ok::<(), counterfoil_redis_gate::OptionsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// Names in Redis begin with this. Guards on different databases must not share it.
    pub prefix: String,
    /// How long the gate stays shut behind an owner that died. Meanwhile a repeat is a little
    /// slower, because it asks the database after a short wait.
    pub ttl: Duration,
    /// How long Redis may take to answer, connecting included.
    pub patience: Duration,
    /// With `rediss://`: the authorities to trust, as PEM, instead of those of the system.
    pub ca: Option<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "cf:gate:".into(),
            ttl: Duration::from_secs(15),
            patience: Duration::from_millis(50),
            ca: None,
        }
    }
}

/// The gate in one Redis.
pub struct RedisGate {
    link: Link,
    prefix: String,
    ttl: u64,
    /// Whether it was said that Redis does not answer.
    silent: AtomicBool,
}

impl RedisGate {
    /// A gate in the Redis at this URL. Nothing is opened before the first use.
    pub fn new(url: &str, options: Options) -> Result<Self, OptionsError> {
        let ttl = u64::try_from(options.ttl.as_millis()).unwrap_or(u64::MAX);
        if !(1..=3_600_000).contains(&ttl) {
            return Err(OptionsError::Ttl(options.ttl));
        }
        let settings = Settings {
            patience: options.patience,
            rest: LEFT_ALONE,
        };
        Ok(Self {
            link: Link::new(url, options.ca.as_deref(), settings)?,
            prefix: options.prefix,
            ttl,
            silent: AtomicBool::new(false),
        })
    }

    fn name(&self, digest: &Digest) -> String {
        format!("{}{digest}", self.prefix)
    }

    /// Runs one command. Nothing: the gate steps aside.
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Option<T> {
        match self.link.ask(command).await {
            Ok(answer) => {
                if self.silent.swap(false, Ordering::Relaxed) {
                    tracing::info!("Redis answers: the guard has its gate again");
                }
                Some(answer)
            }
            Err(Failure::Resting) => None,
            Err(why) => {
                if !self.silent.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%why, "Redis does not answer: the guard goes on without its gate");
                }
                None
            }
        }
    }
}

#[async_trait]
impl Gate for RedisGate {
    async fn enter(&self, digest: &Digest) -> Gated {
        // Below 2^53, so that no script can lose a digit.
        let number = fastrand::u64(1..1 << 53);
        let mut command = redis::cmd("SET");
        command
            .arg(self.name(digest))
            .arg(number)
            .arg("NX")
            .arg("PX")
            .arg(self.ttl);
        match self.ask::<Option<String>>(&command).await {
            Some(Some(_)) => Gated::Open(number),
            Some(None) => Gated::Busy,
            None => {
                metrics::counter!("counterfoil_gate_aside_total").increment(1);
                Gated::Aside
            }
        }
    }

    async fn leave(&self, digest: &Digest, number: u64) {
        let mut command = redis::cmd("EVAL");
        command
            .arg(RELEASE)
            .arg(1)
            .arg(self.name(digest))
            .arg(number);
        // A gate that does not answer opens by itself.
        let _: Option<i64> = self.ask(&command).await;
    }

    async fn forget(&self, digest: &Digest) {
        let mut command = redis::cmd("DEL");
        command.arg(self.name(digest));
        // What stays shut keeps nobody out for long: the database decides after a short wait.
        let _: Option<i64> = self.ask(&command).await;
    }
}
