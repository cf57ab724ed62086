//! The engine's side: ownership, reading, settling.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::fit::{self, Found};
use counterfoil_core::message::Aggregate;
use counterfoil_core::presence::ConsumerReport;
use counterfoil_core::row::RowKey;
use counterfoil_core::schema;
use counterfoil_core::span::millis;
use counterfoil_core::store::{
    Enqueued, Fence, Held, Kept, Keyed, LaneCursor, Occupied, Owned, Park, Read, RelayId, Remember,
    Result, Retention, Retry, Runnable, Settled, Settlement, ShardRef, ShardSet, Store, StoreError,
    Survey, Taken, Waiting, Wake, Want,
};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{ConnectOptions, Connection, Postgres, Row, Transaction};

use crate::{MIGRATIONS, PostgresStore, SHARDS, classify, enqueue, rows, wake};

/// How long to wait for connections in use when the store is closed.
const CLOSING: Duration = Duration::from_secs(10);

#[async_trait]
impl Store for PostgresStore {
    fn describe(&self) -> String {
        let options = self.options();
        let database = options.get_database().unwrap_or("?");
        format!(
            "PostgreSQL at {}:{}/{database}",
            options.get_host(),
            options.get_port()
        )
    }

    fn shards(&self) -> u16 {
        SHARDS
    }

    fn hang_up(&self) {
        self.inner.trust.hang_up();
    }

    async fn check(&self) -> Result<()> {
        self.check_server().await?;
        schema::judge(MIGRATIONS, self.applied().await?)?;
        self.warn_about_durability().await
    }

    async fn migrate(&self) -> Result<()> {
        self.run_migrations().await
    }

