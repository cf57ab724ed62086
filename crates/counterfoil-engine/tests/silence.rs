//! A relay whose connections fall silent: open, and nothing comes through any more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a surprise ends the test"
)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::policy::Backoff;
use counterfoil_core::store::{RelayId, Store};
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Message, MessageId, Outcome};
use counterfoil_engine::{Engine, EngineBuilder, QueueSpec, Settings};
use counterfoil_mysql::MysqlStore;
use counterfoil_postgres::PostgresStore;
use counterfoil_testkit::server;
use counterfoil_testkit::silence::Proxy;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::sync::watch;

const QUEUE: &str = "orders";
const LEASE: Duration = Duration::from_secs(3);
/// Far longer than it takes: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Only the heartbeat's statement has this in it.
const HEARTBEAT: &str = "SET heartbeat_at =";

/// A database of its own, a way to it that can fall silent, and one that cannot.
struct Place {
    proxy: Proxy,
    proxied: Arc<dyn Store>,
    direct: Arc<dyn Store>,
}

/// A destination that refuses every message once: so a delivery needs every kind of work.
#[derive(Default)]
struct Log {
    refused: Mutex<BTreeSet<MessageId>>,
    arrived: watch::Sender<BTreeSet<MessageId>>,
}

#[async_trait]
impl Destination for Log {
    fn describe(&self) -> String {
        "log".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 10,
            concurrency: 2,
            timeout: Some(Duration::from_secs(1)),
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        batch
            .iter()
            .map(|delivery| self.take(delivery.id))
            .collect()
    }
}

impl Log {
    fn take(&self, id: MessageId) -> Outcome {
        if self.refused.lock().unwrap().insert(id) {
            return Outcome::Retry {
                code: Code::TIMEOUT,
                error: "not yet".into(),
                after: None,
            };
        }
        self.arrived.send_modify(|arrived| {
            arrived.insert(id);
        });
        Outcome::Stored
    }

    async fn arrived(&self, ids: &[MessageId]) {
        let mut arrived = self.arrived.subscribe();
        let all = arrived.wait_for(|arrived| ids.iter().all(|id| arrived.contains(id)));
        let waited = tokio::time::timeout(PATIENCE, all).await;
        assert!(waited.is_ok(), "messages did not arrive");
    }
}

async fn start(store: &Arc<dyn Store>, log: &Arc<Log>) -> Engine {
    let destination = Arc::clone(log) as Arc<dyn Destination>;
    let settings = Settings {
        lease: LEASE,
        poll: Duration::from_millis(50),
        ..Settings::default()
    };
    EngineBuilder::new(Arc::clone(store))
        .settings(settings)
        .queue(QueueSpec {
            backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(4), 10).unwrap(),
            ..QueueSpec::new(QUEUE, destination)
        })
        .start()
        .await
        .unwrap()
}

async fn enqueue(store: &Arc<dyn Store>, count: usize) -> Vec<MessageId> {
    let messages: Vec<Message> = (0..count)
        .map(|n| Message::json("order", n, "OrderPaid", &n).unwrap())
        .map(|message| message.queue(QUEUE))
        .collect();
    let keyed: Vec<_> = messages.iter().cloned().map(Into::into).collect();
    store.enqueue(&keyed).await.unwrap();
    messages.iter().map(|m| m.id).collect()
}

/// Waits until so many relays live and each shard has one of them as its owner.
async fn shared_by(store: &Arc<dyn Store>, relays: usize) -> BTreeSet<RelayId> {
    let anybody = RelayId::new("nobody");
    let queues = [Arc::from(QUEUE)];
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            let survey = store.survey(&anybody, &queues).await.unwrap();
            let members: BTreeSet<_> = survey.members.into_iter().map(|m| m.0).collect();
            let owned = survey.owned.iter().filter(|o| o.alive);
            let owners: BTreeSet<_> = owned.clone().map(|o| o.owner.clone()).collect();
            let all = owned.count() == usize::from(store.shards());
            if all && members.len() == relays && owners == members {
                return owners;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.expect("the shards were not shared")
}

async fn a_relay_whose_connections_fall_silent_goes_on_with_new_ones(place: Place) {
    let log = Arc::new(Log::default());
    let engine = start(&place.proxied, &log).await;
    log.arrived(&enqueue(&place.direct, 5).await).await;

    place.proxy.silence();

    log.arrived(&enqueue(&place.direct, 5).await).await;
    engine.stop().await;
}

async fn a_relay_that_cannot_work_leaves_its_shards_although_its_heart_beats(place: Place) {
    let (log, other) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let engine = start(&place.proxied, &log).await;
    let second = start(&place.direct, &other).await;
    let both = shared_by(&place.direct, 2).await;
    while !place.proxy.has_marked() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    place.proxy.silence_all_but_marked();

    let left = shared_by(&place.direct, 1).await;
    assert!(left.is_subset(&both));
    other.arrived(&enqueue(&place.direct, 50).await).await;

    place.proxy.heal();
    shared_by(&place.direct, 2).await;
    engine.stop().await;
    second.stop().await;
}

async fn on_postgres() -> Option<Place> {
    let url = server::postgres()?;
    let options: PgConnectOptions = url.parse().unwrap();
    let schema = format!("silence_{}", MessageId::new().as_uuid().simple());
    let create = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {schema}")));
    create
        .execute(&mut options.connect().await.unwrap())
        .await
        .unwrap();
    let options = options
        .options([("search_path", schema)])
        .ssl_mode(PgSslMode::Disable);
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let proxy = Proxy::start(&server, HEARTBEAT).await;
    let proxied = options.clone().host("127.0.0.1").port(proxy.port());
    let store = |options| {
        let pool = PgPoolOptions::new().connect_lazy_with(options);
        Arc::new(PostgresStore::from_pool(&pool)) as Arc<dyn Store>
    };
    let (proxied, direct) = (store(proxied), store(options));
    direct.migrate().await.unwrap();
    Some(Place {
        proxy,
        proxied,
        direct,
    })
}

async fn on_mysql() -> Option<Place> {
    let url = server::mysql()?;
    let options: MySqlConnectOptions = url.parse().unwrap();
    let database = format!("silence_{}", MessageId::new().as_uuid().simple());
    let create = sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}")));
    create
        .execute(&mut options.connect().await.unwrap())
        .await
        .unwrap();
    let options = options.database(&database).ssl_mode(MySqlSslMode::Disabled);
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let proxy = Proxy::start(&server, HEARTBEAT).await;
    let proxied = options.clone().host("127.0.0.1").port(proxy.port());
    let store = |options| {
        let pool = MySqlPoolOptions::new().connect_lazy_with(options);
        Arc::new(MysqlStore::from_pool(&pool)) as Arc<dyn Store>
    };
    let (proxied, direct) = (store(proxied), store(options));
    direct.migrate().await.unwrap();
    Some(Place {
        proxy,
        proxied,
        direct,
    })
}

macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(place) = super::on_postgres().await {
                    super::$name(place).await;
                }
            })+
        }
        mod mysql {
            $(#[tokio::test]
            async fn $name() {
                if let Some(place) = super::on_mysql().await {
                    super::$name(place).await;
                }
            })+
        }
    };
}

tests!(
    a_relay_whose_connections_fall_silent_goes_on_with_new_ones,
    a_relay_that_cannot_work_leaves_its_shards_although_its_heart_beats,
);
