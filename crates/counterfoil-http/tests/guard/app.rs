//! A payment endpoint that does what the request tells it to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use counterfoil::guard::Context;
use counterfoil::{Guard, Rules};
use counterfoil_core::guard::Gate;
use counterfoil_http::{GuardLayer, Policy, Recording, Tx};
use http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sqlx::Pool;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::database::{Scratch, TestDb};

/// What tests see of the endpoint.
pub(crate) struct Shared<D: TestDb> {
    pub(crate) pool: Pool<D::Sqlx>,
    /// How often a handler was begun.
    pub(crate) runs: AtomicUsize,
    /// One permit for each handler that has arrived at its waiting place.
    pub(crate) arrived: Semaphore,
    /// One permit for each handler that may go on.
    pub(crate) go: Semaphore,
    /// What the next handlers do, before what the request says: statuses to fail with.
    pub(crate) fail_first: AtomicUsize,
    kept: std::sync::Mutex<Vec<Tx<D>>>,
}

pub(crate) struct App<D: TestDb> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) guard: Guard<D>,
    router: Router,
    _scratch: Scratch<D>,
}

pub(crate) fn quick() -> Rules {
    Rules {
        wait: Duration::from_secs(15),
        ..Rules::default()
    }
}

/// Who asks: a header, as an authentication layer would have found it out.
pub(crate) fn caller(parts: &http::request::Parts) -> Option<String> {
    let name = parts.headers.get("x-caller")?.to_str().ok()?;
    Some(name.to_owned())
}

impl<D: TestDb> App<D> {
    pub(crate) fn transactional(scratch: Scratch<D>, rules: Rules, policy: Policy) -> Self {
        Self::new(scratch, rules, |guard, shared| {
            transactional_router(guard, shared, policy)
        })
    }

    /// The same endpoint in another process: it shares the database, and its own requests only
    /// wait for each other.
    pub(crate) fn elsewhere(&self, rules: Rules, gate: Arc<dyn Gate>) -> Elsewhere {
        let guard = Guard::<D>::new(&self.shared.pool, rules)
            .unwrap()
            .gate(gate);
        let shared = Arc::clone(&self.shared);
        Elsewhere(transactional_router(guard, shared, Policy::new()))
    }

    pub(crate) fn leased(scratch: Scratch<D>, rules: Rules, policy: Policy) -> Self {
        Self::new(scratch, rules, |guard, shared| {
            Router::new()
                .route("/pay", post(outside::<D>))
                .route("/raw", post(raw::<D>))
                .with_state(shared)
                .route_layer(GuardLayer::leased(guard).caller(caller).policy(policy))
        })
    }

    fn new(
        scratch: Scratch<D>,
        rules: Rules,
        router: impl FnOnce(Guard<D>, Arc<Shared<D>>) -> Router,
    ) -> Self {
        let shared = Arc::new(Shared {
            pool: scratch.pool.clone(),
            runs: AtomicUsize::new(0),
            arrived: Semaphore::new(0),
            go: Semaphore::new(0),
            fail_first: AtomicUsize::new(0),
            kept: std::sync::Mutex::default(),
        });
        let guard = Guard::<D>::new(&scratch.pool, rules).unwrap();
        Self {
            router: router(guard.clone(), Arc::clone(&shared)),
            shared,
            guard,
            _scratch: scratch,
        }
    }

    /// The same under a path of its own.
    pub(crate) fn nested(mut self, path: &str) -> Self {
        self.router = Router::new().nest(path, self.router);
        self
    }

    /// The same with a layer outside the guard.
    pub(crate) fn behind<L>(mut self, layer: L) -> Self
    where
        L: tower::Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
        L::Service: tower::Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as tower::Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as tower::Service<Request>>::Error: Into<std::convert::Infallible> + 'static,
        <L::Service as tower::Service<Request>>::Future: Send + 'static,
    {
        self.router = self.router.layer(layer);
        self
    }

    /// Lets go of the transactions that handlers have kept. Answers how many there were.
    pub(crate) fn let_go(&self) -> usize {
        let kept = std::mem::take(&mut *self.shared.kept.lock().unwrap());
        kept.len()
    }

    pub(crate) fn runs(&self) -> usize {
        self.shared.runs.load(Ordering::SeqCst)
    }

    pub(crate) async fn effects(&self) -> i64 {
        D::effects(&self.shared.pool).await
    }

    pub(crate) async fn send(&self, request: Request) -> Answer {
        Answer::read(self.open(request).await).await
    }

    /// An answer of which nothing was read yet.
    pub(crate) async fn open(&self, request: Request) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends in the background.
    pub(crate) fn spawn(&self, request: Request) -> JoinHandle<Answer> {
        spawn(&self.router, request)
    }

    pub(crate) async fn pay(&self, key: &str, body: Value) -> Answer {
        self.send(pay(key, body)).await
    }

    /// Until so many handlers wait.
    pub(crate) async fn arrived(&self, n: u32) {
        let permits = self.shared.arrived.acquire_many(n);
        let permits = tokio::time::timeout(Duration::from_secs(20), permits).await;
        permits
            .expect("the handler never arrived")
            .unwrap()
            .forget();
    }
}

/// The endpoint in another process.
pub(crate) struct Elsewhere(Router);

impl Elsewhere {
    pub(crate) async fn pay(&self, key: &str, body: Value) -> Answer {
        self.spawn(pay(key, body)).await.unwrap()
    }

