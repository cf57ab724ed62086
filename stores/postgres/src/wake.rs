//! Waking relays in other processes: `NOTIFY` after commits, `LISTEN` in every relay.
//!
//! Behind a pooler of transactions `LISTEN` would stay on a connection that somebody else gets next,
//! and who does not expect news trips over them. So a relay listens only where the session is its
//! own, or where it is told to ([`PostgresStore::listen_at`]). The channel is tried once when it is
//! opened; a relay that hears nothing falls back to polling and says so.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::store::{Result, StoreError, Wake};
use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::{PostgresStore, classify, settings};

/// The channel: one for each schema would need a name from the server; one for all only wakes.
pub(crate) const CHANNEL: &str = "counterfoil";

pub(crate) struct Listener(PgListener);

impl Listener {
    pub(crate) async fn open(store: &PostgresStore) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(store.direct().clone());
        if !store.listens_elsewhere() && !settings::is_own_session(&pool).await? {
            return Err(StoreError::Unsupported {
                found: "a pooler, behind which LISTEN hears nothing".into(),
                needed: "a direct connection to PostgreSQL (`listen-url`)",
            });
        }
        let mut listener = PgListener::connect_with(&pool).await.map_err(classify)?;
        listener.listen(CHANNEL).await.map_err(classify)?;
        sqlx::query("SELECT pg_notify($1, 'test')")
            .bind(CHANNEL)
            .execute(store.pool())
            .await
            .map_err(classify)?;
        match tokio::time::timeout(Duration::from_secs(2), listener.recv()).await {
            Ok(heard) => heard.map_err(classify)?,
            Err(_) => {
                return Err(StoreError::Unsupported {
                    found: "a connection on which LISTEN hears nothing".into(),
                    needed: "a direct connection to PostgreSQL (`listen-url`)",
                });
            }
        };
        Ok(Self(listener))
    }
}

#[async_trait]
impl Wake for Listener {
    async fn wait(&mut self) -> Result<()> {
        self.0.try_recv().await.map_err(classify)?;
        // What has piled up meanwhile is the same news.
        while let Some(_more) = self.0.next_buffered() {}
        Ok(())
    }
}
