//! The binary, driven as its users drive it: command line, files, HTTP and signals.
//!
//! Every scenario that needs a database runs on SQLite, and on PostgreSQL and MySQL or MariaDB where
//! there is a server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "this is test code: a surprise ends the test"
)]

mod access;
mod api;
mod cable;
mod client;
mod commands;
mod config;
#[cfg(feature = "redis")]
mod consuming;
mod dead_letters;
#[cfg(feature = "sqlite")]
mod demo;
mod gateway;
mod gateway_bounds;
mod gateway_calls;
mod gateway_config;
mod gateway_gate;
mod gateway_killed;
mod gateway_options;
mod gateway_recording;
mod guard;
mod home;
#[cfg(feature = "redis")]
mod journeys;
mod life;
mod policies;
mod receiver;
mod standstill;
mod stopping;
mod store_loss;
#[cfg(feature = "redis")]
mod streams;
mod upstream;

/// One test for each database.
#[macro_export]
macro_rules! on_every_database {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[test]
            fn on_sqlite() {
                super::$name(&$crate::home::Home::sqlite());
            }

            #[cfg(feature = "postgres")]
            #[test]
            fn on_postgres() {
                if let Some(home) = $crate::home::Home::postgres() {
                    super::$name(&home);
                }
            }

            #[cfg(feature = "mysql")]
            #[test]
            fn on_mysql() {
                if let Some(home) = $crate::home::Home::mysql() {
                    super::$name(&home);
                }
            }
        }
    )*};
}