    async fn join(&self, relay: &RelayId, queues: &[Arc<str>], lease: Duration) -> Result<()> {
        sqlx::query(
            "INSERT INTO counterfoil_relays (relay, queues, heartbeat_at, lease_until)
             VALUES ($1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 millisecond')",
        )
        .bind(relay.as_str())
        .bind(names(queues))
        .bind(millis(lease))
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(())
    }

    async fn heartbeat(&self, relay: &RelayId, lease: Duration) -> Result<bool> {
        let mut heart = self.inner.heart.lock().await;
        let mut connection = match heart.take() {
            Some(connection) => connection,
            None => self.options().connect().await.map_err(classify)?,
        };
        let done = sqlx::query(
            "UPDATE counterfoil_relays
             SET heartbeat_at = clock_timestamp(), lease_until = clock_timestamp() + $2 * interval '1 millisecond'
             WHERE relay = $1 AND lease_until > clock_timestamp()",
        )
        .bind(relay.as_str())
        .bind(millis(lease))
        .execute(&mut connection)
        .await
        .map_err(classify)?;
        *heart = Some(connection);
        Ok(done.rows_affected() == 1)
    }

    async fn survey(&self, _relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey> {
        let members: Vec<(String, Vec<String>)> = sqlx::query_as(
            "SELECT relay, queues FROM counterfoil_relays WHERE lease_until > clock_timestamp()",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let owned: Vec<(String, i16, String, i64, bool)> = sqlx::query_as(
            "SELECT s.queue, s.shard, s.owner, s.epoch, coalesce(r.lease_until > clock_timestamp(), false)
             FROM counterfoil_shards s LEFT JOIN counterfoil_relays r ON r.relay = s.owner
             WHERE s.queue = ANY ($1) AND s.owner IS NOT NULL",
        )
        .bind(names(queues))
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let named = |queue: String, shard: i16| ShardRef {
            queue: Arc::from(queue),
            shard: shard.cast_unsigned(),
        };
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
                .into_iter()
                .map(|(queue, shard, owner, epoch, alive)| Owned {
                    shard: named(queue, shard),
                    owner: RelayId::stored(&owner),
                    epoch,
                    alive,
                })
                .collect(),
        })
    }

    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()> {
        self.note_consumer(report).await
    }

    async fn forget_consumer(&self, member: &RelayId) -> Result<()> {
        self.drop_consumer(member).await
    }

    async fn members(&self) -> Result<Vec<RelayId>> {
        let members: Vec<(String,)> = sqlx::query_as(
            "SELECT relay FROM counterfoil_relays WHERE lease_until > clock_timestamp()",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        Ok(members.iter().map(|m| RelayId::stored(&m.0)).collect())
    }

    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        // The delete waits for a heartbeat that is under way, and looks again after it.
        sqlx::query("DELETE FROM counterfoil_relays WHERE lease_until < clock_timestamp()")
            .execute(self.pool())
            .await
            .map_err(classify)?;
        let (queues, shards) = pairs(wanted);
        let mut tx = self.begin().await?;
        sqlx::query(
            "INSERT INTO counterfoil_shards (queue, shard)
             SELECT * FROM unnest($1::text[], $2::smallint[]) ORDER BY 1, 2 ON CONFLICT DO NOTHING",
        )
        .bind(&queues)
        .bind(&shards)
        .execute(&mut *tx)
        .await
        .map_err(classify)?;
        let locked: Vec<(String, i16)> = sqlx::query_as(include_str!("../sql/take_lock.sql"))
            .bind(&queues)
            .bind(&shards)
            .fetch_all(&mut *tx)
            .await
            .map_err(classify)?;
        let (queues, shards): (Vec<String>, Vec<i16>) = locked.into_iter().unzip();
        let taken: Vec<(String, i16, i64, bool)> = sqlx::query_as(include_str!("../sql/take.sql"))
            .bind(relay.as_str())
            .bind(&queues)
            .bind(&shards)
            .fetch_all(&mut *tx)
            .await
            .map_err(classify)?;
        tx.commit().await.map_err(classify)?;
        Ok(taken
            .into_iter()
            .map(|(queue, shard, epoch, from_dead)| Taken {
                shard: ShardRef {
                    queue: Arc::from(queue),
                    shard: shard.cast_unsigned(),
                },
                epoch,
                from_dead,
            })
            .collect())
    }

    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()> {
        let (queues, shards) = pairs(given);
        sqlx::query(
            "UPDATE counterfoil_shards s SET owner = NULL
             FROM unnest($2::text[], $3::smallint[]) AS g (queue, shard)
             WHERE s.queue = g.queue AND s.shard = g.shard AND s.owner = $1",
        )
        .bind(relay.as_str())
        .bind(queues)
        .bind(shards)
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(())
    }

    async fn leave(&self, relay: &RelayId) -> Result<()> {
        let mut tx = self.begin().await?;
        for statement in [
            "UPDATE counterfoil_shards SET owner = NULL WHERE owner = $1",
            "DELETE FROM counterfoil_relays WHERE relay = $1",
        ] {
            sqlx::query(statement)
                .bind(relay.as_str())
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
        }
        tx.commit().await.map_err(classify)
    }

    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read> {
        let query = sqlx::query(include_str!("../sql/read.sql"))
            .bind(wants.iter().map(|w| w.queue).collect::<Vec<_>>())
            .bind(wants.iter().map(|w| w.shards.bits()).collect::<Vec<_>>())
            .bind(wants.iter().map(|w| w.after).collect::<Vec<_>>())
            .bind(limits(wants))
            .bind(skip)
            .bind(shares(wants));
        self.reader()
            .with(self.pool(), async |connection| {
                let found = query.fetch(&mut *connection);
                let sorted = rows::by_want(found, wants).await.map_err(classify)?;
                let horizon = sorted.horizon;
                let (rows, reach) = rows::bring(connection, sorted, wants)
                    .await
                    .map_err(classify)?;
                Ok(Read {
                    rows,
                    reach,
                    horizon,
                })
            })
            .await
    }

    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting> {
        let mut connection = self.pool().acquire().await.map_err(classify)?;
        let found = sqlx::query(include_str!("../sql/read_waiting.sql"))
            .bind(wants.iter().map(|w| w.queue).collect::<Vec<_>>())
            .bind(wants.iter().map(|w| w.shards.bits()).collect::<Vec<_>>())
            .bind(limits(wants))
            .bind(skip)
            .bind(shares(wants))
            .fetch(&mut *connection);
        let due = rows::by_want(found, wants).await.map_err(classify)?;
        let (rows, _) = rows::bring(&mut connection, due, wants)
            .await
            .map_err(classify)?;
        let paused: Vec<(String,)> =
            sqlx::query_as("SELECT queue FROM counterfoil_queues WHERE paused_at IS NOT NULL")
                .fetch_all(&mut *connection)
                .await
                .map_err(classify)?;
        Ok(Waiting {
            rows,
            paused: paused.into_iter().map(|p| p.0).collect(),
        })
    }

    async fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held> {
        let limit = per_lane.saturating_mul(lanes.len());
        let mut connection = self.pool().acquire().await.map_err(classify)?;
        let found: Vec<PgRow> = sqlx::query(include_str!("../sql/read_lanes.sql"))
            .bind(queue)
            .bind(lanes.iter().map(|a| a.kind.as_str()).collect::<Vec<_>>())
            .bind(lanes.iter().map(|a| a.id.as_str()).collect::<Vec<_>>())
            .bind(as_i64(per_lane))
            .bind(fit::share(bytes, limit))
            .fetch_all(&mut *connection)
            .await
            .map_err(classify)?;
        let found: Vec<Found> = found
            .iter()
            .filter_map(|row| rows::decode(row).map(|r| r.row).transpose())
            .collect::<sqlx::Result<_>>()
            .map_err(classify)?;
        let fit = fit::fit(found, bytes);
        let cut = fit.cut;
        let rows = rows::fill(&mut connection, fit).await.map_err(classify)?;
        Ok(Held { rows, cut })
    }

    async fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        self.find_runnable(wants, from, at_most).await
    }

