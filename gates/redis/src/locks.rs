//! Locks with a lease in Redis.
//!
//! # Promise
//! A lock has one holder until its lease is over by Redis' clock, and every holder has a greater
//! number than all before it, as long as Redis keeps what it was told. Taking, prolonging and giving
//! back are one step each. When Redis does not answer within [`LockOptions::patience`], that is an
//! error, and nobody is told that they hold anything. An answer that is lost on its way counts as
//! "does not answer": the lock may be taken then, by nobody, until its lease is over.
//!
//! # When it forgets
//! A lock in Redis is as good as its memory. A Redis that is flushed, that evicts the name, that
//! comes back empty or with an old snapshot, or a replica that was behind and took over, may give a
//! lock twice. So let whatever the lock protects compare the numbers and refuse the smaller one; or
//! keep locks in the database.
//!
//! The number is the greater one of "the last one and one more" and Redis' clock in microseconds, so
//! that it also grows when Redis has forgotten the last one. It comes again only if two things come
//! together: Redis has forgotten it, and the clock is behind it. Each lock's last number is kept for
//! an hour after its end, and for as long as the clock is behind it; then the name is gone.
//!
//! # In Redis
//! `SET cf:lock:<name> "<number> <until, in microseconds>" PX <lease and an hour>`, by a script.
//! One name for each lock, so that every slot of a cluster can hold it. Redis 5 or later.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::Locks;
use counterfoil_core::message::check_name;
use counterfoil_core::span::millis;
use counterfoil_core::store::Result;

use crate::OptionsError;
use crate::link::{Link, Settings};

/// Takes, prolongs or gives back a lock.
const HOLD: &str = include_str!("hold.lua");

/// How long the number of a lock is kept that nobody holds. Clocks are set back by less.
const KEPT: Duration = Duration::from_secs(3_600);

/// How locks are kept.
///
/// | setting | default |
/// |---|---|
/// | `prefix` | `cf:lock:` |
/// | `patience` | 2 s |
/// | `ca` | those of the system |
///
/// ```
/// use counterfoil_redis_gate::{LockOptions, RedisLocks};
///
/// let options = LockOptions {
///     prefix: "shop:lock:".into(),
///     ..LockOptions::default()
/// };
/// let locks = RedisLocks::new("redis://127.0.0.1/", options)?;
/// # Ok::<(), counterfoil_redis_gate::OptionsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct LockOptions {
    /// Names in Redis begin with this.
    pub prefix: String,
    /// How long Redis may take to answer, connecting included.
    pub patience: Duration,
    /// With `rediss://`: the authorities to trust, as PEM, instead of those of the system.
    pub ca: Option<Vec<u8>>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            prefix: "cf:lock:".into(),
            patience: Duration::from_secs(2),
            ca: None,
        }
    }
}

/// Locks in one Redis.
pub struct RedisLocks {
    link: Link,
    prefix: String,
}

impl RedisLocks {
    /// Locks in the Redis at this URL. Nothing is opened before the first use.
    pub fn new(url: &str, options: LockOptions) -> std::result::Result<Self, OptionsError> {
        Ok(Self {
            link: Link::new(
                url,
                options.ca.as_deref(),
                Settings::restless(options.patience),
            )?,
            prefix: options.prefix,
        })
    }

    /// Answers the holder's number. Nothing: the lock is another's, or was lost.
    async fn hold(&self, name: &str, fence: Option<i64>, lease: Duration) -> Result<Option<i64>> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(HOLD)
            .arg(1)
            .arg(format!("{}{name}", self.prefix))
            .arg(fence.map(|f| f.to_string()).unwrap_or_default())
            .arg(millis(lease))
            .arg(millis(KEPT));
        Ok(self.link.ask(&command).await?)
    }
}

#[async_trait]
impl Locks for RedisLocks {
    async fn acquire(&self, name: &str, lease: Duration) -> Result<Option<i64>> {
        check_name("lock", name)?;
        self.hold(name, None, lease).await
    }

    async fn renew(&self, name: &str, fence: i64, lease: Duration) -> Result<bool> {
        let held = self.hold(name, Some(fence), lease).await?;
        Ok(held.is_some())
    }

    async fn release(&self, name: &str, fence: i64) -> Result<bool> {
        self.renew(name, fence, Duration::ZERO).await
    }
}
