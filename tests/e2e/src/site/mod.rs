//! A database for one test, and what a test must be able to see and do behind everybody's back.
//!
//! # Promise
//! No program under test knows that it is watched: moments are made exact by locks and triggers of
//! the test's own, which any other user of the database could also hold or create.

mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::MessageId;
use counterfoil_core::desk::Desk;

use crate::app::Fact;
use crate::wait::PATIENCE;

pub use postgres::PostgresSite;
pub use sqlite::SqliteSite;

/// Where a message stands in the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the outbox, in this state.
    Outbox(String),
    /// In the parking lot, waiting for a decision, for this reason.
    Parked(String),
    /// In the history as sent.
    Sent,
    /// In the history as something else.
    Ended(String),
}

/// One row that holds a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The message.
    pub id: MessageId,
    /// Where.
    pub place: Place,
}

/// Who owns a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The queue.
    pub queue: String,
    /// The shard.
    pub shard: u16,
    /// The relay's name: its label and a unique part.
    pub owner: Option<String>,
    /// The fencing number.
    pub epoch: i64,
}

impl Ownership {
    /// Whether the process with this label owns it.
    pub fn by(&self, label: &str) -> bool {
        self.owner.as_deref().and_then(|o| o.split(':').next()) == Some(label)
    }
}

/// Which statements a trap is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trapped {
    /// Rows leave the outbox: sent or parked.
    Leaving,
    /// Rows are put back for later.
    Rescheduling,
}

/// Something that stands in the way of others until it is taken away.
#[async_trait]
pub trait Obstacle: Send {
    /// Whether somebody stands before it now.
    async fn blocks_somebody(&mut self) -> bool;

    /// Takes it away; whoever waits goes on.
    async fn remove(self: Box<Self>);
}

/// Waits until somebody stands before an obstacle.
///
/// # Panics
/// When nobody comes.
pub async fn somebody_waits(obstacle: &mut dyn Obstacle) {
    let begun = Instant::now();
    while !obstacle.blocks_somebody().await {
        assert!(
            begun.elapsed() < PATIENCE,
            "nobody stands before the obstacle"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A database for one test.
#[async_trait]
pub trait Site: Send + Sync {
    /// The address of the database for a process with this label.
    fn url(&self, label: &str) -> String;

    /// The operator's side.
    fn desk(&self) -> Arc<dyn Desk>;

    /// The number of shards of each queue.
    fn shards(&self) -> u16;

    /// Whether a frozen owner loses its shards when its lease runs out.
    fn leases(&self) -> bool;

    /// Makes the tables of the application.
    async fn found_application(&self);

    /// What the application has committed.
    async fn committed(&self) -> Vec<Fact>;

    /// Every row that holds a message. Closed records of the parking lot are left out.
    async fn standings(&self) -> Vec<Standing>;

    /// Who owns what.
    async fn owners(&self) -> Vec<Ownership>;

    /// Waits until nothing is under way any more that a dead process had begun.
    async fn is_gone(&self, label: &str);

    /// Ends what a dead process had begun, instead of waiting for its outcome.
    async fn cut_off(&self, label: &str);

    /// Keeps everybody from settling: before the first row is touched.
    async fn forbid_settling(&self) -> Box<dyn Obstacle>;

    /// Keeps everybody who settles from going on: after rows were touched, before the commit.
    async fn trap(&self, trapped: Trapped) -> Box<dyn Obstacle>;

    /// Ends every connection of processes whose label begins so, where there are connections.
    async fn hang_up(&self, label: &str);

    /// Writes something small, as a heartbeat does, where heartbeats write.
    async fn pulse(&self);

    /// Removes the database.
    async fn remove(&self);
}

/// Reads [`Standing`]s by one statement that every database understands.
const STANDINGS: &str = "\
SELECT id, 'outbox' AS place, coalesce(state, 'new') AS detail FROM counterfoil_outbox
UNION ALL
SELECT id, 'parked', code FROM counterfoil_parked WHERE state = 'pending'
UNION ALL
SELECT id, 'history', state FROM counterfoil_history";

fn standing((id, place, detail): (String, String, String)) -> Standing {
    let place = match (place.as_str(), detail.as_str()) {
        ("outbox", _) => Place::Outbox(detail),
        ("parked", _) => Place::Parked(detail),
        (_, "sent") => Place::Sent,
        _ => Place::Ended(detail),
    };
    Standing {
        id: parse(&id),
        place,
    }
}

const FACTS: &str =
    "SELECT id, queue, aggregate, version FROM e2e_facts ORDER BY queue, aggregate, version";

fn fact((id, queue, aggregate, version): (String, String, String, i64)) -> Fact {
    Fact {
        id: parse(&id),
        queue,
        aggregate,
        version,
    }
}

fn parse(id: &str) -> MessageId {
    MessageId::parse(id).unwrap_or_else(|| panic!("{id:?} is not the id of a message"))
}