    async fn occupied(&self) -> Result<Occupied> {
        self.find_occupied().await
    }

    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>> {
        let mut tx = self.begin().await?;
        let (held, _) = lock_fence(&mut tx, fence).await?;
        let shards: Vec<i16> = held.iter().map(u16::cast_signed).collect();
        let crashes: Option<(i32,)> = sqlx::query_as(
            "UPDATE counterfoil_outbox SET crashes = least(greatest(crashes, 0), 2147483646) + 1
             WHERE seq = $1 AND id IS NOT DISTINCT FROM $3 AND shard = ANY ($2) RETURNING crashes",
        )
        .bind(row.seq)
        .bind(shards)
        .bind(row.column())
        .fetch_optional(&mut *tx)
        .await
        .map_err(classify)?;
        tx.commit().await.map_err(classify)?;
        Ok(crashes.map(|(n,)| n.cast_unsigned()))
    }

    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        if settlement.only_sent() {
            return self.settle_sent(fence, settlement).await;
        }
        let mut tx = self.begin().await?;
        let (held, stamp) = lock_fence(&mut tx, fence).await?;
        let ours = settlement.restrict(held);
        if !ours.sent.is_empty() {
            settle_sent(&mut tx, fence, &ours).await?;
        }
        reschedule(&mut tx, fence, &ours.retry).await?;
        move_to(&mut tx, "held", &ours.hold).await?;
        move_to(&mut tx, "scheduled", &ours.schedule).await?;
        defer(&mut tx, &ours.defer).await?;
        park(&mut tx, fence, &ours.park).await?;
        reroute(&mut tx, fence, &ours).await?;
        tx.commit().await.map_err(classify)?;
        Ok(Settled {
            lost: lost(fence, held),
            stamp: Some(stamp),
        })
    }

    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>> {
        let mut connection = self.pool().acquire().await.map_err(classify)?;
        enqueue::insert_batch(&mut connection, messages).await
    }

    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>> {
        if !unavailable {
            sqlx::query("UPDATE counterfoil_queues SET unavailable_since = NULL WHERE queue = $1")
                .bind(queue)
                .execute(self.pool())
                .await
                .map_err(classify)?;
            return Ok(None);
        }
        let (seconds,): (f64,) = sqlx::query_as(
            "INSERT INTO counterfoil_queues AS q (queue, unavailable_since) VALUES ($1, clock_timestamp())
             ON CONFLICT (queue) DO UPDATE
             SET unavailable_since = coalesce(q.unavailable_since, excluded.unavailable_since)
             RETURNING extract(epoch FROM clock_timestamp() - unavailable_since)::float8",
        )
        .bind(queue)
        .fetch_one(self.pool())
        .await
        .map_err(classify)?;
        Ok(Some(Duration::from_secs_f64(seconds.max(0.0))))
    }

    async fn breakers(&self) -> Result<Vec<Kept>> {
        self.kept_breakers().await
    }

    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        self.keep_breaker(destination, what).await
    }

    async fn look_again(&self, limit: u32) -> Result<u64> {
        let done = sqlx::query(include_str!("../sql/look_again.sql"))
            .bind(i64::from(limit))
            .execute(self.pool())
            .await
            .map_err(classify)?;
        Ok(done.rows_affected())
    }

    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()> {
        // Events of queues have the number zero.
        sqlx::query(
            "WITH done AS (
                 INSERT INTO counterfoil_queues AS q (queue, paused_at, paused_reason, paused_by)
                 VALUES ($1, now(), $2, $3)
                 ON CONFLICT (queue) DO UPDATE
                 SET paused_at = excluded.paused_at, paused_reason = excluded.paused_reason, paused_by = excluded.paused_by
                 WHERE q.paused_at IS NULL
                 RETURNING q.queue)
             INSERT INTO counterfoil_events (seq, id, kind, detail, actor) SELECT 0, queue, 'paused', $2, $3 FROM done",
        )
        .bind(queue)
        .bind(reason)
        .bind(by)
        .execute(self.pool())
        .await
        .map_err(classify)?;
        Ok(())
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64> {
        let (removed,): (i64,) = sqlx::query_as(include_str!("../sql/sweep.sql"))
            .bind(retention.history.as_secs_f64())
            .bind(retention.ledger.as_secs_f64())
            .bind(i64::from(retention.batch))
            .bind(retention.parked.as_secs_f64())
            .fetch_one(self.pool())
            .await
            .map_err(classify)?;
        Ok(removed.cast_unsigned())
    }

    async fn announce(&self) -> Result<()> {
        let mut voice = self.inner.voice.lock().await;
        let mut connection = match voice.take() {
            Some(connection) => connection,
            None => self.options().connect().await.map_err(classify)?,
        };
        sqlx::query("SELECT pg_notify($1, '')")
            .bind(wake::CHANNEL)
            .execute(&mut connection)
            .await
            .map_err(classify)?;
        *voice = Some(connection);
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Wake>>> {
        Ok(Some(Box::new(wake::Listener::open(self).await?)))
    }
}

