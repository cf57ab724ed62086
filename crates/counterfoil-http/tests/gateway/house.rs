//! A gateway over a database of its own, in front of a service of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::{Key, Records, Rules, State};
use counterfoil_core::store::Store as _;
use counterfoil_engine::pipeline::Registry;
use counterfoil_http::Policy;
use counterfoil_http::gateway::{
    self, CallerRule, Gateway, Guarded, Options, Pattern, Probe, Route, UpstreamSettings,
};
use http::StatusCode;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::client::{self, Answer};
use crate::upstream::Upstream;

pub(crate) struct House {
    pub(crate) records: Arc<dyn Records>,
    pub(crate) upstream: Upstream,
    _directory: TempDir,
}

/// A gateway that listens.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) gateway: Gateway,
}

pub(crate) fn quick() -> UpstreamSettings {
    UpstreamSettings {
        connect_timeout: Duration::from_secs(2),
        ..UpstreamSettings::default()
    }
}

pub(crate) fn policy() -> Policy {
    Policy::new()
        .business_type("orders")
        .unwrap()
        .optional()
        .keep_chunked()
        .max_answer(1 << 20)
        .harmless([StatusCode::SERVICE_UNAVAILABLE])
        .final_errors([StatusCode::NOT_IMPLEMENTED])
}

/// Uncertain requests are probed as soon as somebody looks.
pub(crate) fn guarded() -> Guarded {
    Guarded {
        policy: policy(),
        rules: Rules {
            wait: Duration::from_secs(20),
            reconcile_age: Duration::from_millis(1),
            alert_age: Duration::from_millis(1),
            ..Rules::default()
        },
        caller: CallerRule::Header("x-caller".parse().unwrap()),
        probe: Some(Probe::parse("GET /orders?ref={key}").unwrap()),
        per_host: true,
        degraded: None,
    }
}

/// A route to this service for everything.
pub(crate) fn route_to(url: &str, settings: UpstreamSettings, guard: Option<Guarded>) -> Route {
    let upstream = gateway::Upstream::new("shop", url, settings).unwrap();
    Route {
        host: None,
        path: Pattern::everything(),
        methods: Vec::new(),
        upstream: Arc::new(upstream),
        preserve_host: true,
        guard,
        stale: None,
    }
}

impl House {
    pub(crate) async fn on_sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        let store = counterfoil_sqlite::SqliteStore::connect(path.to_str().unwrap()).unwrap();
        store.migrate().await.unwrap();
        Self {
            records: Arc::new(store.guard(None).unwrap()),
            upstream: Upstream::start(),
            _directory: directory,
        }
    }

    #[cfg(feature = "postgres")]
    pub(crate) async fn on_postgres() -> Option<Self> {
        use sqlx::Connection as _;
        let server = counterfoil_testkit::server::postgres()?;
        let schema = format!("gateway_{:x}", fastrand::u64(..));
        let mut admin = sqlx::PgConnection::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}")))
            .execute(&mut admin)
            .await
            .unwrap();
        let joint = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{joint}options=-c%20search_path%3D{schema}");
        let store = counterfoil_postgres::PostgresStore::connect(&url).unwrap();
        store.migrate().await.unwrap();
        Some(Self {
            records: Arc::new(store.guard(None).unwrap()),
            upstream: Upstream::start(),
            _directory: tempfile::tempdir().unwrap(),
        })
    }

    #[cfg(feature = "mysql")]
    pub(crate) async fn on_mysql() -> Option<Self> {
        use sqlx::mysql::MySqlPool;
        let server = counterfoil_testkit::server::mysql()?;
        let schema = format!("gateway_{:x}", fastrand::u64(..));
        let admin = MySqlPool::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE {schema}")))
            .execute(&admin)
            .await
            .unwrap();
        let options = admin.connect_options().as_ref().clone().database(&schema);
        admin.close().await;
        let pool = MySqlPool::connect_lazy_with(options);
        let store = counterfoil_mysql::MysqlStore::from_pool(&pool);
        store.migrate().await.unwrap();
        Some(Self {
            records: Arc::new(store.guard(None).unwrap()),
            upstream: Upstream::start(),
            _directory: tempfile::tempdir().unwrap(),
        })
    }

    pub(crate) fn route(&self, settings: UpstreamSettings, guard: Option<Guarded>) -> Route {
        route_to(&self.upstream.url(), settings, guard)
    }

    pub(crate) async fn door(&self) -> Door {
        self.door_with(self.route(quick(), Some(guarded()))).await
    }

    pub(crate) async fn door_with(&self, route: Route) -> Door {
        let gateway = Gateway::new(Arc::clone(&self.records));
        gateway.set_routes(vec![route], &Options::default());
        Door::open(gateway).await
    }

    /// A gateway with everything that is wrapped around its calls.
    pub(crate) async fn resilient_door(&self, routes: Vec<Route>) -> (Door, Registry) {
        let (gateway, registry) = (Gateway::new(Arc::clone(&self.records)), Registry::new());
        let options = Options {
            wrap: Some(gateway::resilient(registry.clone())),
            ..Options::default()
        };
        gateway.set_routes(routes, &options);
        (Door::open(gateway).await, registry)
    }

    pub(crate) async fn state_of(&self, key: &str) -> Option<State> {
        let key = Key::new("shop.example/alice", "orders", key).unwrap();
        let found = self.records.look(&key.digest()).await.unwrap();
        found.map(|found| found.state())
    }
}

impl Door {
    pub(crate) async fn open(gateway: Gateway) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let never = std::future::pending::<()>();
        let serving = gateway::serve(listener, gateway.clone(), never, Duration::from_secs(1));
        tokio::spawn(serving);
        Self { address, gateway }
    }

    pub(crate) async fn order(&self, key: &str, what: &str) -> Answer {
        client::send(self.address, client::order(key, what)).await
    }

    /// Sends in the background.
    pub(crate) fn spawn(&self, key: &str, what: &str) -> tokio::task::JoinHandle<Answer> {
        tokio::spawn(client::send(self.address, client::order(key, what)))
    }
}
