//! Whether a repeat asks for the same.
//!
//! # Promise
//! Two requests have the same fingerprint only when all parts that were put in are the same, in
//! the same order. A part cannot slide into its neighbour.

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::canonical::{self, CanonicalError};
use crate::hex::Hex;

/// The hash of what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a value: its canonical JSON.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, CanonicalError> {
        let text = canonical::of(value)?;
        Ok(FingerprintBuilder::new().part(text.as_bytes()).finish())
    }

    /// In the place of one that nobody wrote down: a claim that was committed behind the guard's back.
    pub const UNKNOWN: Self = Self([0; 32]);

    /// The fingerprint as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads what [`Fingerprint::as_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}..)", Hex(&self.0[..6]))
    }
}

/// Puts a fingerprint together, part by part.
#[derive(Debug, Clone, Default)]
pub struct FingerprintBuilder(Sha256);

impl FingerprintBuilder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part.
    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    /// The fingerprint of all parts.
    pub fn finish(self) -> Fingerprint {
        Fingerprint(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_slide_into_each_other() {
        let one = FingerprintBuilder::new().part(b"ab").part(b"c").finish();
        let two = FingerprintBuilder::new().part(b"a").part(b"bc").finish();

        assert_ne!(one, two);
    }

    #[test]
    fn values_that_mean_the_same_have_one_fingerprint() {
        let value: serde_json::Value = serde_json::from_str(r#"{"b":1, "a":2}"#).unwrap();

        assert_eq!(
            Fingerprint::of(&serde_json::json!({"a":2,"b":1})).unwrap(),
            Fingerprint::of(&value).unwrap()
        );
    }
}
