//! The task that asks Redis for entries.
//!
//! # Promise
//! It asks only when the caller wants something and nothing is there, so that what a slow consumer
//! does not want is free for others. It never asks when others may believe that we are gone.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::source::SourceError;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, timeout};

use crate::group::Group;
use crate::hold::{Hold, Over, Stand};

/// The most entries that are asked for at a time.
const MOST: usize = 1_000;
/// The cursor at the beginning and at the end.
const BEGIN: &str = "0-0";
/// The longest wait for new entries: other things are looked at in between.
const LONGEST_BLOCK: Duration = Duration::from_secs(2);

/// For how long one read waits.
pub(crate) fn block(missed_after: Duration) -> Duration {
    (missed_after / 4).min(LONGEST_BLOCK)
}

/// Reads until it is over.
pub(crate) async fn run(hold: Arc<Hold>, group: Arc<Group>, connection: MultiplexedConnection) {
    let block = block(group.missed_after);
    let mut pump = Pump {
        cursors: vec![BEGIN.to_owned(); group.streams.len()],
        looked: None,
        hold: Arc::clone(&hold),
        group,
        connection,
        block,
    };
    loop {
        let step = match pump.plan() {
            Plan::End => return,
            Plan::Wait => {
                hold.wanted.notified().await;
                Ok(())
            }
            Plan::Rest => {
                // Whichever comes first.
                let _ = timeout(block, hold.wanted.notified()).await;
                Ok(())
            }
            Plan::CatchUp(place, cursor, count) => pump.catch_up(place, &cursor, count).await,
            Plan::Look(places, count) => pump.look(&places, count).await,
            Plan::Read(places, count) => pump.read(&places, count).await,
        };
        hold.lock().reading.clear();
        if let Err(error) = step {
            hold.end(Over::of(&error));
            return;
        }
    }
}

struct Pump {
    hold: Arc<Hold>,
    group: Arc<Group>,
    connection: MultiplexedConnection,
    block: Duration,
    /// How far we looked for what others left, by stream.
    cursors: Vec<String>,
    /// When we looked through all of it.
    looked: Option<Instant>,
}

/// What is next.
enum Plan {
    End,
    /// Nobody wants anything.
    Wait,
    /// There is nothing to read from at the moment.
    Rest,
    CatchUp(usize, String, usize),
    Look(Vec<usize>, usize),
    Read(Vec<usize>, usize),
}

impl Pump {
    fn plan(&self) -> Plan {
        let mut inner = self.hold.lock();
        if inner.over.is_some() {
            return Plan::End;
        }
        if inner.asked == 0 || inner.fresh() > 0 {
            return Plan::Wait;
        }
        let count = inner.asked.min(MOST);
        if Instant::now() + self.block > inner.alive_until {
            return Plan::Rest;
        }
        let (mut flowing, mut catching) = (Vec::new(), None);
        for (place, stand) in inner.stands.iter().enumerate() {
            match stand {
                Stand::Catching(cursor) => catching = Some((place, cursor.clone())),
                Stand::Flowing => flowing.push(place),
                Stand::Foreign | Stand::Leaving => {}
            }
        }
        // Nobody gives a stream up while a question about it is on its way.
        if let Some((place, cursor)) = catching {
            inner.reading = vec![place];
            return Plan::CatchUp(place, cursor, count);
        }
        if flowing.is_empty() {
            return Plan::Rest;
        }
        inner.reading.clone_from(&flowing);
        if self.looked.is_none_or(|at| at.elapsed() >= self.block) {
            return Plan::Look(flowing, count);
        }
        Plan::Read(flowing, count)
    }

    /// What the last owner of a partition left comes before everything that is new.
    async fn catch_up(
        &mut self,
        place: usize,
        cursor: &str,
        count: usize,
    ) -> Result<(), SourceError> {
        let connection = &mut self.connection;
        let claim = self
            .group
            .claim(connection, place, Duration::ZERO, cursor, count);
        let (next, entries) = claim.await?;
        self.hold.deliver(place, entries);
        let mut inner = self.hold.lock();
        if inner.stands[place] == Stand::Catching(cursor.to_owned()) {
            inner.stands[place] = match next == BEGIN {
                true => Stand::Flowing,
                false => Stand::Catching(next),
            };
        }
        Ok(())
    }

    /// Looks for what somebody left who was not heard of for too long.
    async fn look(&mut self, places: &[usize], count: usize) -> Result<(), SourceError> {
        let idle = self.group.missed_after;
        let mut whole = true;
        for place in places {
            let cursor = self.cursors[*place].clone();
            let claim = self
                .group
                .claim(&mut self.connection, *place, idle, &cursor, count);
            let (next, entries) = claim.await?;
            whole &= next == BEGIN;
            self.cursors[*place] = next;
            self.hold.deliver(*place, entries);
        }
        if whole {
            self.looked = Some(Instant::now());
        }
        Ok(())
    }

    async fn read(&mut self, places: &[usize], count: usize) -> Result<(), SourceError> {
        let read = self
            .group
            .read(&mut self.connection, places, count, self.block);
        let found = read.await?;
        for (place, entries) in found {
            self.hold.deliver(place, entries);
        }
        Ok(())
    }
}
