//! An order service and a stock service that talk through a broker.
//!
//! # Promise
//! Every order that was answered with 201 takes its goods from the stock once, whatever the network,
//! the broker and the two services do meanwhile. An order for which there are no goods is parked,
//! with the reason, and nothing else waits for it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`broker`] | the only place that knows which broker it is |
//! | [`database`] | PostgreSQL or SQLite; the services below are compiled for each |
//! | `orders.rs` | the order service: order and message in one transaction |
//! | `stock.rs` | the stock service: message and stock in one transaction |

pub mod broker;
pub mod database;
mod service;

pub use service::{Any, Config, until_told_to_end};

use serde::{Deserialize, Serialize};

/// What goes from one service to the other.
pub const ORDER_PLACED: &str = "OrderPlaced";

/// Somebody wants something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Chosen by the caller, so that a repeat is recognised.
    pub id: String,
    /// What.
    pub item: String,
    /// How many.
    pub count: i64,
}
