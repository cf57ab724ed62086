//! The fast gate of the guard, in Redis.
//!
//! # Promise
//! The gate turns duplicates away before they reach the database, and decides nothing. Whoever it
//! lets in still has to claim the key there; whoever it keeps out is answered from there. A gate
//! that is slow, full, flushed or gone steps aside within [`Options::patience`], and for a second
//! after that it is not asked at all: the database decides alone.
//!
//! # In Redis
//! `SET cf:gate:<hash> <random> NX PX <ttl>`; released by a script that compares the value, so that
//! a slow owner never opens a gate that another one holds by now.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::guard::{Digest, Gate, Gated};
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, RedisResult};

/// Deletes a key only if it still holds our value.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// How long a gate that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// How the gate works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names in Redis begin with this.
    pub prefix: String,
    /// How long the gate stays shut behind an owner that died.
    pub ttl: Duration,
    /// How long Redis may take to answer.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "cf:gate:".into(),
            ttl: Duration::from_secs(15),
            patience: Duration::from_millis(50),
        }
    }
}

/// A gate that cannot be made.
#[derive(Debug)]
pub struct GateError(RedisError);

impl std::fmt::Display for GateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the address of Redis cannot be used")
    }
}

impl std::error::Error for GateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The gate in one Redis.
pub struct RedisGate {
    client: Client,
    options: Options,
    link: Mutex<Link>,
}

#[derive(Default)]
struct Link {
    connection: Option<MultiplexedConnection>,
    /// It did not answer: not before this time.
    left_alone: Option<Instant>,
}

impl RedisGate {
    /// A gate in the Redis at this URL. Nothing is opened before the first use.
    pub fn new(url: &str, options: Options) -> Result<Self, GateError> {
        Ok(Self {
            client: Client::open(url).map_err(GateError)?,
            options,
            link: Mutex::default(),
        })
    }

    fn name(&self, digest: &Digest) -> String {
        format!("{}{digest}", self.options.prefix)
    }

    fn link(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs one command, or steps aside.
    async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Option<T> {
        let known = {
            let link = self.link();
            if link.left_alone.is_some_and(|until| Instant::now() < until) {
                return None;
            }
            link.connection.clone()
        };
        let answer = tokio::time::timeout(self.options.patience, async {
            let mut connection = match known {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            command.query_async(&mut connection).await
        });
        match answer.await {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                self.step_aside(&error.to_string());
                None
            }
            Err(_) => {
                self.step_aside("no answer in time");
                None
            }
        }
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let connection = self.client.get_multiplexed_async_connection().await?;
        self.link().connection = Some(connection.clone());
        Ok(connection)
    }

    fn step_aside(&self, why: &str) {
        let mut link = self.link();
        if link.left_alone.is_none() {
            tracing::warn!(
                why,
                "Redis does not answer: the guard goes on without its gate"
            );
        }
        link.connection = None;
        link.left_alone = Some(Instant::now() + LEFT_ALONE);
        metrics::counter!("counterfoil_gate_aside_total").increment(1);
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
            .arg(u64::try_from(self.options.ttl.as_millis()).unwrap_or(u64::MAX));
        match self.ask::<Option<String>>(&command).await {
            Some(Some(_)) => Gated::Open(number),
            Some(None) => Gated::Busy,
            None => Gated::Aside,
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
        let _: Option<i64> = self.ask(&command).await;
    }
}
