//! A relay for tests: owns shards, reads and settles by single calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::message::Aggregate;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{
    Fence, RelayId, Settled, Settlement, ShardRef, ShardSet, Store, Taken, Want,
};

use crate::fixture::{LATER, LEASE, PLENTY, keys, park, retry};

/// A relay as the engine would be one, without any loop.
pub struct Relay {
    /// Its handle on the store.
    pub store: Arc<dyn Store>,
    /// Its name.
    pub id: RelayId,
    /// The queues that it serves.
    pub queues: Vec<Arc<str>>,
    /// What it believes to own, and under which fencing numbers.
    pub epochs: BTreeMap<ShardRef, i64>,
}

impl Relay {
    /// Announces a relay that serves these queues and owns nothing.
    pub async fn join(store: Arc<dyn Store>, queues: &[&str]) -> Self {
        let id = RelayId::new("suite");
        let queues: Vec<Arc<str>> = queues.iter().map(|q| Arc::from(*q)).collect();
        store.join(&id, &queues, LEASE).await.unwrap();
        Self {
            store,
            id,
            queues,
            epochs: BTreeMap::new(),
        }
    }

    /// Every shard of its queues.
    pub fn every_shard(&self) -> Vec<ShardRef> {
        let shards = self.store.shards();
        self.queues
            .iter()
            .flat_map(|queue| {
                (0..shards).map(|shard| ShardRef {
                    queue: Arc::clone(queue),
                    shard,
                })
            })
            .collect()
    }

    /// Tries to take every shard of its queues.
    pub async fn take_all(&mut self) -> Vec<Taken> {
        self.take(&self.every_shard()).await
    }

    /// Tries to take these shards.
    pub async fn take(&mut self, wanted: &[ShardRef]) -> Vec<Taken> {
        let taken = self.store.take(&self.id, wanted).await.unwrap();
        for t in &taken {
            self.epochs.insert(t.shard.clone(), t.epoch);
        }
        taken
    }

    /// Gives these shards back, and keeps believing in the old fencing numbers.
    pub async fn give(&self, given: &[ShardRef]) {
        self.store.give(&self.id, given).await.unwrap();
    }

    /// The shards of a queue that it believes to own.
    pub fn shards(&self, queue: &str) -> ShardSet {
        self.epochs
            .keys()
            .filter(|s| &*s.queue == queue)
            .map(|s| s.shard)
            .collect()
    }

    /// A request for everything in a queue.
    pub fn want<'a>(&self, queue: &'a str) -> Want<'a> {
        Want {
            queue,
            shards: self.shards(queue),
            after: 0,
            limit: 1_000,
            bytes: PLENTY,
        }
    }

    /// Reads everything that nobody has put aside.
    pub async fn read(&self, queue: &str) -> Vec<RawRow> {
        let mut read = self.store.read(&[self.want(queue)], &[]).await.unwrap();
        assert_eq!(read.rows.len(), 1, "one list for each want");
        read.rows.remove(0)
    }

    /// Reads retries and scheduled rows whose time has come.
    pub async fn waiting(&self, queue: &str) -> Vec<RawRow> {
        let mut read = self
            .store
            .read_waiting(&[self.want(queue)], &[])
            .await
            .unwrap();
        assert_eq!(read.rows.len(), 1, "one list for each want");
        read.rows.remove(0)
    }

    /// Lanes with held rows that nothing holds back, sorted.
    pub async fn runnable(&self, queue: &str) -> Vec<Aggregate> {
        let wants = [self.want(queue)];
        let found = self.store.runnable_lanes(&wants, None, 1_000).await;
        let mut lanes: Vec<_> = found.unwrap().lanes.into_iter().map(|l| l.1).collect();
        lanes.sort();
        lanes
    }

    /// The held rows of one lane, unless something blocks it.
    pub async fn lane(&self, queue: &str, lane: &Aggregate) -> Vec<RawRow> {
        self.store
            .read_lanes(queue, std::slice::from_ref(lane), 1_000, PLENTY)
            .await
            .unwrap()
            .rows
    }

    /// Everything that can be delivered now, by whichever way it comes.
    pub async fn everything(&self, queue: &str) -> Vec<RawRow> {
        let mut rows = self.read(queue).await;
        rows.extend(self.waiting(queue).await);
        let lanes = self.runnable(queue).await;
        let held = self.store.read_lanes(queue, &lanes, 1_000, PLENTY).await;
        rows.extend(held.unwrap().rows);
        rows.sort_by_key(|r| r.seq);
        rows
    }

    /// The fence over everything that it believes to own in a queue.
    pub fn fence(&self, queue: &str) -> Fence {
        Fence {
            relay: self.id.clone(),
            queue: Arc::from(queue),
            shards: self
                .epochs
                .iter()
                .filter(|(s, _)| &*s.queue == queue)
                .map(|(s, epoch)| (s.shard, *epoch))
                .collect(),
        }
    }

    /// Settles, and tells what was lost.
    pub async fn try_settle(&self, queue: &str, settlement: &Settlement) -> Settled {
        self.store
            .settle(&self.fence(queue), settlement)
            .await
            .unwrap()
    }

    /// Settles, and loses nothing.
    pub async fn settle(&self, queue: &str, settlement: &Settlement) -> Settled {
        let settled = self.try_settle(queue, settlement).await;
        assert_eq!(settled.lost, Vec::<u16>::new(), "owned shards are not lost");
        settled
    }

    /// Settles rows as sent.
    pub async fn sent(&self, queue: &str, rows: &[RawRow]) -> Settled {
        self.settle(
            queue,
            &Settlement {
                sent: keys(rows),
                fresh: rows.iter().all(|row| row.state == RowState::New),
                ..Settlement::default()
            },
        )
        .await
    }

    /// Settles rows as sent, into the history.
    pub async fn sent_and_kept(&self, queue: &str, rows: &[RawRow]) {
        let settlement = Settlement {
            sent: keys(rows),
            keep_sent: true,
            ..Settlement::default()
        };
        self.settle(queue, &settlement).await;
    }

    /// Puts rows behind earlier ones of their aggregates.
    pub async fn hold(&self, queue: &str, rows: &[RawRow]) {
        self.settle(
            queue,
            &Settlement {
                hold: keys(rows),
                ..Settlement::default()
            },
        )
        .await;
    }

    /// Puts rows aside until their time comes.
    pub async fn schedule(&self, queue: &str, rows: &[RawRow]) {
        self.settle(
            queue,
            &Settlement {
                schedule: keys(rows),
                ..Settlement::default()
            },
        )
        .await;
    }

    /// Puts one row off for [`LATER`] after a timeout.
    pub async fn retry(&self, queue: &str, row: &RawRow) {
        self.retry_in(queue, row, LATER).await;
    }

    /// Puts one row off after a timeout.
    pub async fn retry_in(&self, queue: &str, row: &RawRow, delay: Duration) {
        let settlement = Settlement {
            retry: vec![retry(row, delay)],
            ..Settlement::default()
        };
        self.settle(queue, &settlement).await;
    }

    /// Parks one row so that its aggregate waits for it.
    pub async fn park(&self, queue: &str, row: &RawRow) {
        self.settle(
            queue,
            &Settlement {
                park: vec![park(row)],
                ..Settlement::default()
            },
        )
        .await;
    }
}
