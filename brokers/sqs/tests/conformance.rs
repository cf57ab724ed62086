//! The shared suite, on both kinds of queues.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "this is test code: a surprise ends the test"
)]
#![allow(dead_code, reason = "another test uses the rest of the harness")]

#[path = "sqs/harness.rs"]
mod harness;

mod standard {
    use super::harness::Standard;
    counterfoil_testkit::broker_suite!(Standard);
}

mod fifo {
    use super::harness::Fifo;
    counterfoil_testkit::broker_suite!(Fifo);
}
