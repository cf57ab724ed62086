//! Several at once: producers, relays, operators.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use counterfoil_core::message::MessageId;
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{Enqueued, Settlement, ShardRef};

use crate::fixture::{
    Fixture, PLENTY, QUEUE, Relay, id, keyed, keys, lane, message, messages, retry,
};
use crate::harness::Harness;
use crate::suite::Seed;

/// Who owns what, as the relays themselves know it.
#[derive(Default)]
struct Register {
    owners: HashMap<ShardRef, (usize, i64)>,
    epochs: HashMap<ShardRef, i64>,
}

impl Register {
    /// A relay was told that it owns a shard: nobody else may believe the same.
    fn took(&mut self, relay: usize, shard: &ShardRef, epoch: i64) {
        if let Some((other, old)) = self.owners.insert(shard.clone(), (relay, epoch)) {
            panic!("{shard:?} is owned by {other} under {old} and by {relay} under {epoch}");
        }
        let last = self.epochs.insert(shard.clone(), epoch).unwrap_or(0);
        assert!(epoch > last, "{shard:?}: {epoch} after {last}");
    }

    /// Said before the relay gives back or lapses.
    fn will_lose(&mut self, relay: usize) {
        self.owners.retain(|_, (owner, _)| *owner != relay);
    }
}

/// Relays take, give back and lapse as they like: never do two own the same shard, and fencing
/// numbers only grow.
pub async fn a_shard_never_has_two_owners<H: Harness>(t: Fixture<H>) {
    let register = Arc::new(Mutex::new(Register::default()));
    let t = Arc::new(t);
    let mut running = Vec::new();

    for n in 0..4 {
        let (t, register) = (Arc::clone(&t), Arc::clone(&register));
        running.push(tokio::spawn(async move {
            let mut seed = Seed::new("a_shard_never_has_two_owners");
            let store = t.harness.second_store().await;
            let mut relay = Relay::join(Arc::clone(&store), &[QUEUE]).await;
            for _ in 0..25 {
                for taken in relay.take_all().await {
                    register.lock().unwrap().took(n, &taken.shard, taken.epoch);
                }
                tokio::task::yield_now().await;
                match seed.below(4) {
                    0 if t.harness.leases() => {
                        register.lock().unwrap().will_lose(n);
                        t.harness.expire_lease(&relay.id).await;
                        relay = Relay::join(Arc::clone(&store), &[QUEUE]).await;
                    }
                    1 => {
                        register.lock().unwrap().will_lose(n);
                        store.leave(&relay.id).await.unwrap();
                        relay = Relay::join(Arc::clone(&store), &[QUEUE]).await;
                    }
                    _ => {
                        register.lock().unwrap().will_lose(n);
                        relay.give(&relay.every_shard()).await;
                    }
                }
            }
        }));
    }
    for one in running {
        one.await.unwrap();
    }

    let taken = register.lock().unwrap().epochs.len();
    assert_eq!(
        taken,
        usize::from(t.store.shards()),
        "each was owned at least once"
    );
}

/// Two transactions use the same key at the same time: one of them stores.
pub async fn a_key_used_twice_at_once_is_used_once<H: Harness>(t: Fixture<H>) {
    let t = Arc::new(t);
    for commits in [true, false] {
        let key = format!("commits: {commits}");
        let (mine, theirs) = (message("a", 1), message("a", 2));
        let mut tx = t.harness.begin().await;
        let first = keyed(mine.clone(), "task", &key);
        assert!(
            t.harness
                .enqueue_keyed(&mut tx, &first)
                .await
                .unwrap()
                .is_first()
        );
        let (other, second) = (Arc::clone(&t), keyed(theirs.clone(), "task", &key));
        let mut waiting = tokio::spawn(async move { other.put_keyed(&second).await });
        let answered = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
        assert!(
            answered.is_err(),
            "whose key it is will be known when the first one ends"
        );

        if commits {
            t.harness.commit(tx).await.unwrap();
        } else {
            t.harness.rollback(tx).await;
        }

        let answer = waiting.await.unwrap();
        let expected = if commits {
            Enqueued::Duplicate(mine.id)
        } else {
            Enqueued::First(theirs.id)
        };
        assert_eq!(answer, expected);
    }
    assert_eq!(t.desk.audit().await.unwrap().pending, 2);
}

/// Many callers repeat the same request: one message, and all are told the same id.
pub async fn a_request_repeated_at_once_is_stored_once<H: Harness>(t: Fixture<H>) {
    let t = Arc::new(t);
    let callers = (0..12).map(|n| {
        let t = Arc::clone(&t);
        tokio::spawn(async move {
            let one = keyed(message("a", n), "api", "k");
            t.store.enqueue(&[one]).await.unwrap().remove(0)
        })
    });

    let mut answers = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        answers.push(caller.await.unwrap());
    }

    assert_eq!(answers.iter().filter(|a| a.is_first()).count(), 1);
    assert_eq!(
        answers
            .iter()
            .map(Enqueued::id)
            .collect::<BTreeSet<_>>()
            .len(),
        1
    );
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.ledger), (1, 1));
}

