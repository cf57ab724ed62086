//! From an entry to an arrival, and from an arrival to a dead letter.
//!
//! # Promise
//! Every field of an entry is a header of the arrival, byte for byte, except `data`, which is its
//! body. A dead letter has all of them, and says why it is dead and where it stood.

use bytes::Bytes;
use counterfoil_core::source::{Arrival, DeadLetter, Tag, dead};
use redis::{Cmd, cmd};

/// The fields of an entry.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The field that is the body.
const BODY: &str = "data";
/// The field by which a stream with partitions is ordered.
const KEY: &str = "ce_partitionkey";
/// What the names of the headers that only dead letters have begin with.
const DEAD: &str = "dlq-";

/// An entry as it is handed out.
pub(crate) fn arrival(stream: &str, id: &str, fields: Fields, deliveries: u32) -> Arrival {
    let mut arrival = Arrival {
        tag: Tag(0),
        position: format!("{stream}@{id}"),
        key: None,
        headers: Vec::with_capacity(fields.len()),
        body: Bytes::new(),
        deliveries: Some(deliveries),
    };
    for (name, value) in fields {
        let (name, value) = (text(name), Bytes::from(value));
        match name.as_str() {
            BODY => arrival.body = value,
            _ => {
                if name == KEY {
                    arrival.key = Some(value.clone());
                }
                arrival.headers.push((name, value));
            }
        }
    }
    arrival
}

fn text(name: Vec<u8>) -> String {
    String::from_utf8(name).unwrap_or_else(|odd| String::from_utf8_lossy(odd.as_bytes()).into())
}

/// Where an entry stood.
pub(crate) struct Place<'a> {
    /// The name without a partition.
    pub(crate) stream: &'a str,
    pub(crate) partition: Option<usize>,
    pub(crate) id: &'a str,
}

/// Adds an arrival to the dead letters.
pub(crate) fn bury(to: &str, arrival: &Arrival, why: &DeadLetter, place: &Place<'_>) -> Cmd {
    let mut command = cmd("XADD");
    command.arg(to).arg("*");
    let own = arrival.headers.iter();
    // One that was dead before says why it is dead now.
    for (name, value) in own.filter(|(name, _)| !name.starts_with(DEAD)) {
        command.arg(name).arg(&value[..]);
    }
    for (name, value) in why.headers(arrival.text("traceparent")) {
        command.arg(name).arg(value);
    }
    command.arg(dead::TOPIC).arg(place.stream);
    if let Some(partition) = place.partition {
        command.arg(dead::PARTITION).arg(partition);
    }
    command.arg(dead::OFFSET).arg(place.id);
    command.arg(BODY).arg(&arrival.body[..]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(all: &[(&str, &[u8])]) -> Fields {
        let owned = |(n, v): &(&str, &[u8])| (n.as_bytes().to_vec(), v.to_vec());
        all.iter().map(owned).collect()
    }

    #[test]
    fn fields_are_headers_and_data_is_the_body() {
        let given: [(&str, &[u8]); 3] = [
            ("ce_partitionkey", b"order/1"),
            ("x", &[0, 255]),
            ("data", &[0, 10]),
        ];
        let found = arrival("s.1", "5-0", fields(&given), 2);

        assert_eq!(found.position, "s.1@5-0");
        assert_eq!(found.key.as_deref(), Some(&b"order/1"[..]));
        assert_eq!(found.headers.len(), 2);
        assert_eq!(&found.headers[1].1[..], [0, 255]);
        assert_eq!(&found.body[..], [0, 10]);
        assert_eq!(found.deliveries, Some(2));
    }

    #[test]
    fn an_entry_of_somebody_else_is_all_headers() {
        let odd = vec![(vec![0xff], vec![1]), (b"a".to_vec(), vec![])];

        let found = arrival("s", "1-1", odd, 1);

        assert_eq!(found.body.len(), 0);
        assert_eq!(found.key, None);
        assert_eq!(found.headers[0].0, "\u{FFFD}");
        assert_eq!(found.headers[1].0, "a");
    }
}
