//! Former answers while a service is in trouble.

use std::time::Duration;

use axum::body::Body;
use counterfoil_core::policy::breaker::Forced;
use counterfoil_engine::pipeline::Registry;
use counterfoil_http::gateway::{Guarded, Route, UpstreamSettings};

use crate::client::{self, Answer};
use crate::house::{Door, House, guarded, quick};

const HOUR: Duration = Duration::from_secs(3600);

/// Calls are made once.
fn once() -> UpstreamSettings {
    let mut settings = quick();
    settings.limits.backoff = settings.limits.backoff.with_max_attempts(1);
    settings
}

fn route(house: &House, guard: Option<Guarded>) -> Route {
    Route {
        stale: Some(HOUR),
        ..house.route(once(), guard)
    }
}

async fn opened(house: &House) -> (Door, Registry) {
    house.resilient_door(vec![route(house, None)]).await
}

async fn fail(house: &House, by: u16) {
    house.upstream.get(&format!("/control/fail?by={by}")).await;
}

async fn page(door: &Door, path: &str, lines: &[(&str, &str)]) -> Answer {
    let mut request = client::request("GET", path);
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    client::send(door.address, request.body(Body::empty()).unwrap()).await
}

fn is_stale(told: &Answer) -> bool {
    told.headers.contains_key("counterfoil-stale")
}

