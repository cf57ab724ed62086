//! Many rows in one value: the quick way of `sql/read_packed.sql`.
//!
//! Only plain rows come this way. Whatever is odd about any of them, the answer is "read them one by
//! one", and [`rows`](crate::rows) finds words for it; then they are parked, and the quick way is
//! free again.

use counterfoil_core::row::{RawRow, RowState, WrittenId};

use crate::rows::{count, has_lane, moment};

/// What a packed value holds.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    pub(crate) rows: Vec<RawRow>,
    /// Numbers of rows that have to be read by themselves.
    pub(crate) apart: Vec<i64>,
}

/// The line before the content: the columns of the statement, in their order.
#[rustfmt::skip]
type Head = (
    i64, Option<String>, Option<String>, Option<String>, Option<i64>, Option<String>, Option<String>,
    Option<i64>, Option<i64>, Option<i64>, u8, u8, Option<usize>, Option<usize>,
);

/// Absent when a row is not plain.
pub(crate) fn unpack(mut bytes: &[u8]) -> Option<Unpacked> {
    let mut unpacked = Unpacked::default();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        if line.first() == Some(&b'[') {
            let (row, rest) = plain(serde_json::from_slice(line).ok()?, rest)?;
            unpacked.rows.push(row);
            bytes = rest;
        } else {
            unpacked
                .apart
                .push(std::str::from_utf8(line).ok()?.parse().ok()?);
            bytes = rest;
        }
    }
    Some(unpacked)
}

fn plain(head: Head, content: &[u8]) -> Option<(RawRow, &[u8])> {
    let (seq, id, aggregate_type, aggregate_id, version, event_type, state, ..) = head;
    let (attempts, crashes, created, early, behind, payload, headers) =
        (head.7, head.8, head.9, head.10, head.11, head.12, head.13);
    let (payload, content) = cut(payload, content)?;
    let (headers, content) = cut(headers, content)?;
    if early > 1 {
        return None;
    }
    let row = RawRow {
        seq,
        shard: 0,
        written_id: WrittenId::of(id.as_deref().map(str::as_bytes)),
        id,
        behind: behind == 1 && has_lane(aggregate_type.as_deref(), aggregate_id.as_deref()),
        aggregate_type,
        aggregate_id,
        version,
        event_type,
        payload,
        payload_bin: None,
        headers,
        state: RowState::parse(state.as_deref()),
        attempts: attempts.map_or(0, count),
        crashes: crashes.map_or(0, count),
        early: early == 1,
        created_at: moment(created?),
        unreadable: None,
    };
    Some((row, content))
}

/// A text of this length, and what follows it.
fn cut(length: Option<usize>, content: &[u8]) -> Option<(Option<String>, &[u8])> {
    let Some(length) = length else {
        return Some((None, content));
    };
    let (text, rest) = content.split_at_checked(length)?;
    Some((Some(std::str::from_utf8(text).ok()?.to_owned()), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"[7,"id","order","1",2,"Paid",null,0,0,1000,0,1,"#;

    #[test]
    fn content_is_cut_by_length_whatever_stands_in_it() {
        let value = format!("{HEAD}4,null]\n[\n1]8\n{HEAD}null,2]\n{{}}{HEAD}null,null]\n");

        let unpacked = unpack(value.as_bytes()).unwrap();

        assert_eq!(unpacked.apart, [8]);
        let [one, two, three] = &unpacked.rows[..] else {
            panic!("three rows")
        };
        assert_eq!(
            (one.payload.as_deref(), one.headers.as_deref()),
            (Some("[\n1]"), None)
        );
        assert_eq!(
            (two.payload.as_deref(), two.headers.as_deref()),
            (None, Some("{}"))
        );
        assert!(three.payload.is_none() && three.behind && !three.early);
        assert_eq!(three.created_at.timestamp_millis(), 1_000);
    }

    #[test]
    fn whatever_is_odd_is_left_to_the_slow_way() {
        let fine = format!("{HEAD}1,null]\n1");
        assert!(unpack(fine.as_bytes()).is_some());
        for (from, to) in [
            (",2,", ",2.5,"),
            (",2,", ",\"x\","),
            ("1000,0,", "1000,2,"),
            ("1000", "null"),
            ("1,null]", "9,null]"),
        ] {
            assert!(
                unpack(fine.replacen(from, to, 1).as_bytes()).is_none(),
                "{to}"
            );
        }
        let mut no_text = fine.into_bytes();
        *no_text.last_mut().unwrap() = 0xff;
        assert!(unpack(&no_text).is_none());
        assert!(unpack(b"").unwrap().rows.is_empty());
    }
}
