//! Who owns what: the relay's part. The plan itself is `counterfoil_core::balance`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::balance;
use counterfoil_core::store::{RelayId, Result, ShardRef, ShardSet, Survey, Taken};

use super::{Done, Relay};

/// A relay that has its share looks at all shards again after so many leases, also when nobody has
/// come or gone.
const LOOK_AT_ALL: u32 = 4;

/// Shards that change hands in one transaction: however many there are, none takes longer than an
/// operation may.
const AT_ONCE: usize = 4_096;

/// Everybody has had its share, and these relays lived then.
pub(super) struct Balanced {
    members: BTreeSet<RelayId>,
    until: Instant,
}

impl Relay {
    /// Looks at who lives and owns what. Also while the relay stops: a relay that does nothing at the
    /// database is not kept alive.
    pub(super) fn start_balance(&mut self, now: Instant) {
        if self.balancing || now < self.next_balance || !self.store_open(now) {
            return;
        }
        self.balancing = true;
        self.look += 1;
        self.next_balance = now + self.settings.lease / 3;
        let (store, relay) = (Arc::clone(&self.store), self.relay_id());
        let names = self.names();
        let known = self.balanced.as_ref().filter(|known| now < known.until);
        let known = known.map(|known| known.members.clone());
        self.ops.spawn(async move {
            if let Some(known) = known
                && let Ok(members) = store.members().await
                && members.into_iter().collect::<BTreeSet<_>>() == known
            {
                return Done::StillBalanced;
            }
            let result = store.survey(&relay, &names).await;
            Done::Surveyed { relay, result }
        });
    }

    /// Nobody has come or gone since the last look at everything.
    pub(super) fn still_balanced(&mut self) {
        self.store_answered();
        self.balancing = false;
    }

    pub(super) fn surveyed(&mut self, relay: &RelayId, result: Result<Survey>) {
        self.balanced = None;
        let survey = match result {
            Ok(survey) => survey,
            Err(error) => {
                self.balancing = false;
                return self.store_failed("look at the ownership", &error);
            }
        };
        self.store_answered();
        if *relay != self.relay_id() || self.stopping {
            self.balancing = false;
            return;
        }
        self.set_alone(survey.members.iter().all(|(member, _)| member == relay));
        let agreed = self.compare(relay, &survey);
        let plan = balance::plan(relay, &self.names(), self.store.shards(), &survey);
        let at_latest = Instant::now() + self.settings.handover;
        for (queue, shards) in by_queue(&plan.give) {
            if let Some(place) = self.by_name.get(&queue) {
                self.queues[*place].leave(shards, at_latest);
            }
        }
        let calm = agreed && plan == balance::Plan::default();
        // A look at all shards of many queues is dear, and while nobody comes or goes it shows nothing new.
        if self.many() && calm && !self.queues.iter().any(|q| q.leaving) {
            self.balanced = Some(Balanced {
                members: survey.members.into_iter().map(|m| m.0).collect(),
                until: Instant::now() + self.settings.lease * LOOK_AT_ALL,
            });
        }
        if plan.take.is_empty() {
            self.balancing = false;
            return;
        }
        let (store, relay) = (Arc::clone(&self.store), relay.clone());
        self.ops.spawn(async move {
            let mut taken = Vec::new();
            for some in plan.take.chunks(AT_ONCE) {
                match store.take(&relay, some).await {
                    Ok(more) => taken.extend(more),
                    Err(error) if taken.is_empty() => {
                        let result = Err(error);
                        return Done::Took { relay, result };
                    }
                    // The next look finds what is left.
                    Err(_) => break,
                }
            }
            let result = Ok(taken);
            Done::Took { relay, result }
        });
    }

    /// What the store says about our shards outranks what we think. Answers whether it says the same.
    fn compare(&mut self, relay: &RelayId, survey: &Survey) -> bool {
        let mut agreed = true;
        let mut owned: HashMap<&str, BTreeMap<u16, i64>> = HashMap::new();
        for o in survey.owned.iter().filter(|o| o.owner == *relay) {
            let shards = owned.entry(&o.shard.queue).or_default();
            shards.insert(o.shard.shard, o.epoch);
        }
        for queue in &mut self.queues {
            let ours = owned.remove(&**queue.name()).unwrap_or_default();
            let lost: ShardSet = queue
                .shards
                .iter()
                .filter(|(shard, owned)| ours.get(shard) != Some(&owned.epoch))
                .map(|(shard, _)| *shard)
                .collect();
            if !lost.is_empty() {
                agreed = false;
                tracing::warn!(queue = &**queue.name(), shards = ?lost, "shards were lost");
                queue.lost(lost);
            }
            for (shard, epoch) in ours {
                if queue.shards.contains_key(&shard) {
                    continue;
                }
                agreed = false;
                if let Some(from_dead) = queue.found(shard, epoch, self.look) {
                    let shard = ShardRef {
                        queue: Arc::clone(queue.name()),
                        shard,
                    };
                    queue.took(&Taken {
                        shard,
                        epoch,
                        from_dead,
                    });
                }
            }
        }
        agreed
    }

