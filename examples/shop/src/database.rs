//! PostgreSQL or SQLite, as `DATABASE_URL` says.
//!
//! The two services are written once, against `super::Db`, and compiled for each database. An
//! application has one database and needs nothing of this.

pub mod postgres;
pub mod sqlite;