#[track_caller]
fn stale(told: &Answer, served: u64) {
    assert_eq!(told.status, 200, "{told:?}");
    assert_eq!(told.header("counterfoil-stale"), Some("true"));
    assert!(told.header("age").unwrap().parse::<u64>().is_ok());
    assert_eq!(told.json()["served"], served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_in_trouble_is_stood_in_for_by_its_last_good_answer() {
    let mut house = House::on_sqlite().await;
    let (door, registry) = opened(&house).await;
    let shop = registry.get("upstream:shop").unwrap();

    for served in 1..=2 {
        let fresh = page(&door, "/page?a", &[]).await;
        assert_eq!((fresh.status, is_stale(&fresh)), (200, false));
        assert_eq!(fresh.json()["served"], served);
    }
    for status in [500, 502, 503, 504] {
        fail(&house, status).await;
        stale(&page(&door, "/page?a", &[]).await, 2);
    }
    fail(&house, 501).await;
    assert_eq!(page(&door, "/page?a", &[]).await.status, 501);
    fail(&house, 0).await;
    let fresh = page(&door, "/page?a", &[]).await;
    let served = fresh.json()["served"].as_u64().unwrap();
    assert!(!is_stale(&fresh) && served > 2);

    shop.force(Some(Forced::Open), "test");
    let resting = page(&door, "/page?a", &[]).await;
    stale(&resting, served);
    assert_eq!(resting.header("content-type"), Some("application/json"));
    assert_eq!(
        page(&door, "/page?b", &[]).await.problem(),
        "service-resting"
    );
    shop.force(None, "test");
    house.upstream.kill();
    stale(&page(&door, "/page?a", &[]).await, served);
    assert_eq!(
        page(&door, "/page?b", &[]).await.problem(),
        "service-unreachable"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_find_no_place_get_the_last_good_answer() {
    let house = House::on_sqlite().await;
    let mut settings = once();
    settings.limits.bulkhead.limit = 1;
    settings.limits.bulkhead.queue = 0;
    let route = Route {
        stale: Some(HOUR),
        ..house.route(settings, Some(guarded()))
    };
    let (door, _) = house.resilient_door(vec![route]).await;
    assert_eq!(page(&door, "/page", &[]).await.status, 200);

    let holding = door.spawn("k", "hold-before");
    house.upstream.waiting(1).await;
    let told = page(&door, "/page", &[]).await;
    house.upstream.go().await;

    stale(&told, 1);
    assert_eq!(holding.await.unwrap().status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_answers_nothing_but_the_same_request() {
    let house = House::on_sqlite().await;
    let (door, _) = opened(&house).await;
    let gzip = [("accept-encoding", "gzip")];
    assert_eq!(page(&door, "/page?a", &gzip).await.status, 200);
    fail(&house, 503).await;

    stale(&page(&door, "/page?a", &gzip).await, 1);
    for (path, lines) in [
        ("/page?a", vec![]),
        ("/page?a", vec![("accept-encoding", "br")]),
        ("/page?a=", vec![gzip[0]]),
        ("/page", vec![gzip[0]]),
        ("/page?a", vec![gzip[0], ("authorization", "Bearer x")]),
        ("/page?a", vec![gzip[0], ("cookie", "session=x")]),
        ("/page?a", vec![gzip[0], ("cache-control", "no-cache")]),
        ("/page?a", vec![gzip[0], ("range", "bytes=0-1")]),
    ] {
        let told = page(&door, path, &lines).await;
        assert_eq!(
            (told.status, is_stale(&told)),
            (503, false),
            "{path} {lines:?}"
        );
    }
    for method in ["HEAD", "POST"] {
        let request = client::request(method, "/page?a").header(gzip[0].0, gzip[0].1);
        let told = client::send(door.address, request.body(Body::empty()).unwrap()).await;
        assert!(!is_stale(&told), "{method}");
    }
    let mut elsewhere = client::request("GET", "/page?a")
        .header(gzip[0].0, gzip[0].1)
        .body(Body::empty())
        .unwrap();
    let host = "other.example".parse().unwrap();
    elsewhere.headers_mut().insert("host", host);
    assert_eq!(client::send(door.address, elsewhere).await.status, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_might_be_anothers_is_not_kept() {
    let house = House::on_sqlite().await;
    let (door, _) = opened(&house).await;
    let asked = |line: (&'static str, &'static str)| ("/page?asked", vec![line]);
    let said = |line: &'static str| (line, vec![]);
    let kept = [
        said("/page?say=Cache-Control:max-age=60,public"),
        said("/page?say=Vary:Accept-Encoding"),
        said("/page?is=203"),
    ];
    let not_kept = [
        asked(("authorization", "Bearer x")),
        asked(("cookie", "session=x")),
        asked(("cache-control", "max-age=0, No-Store")),
        said("/page?say=Set-Cookie:session=x"),
        said("/page?say=Cache-Control:No-Store"),
        said("/page?say=Cache-Control:max-age=60,private"),
        said("/page?say=Cache-Control:private=%22x%22"),
        said("/page?say=Cache-Control:max-age=60&say=Cache-Control:must-revalidate"),
        said("/page?say=Vary:Accept"),
        said("/page?say=Vary:Accept-Encoding,Origin"),
        said("/page?say=Vary:*"),
        said("/page?is=206"),
        said("/page?is=404"),
    ];
    for (path, lines) in kept.iter().chain(&not_kept) {
        assert!(!is_stale(&page(&door, path, lines).await));
    }

    fail(&house, 503).await;

    for (path, _) in kept {
        assert!(is_stale(&page(&door, path, &[]).await), "{path}");
    }
    for (path, _) in not_kept {
        let told = page(&door, path, &[]).await;
        assert_eq!((told.status, is_stale(&told)), (503, false), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_guarded_route_do_not_share_copies() {
    let house = House::on_sqlite().await;
    let (door, _) = house
        .resilient_door(vec![route(&house, Some(guarded()))])
        .await;
    assert_eq!(page(&door, "/page", &[]).await.status, 200);
    fail(&house, 503).await;

    let mut bob = client::request("GET", "/page").body(Body::empty()).unwrap();
    bob.headers_mut().insert("x-caller", "bob".parse().unwrap());
    let bob = client::send(door.address, bob).await;

    assert_eq!(bob.status, 503);
    stale(&page(&door, "/page", &[]).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_answer_of_the_service_takes_the_copy_away() {
    let house = House::on_sqlite().await;
    let (door, _) = opened(&house).await;
    assert_eq!(page(&door, "/page", &[]).await.status, 200);
    fail(&house, 429).await;
    assert_eq!(page(&door, "/page", &[]).await.status, 429);
    fail(&house, 503).await;
    stale(&page(&door, "/page", &[]).await, 1);

    fail(&house, 404).await;
    assert_eq!(page(&door, "/page", &[]).await.status, 404);
    fail(&house, 503).await;

    assert_eq!(page(&door, "/page", &[]).await.status, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_too_old_or_too_large_is_not_given() {
    let house = House::on_sqlite().await;
    let soon = Route {
        stale: Some(Duration::from_nanos(1)),
        ..route(&house, None)
    };
    let (door, _) = house.resilient_door(vec![soon]).await;
    assert_eq!(page(&door, "/page", &[]).await.status, 200);
    let (other, registry) = opened(&house).await;
    for (bytes, _) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let path = format!("/source?bytes={bytes}");
        assert_eq!(page(&other, &path, &[]).await.body.len(), bytes);
    }

    fail(&house, 503).await;
    let shop = registry.get("upstream:shop").unwrap();
    shop.force(Some(Forced::Open), "test");

    assert_eq!(page(&door, "/page", &[]).await.status, 503);
    for (bytes, kept) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let told = page(&other, &format!("/source?bytes={bytes}"), &[]).await;
        assert_eq!(is_stale(&told), kept, "{bytes}");
    }
}