impl PostgresStore {
    /// The common case: one statement, one round trip.
    async fn settle_sent(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled> {
        let (held, stamp) = self
            .settler()
            .with(self.pool(), async |connection| {
                settle_sent(connection, fence, settlement).await
            })
            .await?;
        Ok(Settled {
            lost: lost(fence, held),
            stamp: Some(stamp),
        })
    }
}

async fn settle_sent(
    connection: &mut PgConnection,
    fence: &Fence,
    s: &Settlement,
) -> Result<(ShardSet, u64)> {
    let sql = match s {
        s if s.keep_sent => include_str!("../sql/settle_sent_keep.sql"),
        s if s.fresh => include_str!("../sql/settle_fresh.sql"),
        _ => include_str!("../sql/settle_sent.sql"),
    };
    let row = bind_fence(sqlx::query(sql), fence)
        .bind(numbers(&s.sent))
        .bind(columns(&s.sent))
        .fetch_one(connection)
        .await
        .map_err(classify)?;
    held_and_stamp(&row)
}

async fn lock_fence(tx: &mut Transaction<'_, Postgres>, fence: &Fence) -> Result<(ShardSet, u64)> {
    let query = bind_fence(sqlx::query(include_str!("../sql/fence.sql")), fence);
    let row = query.fetch_one(&mut **tx).await.map_err(classify)?;
    held_and_stamp(&row)
}

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn bind_fence<'q>(query: Query<'q>, fence: &'q Fence) -> Query<'q> {
    query
        .bind(&*fence.queue)
        .bind(fence.relay.as_str())
        .bind(
            fence
                .shards
                .iter()
                .map(|s| s.0.cast_signed())
                .collect::<Vec<_>>(),
        )
        .bind(fence.shards.iter().map(|s| s.1).collect::<Vec<_>>())
}

fn held_and_stamp(row: &PgRow) -> Result<(ShardSet, u64)> {
    let held: Vec<i16> = row.try_get(0).map_err(classify)?;
    let stamp: i64 = row.try_get(1).map_err(classify)?;
    Ok((
        held.into_iter().map(i16::cast_unsigned).collect(),
        stamp.cast_unsigned(),
    ))
}

fn lost(fence: &Fence, held: ShardSet) -> Vec<u16> {
    fence
        .shards
        .iter()
        .map(|s| s.0)
        .filter(|s| !held.contains(*s))
        .collect()
}

async fn reschedule(
    tx: &mut Transaction<'_, Postgres>,
    fence: &Fence,
    retry: &[Retry],
) -> Result<()> {
    if retry.is_empty() {
        return Ok(());
    }
    sqlx::query(include_str!("../sql/retry.sql"))
        .bind(numbers(retry.iter().map(|r| &r.row)))
        .bind(retry.iter().map(|r| millis(r.delay)).collect::<Vec<_>>())
        .bind(retry.iter().map(|r| count(r.attempts)).collect::<Vec<_>>())
        .bind(retry.iter().map(|r| r.code.as_str()).collect::<Vec<_>>())
        .bind(retry.iter().map(|r| clean(&r.error)).collect::<Vec<_>>())
        .bind(messages(retry.iter().map(|r| &r.row)))
        .bind(fence.relay.as_str())
        .bind(columns(retry.iter().map(|r| &r.row)))
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

async fn move_to(tx: &mut Transaction<'_, Postgres>, state: &str, rows: &[RowKey]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE counterfoil_outbox o
         SET state = $1
         FROM unnest($2::bigint[], $3::text[]) AS r (seq, id)
         WHERE o.seq = r.seq AND o.id IS NOT DISTINCT FROM r.id",
    )
    .bind(state)
    .bind(numbers(rows))
    .bind(columns(rows))
    .execute(&mut **tx)
    .await
    .map_err(classify)?;
    Ok(())
}

async fn defer(tx: &mut Transaction<'_, Postgres>, rows: &[(RowKey, Duration)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE counterfoil_outbox o
         SET state = 'scheduled', code = 'NO_ROUTE',
             available_at = clock_timestamp() + d.delay * interval '1 millisecond'
         FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS d (seq, delay, id)
         WHERE o.seq = d.seq AND o.id IS NOT DISTINCT FROM d.id",
    )
    .bind(numbers(rows.iter().map(|r| &r.0)))
    .bind(rows.iter().map(|r| millis(r.1)).collect::<Vec<_>>())
    .bind(columns(rows.iter().map(|r| &r.0)))
    .execute(&mut **tx)
    .await
    .map_err(classify)?;
    Ok(())
}

