//! Where there is work, and which lanes can go on.

use counterfoil_core::message::Aggregate;
use counterfoil_core::store::{LaneCursor, Occupied, Result, Runnable, Want};

use crate::relay::as_i64;
use crate::{PostgresStore, classify};

/// The columns of `sql/runnable_lanes.sql`.
type Lane = (String, String, bool, bool, i64, String, String);

impl PostgresStore {
    pub(crate) async fn find_runnable(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable> {
        let (queue, lane) = from.map_or(("", ""), |c| (&c.queue, &c.lane));
        let query = sqlx::query_as(include_str!("../sql/runnable_lanes.sql"))
            .bind(wants.iter().map(|w| w.queue).collect::<Vec<_>>())
            .bind(wants.iter().map(|w| w.shards.bits()).collect::<Vec<_>>())
            .bind(queue)
            .bind(lane)
            .bind(as_i64(at_most));
        let found: Vec<Lane> = self
            .looker()
            .with(self.pool(), async |connection| {
                query.fetch_all(connection).await.map_err(classify)
            })
            .await?;
        let mut runnable = Runnable::default();
        for (queue, lane, last, free, want, kind, id) in found {
            let place = usize::try_from(want).ok().and_then(|n| n.checked_sub(1));
            if let Some(place) = place.filter(|_| free) {
                runnable.lanes.push((place, Aggregate { kind, id }));
            }
            if last {
                runnable.next = Some(LaneCursor { queue, lane });
            }
        }
        Ok(runnable)
    }

    pub(crate) async fn find_occupied(&self) -> Result<Occupied> {
        let query = sqlx::query_as(include_str!("../sql/occupied.sql"));
        let found: Vec<(i32, String)> = self
            .looker()
            .with(self.pool(), async |connection| {
                query.fetch_all(connection).await.map_err(classify)
            })
            .await?;
        let mut occupied = Occupied::default();
        for (kind, queue) in found {
            match kind {
                0 => occupied.new.push(queue),
                1 => occupied.due.push(queue),
                2 => occupied.held.push(queue),
                _ => occupied.paused.push(queue),
            }
        }
        Ok(occupied)
    }
}
