//! From one service to the next: guards at both ends, derived keys, traces, tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use counterfoil::{Counterfoil, Guard, Rules, Settings, Sqlite, Task, TaskError, header};
use counterfoil_core::store::Store as _;
use counterfoil_engine::task_message;
use counterfoil_http::client::{Client, Trace};
use counterfoil_http::{GuardLayer, Tx};
use http::StatusCode;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tokio::sync::Semaphore;

use crate::server::{Does, Service, client, limited, serve};

/// A database with the tables of the guard.
struct Database {
    pool: SqlitePool,
    _folder: tempfile::TempDir,
}

impl Database {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(60));
        let pool = SqlitePoolOptions::new().max_connections(5);
        let pool = pool.connect_with(options).await.unwrap();
        let store = counterfoil_sqlite::SqliteStore::from_pool(&pool).unwrap();
        store.migrate().await.unwrap();
        sqlx::raw_sql("CREATE TABLE charges (cents integer NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            pool,
            _folder: folder,
        }
    }

    fn guard(&self) -> Guard<Sqlite> {
        let rules = Rules {
            wait: Duration::ZERO,
            ..Rules::default()
        };
        Guard::new(&self.pool, rules).unwrap()
    }

    async fn charges(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM charges");
        count.fetch_one(&self.pool).await.unwrap()
    }
}

/// The payment provider: a charge takes effect once for its key.
async fn charge(mut tx: Tx<Sqlite>, Json(cents): Json<i64>) -> Response {
    let insert = sqlx::query("INSERT INTO charges (cents) VALUES (?)").bind(cents);
    insert.execute(&mut **tx).await.unwrap();
    (StatusCode::CREATED, "charged").into_response()
}

