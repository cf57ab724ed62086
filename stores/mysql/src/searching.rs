//! Where there is work, and which lanes can go on.

use std::collections::BTreeMap;

use counterfoil_core::message::Aggregate;
use counterfoil_core::store::{LaneCursor, Occupied, Result, Runnable, Want};
use sqlx::AssertSqlSafe;

use crate::rows::{as_i64, union_all};
use crate::{MysqlStore, classify, text};

/// Queues asked for in one statement.
const QUEUES: usize = 64;

/// A lane in hexadecimal digits, whether it is behind nothing, and if so its shard, type and id.
type Lane = (String, Option<i16>, Option<String>, Option<String>);

impl MysqlStore {
    pub(crate) async fn find_runnable(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        let by_name: BTreeMap<&[u8], usize> = (0..)
            .zip(wants)
            .map(|(place, want)| (want.queue.as_bytes(), place))
            .collect();
        let begin = from.map_or(&b""[..], |cursor| cursor.queue.as_bytes());
        let ahead: Vec<usize> = by_name.range(begin..).map(|(_, place)| *place).collect();
        let mut runnable = Runnable::default();
        let mut left = at_most;
        for some in ahead.chunks(QUEUES) {
            for place in self.with_lanes(wants, some).await? {
                let want = &wants[place];
                let after = from.filter(|c| c.queue == want.queue);
                let lanes = self.lanes_after(want.queue, after, left).await?;
                left = left.saturating_sub(lanes.len());
                let last = lanes.last().map(|lane| lane.0.clone());
                runnable.lanes.extend(lanes.into_iter().filter_map(|lane| {
                    let shard = lane.1?.cast_unsigned();
                    let (kind, id) = (lane.2?, lane.3?);
                    let asked = want.shards.contains(shard);
                    asked.then_some((place, Aggregate { kind, id }))
                }));
                if left == 0 {
                    runnable.next = last.map(|lane| LaneCursor {
                        queue: want.queue.to_owned(),
                        lane,
                    });
                    return Ok(runnable);
                }
            }
        }
        Ok(runnable)
    }

    /// Which of these wants have lanes at all, in the order of `places`.
    async fn with_lanes(&self, wants: &[Want<'_>], places: &[usize]) -> Result<Vec<usize>> {
        let sql = union_all(include_str!("../sql/has_lanes.sql"), places.len());
        let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
        for (n, place) in (0i64..).zip(places) {
            query = query.bind(n).bind(wants[*place].queue.as_bytes());
        }
        let mut found: Vec<i64> = query.fetch_all(self.pool()).await.map_err(classify)?;
        found.sort_unstable();
        let place = |n: i64| usize::try_from(n).ok().and_then(|n| places.get(n)).copied();
        Ok(found.into_iter().filter_map(place).collect())
    }

    async fn lanes_after(
        &self,
        queue: &str,
        after: Option<&LaneCursor>,
        limit: usize,
    ) -> Result<Vec<Lane>> {
        sqlx::query_as(include_str!("../sql/runnable_lanes.sql"))
            .bind(queue.as_bytes())
            .bind(after.map_or("", |cursor| &cursor.lane))
            .bind(as_i64(limit))
            .bind(as_i64(limit))
            .fetch_all(self.pool())
            .await
            .map_err(classify)
    }

    pub(crate) async fn find_occupied(&self) -> Result<Occupied> {
        let found: Vec<(Vec<u8>, i8)> = sqlx::query_as(include_str!("../sql/occupied.sql"))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let mut occupied = Occupied {
            paused: self.paused_queues().await?,
            ..Occupied::default()
        };
        for (queue, waiting) in found {
            let queue = text(&queue);
            match waiting {
                0 => occupied.new.push(queue),
                1 => occupied.due.push(queue),
                2 => {
                    occupied.due.push(queue.clone());
                    occupied.held.push(queue);
                }
                _ => occupied.held.push(queue),
            }
        }
        occupied.due.dedup();
        occupied.held.dedup();
        Ok(occupied)
    }
}
