//! A service behind a proxy: nginx or the gateway, and somebody who asks.
//!
//! # Promise
//! Both proxies stand before the same service at the same time, get the same bytes from the same
//! asker, and are asked one after the other. All of them are programs of their own, on free ports of
//! loopback, and end with the values that stand for them.

pub mod asker;
pub mod clients;
pub mod counterfoil;
pub mod nginx;
mod program;

pub use program::{Program, free_port};
