//! Tests for stores and for applications: conformance suites, and an outbox in memory.
//!
//! # Promise
//! What passes here on one store means the same on every other. A suite is a library; a driver
//! supplies a [`harness::Harness`] and gets every test.
//!
//! | module | what lives there |
//! |---|---|
//! | [`memory`] | an outbox in memory with a clock that tests move; also for users' tests |
//! | [`server`] | where the servers are, and what happens when there is none |
//! | [`harness`] | what a store's tests supply |
//! | [`fixture`] | an empty outbox and messages to put in, for cases |
//! | [`relay`] | a relay without any loop, to take them out |
//! | [`suite`] | the cases |
//! | [`gone`] | callers that go away in the middle |
//! | [`silence`] | a network that swallows |
//! | [`guard`] | the same for the guard: harness, fixture and cases |
//! | [`inbox`] | the same for the inbox: harness, fixture and cases |
//! | [`broker`] | the same for brokers: harness, fixture and cases |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

pub mod broker;
pub mod fixture;
pub mod gone;
pub mod guard;
pub mod harness;
pub mod inbox;
pub mod memory;
pub mod relay;
pub mod server;
pub mod silence;
pub mod suite;
