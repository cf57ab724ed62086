//! The conformance suite on MySQL or MariaDB, and what only these have to show.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

mod mysql;

use mysql::harness::MysqlHarness;

counterfoil_testkit::store_suite!(MysqlHarness);
