//! One-time tokens in Redis.
//!
//! # Promise
//! Checking and removing a token are one step, and somebody else's attempt leaves it alone. When
//! Redis does not answer, no token is issued and none is good. An answer that is lost on its way
//! counts as "does not answer": the token may be used up then, and the form needs a new one.
//!
//! # When it forgets or remembers too much
//! A Redis that loses its memory refuses every token from before. A Redis that comes back with an
//! old snapshot, or a replica that was behind and took over, may know a token again that was used
//! in between. Where that cannot be borne, keep tokens in the database.
//!
//! # In Redis
//! `SET cf:token:<hash> <owner> PX <ttl>`; used by a script that compares the owner and deletes.
//! Redis removes what has expired.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Consumed, Token, Tokens};
use counterfoil_core::message::check_name;
use counterfoil_core::store::Result;

use crate::OptionsError;
use crate::link::{Link, Settings};

/// Deletes a token only if it is this owner's.
const CONSUME: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// How tokens are kept.
///
/// | setting | default |
/// |---|---|
/// | `prefix` | `cf:token:` |
/// | `patience` | 2 s |
/// | `ca` | those of the system |
#[derive(Debug, Clone)]
pub struct TokenOptions {
    /// Names in Redis begin with this.
    pub prefix: String,
    /// How long Redis may take to answer, connecting included.
    pub patience: Duration,
    /// With `rediss://`: the authorities to trust, as PEM, instead of those of the system.
    pub ca: Option<Vec<u8>>,
}

impl Default for TokenOptions {
    fn default() -> Self {
        Self {
            prefix: "cf:token:".into(),
            patience: Duration::from_secs(2),
            ca: None,
        }
    }
}

/// One-time tokens in one Redis.
pub struct RedisTokens {
    link: Link,
    prefix: String,
}

impl RedisTokens {
    /// Tokens in the Redis at this URL. Nothing is opened before the first use.
    pub fn new(url: &str, options: TokenOptions) -> std::result::Result<Self, OptionsError> {
        Ok(Self {
            link: Link::new(
                url,
                options.ca.as_deref(),
                Settings::restless(options.patience),
            )?,
            prefix: options.prefix,
        })
    }

    fn name(&self, token: &Token) -> String {
        format!("{}{}", self.prefix, token.digest())
    }
}

#[async_trait]
impl Tokens for RedisTokens {
    async fn issue(&self, owner: &str, ttl: Duration) -> Result<Token> {
        check_name("owner", owner)?;
        let token = Token::random()?;
        let mut command = redis::cmd("SET");
        command
            .arg(self.name(&token))
            .arg(owner)
            .arg("PX")
            .arg(ttl.as_millis().clamp(1, i64::MAX as u128 / 2).to_string());
        let () = self.link.ask(&command).await?;
        Ok(token)
    }

    async fn consume(&self, token: &Token, owner: &str) -> Result<Consumed> {
        let mut command = redis::cmd("EVAL");
        command.arg(CONSUME).arg(1).arg(self.name(token)).arg(owner);
        let deleted: i64 = self.link.ask(&command).await?;
        Ok(match deleted {
            1 => Consumed::Won,
            _ => Consumed::Refused,
        })
    }

    /// Nothing is left to do: Redis removes what has expired.
    async fn purge(&self, _batch: u32) -> Result<u64> {
        Ok(0)
    }
}