    pub(crate) fn spawn(&self, request: Request) -> JoinHandle<Answer> {
        spawn(&self.0, request)
    }
}

fn spawn(router: &Router, request: Request) -> JoinHandle<Answer> {
    let router = router.clone();
    tokio::spawn(async move { Answer::read(router.oneshot(request).await.unwrap()).await })
}

fn transactional_router<D: TestDb>(
    guard: Guard<D>,
    shared: Arc<Shared<D>>,
    policy: Policy,
) -> Router {
    Router::new()
        .route(
            "/pay",
            post(in_tx::<D>).get(async || "read").put(in_tx::<D>),
        )
        .route("/other", post(in_tx::<D>))
        .with_state(shared)
        .route_layer(
            GuardLayer::transactional(guard)
                .caller(caller)
                .policy(policy),
        )
}

/// A request to pay.
pub(crate) fn pay(key: &str, body: Value) -> Request {
    request("POST", "/pay", Some(key), body.to_string())
}

pub(crate) fn request(
    method: &str,
    path: &str,
    key: Option<&str>,
    body: impl Into<Body>,
) -> Request {
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .header("x-caller", "alice");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(body.into()).unwrap()
}

/// An answer, read to its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn read(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) fn replayed(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    /// The last word of the problem's type.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let document: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["status"], json!(self.status));
        let uri = document["type"].as_str().unwrap().to_owned();
        uri.rsplit(':').next().unwrap().to_owned()
    }
}

/// Takes whatever comes.
async fn raw<D: TestDb>(State(shared): State<Arc<Shared<D>>>, body: Bytes) -> String {
    let run = shared.runs.fetch_add(1, Ordering::SeqCst);
    format!("{run}: {} bytes", body.len())
}

/// Two pieces, the second when the test says so.
fn pieces<D: TestDb>(shared: &Arc<Shared<D>>, [first, second]: [&'static str; 2]) -> Body {
    let first = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(first)]);
    let shared = Arc::clone(shared);
    let second = futures_util::stream::once(async move {
        shared.go.acquire().await.unwrap().forget();
        Ok(second)
    });
    Body::from_stream(futures_util::StreamExt::chain(first, second))
}

/// What a handler does after its effect.
async fn act<D: TestDb>(shared: &Arc<Shared<D>>, body: &Value) -> Option<Response> {
    if shared
        .fail_first
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
        .is_ok()
    {
        return Some(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    }
    match body["do"].as_str().unwrap_or_default() {
        "wait" => {
            shared.arrived.add_permits(1);
            shared.go.acquire().await.unwrap().forget();
            None
        }
        "panic" => panic!("as the test wants"),
        "later" => {
            let mut response = (StatusCode::CONFLICT, "not yet").into_response();
            response
                .extensions_mut()
                .insert(Recording::Later(Duration::from_millis(50)));
            Some(response)
        }
        "refused" => {
            let size = usize::try_from(body["size"].as_u64().unwrap_or(0)).unwrap();
            let text = Body::from("x".repeat(size));
            Some((StatusCode::CONFLICT, text).into_response())
        }
        "big" => Some("x".repeat(3 << 20).into_response()),
        "stream" => Some(pieces(shared, ["a", "b"]).into_response()),
        "events" => {
            let events = pieces(shared, ["data: 1\n\n", "data: 2\n\n"]);
            Some(([("content-type", "text/event-stream")], events).into_response())
        }
        "headers" => {
            let mut response = (StatusCode::CREATED, "made").into_response();
            for (name, value) in [
                ("location", "/payments/1"),
                ("etag", "\"v1\""),
                ("set-cookie", "session=secret"),
                ("date", "Sun, 15 Nov 2026 00:00:00 GMT"),
                ("connection", "x-hop"),
                ("x-hop", "1"),
                ("cache-control", "max-age=60"),
                ("x-line", "one"),
                ("x-line", "two"),
            ] {
                response.headers_mut().append(name, value.parse().unwrap());
            }
            Some(response)
        }
        status => {
            let status: u16 = status.parse().ok()?;
            let status = StatusCode::from_u16(status).unwrap();
            Some((status, Json(json!({ "refused": status.as_u16() }))).into_response())
        }
    }
}

fn receipt<D: TestDb>(run: usize) -> Response {
    let fence = Context::current().map_or(0, |c| c.fence());
    // Different in every run, so that a second run cannot look like a replay.
    Json(json!({ "receipt": run, "salt": fastrand::u64(..), "fenced": fence > 0 })).into_response()
}

async fn in_tx<D: TestDb>(
    State(shared): State<Arc<Shared<D>>>,
    mut tx: Tx<D>,
    body: Bytes,
) -> Response {
    let run = shared.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    D::effect(&mut tx, body["amount"].as_i64().unwrap_or(0))
        .await
        .unwrap();
    match body["do"].as_str() {
        Some("swallow") => assert!(D::fail(&mut tx).await),
        Some("keep") => {
            shared.kept.lock().unwrap().push(tx);
            return receipt::<D>(run);
        }
        _ => {}
    }
    match act(&shared, &body).await {
        Some(response) => response,
        None => receipt::<D>(run),
    }
}

async fn outside<D: TestDb>(State(shared): State<Arc<Shared<D>>>, body: Bytes) -> Response {
    let run = shared.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    D::effect_outside(&shared.pool, body["amount"].as_i64().unwrap_or(0))
        .await
        .unwrap();
    match act(&shared, &body).await {
        Some(response) => response,
        None => receipt::<D>(run),
    }
}
