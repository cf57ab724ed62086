//! Stopping, losing the lease, sharing with others, routes.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::desk::{Desk, Filter};
use counterfoil_core::route::Routes;
use counterfoil_core::store::{RelayId, Store};
use counterfoil_core::{Code, Message, Outcome};
use counterfoil_engine::{EngineBuilder, QueueSpec, Settings, TaskOptions, TaskRegistry};
use counterfoil_testkit::memory::MemoryStore;
use tokio::sync::{Semaphore, watch};

use crate::support::*;

#[tokio::test]
async fn a_stopping_relay_finishes_what_it_has_begun() {
    let store = MemoryStore::new();
    let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (inside, held) = (Arc::clone(&begun), Arc::clone(&gate));
    let mut tasks = TaskRegistry::new();
    tasks
        .add(
            "slow",
            TaskOptions::default(),
            move |_: counterfoil_engine::Task<u32>| {
                let (inside, held) = (Arc::clone(&inside), Arc::clone(&held));
                async move {
                    inside.add_permits(1);
                    held.acquire().await?.forget();
                    Ok(())
                }
            },
        )
        .unwrap();
    let mut tx = store.begin();
    tx.enqueue_keyed(&counterfoil_engine::task_message("slow", "1", &1).unwrap())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings())
        .tasks(tasks)
        .start()
        .await
        .unwrap();
    begun.acquire().await.unwrap().forget();

    let stopping = tokio::spawn(engine.stop());
    gate.add_permits(1);
    stopping.await.unwrap();

    assert!(
        store.outbox(&Filter::default()).await.unwrap().is_empty(),
        "the task was settled before the end"
    );
    assert!(
        store.stats().await.unwrap().iter().all(|q| q.relays == 0),
        "nobody is announced any more"
    );
}

#[tokio::test]
async fn a_relay_whose_lease_ran_out_joins_anew_and_goes_on() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let settings = Settings {
        lease: Duration::from_millis(600),
        ..settings()
    };
    let queue = QueueSpec::new(QUEUE, Arc::new(Narrow(Arc::clone(&script))));
    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings)
        .queue(queue)
        .start()
        .await
        .unwrap();
    enqueue(&store, &[message("a", 1)]).await;
    script
        .until("the first arrives", |seen| seen.len() == 1)
        .await;
    let epoch = script.seen()[0].epoch;

    store.clock().advance(Duration::from_secs(5));

    let mut version = 1;
    eventually("messages arrive under a new ownership", || {
        version += 1;
        let (store, script) = (store.clone(), Arc::clone(&script));
        async move {
            enqueue(&store, &[message("a", version)]).await;
            script.seen().iter().any(|d| d.epoch > epoch)
        }
    })
    .await;
    until_empty(&store).await;
    assert!(script.first_deliveries()["a"].is_sorted());
}

/// Stands still with the first message until the test lets it go, and then says this of it.
struct Stuck {
    answer: Outcome,
    script: Arc<Script>,
    begun: Semaphore,
    go_on: Semaphore,
}

#[async_trait::async_trait]
impl counterfoil_core::Destination for Stuck {
    fn describe(&self) -> String {
        "stuck".into()
    }

    fn capabilities(&self) -> counterfoil_core::Capabilities {
        counterfoil_core::Capabilities {
            timeout: None,
            ..self.script.capabilities()
        }
    }

    async fn publish(&self, batch: &[counterfoil_core::Delivery]) -> Vec<Outcome> {
        let outcomes = self.script.publish(batch).await;
        if self.script.calls().len() == 1 {
            self.begun.add_permits(1);
            self.go_on.acquire().await.unwrap().forget();
            return vec![self.answer.clone(); batch.len()];
        }
        outcomes
    }
}

/// Another relay may have had the message in between: what came of it then says nothing about it now.
#[tokio::test]
async fn what_comes_of_a_message_under_a_former_ownership_counts_for_nothing_under_the_next() {
    let error = || "nobody there".to_owned();
    for answer in [
        Outcome::Unavailable { error: error() },
        Outcome::refused(Code::UPSTREAM_4XX, error()),
        Outcome::retry(Code::TIMEOUT, error()),
        Outcome::Stored,
    ] {
        offer_under_two_ownerships(answer).await;
    }
}

