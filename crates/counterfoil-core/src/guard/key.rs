//! Who asks for what, under which key.
//!
//! # Promise
//! Two requests share a record only when scope, business type and key are the same, byte for
//! byte: what identifies a record is a hash over the three with their lengths. No database's
//! collation, trimming or length limit can make two of them one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::canonical;
use crate::hex::Hex;

/// The longest scope, business type or key, in bytes.
pub const MAX_PART: usize = 255;

/// The identity of a record: SHA-256 over (scope, business type, key), each with its length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads what [`Digest::as_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// A number for locks: the first eight bytes.
    pub fn number(&self) -> i64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        i64::from_be_bytes(first)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// A part of a key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing is there.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// Too many bytes.
    #[error("the {part} has {size} bytes; {MAX_PART} are allowed")]
    TooLong {
        /// Which part.
        part: &'static str,
        /// Its size.
        size: usize,
    },
    /// A control character.
    #[error("the {0} contains a control character")]
    Control(&'static str),
    /// The parameters cannot be written as JSON.
    #[error("the parameters cannot be written as JSON: {0}")]
    Parameters(String),
}

/// The key of a request: whose it is, what kind of business, and the caller's own name for it.
///
/// It goes along with everything that is done for the request: a clone is cheap, and the digest is
/// made once for all clones.
#[derive(Debug, Clone)]
pub struct Key(Arc<Parts>);

#[derive(Debug, Serialize)]
struct Parts {
    scope: String,
    business_type: String,
    key: String,
    #[serde(skip)]
    digest: OnceLock<Digest>,
}

impl Parts {
    /// What makes two keys the same.
    fn all(&self) -> [&str; 3] {
        [&self.scope, &self.business_type, &self.key]
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.all() == other.0.all()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.all().hash(state);
    }
}

impl Key {
    /// A key that the caller supplied: a request id, or a unique business number.
    ///
    /// The scope is a stable name of the caller (an account, a tenant), never a credential. It may
    /// be empty where there is only one caller.
    pub fn new(
        scope: impl Into<String>,
        business_type: impl Into<String>,
        key: impl Into<String>,
    ) -> Result<Self, KeyError> {
        let (scope, business_type, key) = (scope.into(), business_type.into(), key.into());
        if !scope.is_empty() {
            check("scope", &scope)?;
        }
        check("business type", &business_type)?;
        check("key", &key)?;
        Ok(Self(Arc::new(Parts {
            scope,
            business_type,
            key,
            digest: OnceLock::new(),
        })))
    }

    /// A key made of the parameters themselves, for callers that supply none. Order of fields and
    /// white space do not matter.
    pub fn of_parameters<T: Serialize + ?Sized>(
        scope: impl Into<String>,
        business_type: impl Into<String>,
        parameters: &T,
    ) -> Result<Self, KeyError> {
        let text = canonical::of(parameters).map_err(|e| KeyError::Parameters(e.to_string()))?;
        let digest = Digest(Sha256::digest(text.as_bytes()).into());
        Self::new(scope, business_type, format!("params-{digest}"))
    }

    /// A key made of the caller's id and its serial number.
    pub fn serial(
        caller: impl Into<String>,
        business_type: impl Into<String>,
        serial: impl fmt::Display,
    ) -> Result<Self, KeyError> {
        let caller = caller.into();
        check("caller", &caller)?;
        Self::new(caller, business_type, serial.to_string())
    }

    /// The same key for one step of the work, which may happen several times:
    /// `req-001` becomes `req-001:item-A`.
    pub fn derive(&self, step: impl fmt::Display) -> Result<Self, KeyError> {
        Self::new(
            self.scope(),
            self.business_type(),
            format!("{}:{step}", self.key()),
        )
    }

    /// The same key for a finer kind of business: `pay` becomes `pay/fee`.
    pub fn within(&self, finer: impl fmt::Display) -> Result<Self, KeyError> {
        Self::new(
            self.scope(),
            format!("{}/{finer}", self.business_type()),
            self.key(),
        )
    }

