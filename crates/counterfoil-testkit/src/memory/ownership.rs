//! Who lives, and who owns what.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_core::store::{Fence, Owned, RelayId, ShardRef, ShardSet, Survey, Taken};

use super::clock::span;
use super::state::{Member, State};

impl State {
    pub(super) fn alive(&self, relay: &RelayId, now: DateTime<Utc>) -> bool {
        self.relays.get(relay).is_some_and(|m| m.lease_until > now)
    }

    pub(super) fn join(
        &mut self,
        relay: &RelayId,
        queues: &[Arc<str>],
        lease: Duration,
        now: DateTime<Utc>,
    ) {
        let queues = queues.iter().map(ToString::to_string).collect();
        self.relays.insert(
            relay.clone(),
            Member {
                queues,
                lease_until: now + span(lease),
            },
        );
    }

    pub(super) fn heartbeat(
        &mut self,
        relay: &RelayId,
        lease: Duration,
        now: DateTime<Utc>,
    ) -> bool {
        match self.relays.get_mut(relay) {
            Some(member) if member.lease_until > now => {
                member.lease_until = now + span(lease);
                true
            }
            _ => false,
        }
    }

    pub(super) fn survey(&self, queues: &[Arc<str>], now: DateTime<Utc>) -> Survey {
        let live = self.relays.iter().filter(|(_, m)| m.lease_until > now);
        let named = |name: &String| Arc::from(name.as_str());
        let owned = self
            .shards
            .iter()
            .filter_map(|((queue, shard), ownership)| {
                let queue = queues.iter().find(|q| ***q == **queue)?;
                let owner = ownership.owner.clone()?;
                Some(Owned {
                    shard: ShardRef {
                        queue: Arc::clone(queue),
                        shard: *shard,
                    },
                    alive: self.alive(&owner, now),
                    owner,
                    epoch: ownership.epoch,
                })
            });
        Survey {
            members: live
                .map(|(r, m)| (r.clone(), m.queues.iter().map(named).collect()))
                .collect(),
            owned: owned.collect(),
        }
    }

    pub(super) fn take(
        &mut self,
        relay: &RelayId,
        wanted: &[ShardRef],
        now: DateTime<Utc>,
    ) -> Vec<Taken> {
        // Whoever has lapsed is forgotten, so that no heartbeat brings it back.
        self.relays.retain(|_, member| member.lease_until > now);
        let mut taken = Vec::new();
        for want in wanted {
            let ownership = self
                .shards
                .entry((want.queue.to_string(), want.shard))
                .or_default();
            let from_dead = match &ownership.owner {
                None => false,
                Some(owner) if self.relays.contains_key(owner) => continue,
                Some(_) => true,
            };
            ownership.owner = Some(relay.clone());
            ownership.epoch += 1;
            taken.push(Taken {
                shard: want.clone(),
                epoch: ownership.epoch,
                from_dead,
            });
        }
        taken
    }

    pub(super) fn give(&mut self, relay: &RelayId, given: &[ShardRef]) {
        for shard in given {
            let found = self.shards.get_mut(&(shard.queue.to_string(), shard.shard));
            if let Some(ownership) = found.filter(|o| o.owner.as_ref() == Some(relay)) {
                ownership.owner = None;
            }
        }
    }

    pub(super) fn leave(&mut self, relay: &RelayId) {
        for ownership in self.shards.values_mut() {
            if ownership.owner.as_ref() == Some(relay) {
                ownership.owner = None;
            }
        }
        self.relays.remove(relay);
    }

    /// The shards of a fence that still hold.
    pub(super) fn holding(&self, fence: &Fence) -> ShardSet {
        let holds = |shard: u16, epoch: i64| {
            let found = self.shards.get(&(fence.queue.to_string(), shard));
            found.is_some_and(|o| o.owner.as_ref() == Some(&fence.relay) && o.epoch == epoch)
        };
        fence
            .shards
            .iter()
            .filter(|(s, e)| holds(*s, *e))
            .map(|(s, _)| *s)
            .collect()
    }
}