async fn offer_under_two_ownerships(answer: Outcome) {
    let store = MemoryStore::new();
    let stuck = Arc::new(Stuck {
        answer,
        script: Script::new(|_| Outcome::Stored),
        begun: Semaphore::new(0),
        go_on: Semaphore::new(0),
    });
    let brisk = Settings {
        lease: Duration::from_millis(600),
        ..settings()
    };
    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(brisk)
        .queue(QueueSpec::new(QUEUE, Arc::clone(&stuck) as _))
        .start()
        .await
        .unwrap();
    enqueue(&store, &[message("a", 1)]).await;
    stuck.begun.acquire().await.unwrap().forget();
    let first = stuck.script.seen()[0].clone();

    store.clock().advance(Duration::from_secs(5));
    eventually("the shard is taken anew", || async {
        let nobody = RelayId::new("test");
        let survey = store.survey(&nobody, &[Arc::from(QUEUE)]).await.unwrap();
        let mut owned = survey.owned.iter();
        owned.any(|o| o.shard.shard == first.shard && o.epoch > first.epoch)
    })
    .await;
    let much_later = chrono::Utc::now() + chrono::Duration::days(400);
    let third = message("a", 3).not_before(much_later);
    enqueue(&store, &[message("a", 2), third]).await;
    eventually("the second one has been read, with the third", || async {
        stats(&store).await.scheduled == 1
    })
    .await;
    stuck.go_on.add_permits(1);

    let second_arrives = |seen: &Vec<_>| versions(seen).iter().any(|v| v.1 == 2);
    stuck.script.until("the second", second_arrives).await;
    let order: Vec<i64> = versions(&stuck.script.seen()).iter().map(|v| v.1).collect();
    assert_eq!(order, [1, 1, 2]);
    assert!(parked(&store).await.is_empty());
}

/// The script with a timeout below the short lease of the test.
struct Narrow(Arc<Script>);

#[async_trait::async_trait]
impl counterfoil_core::Destination for Narrow {
    fn describe(&self) -> String {
        "narrow".into()
    }

    fn capabilities(&self) -> counterfoil_core::Capabilities {
        counterfoil_core::Capabilities {
            timeout: Some(Duration::from_millis(300)),
            ..self.0.capabilities()
        }
    }

    async fn publish(&self, batch: &[counterfoil_core::Delivery]) -> Vec<Outcome> {
        self.0.publish(batch).await
    }
}

#[tokio::test]
async fn two_relays_share_a_queue_and_one_takes_over_when_the_other_leaves() {
    let store = MemoryStore::new();
    let (first, second) = (
        Script::new(|_| Outcome::Stored),
        Script::new(|_| Outcome::Stored),
    );
    let brisk = Settings {
        lease: Duration::from_millis(1_500),
        ..settings()
    };
    let begin = |script: &Arc<Script>| {
        let queue = QueueSpec::new(QUEUE, Arc::new(Narrow(Arc::clone(script))));
        EngineBuilder::new(Arc::new(store.clone()))
            .settings(brisk.clone())
            .queue(queue)
            .start()
    };
    let one = begin(&first).await.unwrap();
    let two = begin(&second).await.unwrap();

    let mut n = 0;
    eventually("both get messages", || {
        n += 1;
        let (store, first, second) = (store.clone(), Arc::clone(&first), Arc::clone(&second));
        async move {
            enqueue(&store, &[message(n, 1)]).await;
            !first.seen().is_empty() && !second.seen().is_empty()
        }
    })
    .await;
    until_empty(&store).await;
    one.stop().await;
    let before = second.seen().len();
    let all: Vec<_> = (10_000..10_050).map(|a| message(a, 1)).collect();
    enqueue(&store, &all).await;

    second
        .until("the other takes everything", |seen| {
            seen.len() == before + 50
        })
        .await;
    two.stop().await;
}

