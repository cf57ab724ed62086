//! One-time tokens: a form is taken once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use counterfoil_core::guard::{Consumed, Token, Tokens};
use counterfoil_core::store::Result;
use counterfoil_http::{Caller, PolicyError, TokenLayer};
use counterfoil_redis_gate::{RedisTokens, TokenOptions};
use counterfoil_testkit::server::{self, PrivateRedis};
use serde_json::Value;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::app::{Answer, caller};
use crate::database::{Scratch, TestDb};

/// A form, and the endpoint that takes it.
struct Form {
    router: Router,
    runs: Arc<AtomicUsize>,
}

impl Form {
    fn over(tokens: Arc<dyn Tokens>) -> Self {
        Self::behind(TokenLayer::over(tokens).caller(caller))
    }

    fn behind(layer: TokenLayer) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let taken = Arc::clone(&runs);
        let take = async move || {
            taken.fetch_add(1, Ordering::SeqCst);
            "taken"
        };
        let router = Router::new()
            .route("/orders", post(take).get(async || "the form"))
            .route_layer(layer.clone())
            .merge(layer.router());
        Self { router, runs }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn send(&self, request: Request) -> Answer {
        Answer::read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    async fn token(&self, name: &str) -> String {
        let answer = self.send(request("POST", "/token", name, &[])).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let issued: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(issued["expires_in"], 1800);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        issued["token"].as_str().unwrap().to_owned()
    }

    async fn submit(&self, name: &str, tokens: &[&str]) -> Answer {
        self.send(request("POST", "/orders", name, tokens)).await
    }
}

fn request(method: &str, path: &str, name: &str, tokens: &[&str]) -> Request {
    let mut request = http::Request::builder().method(method).uri(path);
    if !name.is_empty() {
        request = request.header("x-caller", name);
    }
    for token in tokens {
        request = request.header("x-once-token", *token);
    }
    request.body(Body::empty()).unwrap()
}

/// A refusal that says why.
fn assert_duplicate(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (409, "duplicate-submission")
    );
}

async fn of_a_hundred_submissions_one_runs(tokens: Arc<dyn Tokens>) {
    let form = Form::over(tokens);
    let token = form.token("alice").await;

    let many: Vec<_> = (0..100)
        .map(|_| {
            let sent = form
                .router
                .clone()
                .oneshot(request("POST", "/orders", "alice", &[&token]));
            tokio::spawn(async move { Answer::read(sent.await.unwrap()).await })
        })
        .collect();

    let mut taken = 0;
    for one in many {
        match one.await.unwrap() {
            answer if answer.status == 200 => taken += 1,
            refused => assert_duplicate(&refused),
        }
    }
    assert_eq!((taken, form.runs()), (1, 1));
}

async fn anothers_token_is_refused_and_not_used(tokens: Arc<dyn Tokens>) {
    let form = Form::over(tokens);
    let token = form.token("alice").await;

    for other in ["bob", "Alice", "alicea"] {
        assert_duplicate(&form.submit(other, &[&token]).await);
    }

    assert_eq!(form.runs(), 0);
    assert_eq!(form.submit("alice", &[&token]).await.status, 200);
    assert_eq!(form.runs(), 1);
}

pub(crate) async fn case_35_of_a_hundred_submissions_one_runs<D: TestDb>(scratch: Scratch<D>) {
    of_a_hundred_submissions_one_runs(D::tokens(&scratch.pool)).await;
}

pub(crate) async fn case_35_anothers_token_is_refused_and_not_used<D: TestDb>(scratch: Scratch<D>) {
    anothers_token_is_refused_and_not_used(D::tokens(&scratch.pool)).await;
}

pub(crate) async fn a_form_without_a_good_token_is_a_duplicate<D: TestDb>(scratch: Scratch<D>) {
    let form = Form::over(D::tokens(&scratch.pool));
    let (used, good) = (form.token("alice").await, form.token("alice").await);
    assert_eq!(form.submit("alice", &[&used]).await.status, 200);
    let never = Token::random().unwrap().to_string();

    for bad in [
        &[][..],
        &[""],
        &["nonsense"],
        &[&used],
        &[&never],
        &[&good, &good],
    ] {
        assert_duplicate(&form.submit("alice", bad).await);
    }
    let nobody = form.submit("", &[&good]).await;

    assert_eq!(
        (nobody.status, nobody.problem().as_str()),
        (401, "caller-unknown")
    );
    assert_eq!(form.runs(), 1);
    assert_eq!(form.submit("alice", &[&good]).await.status, 200);
    let page = form.send(request("GET", "/orders", "alice", &[])).await;
    assert_eq!((page.status, &page.body[..]), (200, &b"the form"[..]));
}