async fn park(tx: &mut Transaction<'_, Postgres>, fence: &Fence, park: &[Park]) -> Result<()> {
    if park.is_empty() {
        return Ok(());
    }
    let parked: Vec<i64> = sqlx::query_scalar(include_str!("../sql/park.sql"))
        .bind(numbers(park.iter().map(|p| &p.row)))
        .bind(messages(park.iter().map(|p| &p.row)))
        .bind(park.iter().map(|p| count(p.attempts)).collect::<Vec<_>>())
        .bind(park.iter().map(|p| p.code.as_str()).collect::<Vec<_>>())
        .bind(park.iter().map(|p| clean(&p.error)).collect::<Vec<_>>())
        .bind(park.iter().map(|p| p.hold).collect::<Vec<_>>())
        .bind(park.iter().map(|p| p.confirm).collect::<Vec<_>>())
        .bind(fence.relay.as_str())
        .bind(columns(park.iter().map(|p| &p.row)))
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    for (place, park) in (1i64..).zip(park) {
        // What was cancelled meanwhile is not parked, and not compensated.
        if let Some(keyed) = park.keyed_follow_up()
            && parked.contains(&place)
        {
            enqueue::insert_keyed(&mut *tx, &keyed).await?;
        }
    }
    Ok(())
}

async fn reroute(tx: &mut Transaction<'_, Postgres>, fence: &Fence, s: &Settlement) -> Result<()> {
    let copies = || {
        s.reroute
            .iter()
            .flat_map(|r| r.copies.iter().map(move |c| (&r.row, c)))
    };
    if s.reroute.is_empty() {
        return Ok(());
    }
    sqlx::query(include_str!("../sql/reroute.sql"))
        .bind(numbers(copies().map(|(row, _)| row)))
        .bind(copies().map(|(_, c)| c.0.to_string()).collect::<Vec<_>>())
        .bind(copies().map(|(_, c)| c.1.clone()).collect::<Vec<_>>())
        .bind(columns(copies().map(|(row, _)| row)))
        .bind(fence.relay.as_str())
        .execute(&mut **tx)
        .await
        .map_err(classify)?;
    Ok(())
}

