//! The client against real servers: what reaches them, and what callers are told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "this is test code: a surprise ends the test"
)]

mod chain;
mod limits;
mod repeats;
mod sent;
mod server;
mod sharing;
mod syntax;
mod tls;
