//! The subjects of messages.
//!
//! # Promise
//! Messages with one key always go to the same subject, in every version of this program. Others
//! can compute it: FNV-1a with 64 bits over the bytes of the key, modulo the number of partitions.

use crate::settings::SettingsError;

/// The most partitions: each is a consumer at the server.
pub(crate) const MOST_PARTITIONS: u16 = 256;
const LONGEST: usize = 200;

/// A subject and how many partitions it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subjects {
    base: String,
    partitions: u16,
}

impl Subjects {
    /// Reads a subject such as `shop.orders`.
    pub(crate) fn parse(base: &str, partitions: u16) -> Result<Self, SettingsError> {
        check(base)?;
        if !(1..=MOST_PARTITIONS).contains(&partitions) {
            return Err(SettingsError::Partitions(partitions));
        }
        Ok(Self {
            base: base.to_owned(),
            partitions,
        })
    }

    /// The subject as it was given.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// How many partitions there are.
    pub(crate) fn partitions(&self) -> u16 {
        self.partitions
    }

    /// The subject of a key.
    pub(crate) fn of_key(&self, key: &str) -> String {
        let partition = hash(key.as_bytes()) % u64::from(self.partitions);
        // The rest of a division by a u16 is one.
        self.of(u16::try_from(partition).unwrap_or_default())
    }

    /// The subject of a partition. With one partition it is the subject itself.
    pub(crate) fn of(&self, partition: u16) -> String {
        match self.partitions {
            1 => self.base.clone(),
            _ => format!("{}.{partition}", self.base),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<String> {
        (0..self.partitions).map(|n| self.of(n)).collect()
    }

    /// What a stream is called that nobody gave a name.
    pub(crate) fn stream_name(&self) -> String {
        stream_name(&self.base)
    }
}

/// What a stream for this subject is called that nobody gave a name.
pub(crate) fn stream_name(subject: &str) -> String {
    subject.replace('.', "-")
}

/// Refuses what a message cannot be published to.
pub(crate) fn check(subject: &str) -> Result<(), SettingsError> {
    let bad = |problem: &str| Err(SettingsError::Subject(problem.to_owned()));
    let token = |token: &str| {
        let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'*' | b'>' | b'/' | b'\\');
        !token.is_empty() && token.bytes().all(plain)
    };
    if subject.len() > LONGEST {
        return bad("is longer than 200 characters");
    }
    if subject.starts_with(['$', '_']) {
        return bad("begins with $ or _, as those of NATS itself do");
    }
    match subject.split('.').all(token) {
        true => Ok(()),
        false => {
            bad("is made of words with dots between them, without wildcards, spaces or slashes")
        }
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_others_know() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_key_has_its_partition_for_ever() {
        let four = Subjects::parse("orders", 4).unwrap();

        let found: Vec<String> = (1..=6)
            .map(|n| four.of_key(&format!("order/{n}")))
            .collect();

        let expected = [
            "orders.3", "orders.2", "orders.1", "orders.0", "orders.3", "orders.2",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn with_one_partition_the_subject_stands_for_itself() {
        let one = Subjects::parse("shop.orders", 1).unwrap();

        assert_eq!(one.of_key("order/1"), "shop.orders");
        assert_eq!(one.all(), ["shop.orders"]);
        assert_eq!(one.stream_name(), "shop-orders");
        let two = Subjects::parse("shop.orders", 2).unwrap();
        assert_eq!(two.all(), ["shop.orders.0", "shop.orders.1"]);
    }

    #[test]
    fn what_is_no_subject_is_refused() {
        for wrong in [
            "", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "$JS.a", "_INBOX.a", "a\n",
        ] {
            let refused = Subjects::parse(wrong, 1);
            assert!(matches!(refused, Err(SettingsError::Subject(_))), "{wrong}");
        }
        for wrong in [0, 257] {
            let refused = Subjects::parse("a", wrong);
            assert_eq!(refused, Err(SettingsError::Partitions(wrong)));
        }
    }
}
