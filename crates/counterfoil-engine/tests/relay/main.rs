//! The relay on an outbox in memory: order, retries, parking, tasks, drain.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a surprise ends the test"
)]

mod breaker;
mod failover;
mod failures;
mod handover;
mod many;
mod memory;
mod order;
mod stopping;
mod support;
mod tasks;
mod wedge;