async fn provider(database: &Database) -> String {
    let guard = GuardLayer::transactional(database.guard()).one_caller();
    let app = Router::new()
        .route("/charge", post(charge))
        .route_layer(guard);
    format!("http://{}/charge", serve(app).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_gets_the_first_answer_of_a_guard() {
    let database = Database::open().await;
    let url = provider(&database).await;
    let client = client();
    let ask = |cents: i64| client.post(&url).key("order-7").json(&cents).send();

    let first = ask(1250).await.unwrap();
    let again = ask(1250).await.unwrap();
    let other = ask(9).await.unwrap();

    assert_eq!((first.status().as_u16(), &*first.text()), (201, "charged"));
    assert!(!first.headers().contains_key("idempotent-replayed"));
    assert_eq!((again.status().as_u16(), &*again.text()), (201, "charged"));
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(other.status(), 422, "another content is a no");
    assert_eq!(other.attempts(), 1);
    assert_eq!(database.charges().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_while_the_first_is_running_gets_its_answer_in_the_end() {
    let database = Database::open().await;
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (Arc::clone(&begun), Arc::clone(&go));
    let slow = move || {
        let (begun, go) = gates.clone();
        async move {
            begun.add_permits(1);
            go.acquire().await.unwrap().forget();
            "done"
        }
    };
    let guard = GuardLayer::leased(database.guard()).one_caller();
    let app = Router::new().route("/", post(slow)).route_layer(guard);
    let url = format!("http://{}/", serve(app).await);
    let first = tokio::spawn(client().post(&url).key("k").send());
    begun.acquire().await.unwrap().forget();

    // Another process: it shares nothing with the first one.
    let impatient = limited(|limits| limits.write_attempts = 1);
    let told = impatient.post(&url).key("k").send().await.unwrap();
    assert_eq!(told.status(), 409);
    assert!(told.headers().contains_key("retry-after"));
    let second = tokio::spawn(client().post(&url).key("k").send());
    go.add_permits(1);

    assert_eq!(first.await.unwrap().unwrap().text(), "done");
    assert_eq!(second.await.unwrap().unwrap().text(), "done");
}

/// A shop that charges a card by the provider, and fails after it in its first runs.
#[derive(Clone)]
struct Shop {
    client: Client,
    provider: String,
    fails: Arc<AtomicU32>,
}

async fn pay(State(shop): State<Shop>) -> Response {
    let charge = shop.client.post(&shop.provider).step("charge-card");
    let charged = charge.json(&1250).send().await.unwrap();
    let left = shop
        .fails
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    match left {
        Ok(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Err(_) => (charged.status(), charged.text()).into_response(),
    }
}

async fn shop(database: &Database, provider: &str, fails: u32) -> String {
    let guard = GuardLayer::transactional(database.guard());
    let guard = guard.caller(|parts| Some(parts.headers.get("x-caller")?.to_str().ok()?.into()));
    let shop = Shop {
        client: client(),
        provider: provider.to_owned(),
        fails: Arc::new(AtomicU32::new(fails)),
    };
    let app = Router::new().route("/pay", post(pay)).with_state(shop);
    format!("http://{}/pay", serve(app.route_layer(guard)).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_runs_again_charges_once() {
    let (ours, theirs) = (Database::open().await, Database::open().await);
    let shop = shop(&ours, &provider(&theirs).await, 2).await;
    let client = client();
    let pay = |caller| client.post(&shop).key("1").header("x-caller", caller);

    let answer = pay("alice").send().await.unwrap();

    assert_eq!(
        (answer.status().as_u16(), &*answer.text()),
        (201, "charged")
    );
    assert_eq!(answer.attempts(), 3, "its handler has failed twice");
    assert_eq!(theirs.charges().await, 1);
    pay("bob").send().await.unwrap();
    assert_eq!(theirs.charges().await, 2, "bob's request 1 is another one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_and_trace_of_a_request_go_along() {
    let (database, provider) = (
        Database::open().await,
        Service::always(Does::Says(200)).await,
    );
    let shop = shop(&database, &provider.url("/charge"), 1).await;
    let client = client();

    let request = client.post(&shop).key("1").header("x-caller", "alice");
    let request = request.header("traceparent", "00-aa-bb-01");
    let request = request.header("tracestate", "x=1");
    assert_eq!(request.send().await.unwrap().attempts(), 2);

    let seen = provider.seen();
    assert_eq!(seen.len(), 2);
    for one in &seen {
        assert_eq!(one.header("traceparent"), Some("00-aa-bb-01"));
        assert_eq!(one.header("tracestate"), Some("x=1"));
        assert_eq!(one.key(), seen[0].key());
        assert!(one.key().starts_with("\"charge-card:"));
    }
}

#[tokio::test]
async fn a_trace_can_be_given_by_hand() {
    let service = Service::always(Does::Says(200)).await;
    let client = client();
    let trace = |parent: &str| {
        let mut headers = http::HeaderMap::new();
        headers.insert("traceparent", parent.parse().unwrap());
        Trace::of(&headers).unwrap()
    };

    let get = || client.get(service.url("/"));
    get().send().await.unwrap();
    get().trace(trace("a")).send().await.unwrap();
    trace("b").scope(get().send()).await.unwrap();
    trace("b")
        .scope(get().trace(trace("c")).send())
        .await
        .unwrap();

    let seen = service.seen();
    let parents: Vec<_> = seen.iter().map(|s| s.header("traceparent")).collect();
    assert_eq!(parents, [None, Some("a"), Some("b"), Some("c")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_runs_again_calls_with_the_same_key() {
    let database = Database::open().await;
    let service = Service::start([Does::Says(400)], Does::Says(200)).await;
    let (client, url) = (client(), service.url("/ship"));
    let ship = move |_: Task<i64>| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            let answer = client.post(&url).step("ship").send().await?;
            match answer.status().as_u16() {
                200 => Ok(()),
                status => Err(TaskError::failed(format!("{status}"))),
            }
        }
    };
    let settings = Settings {
        poll: Duration::from_millis(20),
        ..Settings::default()
    };
    let options = counterfoil::TaskOptions {
        backoff: counterfoil::Backoff::new(Duration::from_millis(1), Duration::from_millis(1), 10)
            .unwrap(),
        ..Default::default()
    };
    let cf = Counterfoil::sqlite(database.pool.clone())
        .task_with("ship", options, ship)
        .settings(settings)
        .start()
        .await
        .unwrap();

    let mut tx = database.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let task = task_message("ship", "7", &7).unwrap().message;
    let task = task.header(header::TRACEPARENT, "00-aa-bb-01");
    cf.enqueue(&mut tx, &task).await.unwrap();
    cf.commit(tx).await.unwrap();

    service.asked(2).await;
    for one in service.seen() {
        assert_eq!(one.key(), format!("\"ship:{}\"", task.id));
        assert_eq!(one.header("traceparent"), Some("00-aa-bb-01"));
    }
    cf.stop().await;
}
