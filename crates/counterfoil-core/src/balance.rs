//! Who should own which shard.
//!
//! # Promise
//! When every live relay follows [`plan`], each queue's shards end up spread over the relays that
//! can serve it, with at most one shard of difference, and nothing moves after that. A relay never
//! takes a shard whose owner lives.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::store::{Owned, RelayId, ShardRef, Survey};

/// What one relay should do next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Shards to take: nobody lives who owns them.
    pub take: Vec<ShardRef>,
    /// Shards to give back: another relay has less than its share.
    pub give: Vec<ShardRef>,
}

/// The share of a relay of rank `rank` among `relays`, of `shards` shards.
fn share(shards: u16, relays: usize, rank: usize) -> usize {
    let shards = usize::from(shards);
    shards / relays + usize::from(rank < shards % relays)
}

/// Plans the next step of relay `me`, which can serve `queues`.
pub fn plan(me: &RelayId, queues: &[Arc<str>], shards: u16, survey: &Survey) -> Plan {
    let mut plan = Plan::default();
    let serves: Vec<(&RelayId, HashSet<&str>)> = survey
        .members
        .iter()
        .map(|(relay, queues)| (relay, queues.iter().map(AsRef::as_ref).collect()))
        .collect();
    let mut owned: HashMap<&str, Vec<&Owned>> = HashMap::new();
    for shard in &survey.owned {
        owned.entry(&shard.shard.queue).or_default().push(shard);
    }
    for queue in queues {
        let mut serving: Vec<&RelayId> = serves
            .iter()
            .filter(|(relay, serves)| *relay == me || serves.contains(&**queue))
            .map(|(relay, _)| *relay)
            .collect();
        if !serving.contains(&me) {
            serving.push(me);
        }
        serving.sort_unstable();
        let rank = serving.iter().position(|r| *r == me).unwrap_or(0);
        let fair = share(shards, serving.len(), rank);
        let owned = owned.get(&**queue).map_or(&[][..], Vec::as_slice);
        plan_queue(me, queue, shards, fair, owned, &mut plan);
    }
    plan
}

fn plan_queue(
    me: &RelayId,
    queue: &Arc<str>,
    shards: u16,
    fair: usize,
    owned: &[&Owned],
    plan: &mut Plan,
) {
    let owners: BTreeMap<u16, (&RelayId, bool)> = owned
        .iter()
        .map(|o| (o.shard.shard, (&o.owner, o.alive)))
        .collect();
    let mine: Vec<u16> = (0..shards)
        .filter(|s| owners.get(s).is_some_and(|(owner, _)| *owner == me))
        .collect();
    let named = |shard: u16| ShardRef {
        queue: Arc::clone(queue),
        shard,
    };
    if mine.len() > fair {
        plan.give.extend(mine[fair..].iter().copied().map(named));
        return;
    }
    let free = (0..shards).filter(|s| match owners.get(s) {
        None => true,
        Some((owner, alive)) => *owner != me && !alive,
    });
    plan.take.extend(free.take(fair - mine.len()).map(named));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn relays(n: usize) -> Vec<RelayId> {
        (0..n).map(|i| RelayId::stored(&format!("r{i}"))).collect()
    }

    /// Relays follow their plans, one after another, until nothing moves.
    fn settle(alive: &[RelayId], owners: &mut BTreeMap<u16, RelayId>, shards: u16) -> usize {
        let queue: Arc<str> = Arc::from("q");
        let queues = vec![Arc::clone(&queue)];
        for round in 0..50 {
            let mut moved = false;
            for me in alive {
                let survey = Survey {
                    members: alive.iter().map(|r| (r.clone(), queues.clone())).collect(),
                    owned: owners
                        .iter()
                        .map(|(shard, owner)| Owned {
                            shard: ShardRef {
                                queue: Arc::clone(&queue),
                                shard: *shard,
                            },
                            owner: owner.clone(),
                            epoch: 1,
                            alive: alive.contains(owner),
                        })
                        .collect(),
                };
                let plan = plan(me, &queues, shards, &survey);
                moved |= plan != Plan::default();
                for given in plan.give {
                    owners.remove(&given.shard);
                }
                for taken in plan.take {
                    let old = owners.insert(taken.shard, me.clone());
                    assert!(
                        old.is_none_or(|o| !alive.contains(&o)),
                        "taken from the living"
                    );
                }
            }
            if !moved {
                return round;
            }
        }
        panic!("the relays never come to rest");
    }

    proptest! {
        #[test]
        fn shards_spread_evenly_when_relays_come_and_go(
            shards in 1u16..=64, sizes in proptest::collection::vec(1usize..10, 1..5)
        ) {
            let mut owners = BTreeMap::new();
            for n in sizes {
                let alive = relays(n);
                settle(&alive, &mut owners, shards);
                prop_assert_eq!(owners.len(), usize::from(shards));
                for (rank, me) in alive.iter().enumerate() {
                    let mine = owners.values().filter(|o| *o == me).count();
                    prop_assert_eq!(mine, share(shards, n, rank));
                }
            }
        }
    }

    #[test]
    fn a_relay_that_cannot_serve_a_queue_gets_no_share_of_it() {
        let (a, b) = (RelayId::stored("a"), RelayId::stored("b"));
        let queue: Arc<str> = Arc::from("q");
        let survey = Survey {
            members: vec![
                (a.clone(), vec![Arc::clone(&queue)]),
                (b, vec![Arc::from("other")]),
            ],
            owned: vec![],
        };

        let plan = plan(&a, &[queue], 8, &survey);

        assert_eq!(plan.take.len(), 8);
    }
}
