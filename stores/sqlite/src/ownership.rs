//! Who lives, and who owns which queue.
//!
//! # Promise
//! A queue has one owner: the lock beside the file says who, the row in the table says under which
//! fencing number, and settlements compare the row. A process that dies loses its locks at once; its
//! rows stay, and tell the next owner that it died.

use std::sync::Arc;

use counterfoil_core::store::{Owned, RelayId, Result, ShardRef, Survey, Taken};
use serde_json::json;
use sqlx::sqlite::SqliteConnection;

use crate::{SHARDS, SqliteStore, classify};

impl SqliteStore {
    pub(crate) async fn join_relay(&self, relay: &RelayId, queues: &[Arc<str>]) -> Result<()> {
        let mut tx = self.write().await?;
        // The lock first: a row without a lock is a relay that died.
        self.locks().join(relay)?;
        for dead in self.dead_relays(&mut tx).await? {
            sqlx::query("DELETE FROM counterfoil_relays WHERE relay = ?1")
                .bind(dead.as_str())
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
            self.locks().forget(&dead);
        }
        sqlx::query("INSERT OR REPLACE INTO counterfoil_relays (relay, queues) VALUES (?1, ?2)")
            .bind(relay.as_str())
            .bind(json!(queues.iter().map(AsRef::as_ref).collect::<Vec<&str>>()).to_string())
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        tx.commit().await
    }

    pub(crate) async fn survey_queues(&self, queues: &[Arc<str>]) -> Result<Survey> {
        let owned: Vec<(String, i64, String, i64)> = sqlx::query_as(
            "SELECT queue, shard, owner, epoch FROM counterfoil_shards
             WHERE owner IS NOT NULL AND queue IN (SELECT value FROM json_each(?1))",
        )
        .bind(json!(queues.iter().map(AsRef::as_ref).collect::<Vec<&str>>()).to_string())
        .fetch_all(self.reader())
        .await
        .map_err(classify)?;
        let mut survey = Survey {
            members: self.live_relays().await?,
            owned: Vec::with_capacity(owned.len()),
        };
        for (queue, shard, owner, epoch) in owned {
            let owner = RelayId::stored(&owner);
            survey.owned.push(Owned {
                shard: ShardRef {
                    queue: Arc::from(queue),
                    shard: u16::try_from(shard).unwrap_or(u16::MAX),
                },
                epoch,
                alive: self.locks().lives(&owner)?,
                owner,
            });
        }
        Ok(survey)
    }

    pub(crate) async fn take_queues(
        &self,
        relay: &RelayId,
        wanted: &[ShardRef],
    ) -> Result<Vec<Taken>> {
        let mut locked = Vec::new();
        for shard in wanted.iter().filter(|s| s.shard < SHARDS) {
            if let Some(file) = self.locks().try_queue(&shard.queue)? {
                locked.push((shard, file));
            }
        }
        if locked.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.write().await?;
        let mut taken = Vec::with_capacity(locked.len());
        for (shard, _) in &locked {
            taken.push(own(&mut tx, relay, shard).await?);
        }
        tx.commit().await?;
        for (shard, file) in locked {
            self.locks().keep(relay, &shard.queue, file);
        }
        Ok(taken)
    }

    pub(crate) async fn give_queues(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        let mut tx = self.write().await?;
        for shard in given {
            sqlx::query("UPDATE counterfoil_shards SET owner = NULL WHERE queue = ?1 AND shard = ?2 AND owner = ?3")
                .bind(&*shard.queue)
                .bind(i64::from(shard.shard))
                .bind(relay.as_str())
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
        }
        tx.commit().await?;
        // The lock last: whoever gets it finds that the queue was given back, not left behind.
        for shard in given.iter().filter(|s| s.shard < SHARDS) {
            self.locks().release(relay, &shard.queue);
        }
        Ok(())
    }

    pub(crate) async fn leave_relay(&self, relay: &RelayId) -> Result<()> {
        let mut tx = self.write().await?;
        for statement in [
            "UPDATE counterfoil_shards SET owner = NULL WHERE owner = ?1",
            "DELETE FROM counterfoil_relays WHERE relay = ?1",
        ] {
            sqlx::query(statement)
                .bind(relay.as_str())
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
        }
        tx.commit().await?;
        self.locks().leave(relay);
        Ok(())
    }

    /// Relays whose lock is held, and the queues that each can serve.
    pub(crate) async fn live_relays(&self) -> Result<Vec<(RelayId, Vec<Arc<str>>)>> {
        let known: Vec<(String, String)> =
            sqlx::query_as("SELECT relay, queues FROM counterfoil_relays")
                .fetch_all(self.reader())
                .await
                .map_err(classify)?;
        let mut live = Vec::with_capacity(known.len());
        for (relay, queues) in known {
            let relay = RelayId::stored(&relay);
            if self.locks().lives(&relay)? {
                let queues: Vec<String> = serde_json::from_str(&queues).unwrap_or_default();
                live.push((relay, queues.into_iter().map(Arc::from).collect()));
            }
        }
        Ok(live)
    }

    async fn dead_relays(&self, tx: &mut SqliteConnection) -> Result<Vec<RelayId>> {
        let known: Vec<String> = sqlx::query_scalar("SELECT relay FROM counterfoil_relays")
            .fetch_all(tx)
            .await
            .map_err(classify)?;
        let mut dead = Vec::new();
        for relay in known.iter().map(|name| RelayId::stored(name)) {
            if !self.locks().lives(&relay)? {
                dead.push(relay);
            }
        }
        Ok(dead)
    }
}

/// Writes the ownership of a queue whose lock is held: an owner that still stands there has died.
async fn own(tx: &mut SqliteConnection, relay: &RelayId, shard: &ShardRef) -> Result<Taken> {
    let before: Option<Option<String>> =
        sqlx::query_scalar("SELECT owner FROM counterfoil_shards WHERE queue = ?1 AND shard = ?2")
            .bind(&*shard.queue)
            .bind(i64::from(shard.shard))
            .fetch_optional(&mut *tx)
            .await
            .map_err(classify)?;
    let epoch = sqlx::query_scalar(
        "INSERT INTO counterfoil_shards (queue, shard, owner, epoch) VALUES (?1, ?2, ?3, 1)
         ON CONFLICT (queue, shard) DO UPDATE SET owner = excluded.owner, epoch = epoch + 1
         RETURNING epoch",
    )
    .bind(&*shard.queue)
    .bind(i64::from(shard.shard))
    .bind(relay.as_str())
    .fetch_one(&mut *tx)
    .await
    .map_err(classify)?;
    Ok(Taken {
        shard: shard.clone(),
        epoch,
        from_dead: before.flatten().is_some(),
    })
}