    pub(super) fn took(&mut self, relay: &RelayId, result: Result<Vec<Taken>>) {
        self.balancing = false;
        let taken = match result {
            Ok(taken) => taken,
            Err(error) => return self.store_failed("take shards", &error),
        };
        if *relay != self.relay_id() {
            return;
        }
        for taken in &taken {
            if let Some(place) = self.by_name.get(&taken.shard.queue) {
                self.queues[*place].took(taken);
            }
        }
        if !taken.is_empty() {
            let dead = taken.iter().filter(|t| t.from_dead).count();
            tracing::info!(shards = taken.len(), from_dead_relays = dead, "took shards");
            let now = Instant::now();
            (self.next_tend, self.next_scan) = (now, now);
            self.scan_from = None;
            self.make_hungry();
        }
        self.count_owned();
    }

    /// Gives back what has been left in peace.
    pub(super) fn start_give(&mut self, now: Instant) {
        let mut given: Vec<ShardRef> = Vec::new();
        for queue in self.queues.iter_mut().filter(|q| q.leaving) {
            for shard in queue.left(now) {
                queue.give(shard);
                given.push(ShardRef {
                    queue: Arc::clone(queue.name()),
                    shard,
                });
            }
            queue.leaving = queue.shards.values().any(|s| s.leaving.is_some());
        }
        if given.is_empty() {
            return;
        }
        let (store, relay) = (Arc::clone(&self.store), self.relay_id());
        self.ops.spawn(async move {
            let mut result = Ok(());
            for some in given.chunks(AT_ONCE) {
                if result.is_ok() {
                    result = store.give(&relay, some).await;
                }
            }
            Done::Gave { given, result }
        });
    }

    pub(super) fn gave(&mut self, given: &[ShardRef], result: Result<()>) {
        let next = self.look + 1;
        for (name, shards) in by_queue(given) {
            if let Some(place) = self.by_name.get(&name) {
                let queue = &mut self.queues[*place];
                shards.iter().for_each(|shard| queue.gave(shard, next));
            }
        }
        match result {
            Ok(()) => tracing::info!(shards = given.len(), "gave shards to other relays"),
            // The next survey shows them as ours, and they are offered again.
            Err(error) => self.store_failed("give shards back", &error),
        }
        self.count_owned();
    }

    /// When the lease has lapsed the relay has a new name, and nothing is ours any more.
    pub(super) fn check_name(&mut self) {
        let relay = self.relay_id();
        if self.named.as_ref() == Some(&relay) {
            return;
        }
        if self.named.replace(relay).is_some() {
            // Whoever joined anew has said so.
            tracing::debug!("the lease ran out: starting anew without shards");
            self.balanced = None;
            for queue in &mut self.queues {
                let all = queue.shards.keys().copied().collect();
                queue.lost(all);
                queue.forget_given();
            }
            self.next_balance = Instant::now();
        }
    }

    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.queues.iter().map(|q| Arc::clone(q.name())).collect()
    }

    fn count_owned(&self) {
        for queue in &self.queues {
            #[expect(clippy::cast_precision_loss, reason = "at most 64")]
            let owned = queue.shards.len() as f64;
            metrics::gauge!("counterfoil_owned_shards", "queue" => queue.name().to_string())
                .set(owned);
        }
    }
}

fn by_queue(shards: &[ShardRef]) -> BTreeMap<Arc<str>, ShardSet> {
    let mut map: BTreeMap<Arc<str>, ShardSet> = BTreeMap::new();
    for shard in shards {
        map.entry(Arc::clone(&shard.queue))
            .or_default()
            .insert(shard.shard);
    }
    map
}

/// The time between two heartbeats.
pub(crate) fn beat(lease: Duration) -> Duration {
    lease / 3
}

/// The part of a lease that is never used for publishing: clocks drift, and answers take time.
pub(crate) fn margin(lease: Duration) -> Duration {
    lease / 10
}
