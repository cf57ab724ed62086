//! Order per key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use counterfoil_core::source::Arrival;
use counterfoil_core::{Delivery, MessageId};
use tokio::time::{Duration, Instant};

use super::fixture::{BATCH, BrokerFixture, Member, PATIENCE, assert_once, id_of, message};
use super::harness::{BrokerHarness, Manner};

/// Versions of each aggregate, interleaved as a relay interleaves them.
fn interleaved(aggregates: usize, versions: i64) -> Vec<Delivery> {
    (1..=versions)
        .flat_map(|version| (0..aggregates).map(move |n| message("order", n, version)))
        .collect()
}

/// Which key and version an id has.
fn places(deliveries: &[Delivery]) -> BTreeMap<MessageId, (String, i64)> {
    let place = |d: &Delivery| {
        let key = d.aggregate.as_ref().map(ToString::to_string);
        (
            d.id,
            (key.unwrap_or_default(), d.version.unwrap_or_default()),
        )
    };
    deliveries.iter().map(place).collect()
}

/// One consumer sees each key's messages in the order in which they were stored.
pub async fn messages_of_a_key_come_in_the_order_in_which_they_were_stored<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let mut member = t.member().await;
    let all = interleaved(20, 10);
    t.publish(&all).await;

    // Some brokers hand out nothing more of a key while something of it is out.
    let mut arrivals = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while arrivals.len() < all.len() {
        let waited = tokio::time::timeout_at(deadline, member.receive(BATCH)).await;
        let received = waited.expect("too few come").expect("receiving failed");
        member.done(&received).await;
        arrivals.extend(received);
    }

    assert_once(&arrivals, &all, t.manner);
    if t.features().await.ordering_key {
        let places = places(&all);
        let mut last: BTreeMap<&str, i64> = BTreeMap::new();
        for arrival in &arrivals {
            let (key, version) = &places[&t.id(arrival)];
            let before = last.insert(key, *version).unwrap_or(0);
            assert_eq!(*version, before + 1, "{key}");
            let given = arrival.key.as_deref();
            assert_eq!(given, Some(key.as_bytes()), "the key is the partition key");
        }
    }
    member.close().await;
}

/// What several consumers saw together.
#[derive(Default)]
struct Watch {
    places: BTreeMap<MessageId, (String, i64)>,
    /// The last version that was received, by key.
    last: BTreeMap<String, i64>,
    /// Who holds messages of a key, and how many.
    held: BTreeMap<String, (usize, usize)>,
    received: usize,
    wrong: Vec<String>,
}

impl Watch {
    fn received(&mut self, who: usize, arrival: &Arrival, manner: Manner) {
        let Some((key, version)) = self.places.get(&id_of(arrival, manner)).cloned() else {
            return;
        };
        self.received += 1;
        let before = self.last.insert(key.clone(), version).unwrap_or(0);
        if version != before + 1 {
            self.wrong.push(format!("{key}: {version} after {before}"));
        }
        let (holder, count) = self.held.entry(key.clone()).or_insert((who, 0));
        if *count > 0 && *holder != who {
            self.wrong.push(format!(
                "{key}: {who} got {version} while {holder} had some"
            ));
        }
        (*holder, *count) = (who, *count + 1);
    }

    fn settling(&mut self, arrival: &Arrival, manner: Manner) {
        let Some((key, _)) = self.places.get(&id_of(arrival, manner)) else {
            return;
        };
        if let Some((_, count)) = self.held.get_mut(key) {
            *count -= 1;
        }
    }
}

/// Where an ordering key is declared, the messages of a key are with one consumer at a time, and
/// in order. Everywhere, each message comes to one of them.
pub async fn several_consumers_keep_the_order_of_each_key<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut members = [t.member().await, t.member().await, t.member().await];
    t.acquaint(&mut members).await;
    let all = interleaved(24, 12);
    let watch = Arc::new(Mutex::new(Watch {
        places: places(&all),
        ..Watch::default()
    }));
    let consumers: Vec<_> = members
        .into_iter()
        .enumerate()
        .map(|(who, member)| {
            let watch = Arc::clone(&watch);
            tokio::spawn(consume(who, member, watch, all.len(), t.manner))
        })
        .collect();

    t.publish(&all).await;

    let mut members = Vec::new();
    for consumer in consumers {
        members.push(consumer.await.expect("a consumer failed"));
    }
    for member in members {
        member.close().await;
    }
    let ordered = t.features().await.ordering_key;
    let watch = watch.lock().expect("a consumer failed");
    assert_eq!(watch.received, all.len());
    if ordered {
        assert_eq!(watch.wrong, Vec::<String>::new());
    }
}

async fn consume(
    who: usize,
    mut member: Member,
    watch: Arc<Mutex<Watch>>,
    total: usize,
    manner: Manner,
) -> Member {
    let deadline = Instant::now() + PATIENCE;
    while watch.lock().expect("a consumer failed").received < total {
        assert!(Instant::now() < deadline, "too few within {PATIENCE:?}");
        let waited = tokio::time::timeout(Duration::from_millis(100), member.receive(7)).await;
        let Ok(received) = waited else {
            continue;
        };
        let received = received.expect("receiving failed");
        {
            let mut watch = watch.lock().expect("a consumer failed");
            for arrival in &received {
                watch.received(who, arrival, manner);
            }
        }
        tokio::task::yield_now().await;
        {
            let mut watch = watch.lock().expect("a consumer failed");
            for arrival in &received {
                watch.settling(arrival, manner);
            }
        }
        member.done(&received).await;
    }
    member
}
