//! The fast gate of the inbox: which messages were processed lately.
//!
//! # Promise
//! "Seen" is said only of what was noted, and the inbox notes a message after its transaction has
//! committed. Everything else is "not seen", and the ledger in the database decides: a Redis that is
//! slow, full, flushed or gone costs time and never an effect. After a failure it is left alone for
//! a second.
//!
//! # What it trusts in
//! Whoever is told "seen" does not ask the database. So consumers of the same name on different
//! databases must not share a prefix; and when a database is set back to an older state, the gate
//! has to be emptied.
//!
//! # In Redis
//! `SET de:<consumer>:<key> 1 EX <ttl>`, by its hash where the name would be long or unclear; asked
//! with `MGET`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::hex::Hex;
use counterfoil_core::inbox::Gate;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use sha2::{Digest as _, Sha256};

use crate::OptionsError;
use crate::link::{Failure, Link, Settings};

/// How long a gate that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);
/// The longest name that is kept in words.
const LONGEST: usize = 200;
/// Notes that were forgotten make no difference after this: the ledger forgets before.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 86_400);

/// How the gate of the inbox works.
///
/// | setting | default |
/// |---|---|
/// | `prefix` | `de:` |
/// | `ttl` | 24 h |
/// | `patience` | 50 ms |
/// | `ca` | those of the system |
#[derive(Debug, Clone)]
pub struct SeenOptions {
    /// Names in Redis begin with this. Consumers on different databases must not share it.
    pub prefix: String,
    /// How long a message is remembered: from 1 s to 30 days. Longer than the broker usually takes
    /// to repeat one.
    pub ttl: Duration,
    /// How long Redis may take to answer, connecting included.
    pub patience: Duration,
    /// With `rediss://`: the authorities to trust, as PEM, instead of those of the system.
    pub ca: Option<Vec<u8>>,
}

impl Default for SeenOptions {
    fn default() -> Self {
        Self {
            prefix: "de:".into(),
            ttl: Duration::from_secs(86_400),
            patience: Duration::from_millis(50),
            ca: None,
        }
    }
}

/// The gate of the inbox in one Redis.
pub struct RedisSeen {
    link: Link,
    prefix: String,
    ttl: u64,
    /// Whether it was said that Redis does not answer.
    silent: AtomicBool,
}

impl RedisSeen {
    /// A gate in the Redis at this URL. Nothing is opened before the first use.
    pub fn new(url: &str, options: SeenOptions) -> Result<Self, OptionsError> {
        if !(Duration::from_secs(1)..=LONGEST_TTL).contains(&options.ttl) {
            return Err(OptionsError::SeenTtl(options.ttl));
        }
        let settings = Settings {
            patience: options.patience,
            rest: LEFT_ALONE,
        };
        Ok(Self {
            link: Link::new(url, options.ca.as_deref(), settings)?,
            prefix: options.prefix,
            ttl: options.ttl.as_secs(),
            silent: AtomicBool::new(false),
        })
    }

    /// Distinct for distinct consumers and keys: a hash has no colon behind the prefix, and a name
    /// in words has its first one behind the consumer.
    fn name(&self, consumer: &str, key: &str) -> String {
        let prefix = &self.prefix;
        if !consumer.contains(':') && consumer.len() + key.len() <= LONGEST {
            return format!("{prefix}{consumer}:{key}");
        }
        let mut hash = Sha256::new();
        hash.update((consumer.len() as u64).to_be_bytes());
        hash.update(consumer.as_bytes());
        hash.update(key.as_bytes());
        format!("{prefix}{}", Hex(&hash.finalize()))
    }

    /// Nothing: the gate steps aside.
    async fn ask<T, F, Fut>(&self, question: F) -> Option<T>
    where
        F: FnOnce(MultiplexedConnection) -> Fut,
        Fut: Future<Output = RedisResult<T>>,
    {
        match self.link.with(question).await {
            Ok(answer) => {
                if self.silent.swap(false, Ordering::Relaxed) {
                    tracing::info!("Redis answers: the inbox has its gate again");
                }
                Some(answer)
            }
            Err(why) => {
                let resting = matches!(why, Failure::Resting);
                if !resting && !self.silent.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%why, "Redis does not answer: the inbox goes on without its gate");
                }
                metrics::counter!("counterfoil_inbox_gate_aside_total").increment(1);
                None
            }
        }
    }
}

#[async_trait]
impl Gate for RedisSeen {
    async fn seen(&self, consumer: &str, keys: &[&str]) -> Vec<bool> {
        if keys.is_empty() {
            return Vec::new();
        }
        let mut command = redis::cmd("MGET");
        for key in keys {
            command.arg(self.name(consumer, key));
        }
        let asked = self.ask(async |mut connection| {
            let answer: Vec<Option<Vec<u8>>> = command.query_async(&mut connection).await?;
            Ok(answer)
        });
        match asked.await {
            Some(answer) if answer.len() == keys.len() => {
                answer.iter().map(Option::is_some).collect()
            }
            _ => vec![false; keys.len()],
        }
    }

    async fn note(&self, consumer: &str, keys: &[&str]) {
        if keys.is_empty() {
            return;
        }
        let mut pipeline = redis::pipe();
        for key in keys {
            let command = pipeline.cmd("SET").arg(self.name(consumer, key)).arg(1);
            command.arg("EX").arg(self.ttl).ignore();
        }
        // What was not noted is asked of the ledger.
        let _ = self
            .ask(async |mut connection| pipeline.exec_async(&mut connection).await)
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_messages_have_distinct_names() {
        let gate = RedisSeen::new("redis://127.0.0.1/", SeenOptions::default()).unwrap();
        let long = "x".repeat(300);

        assert_eq!(gate.name("stock", "a:b"), "de:stock:a:b");
        let names = [
            gate.name("stock", "a:b"),
            gate.name("stock:a", "b"),
            gate.name("stock:", "ab"),
            gate.name("stock", &long),
            gate.name("stock", &long[1..]),
            gate.name(&format!("stock{long}"), ""),
        ];
        for (n, name) in names.iter().enumerate() {
            assert!(name.len() <= LONGEST + 10, "{name}");
            assert!(!names[..n].contains(name), "{name}");
        }
    }
}
