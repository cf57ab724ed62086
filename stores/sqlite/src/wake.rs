//! Waking relays after commits of others: SQLite has no message to send, but a number that changes.
//!
//! `PRAGMA data_version` reads a counter in shared memory, which every commit of every process
//! moves. It is looked at twenty times a second while something happens, and four times a second
//! when nothing has happened for a while. Commits of the relay's own process do not wait for it.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::store::{Result, Wake};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnection;

use crate::{SqliteStore, classify, reading};

const INTERVAL: Duration = Duration::from_millis(50);
const IDLE_INTERVAL: Duration = Duration::from_millis(250);
/// So long after the last change it is looked at often.
const LIVELY: Duration = Duration::from_secs(5);

/// Has a connection of its own, because the number tells of the commits of all others.
pub(crate) struct Watch {
    connection: SqliteConnection,
    seen: i64,
    changed: Instant,
}

impl Watch {
    pub(crate) async fn open(store: &SqliteStore) -> Result<Self> {
        let options = reading(store.inner.options.clone());
        let mut connection = options.connect().await.map_err(classify)?;
        let seen = data_version(&mut connection).await?;
        Ok(Self {
            connection,
            seen,
            changed: Instant::now(),
        })
    }
}

#[async_trait]
impl Wake for Watch {
    async fn wait(&mut self) -> Result<()> {
        loop {
            let now = data_version(&mut self.connection).await?;
            if now != self.seen {
                self.seen = now;
                self.changed = Instant::now();
                return Ok(());
            }
            let idle = self.changed.elapsed() > LIVELY;
            tokio::time::sleep(if idle { IDLE_INTERVAL } else { INTERVAL }).await;
        }
    }
}

async fn data_version(connection: &mut SqliteConnection) -> Result<i64> {
    sqlx::query_scalar("PRAGMA data_version")
        .fetch_one(connection)
        .await
        .map_err(classify)
}
