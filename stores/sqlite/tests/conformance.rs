//! The conformance suite on SQLite, and what only SQLite has to show.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

mod sqlite;

use sqlite::harness::SqliteHarness;

counterfoil_testkit::store_suite!(SqliteHarness);