pub(crate) async fn when_tokens_cannot_be_read_nothing_runs<D: TestDb>(scratch: Scratch<D>) {
    let form = Form::over(D::tokens(&scratch.pool));
    let token = form.token("alice").await;

    D::drop_tokens(&scratch.pool).await;

    assert_unavailable(&form, &token).await;
}

async fn assert_unavailable(form: &Form, token: &str) {
    let issue = form.send(request("POST", "/token", "alice", &[])).await;
    for answer in [form.submit("alice", &[token]).await, issue] {
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (503, "guard-unavailable")
        );
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(form.runs(), 0);
}

/// Tokens that wait for Redis however busy the machine is.
fn in_redis(url: &str) -> Arc<dyn Tokens> {
    let options = TokenOptions {
        prefix: format!("test:{:x}:", fastrand::u64(..)),
        patience: Duration::from_secs(20),
        ..TokenOptions::default()
    };
    Arc::new(RedisTokens::new(url, options).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_35_redis_of_a_hundred_submissions_one_runs() {
    let Some(url) = server::redis() else { return };

    of_a_hundred_submissions_one_runs(in_redis(&url)).await;
}

#[tokio::test]
async fn case_35_redis_anothers_token_is_refused_and_not_used() {
    let Some(url) = server::redis() else { return };

    anothers_token_is_refused_and_not_used(in_redis(&url)).await;
}

#[tokio::test]
async fn without_redis_no_form_is_taken() {
    let Some(mut redis) = PrivateRedis::start().await else {
        return;
    };
    let form = Form::over(in_redis(&redis.url()));
    let token = form.token("alice").await;

    redis.kill().await;

    assert_unavailable(&form, &token).await;
}

/// Says yes to everything, and counts its purges.
struct Yes {
    purges: AtomicUsize,
    purged: Semaphore,
}

impl Yes {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            purges: AtomicUsize::new(0),
            purged: Semaphore::new(0),
        })
    }
}

#[async_trait]
impl Tokens for Yes {
    async fn issue(&self, _owner: &str, _ttl: Duration) -> Result<Token> {
        Token::random()
    }

    async fn consume(&self, _token: &Token, _owner: &str) -> Result<Consumed> {
        Ok(Consumed::Won)
    }

    async fn purge(&self, _batch: u32) -> Result<u64> {
        self.purges.fetch_add(1, Ordering::SeqCst);
        self.purged.add_permits(1);
        Ok(0)
    }
}

#[tokio::test]
async fn expired_tokens_are_removed_now_and_then() {
    let tokens = Yes::new();
    let form = Form::over(Arc::clone(&tokens) as Arc<dyn Tokens>);

    for _ in 0..63 {
        form.token("alice").await;
    }
    assert_eq!(tokens.purges.load(Ordering::SeqCst), 0);
    form.token("alice").await;

    let purged = tokio::time::timeout(Duration::from_secs(20), tokens.purged.acquire());
    purged.await.expect("nothing was purged").unwrap().forget();
}

#[tokio::test]
async fn the_header_and_the_caller_may_be_others() {
    let layer = TokenLayer::over(Yes::new())
        .caller_from_extensions()
        .header("x-form")
        .unwrap();
    let form = Form::behind(layer);
    let token = Token::random().unwrap().to_string();
    let with = |header: &str| {
        http::Request::builder()
            .method("POST")
            .uri("/orders")
            .extension(Caller("alice".into()))
            .header(header, &token)
            .body(Body::empty())
            .unwrap()
    };

    assert_eq!(form.send(with("x-form")).await.status, 200);
    assert_duplicate(&form.send(with("x-once-token")).await);
    assert_eq!(form.submit("alice", &[&token]).await.status, 401);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let layer = || TokenLayer::over(Yes::new()).caller(caller);

    assert!(matches!(
        layer().header("not a header"),
        Err(PolicyError::Header(_))
    ));
    assert!(matches!(
        layer().ttl(Duration::ZERO),
        Err(PolicyError::Zero("ttl"))
    ));
    assert!(layer().ttl(Duration::from_secs(60)).is_ok());
}