    /// The same key as another system knows it: `req-001` becomes `A:req-001`.
    pub fn prefixed(&self, system: impl fmt::Display) -> Result<Self, KeyError> {
        Self::new(
            self.scope(),
            self.business_type(),
            format!("{system}:{}", self.key()),
        )
    }

    /// Whose request it is.
    pub fn scope(&self) -> &str {
        &self.0.scope
    }

    /// What kind of business.
    pub fn business_type(&self) -> &str {
        &self.0.business_type
    }

    /// The caller's name for the request.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// What identifies the record.
    pub fn digest(&self) -> Digest {
        *self.0.digest.get_or_init(|| {
            let mut hash = Sha256::new();
            for part in self.0.all() {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part.as_bytes());
            }
            Digest(hash.finalize().into())
        })
    }

    /// The key in a form that is safe inside an SQL comment, a setting or a log line: letters,
    /// digits and `-_.:` stay, every other byte becomes `%XX`.
    pub fn encoded(&self) -> String {
        let harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        let key = self.key();
        if key.as_bytes().iter().all(harmless) {
            return key.to_owned();
        }
        let mut out = String::with_capacity(3 * key.len());
        for byte in key.bytes() {
            if harmless(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }
}

fn check(part: &'static str, value: &str) -> Result<(), KeyError> {
    if value.is_empty() {
        return Err(KeyError::Empty(part));
    }
    if value.len() > MAX_PART {
        return Err(KeyError::TooLong {
            part,
            size: value.len(),
        });
    }
    if value.chars().any(char::is_control) {
        return Err(KeyError::Control(part));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(scope: &str, business: &str, key: &str) -> Key {
        Key::new(scope, business, key).unwrap()
    }

    #[test]
    fn parts_cannot_slide_into_each_other() {
        let one = key("ab", "c", "d").digest();
        let two = key("a", "bc", "d").digest();
        let three = key("a", "b", "cd").digest();

        assert_ne!(one, two);
        assert_ne!(two, three);
    }

    #[test]
    fn case_39_case_and_trailing_space_make_different_keys() {
        let digests: std::collections::HashSet<_> = ["Ab", "ab", "ab "]
            .map(|k| key("s", "t", k).digest())
            .into_iter()
            .collect();

        assert_eq!(digests.len(), 3);
        assert!(matches!(
            Key::new("s", "t", "x".repeat(256)),
            Err(KeyError::TooLong { size: 256, .. })
        ));
        assert!(Key::new("s", "t", "x".repeat(255)).is_ok());
    }

    #[test]
    fn odd_parts_are_refused_with_their_name() {
        assert_eq!(Key::new("s", "t", ""), Err(KeyError::Empty("key")));
        assert_eq!(Key::new("s", "t", "a\tb"), Err(KeyError::Control("key")));
        assert_eq!(Key::new("s\n", "t", "a"), Err(KeyError::Control("scope")));
        assert_eq!(
            Key::new("s", "", "a"),
            Err(KeyError::Empty("business type"))
        );
        assert!(Key::new("", "t", "a").is_ok());
    }

    #[test]
    fn keys_are_derived_and_prefixed() {
        let request = key("shop", "pay", "req-001");

        assert_eq!(request.derive("item-A").unwrap().key(), "req-001:item-A");
        assert_eq!(request.prefixed("A").unwrap().key(), "A:req-001");
        assert_eq!(request.within("fee").unwrap().business_type(), "pay/fee");
    }

    #[test]
    fn parameters_in_another_order_give_the_same_key() {
        let one = serde_json::json!({"a": 1, "b": [1, 2]});
        let two: serde_json::Value = serde_json::from_str(r#"{ "b": [1,2], "a": 1 }"#).unwrap();

        assert_eq!(
            Key::of_parameters("s", "t", &one),
            Key::of_parameters("s", "t", &two)
        );
    }

    proptest! {
        #[test]
        fn an_encoded_key_is_harmless(raw in "\\PC{1,40}") {
            if let Ok(key) = Key::new("s", "t", raw) {
                let text = key.encoded();
                prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:%".contains(&b)));
            }
        }
    }
}