/// Two operators press the button at once: one of them redrives.
pub async fn a_message_redriven_twice_at_once_comes_back_once<H: Harness>(t: Fixture<H>) {
    t.put(&(0..10).map(|n| message(n, 1)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    for row in relay.read(QUEUE).await {
        relay.park(QUEUE, &row).await;
        let press = || {
            let (desk, id) = (Arc::clone(&t.desk), id(&row).to_string());
            tokio::spawn(async move { desk.redrive(&[id], false, "ann").await.unwrap() })
        };

        let (one, two) = (press(), press());
        let (one, two) = (one.await.unwrap(), two.await.unwrap());

        assert_eq!(one.redriven.len() + two.redriven.len(), 1);
        assert_eq!(one.refused.len() + two.refused.len(), 1);
    }
    assert_eq!(relay.waiting(QUEUE).await.len(), 10);
    assert_eq!(
        t.desk.audit().await.unwrap().findings(true),
        Vec::<String>::new()
    );
}

/// An operator cancels what a relay is settling: it ends in one place.
pub async fn a_message_cancelled_while_it_is_settled_ends_once<H: Harness>(t: Fixture<H>) {
    t.put(&(0..30).map(|n| message(n, 1)).collect::<Vec<_>>())
        .await;
    let relay = Arc::new(t.relay(&[QUEUE]).await);
    let rows = relay.read(QUEUE).await;
    let (settling, all) = (Arc::clone(&relay), rows.clone());
    let settle = tokio::spawn(async move {
        for some in all.chunks(5) {
            settling.sent_and_kept(QUEUE, some).await;
        }
    });

    let mut cancelled = 0;
    for row in rows.iter().rev() {
        let gone = t
            .desk
            .cancel(&id(row).to_string(), "never meant", "ann")
            .await
            .unwrap();
        cancelled += u64::from(gone);
    }
    settle.await.unwrap();

    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.cancelled), (0, cancelled));
    assert_eq!(audit.sent_kept + audit.cancelled, 30);
}

/// What the destination saw.
#[derive(Default)]
struct Destination {
    first_deliveries: Mutex<BTreeMap<String, Vec<i64>>>,
    seen: Mutex<BTreeSet<MessageId>>,
}

impl Destination {
    fn takes(&self, row: &RawRow) {
        if self.seen.lock().unwrap().insert(id(row)) {
            let lane = row.aggregate_id.clone().unwrap();
            let version = row.version.unwrap();
            self.first_deliveries
                .lock()
                .unwrap()
                .entry(lane)
                .or_default()
                .push(version);
        }
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// One round of a relay: what fails is put off, what follows it is held, the rest is delivered.
async fn round(relay: &Relay, destination: &Destination, seed: &mut Seed) {
    let mut rows = relay.waiting(QUEUE).await;
    rows.extend(relay.read(QUEUE).await);
    let lanes = relay.runnable(QUEUE).await;
    let held = relay
        .store
        .read_lanes(QUEUE, &lanes, 10, PLENTY)
        .await
        .unwrap()
        .rows;
    // Rows of one lane may come by two ways, by different looks: one way in one round.
    let (mut settlement, mut stopped) = (Settlement::default(), BTreeSet::new());
    let mut met: HashMap<Option<String>, usize> = HashMap::new();
    for (way, row) in rows
        .iter()
        .map(|r| (0, r))
        .chain(held.iter().map(|r| (1, r)))
    {
        let lane = row.aggregate_id.clone();
        if *met.entry(lane.clone()).or_insert(way) != way {
            continue;
        }
        if row.behind || stopped.contains(&lane) {
            stopped.insert(lane);
            settlement.hold.extend(keys(std::slice::from_ref(row)));
        } else if seed.below(4) == 0 {
            stopped.insert(lane);
            settlement.retry.push(retry(row, Duration::ZERO));
        } else {
            destination.takes(row);
            settlement.sent.extend(keys(std::slice::from_ref(row)));
        }
    }
    relay.try_settle(QUEUE, &settlement).await;
}

/// Producers write, deliveries fail, shards change hands: everything arrives, and the first
/// deliveries of each aggregate come in order.
pub async fn order_is_kept_through_failures_and_handovers<H: Harness>(t: Fixture<H>) {
    const LANES: usize = 6;
    const VERSIONS: i64 = 25;
    let t = Arc::new(t);
    let destination = Arc::new(Destination::default());
    let writing = Arc::new(AtomicUsize::new(LANES));
    let mut running = Vec::new();
    for n in 0..LANES {
        let (t, writing) = (Arc::clone(&t), Arc::clone(&writing));
        running.push(tokio::spawn(async move {
            let all = messages(n, VERSIONS);
            for some in all.chunks(2) {
                t.put(some).await;
                tokio::task::yield_now().await;
            }
            writing.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    for _ in 0..2 {
        let (t, destination) = (Arc::clone(&t), Arc::clone(&destination));
        let everything = LANES * usize::try_from(VERSIONS).unwrap();
        running.push(tokio::spawn(async move {
            let mut seed = Seed::new("order_is_kept_through_failures_and_handovers");
            let mut relay = t.other_relay(&[QUEUE]).await;
            while destination.count() < everything {
                relay.take_all().await;
                for _ in 0..3 {
                    round(&relay, &destination, &mut seed).await;
                }
                let shards = relay.every_shard();
                let (some, _) = shards.split_at(seed.below(shards.len() + 1));
                relay.give(some).await;
                relay.epochs.retain(|shard, _| !some.contains(shard));
                tokio::task::yield_now().await;
            }
            relay.store.leave(&relay.id).await.unwrap();
        }));
    }

    for one in running {
        tokio::time::timeout(Duration::from_secs(120), one)
            .await
            .expect("never done")
            .unwrap();
    }

    let delivered = destination.first_deliveries.lock().unwrap();
    assert_eq!(
        (delivered.len(), writing.load(Ordering::SeqCst)),
        (LANES, 0)
    );
    for (name, versions) in delivered.iter() {
        assert_eq!(
            *versions,
            (1..=VERSIONS).collect::<Vec<_>>(),
            "of {}",
            lane(name)
        );
    }
}
