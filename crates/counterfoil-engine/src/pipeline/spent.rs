//! One place for retries, although several that could retry stand in a row.
//!
//! # Promise
//! Whoever tries again and gives up says so in the answer, with the header
//! `Counterfoil-Retries: spent`. Whoever gets such an answer does not try again, and passes it on as it
//! is. So a call that goes through several of them reaches the dependency as often as the one
//! that is nearest to it allows, not as often as all of them multiplied.
//!
//! Anybody may say it, also the dependency itself. Whoever does only keeps others from asking again.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header.
pub const RETRIES: HeaderName = HeaderName::from_static("counterfoil-retries");
const SPENT: &str = "spent";

/// Says that the answer was asked for again, as often as was allowed.
pub fn mark(headers: &mut HeaderMap) {
    headers.insert(RETRIES, HeaderValue::from_static(SPENT));
}

/// Whether the answer says so.
pub fn is_marked(headers: &HeaderMap) -> bool {
    let said = headers.get(RETRIES).map(HeaderValue::as_bytes);
    said.is_some_and(|word| word.eq_ignore_ascii_case(SPENT.as_bytes()))
}
