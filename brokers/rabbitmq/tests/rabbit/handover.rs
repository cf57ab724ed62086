//! What becomes of the order when a queue gets another reader, and more waits than is fetched at once.

use std::time::Duration;

use counterfoil_core::Destination as _;
use counterfoil_core::incoming::{Incoming, Mapping};
use counterfoil_core::source::{Arrival, Settle, Source as _, Subscription};
use counterfoil_core::{Aggregate, Delivery};
use counterfoil_rabbitmq::{RabbitMqSource, Settings, SourceSettings};
use counterfoil_testkit::server;

use crate::{LONG, build, delivery, own_name};

const AGGREGATES: i64 = 8;
const VERSIONS: i64 = 100;
/// Far fewer than there are.
const PREFETCH: u16 = 20;
/// Long enough to begin to read a queue, on most days; on the others less is tested.
const A_WHILE: Duration = Duration::from_millis(800);

struct Group {
    url: String,
    topic: String,
    partitions: usize,
}

impl Group {
    fn new(partitions: usize) -> Option<Self> {
        Some(Self {
            url: server::rabbitmq()?,
            topic: own_name(),
            partitions,
        })
    }

    async fn join(&self) -> Box<dyn Subscription> {
        let settings = SourceSettings::new(&self.url, &self.topic, "stock")
            .partitions(self.partitions)
            .prefetch(PREFETCH)
            .timeout(LONG)
            .connect_timeout(LONG / 4);
        let source = RabbitMqSource::new(settings).unwrap();
        source.subscribe().await.unwrap()
    }

    async fn publish(&self) {
        let destination = build(Settings::new(&self.url, &self.topic));
        for version in 0..VERSIONS {
            let batch: Vec<Delivery> = (0..AGGREGATES)
                .map(|aggregate| Delivery {
                    version: Some(version),
                    ..delivery(aggregate)
                })
                .collect();
            let outcomes = destination.publish(&batch).await;
            assert!(
                outcomes.iter().all(|o| o.label() == "stored"),
                "{outcomes:?}"
            );
        }
    }
}

/// What came for the first time, in its order.
#[derive(Default)]
struct Seen(Vec<(Aggregate, i64)>);

impl Seen {
    fn note(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            let incoming = Incoming::of(arrival, &Mapping::default());
            let found = (incoming.aggregate.unwrap(), incoming.version.unwrap());
            if !self.0.contains(&found) {
                self.0.push(found);
            }
        }
    }

    fn is_everything(&self) -> bool {
        self.0.len() as i64 == AGGREGATES * VERSIONS
    }

    fn in_order(&self) {
        for aggregate in 0..AGGREGATES {
            let of = Aggregate::new("order", aggregate);
            let versions: Vec<i64> = self
                .0
                .iter()
                .filter(|(a, _)| *a == of)
                .map(|(_, v)| *v)
                .collect();
            assert_eq!(versions, (0..VERSIONS).collect::<Vec<_>>(), "{aggregate}");
        }
    }
}

async fn receive(member: &mut dyn Subscription) -> Vec<Arrival> {
    let received = tokio::time::timeout(LONG, member.receive(7)).await;
    received.unwrap().unwrap()
}

async fn done(member: &mut dyn Subscription, arrivals: &[Arrival]) {
    let settled = arrivals.iter().map(|a| (a.tag, Settle::Done)).collect();
    member.settle(settled).await.unwrap();
}

#[tokio::test]
async fn a_partition_goes_to_a_new_member_in_order() {
    for _ in 0..3 {
        let Some(group) = Group::new(2) else { return };
        let mut first = group.join().await;
        // The queues are there when something can come.
        assert!(first.lag().await.is_ok());
        group.publish().await;
        let mut seen = Seen::default();
        let arrivals = receive(&mut *first).await;
        seen.note(&arrivals);

        // The other one waits for its partition before the first one lets it go.
        let mut second = group.join().await;
        let came = tokio::time::timeout(A_WHILE, second.receive(7)).await;
        if let Ok(came) = came {
            let came = came.unwrap();
            seen.note(&came);
            done(&mut *second, &came).await;
        }
        done(&mut *first, &arrivals).await;
        while !seen.is_everything() {
            let (which, arrivals) = tokio::select! {
                came = first.receive(7) => (0, came.unwrap()),
                came = second.receive(7) => (1, came.unwrap()),
                () = tokio::time::sleep(LONG) => panic!("{} came", seen.0.len()),
            };
            seen.note(&arrivals);
            match which {
                0 => done(&mut *first, &arrivals).await,
                _ => done(&mut *second, &arrivals).await,
            }
        }

        seen.in_order();
        first.close().await.unwrap();
        second.close().await.unwrap();
    }
}

#[tokio::test]
async fn what_a_reader_leaves_behind_comes_before_the_rest() {
    for _ in 0..3 {
        let Some(group) = Group::new(1) else { return };
        let mut first = group.join().await;
        assert!(first.lag().await.is_ok());
        let mut second = group.join().await;
        group.publish().await;
        let arrivals = receive(&mut *first).await;
        assert!(!arrivals.is_empty());
        drop(first);

        let mut seen = Seen::default();
        while !seen.is_everything() {
            let arrivals = receive(&mut *second).await;
            seen.note(&arrivals);
            done(&mut *second, &arrivals).await;
        }

        seen.in_order();
        second.close().await.unwrap();
    }
}
