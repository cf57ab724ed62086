//! Crash tests of Counterfoil.
//!
//! # Promise
//! Processes here are real and so are their deaths. Nothing in the programs under test helps: the
//! test makes a moment exact from outside, by holding back an answer or a lock. What has arrived is
//! decided by the receiver in the test's own process, and what may not happen by the checker.
//!
//! | module | what lives there |
//! |---|---|
//! | [`actor`] | the processes: relay, writer, migration, guarded server |
//! | [`app`] | business transactions that note what they committed |
//! | [`book`], [`receiver`], [`wire`], [`journal`], [`webhook`] | where messages arrive, and how they get there |
//! | [`site`] | a database for one test, its locks and its traps |
//! | [`guarded`] | callers of a guarded server, its database, and the line between the two |
//! | [`process`] | start, kill, pause, resume |
//! | [`world`] | all of that together |
//! | [`checker`] | what may not happen |
//! | [`broken`], [`simulation`] | stores that are wrong on purpose, so that the checker is tested |
//! | [`chaos`] | a seeded random run |
//! | [`journey`] | the same through a broker, into the inbox |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

pub mod actor;
pub mod app;
pub mod book;
pub mod broken;
pub mod chaos;
pub mod checker;
pub mod guarded;
pub mod journal;
pub mod journey;
pub mod process;
pub mod receiver;
pub mod simulation;
pub mod site;
pub mod wait;
pub mod webhook;
pub mod wire;
pub mod world;

use std::time::Duration;

/// The queue that most tests use.
pub const QUEUE: &str = "orders";
/// The lease that most tests use: short, so that a death is noticed soon.
pub const LEASE: Duration = Duration::from_secs(2);
/// A lease that lasts on a busy machine, where work has to be handed over soon.
pub const FAIR_LEASE: Duration = Duration::from_secs(10);
/// A lease that does not run out while a test lasts.
pub const LONG_LEASE: Duration = Duration::from_secs(60);
