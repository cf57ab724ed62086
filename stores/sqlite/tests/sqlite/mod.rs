//! The harness, and cases that only SQLite has.

mod foreign;
pub(crate) mod harness;
mod inbox;
mod locks;
mod schema;
mod trouble;
