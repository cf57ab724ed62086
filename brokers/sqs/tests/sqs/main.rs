//! What the shared suite does not ask: answers that a test server never gives, dead letters on
//! their way back, and warnings.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]
#![allow(
    dead_code,
    reason = "the conformance suite uses the rest of the harness"
)]

mod answers;
mod harness;
mod log;
mod redriving;
mod service;
mod wire;
