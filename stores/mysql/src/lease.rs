//! Ownership: who lives, and who owns which shard under which fencing number.
//!
//! # Promise
//! A shard changes hands only after its owner gave it back or its owner's lease ran out, and its
//! fencing number grows each time. An expired relay is deleted before its shards are taken: the
//! delete waits for a heartbeat that is under way and looks again after it, and a heartbeat that
//! comes after the delete finds nothing to prolong.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::span::micros;
use counterfoil_core::store::{Owned, RelayId, Result, ShardRef, Survey, Taken};

use crate::write::WriteTx;
use crate::{MysqlStore, classify, json, text};

/// Shards by queue, both ascending: the order in which they are locked.
type Shards<'a> = BTreeMap<&'a Arc<str>, Vec<u16>>;

impl MysqlStore {
    pub(crate) async fn add_relay(
        &self,
        relay: &RelayId,
        queues: &[Arc<str>],
        lease: Duration,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO counterfoil_relays (relay, queues, heartbeat_at, lease_until)
             VALUES (?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)",
        )
        .bind(relay.as_str().as_bytes())
        .bind(json(
            &queues.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
        )?)
        .bind(micros(lease))
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(())
    }

    pub(crate) async fn prolong(&self, relay: &RelayId, lease: Duration) -> Result<bool> {
        let mut heart = self.inner.heart.lock().await;
        let mut connection = match heart.take() {
            Some(connection) => connection,
            None => self.open().await?,
        };
        let done = sqlx::query(
            "UPDATE counterfoil_relays
             SET heartbeat_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
             WHERE relay = ? AND lease_until > UTC_TIMESTAMP(6)",
        )
        .bind(micros(lease))
        .bind(relay.as_str().as_bytes())
        .execute(&mut connection)
        .await
        .map_err(classify)?;
        *heart = Some(connection);
        Ok(done.rows_affected() == 1)
    }

    pub(crate) async fn look_around(&self, queues: &[Arc<str>]) -> Result<Survey> {
        let members = self.live_relays().await?;
        type Row = (Vec<u8>, i16, Vec<u8>, i64, i64);
        let owned: Vec<Row> = sqlx::query_as(
            "SELECT s.queue, s.shard, s.owner, s.epoch, COALESCE(r.lease_until > UTC_TIMESTAMP(6), 0)
             FROM counterfoil_shards s LEFT JOIN counterfoil_relays r ON r.relay = s.owner
             WHERE s.owner IS NOT NULL",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let asked: HashSet<&[u8]> = queues.iter().map(|q| q.as_bytes()).collect();
        let owned = owned.into_iter().filter(|o| asked.contains(o.0.as_slice()));
        Ok(Survey {
            members: members
                .into_iter()
                .map(|(relay, queues)| {
                    (
                        RelayId::stored(&relay),
                        queues.into_iter().map(Arc::from).collect(),
                    )
                })
                .collect(),
            owned: owned
                .map(|(queue, shard, owner, epoch, alive)| Owned {
                    shard: ShardRef {
                        queue: Arc::from(text(&queue)),
                        shard: shard.cast_unsigned(),
                    },
                    owner: RelayId::stored(&text(&owner)),
                    epoch,
                    alive: alive != 0,
                })
                .collect(),
        })
    }

    pub(crate) async fn live_names(&self) -> Result<Vec<RelayId>> {
        let rows: Vec<(Vec<u8>,)> = sqlx::query_as(
            "SELECT relay FROM counterfoil_relays WHERE lease_until > UTC_TIMESTAMP(6)",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        Ok(rows.iter().map(|r| RelayId::stored(&text(&r.0))).collect())
    }

    /// Names of relays whose lease runs, and the queues that each can serve.
    pub(crate) async fn live_relays(&self) -> Result<Vec<(String, Vec<String>)>> {
        let rows: Vec<(Vec<u8>, String)> = sqlx::query_as(
            "SELECT relay, queues FROM counterfoil_relays WHERE lease_until > UTC_TIMESTAMP(6)",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let queues = |stored: &str| serde_json::from_str(stored).unwrap_or_default();
        Ok(rows
            .into_iter()
            .map(|(relay, stored)| (text(&relay), queues(&stored)))
            .collect())
    }

    pub(crate) async fn take_shards(
        &self,
        relay: &RelayId,
        wanted: &[ShardRef],
    ) -> Result<Vec<Taken>> {
        let wanted = by_queue(wanted);
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        self.forget_expired().await?;
        self.add_missing(&wanted).await?;
        let mut tx = self.begin().await?;
        let mut taken = Vec::new();
        for (queue, shards) in &wanted {
            taken.extend(take(&mut tx, relay, queue, shards).await?);
        }
        tx.commit().await?;
        Ok(taken)
    }

    /// One by one and by key: nobody's heartbeat waits for another's.
    async fn forget_expired(&self) -> Result<()> {
        let expired: Vec<(Vec<u8>,)> = sqlx::query_as(
            "SELECT relay FROM counterfoil_relays WHERE lease_until < UTC_TIMESTAMP(6)",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        for (relay,) in expired {
            sqlx::query(
                "DELETE FROM counterfoil_relays WHERE relay = ? AND lease_until < UTC_TIMESTAMP(6)",
            )
            .bind(relay)
            .execute(self.pool())
            .await
            .map_err(classify)?;
        }
        Ok(())
    }

    /// Only what is not there yet: an insert over an existing row would wait for settlements.
    async fn add_missing(&self, wanted: &Shards<'_>) -> Result<()> {
        let there: Vec<(Vec<u8>, i16)> =
            sqlx::query_as("SELECT queue, shard FROM counterfoil_shards")
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        let there: HashSet<(&[u8], u16)> = there
            .iter()
            .map(|(q, s)| (q.as_slice(), s.cast_unsigned()))
            .collect();
        for (queue, shards) in wanted {
            let missing: Vec<u16> = shards
                .iter()
                .copied()
                .filter(|s| !there.contains(&(queue.as_bytes(), *s)))
                .collect();
            if missing.is_empty() {
                continue;
            }
            sqlx::query(
                "INSERT INTO counterfoil_shards (queue, shard)
                 SELECT ?, j.shard FROM JSON_TABLE(?, '$[*]' COLUMNS (shard SMALLINT PATH '$')) j ORDER BY j.shard
                 ON DUPLICATE KEY UPDATE epoch = counterfoil_shards.epoch",
            )
            .bind(queue.as_bytes())
            .bind(json(&missing)?)
            .execute(self.pool())
            .await
            .map_err(classify)?;
        }
        Ok(())
    }

    pub(crate) async fn give_shards(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        for (queue, shards) in by_queue(given) {
            sqlx::query(include_str!("../sql/give.sql"))
                .bind(json(&shards)?)
                .bind(queue.as_bytes())
                .bind(relay.as_str().as_bytes())
                .execute(self.pool())
                .await
                .map_err(classify)?;
        }
        Ok(())
    }

    pub(crate) async fn remove_relay(&self, relay: &RelayId) -> Result<()> {
        let owned: Vec<(Vec<u8>, i16)> =
            sqlx::query_as("SELECT queue, shard FROM counterfoil_shards WHERE owner = ?")
                .bind(relay.as_str().as_bytes())
                .fetch_all(self.pool())
                .await
                .map_err(classify)?;
        let owned: Vec<ShardRef> = owned
            .into_iter()
            .map(|(queue, shard)| ShardRef {
                queue: Arc::from(text(&queue)),
                shard: shard.cast_unsigned(),
            })
            .collect();
        self.give_shards(relay, &owned).await?;
        sqlx::query("DELETE FROM counterfoil_relays WHERE relay = ?")
            .bind(relay.as_str().as_bytes())
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(())
    }
}

/// Takes what is free among the shards of one queue that nobody is using just now.
async fn take(
    tx: &mut WriteTx,
    relay: &RelayId,
    queue: &Arc<str>,
    shards: &[u16],
) -> Result<Vec<Taken>> {
    let locked: Vec<(i16, Option<Vec<u8>>, i64)> =
        sqlx::query_as(include_str!("../sql/take_lock.sql"))
            .bind(json(&shards)?)
            .bind(queue.as_bytes())
            .fetch_all(&mut **tx)
            .await
            .map_err(classify)?;
    let living = living(tx).await?;
    let taken: Vec<Taken> = locked
        .into_iter()
        .filter(|(_, owner, _)| owner.as_ref().is_none_or(|o| !living.contains(o)))
        .map(|(shard, owner, epoch)| Taken {
            shard: ShardRef {
                queue: Arc::clone(queue),
                shard: shard.cast_unsigned(),
            },
            epoch: epoch + 1,
            from_dead: owner.is_some(),
        })
        .collect();
    if !taken.is_empty() {
        sqlx::query(include_str!("../sql/take.sql"))
            .bind(json(
                &taken.iter().map(|t| t.shard.shard).collect::<Vec<_>>(),
            )?)
            .bind(queue.as_bytes())
            .bind(relay.as_str().as_bytes())
            .execute(&mut **tx)
            .await
            .map_err(classify)?;
    }
    Ok(taken)
}

/// Read after the locks: whoever took one of these shards had joined before, and is seen.
async fn living(tx: &mut WriteTx) -> Result<HashSet<Vec<u8>>> {
    let relays: Vec<(Vec<u8>,)> = sqlx::query_as("SELECT relay FROM counterfoil_relays")
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(relays.into_iter().map(|r| r.0).collect())
}

fn by_queue(shards: &[ShardRef]) -> Shards<'_> {
    let mut sorted = Shards::new();
    for s in shards {
        sorted.entry(&s.queue).or_default().push(s.shard);
    }
    for list in sorted.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    sorted
}