fn numbers<'a>(rows: impl IntoIterator<Item = &'a RowKey>) -> Vec<i64> {
    rows.into_iter().map(|row| row.seq).collect()
}

/// The ids as they stand in the table.
fn columns<'a>(rows: impl IntoIterator<Item = &'a RowKey>) -> Vec<Option<Cow<'a, str>>> {
    rows.into_iter().map(RowKey::column).collect()
}

/// The ids of the messages.
fn messages<'a>(rows: impl IntoIterator<Item = &'a RowKey>) -> Vec<String> {
    rows.into_iter().map(|row| row.id.to_string()).collect()
}

/// PostgreSQL has no NUL in texts, and an error message may hold anything.
pub(crate) fn clean(error: &str) -> String {
    error.replace('\0', " ")
}

/// A writer may have left any number; ours stop at what the column holds.
fn count(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

fn names(queues: &[Arc<str>]) -> Vec<&str> {
    queues.iter().map(AsRef::as_ref).collect()
}

fn pairs(shards: &[ShardRef]) -> (Vec<String>, Vec<i16>) {
    shards
        .iter()
        .map(|s| (s.queue.to_string(), s.shard.cast_signed()))
        .unzip()
}

fn limits(wants: &[Want<'_>]) -> Vec<i64> {
    wants.iter().map(|w| as_i64(w.limit)).collect()
}

fn shares(wants: &[Want<'_>]) -> Vec<i64> {
    let share = |w: &Want<'_>| fit::share(w.bytes, w.limit);
    wants.iter().map(share).collect()
}

pub(crate) fn as_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl PostgresStore {
    /// Closes every connection.
    pub async fn close(&self) {
        for slot in [&self.inner.heart, &self.inner.voice] {
            if let Some(connection) = slot.lock().await.take() {
                // The server notices a broken connection by itself.
                let _ = connection.close().await;
            }
        }
        // From here on the pool lends nothing, and waits for what it has lent.
        let closing = self.inner.pool.close();
        for kept in [self.reader(), self.settler(), self.looker()] {
            // Work that fails sends the connection that was kept back to the pool.
            let work = async |_: &mut PgConnection| Err(StoreError::Doomed("closed".into()));
            let _: Result<()> = kept.with(self.pool(), work).await;
        }
        // A connection that has fallen silent never comes back.
        let _ = tokio::time::timeout(CLOSING, closing).await;
    }
}
