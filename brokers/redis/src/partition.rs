//! Which of several streams a message goes to.
//!
//! # Promise
//! The same partition key always gives the same stream, on every machine and in every version:
//! FNV-1a with 64 bits over the bytes of the key, modulo the number of partitions. A message without
//! a key goes by its id, so that its copies meet.

use counterfoil_core::Delivery;
use counterfoil_core::envelope::{Envelope, Source};

/// The name of a partition's stream.
pub(crate) fn stream(name: &str, partition: u16) -> String {
    format!("{name}.{partition}")
}

/// The partition of a message.
pub(crate) fn of(delivery: &Delivery, partitions: u16) -> u16 {
    let source = Source::default();
    let envelope = Envelope::of(delivery, &source);
    let named = |wanted: &str| envelope.attributes.iter().find(|(name, _)| *name == wanted);
    let key = named("partitionkey").or_else(|| named("id"));
    let hash = fnv1a(key.map(|(_, value)| value.as_bytes()).unwrap_or_default());
    u16::try_from(hash % u64::from(partitions.max(1))).unwrap_or(0)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use counterfoil_core::Aggregate;

    use super::*;
    use crate::entry::tests::delivery;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_key_has_one_partition_and_keys_are_spread() {
        let with = |id: usize| Delivery {
            aggregate: Some(Aggregate::new("order", id)),
            ..delivery()
        };

        let used: BTreeSet<u16> = (0..200).map(|id| of(&with(id), 8)).collect();

        assert_eq!(used, (0..8).collect());
        assert_eq!(of(&with(42), 8), of(&with(42), 8));
        assert_eq!(of(&with(42), 1), 0);
    }

    #[test]
    fn copies_of_a_message_without_a_key_meet() {
        let bare = Delivery {
            aggregate: None,
            ..delivery()
        };
        let copy = Delivery {
            attempt: 2,
            ..bare.clone()
        };

        assert_eq!(of(&bare, 64), of(&copy, 64));
    }
}
