//! The harness, and cases that only MySQL and MariaDB have.

mod client;
mod dates;
pub(crate) mod harness;
mod inbox;
mod locks;
mod migrations;
mod transactions;