#[tokio::test]
async fn a_message_without_a_queue_goes_where_the_routes_say() {
    let store = MemoryStore::new();
    let (billing, search) = (
        Script::new(|_| Outcome::Stored),
        Script::new(|_| Outcome::Stored),
    );
    let mut routes = Routes::default();
    routes.add("Order*", vec!["billing".into(), "search".into()]);
    routes.add("UserAdded", vec!["search".into()]);
    let queue = |name: &str, s: &Arc<Script>| {
        QueueSpec::new(
            name,
            Arc::clone(s) as Arc<dyn counterfoil_core::Destination>,
        )
    };
    let paid = Message::json("order", 1, "OrderPaid", &1).unwrap();
    let added = Message::json("user", 1, "UserAdded", &1).unwrap();
    let unknown = Message::json("user", 1, "Nobody", &1).unwrap();
    let ids = enqueue(&store, &[paid, unknown, added]).await;

    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings())
        .routes(routes)
        .queue(queue("billing", &billing))
        .queue(queue("search", &search))
        .start()
        .await
        .unwrap();

    billing
        .until("the order arrives", |seen| seen.len() == 1)
        .await;
    search
        .until("order and user arrive", |seen| seen.len() == 2)
        .await;
    assert_eq!(billing.seen()[0].id, ids[0].derive("billing"));
    let one: Vec<_> = search.seen().iter().map(|d| d.id).collect();
    assert!(
        one.contains(&ids[0].derive("search")) && one.contains(&ids[2]),
        "one destination keeps the id"
    );
    eventually("what no route wants waits", || async {
        let rows = store.outbox(&Filter::default()).await.unwrap();
        rows.len() == 1 && rows[0].id == ids[1].to_string() && rows[0].state == "scheduled"
    })
    .await;
}

#[tokio::test]
async fn a_message_that_no_route_wanted_is_looked_at_when_a_relay_starts_with_other_routes() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let relay = async |events: &str| {
        let mut routes = Routes::default();
        routes.add(events, vec![QUEUE.into()]);
        EngineBuilder::new(Arc::new(store.clone()))
            .settings(settings())
            .routes(routes)
            .queue(spec(&script))
            .start()
            .await
            .unwrap()
    };
    let first = relay("UserAdded").await;
    let ids = enqueue(
        &store,
        &[Message::json("order", 1, "OrderPaid", &1).unwrap()],
    )
    .await;
    eventually("no route wants it", || async {
        let rows = store.outbox(&Filter::default()).await.unwrap();
        rows.len() == 1 && rows[0].code.as_deref() == Some("NO_ROUTE")
    })
    .await;
    first.stop().await;

    let _second = relay("Order*").await;
    script
        .until("it arrives without waiting for its time", |seen| {
            seen.iter().any(|d| d.id == ids[0])
        })
        .await;
}

#[tokio::test]
async fn a_slow_destination_slows_nobody_else() {
    let store = MemoryStore::new();
    let (open, mut gate) = watch::channel(false);
    let fast = Script::new(|_| Outcome::Stored);
    let mut tasks = TaskRegistry::new();
    gate.mark_unchanged();
    tasks
        .add(
            "stuck",
            TaskOptions {
                concurrency: 2,
                ..TaskOptions::default()
            },
            move |_: counterfoil_engine::Task<u32>| {
                let mut gate = gate.clone();
                async move {
                    gate.wait_for(|open| *open).await?;
                    Ok(())
                }
            },
        )
        .unwrap();
    for n in 0..300 {
        let mut tx = store.begin();
        tx.enqueue_keyed(&counterfoil_engine::task_message("stuck", &n.to_string(), &n).unwrap())
            .await
            .unwrap();
        tx.enqueue(&[message(n, 1)]).await.unwrap();
        tx.commit().await.unwrap();
    }

    let _engine = EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings())
        .tasks(tasks)
        .queue(spec(&fast))
        .start()
        .await
        .unwrap();

    fast.until(
        "all fast ones arrive while the slow ones are stuck",
        |seen| seen.len() == 300,
    )
    .await;
    open.send_replace(true);
    eventually("then the slow ones", || async {
        store.outbox(&Filter::default()).await.unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_at_the_start() {
    let store = MemoryStore::new();
    let script = Script::new(|_| Outcome::Stored);
    let short = Settings {
        lease: Duration::from_secs(1),
        ..settings()
    };

    let refused = EngineBuilder::new(Arc::new(store.clone()))
        .settings(short)
        .queue(spec(&script))
        .start()
        .await;
    let twice = EngineBuilder::new(Arc::new(store))
        .queue(spec(&script))
        .queue(spec(&script))
        .start()
        .await;

    let reason = refused.err().unwrap().to_string();
    assert!(
        reason.contains("lease") && reason.contains(QUEUE),
        "{reason}"
    );
    assert!(
        twice
            .err()
            .unwrap()
            .to_string()
            .contains("two destinations")
    );
}
