//! One-time tokens, and locks that run out.
//!
//! # Promise
//! A token is used by one, once: checking and removing it are one step, and somebody else's attempt
//! leaves it alone. A lock has one holder until its lease is over, and every holder has a greater
//! number than all before it, so that whatever the lock protects can refuse a late one.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::key::Digest;
use crate::store::{Result, StoreError};

/// A secret for one use: 256 random bits, shown as 43 characters of base64url.
///
/// Only its hash is stored: who reads the table cannot use what is in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl Token {
    /// A new one.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| StoreError::Database(e.into()))?;
        Ok(Self(bytes))
    }

    /// Reads what [`Display`](fmt::Display) gave. Absent when it is no token at all.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// What is stored of it.
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(self.0).into())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// Does not show the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What became of an attempt to use a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumed {
    /// It was there, it is this owner's, and it is used now.
    Won,
    /// It was used before, has expired, is somebody else's, or never existed.
    Refused,
}

/// Where one-time tokens are kept.
#[async_trait]
pub trait Tokens: Send + Sync + 'static {
    /// Makes a token for this owner, which can be used once until so much time has passed.
    async fn issue(&self, owner: &str, ttl: Duration) -> Result<Token>;

    /// Uses a token, in one step. A token of another owner is refused and stays.
    async fn consume(&self, token: &Token, owner: &str) -> Result<Consumed>;

    /// Removes at most so many tokens that have expired. Answers how many.
    async fn purge(&self, batch: u32) -> Result<u64>;
}

/// Locks with a lease.
#[async_trait]
pub trait Locks: Send + Sync + 'static {
    /// Takes the lock, if nobody holds it. Answers the number of the holder, which is greater than
    /// that of every holder before.
    async fn acquire(&self, name: &str, lease: Duration) -> Result<Option<i64>>;

    /// Holds the lock for so much longer from now on. False when it is not held any more, also
    /// when nobody else has taken it since.
    async fn renew(&self, name: &str, fence: i64, lease: Duration) -> Result<bool>;

    /// Gives the lock back. False when it was not held any more.
    async fn release(&self, name: &str, fence: i64) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_shown() {
        let token = Token::random().unwrap();
        let shown = token.to_string();

        assert_eq!(shown.len(), 43);
        assert_eq!(Token::parse(&shown), Some(token.clone()));
        assert!(!format!("{token:?}").contains(&shown));
    }

    #[test]
    fn two_tokens_differ_and_nonsense_is_none() {
        assert_ne!(Token::random().unwrap(), Token::random().unwrap());
        for bad in [
            "",
            "abc",
            "ä",
            &"A".repeat(42),
            &"A".repeat(44),
            &"=".repeat(43),
        ] {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }
}
