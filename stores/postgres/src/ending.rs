//! The message that ends a guarded transaction.
//!
//! # Promise
//! Record and commit go in one message. It fails when the transaction is over already, and nothing is
//! recorded then: the savepoint of the claim, which it releases, is not there any more.

use counterfoil_core::guard::columns::{self, SnapshotColumns, attempts};
use counterfoil_core::guard::{Expect, State, Write};
use counterfoil_core::span::micros;

use crate::values::Values;

/// Answers up to this size are sent with the commit, in one message.
const MOST_IN_TEXT: usize = 8 * 1024;

/// The statements, for one table.
pub(crate) struct Ending {
    /// For a request that is the first with its key and succeeds.
    pub(crate) first: String,
    /// For all others.
    pub(crate) any: String,
}

impl Ending {
    /// The message. `stays`: the connection is kept, and needs no transaction for the driver to roll
    /// back. `None` when the answer is better sent apart: as text it would be twice as long, and has
    /// to be read by the server's parser.
    pub(crate) fn message(&self, write: &Write, stays: bool) -> Option<String> {
        let snapshot = columns::snapshot(write.snapshot.as_ref());
        let (_, headers, body) = &snapshot;
        let size = headers.as_ref().map_or(0, String::len) + body.map_or(0, <[u8]>::len);
        if size > MOST_IN_TEXT || write.lease.is_some() {
            return None;
        }
        let (sql, values) = match values_of_first(write, &snapshot) {
            Some(values) => (&self.first, values),
            None => (&self.any, values_of_any(write, &snapshot)),
        };
        // A message ends at a NUL: keys have none, and JSON writes it in another way.
        Some(columns::filled(sql, |name, out| match name {
            "key" => out.push_str(&write.key.encoded()),
            "values" => out.push_str(&values.0),
            "chain" if !stays => out.push_str(" AND CHAIN"),
            _ => {}
        }))
    }
}

/// The arguments of `counterfoil_guard_done`, for a request that is the first with its key and
/// succeeds.
fn values_of_first(write: &Write, snapshot: &SnapshotColumns<'_>) -> Option<Values> {
    let (status, headers, Some(body)) = snapshot else {
        return None;
    };
    let first = write.expect == Expect::Absent && write.attempt == 1;
    if !first || write.state != State::Succeeded || write.retry_in.is_some() {
        return None;
    }
    let key = &write.key;
    let mut values = Values::default();
    values.joined(&[key.digest().as_bytes(), write.fingerprint.as_bytes(), body]);
    // Keys have no control characters, and JSON writes them in another way.
    let headers = headers.as_deref().unwrap_or_default();
    let words = [key.key(), key.scope(), key.business_type(), headers];
    values.text(Some(&words.join("\u{1f}")));
    values.number(Some(micros(write.keep)));
    values.number(*status);
    Some(values)
}

/// The arguments of `counterfoil_guard_end`.
fn values_of_any(write: &Write, snapshot: &SnapshotColumns<'_>) -> Values {
    let (status, headers, body) = snapshot;
    let key = &write.key;
    let mut values = Values::default();
    values.bytes(Some(key.digest().as_bytes()));
    values.number(match write.expect {
        Expect::Absent => None,
        Expect::Fence(fence) => Some(fence),
    });
    values.number(Some(micros(write.keep)));
    values.number(write.retry_in.map(micros));
    values.number(Some(attempts(write.attempt)));
    values.number(*status);
    values.text(Some(write.state.as_str()));
    values.text(Some(key.scope()));
    values.text(Some(key.business_type()));
    values.text(Some(key.key()));
    values.bytes(Some(write.fingerprint.as_bytes()));
    values.text(headers.as_deref());
    values.bytes(*body);
    values
}
