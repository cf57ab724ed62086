//! Retries, breaker, budget and ceiling: what reaches the service, and what callers are told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use counterfoil_core::guard::State as Record;
use counterfoil_engine::pipeline::policy::backoff::{Backoff, Jitter};
use counterfoil_engine::pipeline::policy::breaker::{Cause, Slow};
use counterfoil_engine::pipeline::policy::ratio::Ratio;
use counterfoil_engine::pipeline::{Dependency, Forced, Registry, State};
use counterfoil_http::gateway::{Route, Step, Upstream, UpstreamSettings, resilient};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tower::ServiceExt as _;

use crate::client::{self, Answer};
use crate::house::{Door, House, guarded, quick};
use crate::upstream::until;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Waits that do not last, and nothing that stops a test by accident.
pub(crate) fn settings(change: impl FnOnce(&mut UpstreamSettings)) -> UpstreamSettings {
    let mut settings = quick();
    let limits = &mut settings.limits;
    limits.backoff = Backoff::listed(&[Duration::from_millis(1); 5]).unwrap();
    limits.deadline = Duration::from_secs(20);
    limits.budget.floor = 1_000;
    limits.breaker.consecutive = None;
    limits.breaker.min_calls = 1_000;
    change(&mut settings);
    settings
}

/// The same service on a guarded route for everything, with 202 where `degraded`.
fn route(house: &House, settings: UpstreamSettings, degraded: bool) -> Route {
    let mut guard = guarded();
    guard.degraded = degraded.then_some(Duration::from_secs(7));
    house.route(settings, Some(guard))
}

async fn opened(
    house: &House,
    degraded: bool,
    change: impl FnOnce(&mut UpstreamSettings),
) -> (Door, Arc<Dependency>) {
    let route = route(house, settings(change), degraded);
    let (door, registry) = house.resilient_door(vec![route]).await;
    (door, shop(&registry))
}

fn shop(registry: &Registry) -> Arc<Dependency> {
    registry.get("upstream:shop").unwrap()
}

/// A breaker that opens after so many calls, for so long.
fn in_trouble(settings: &mut UpstreamSettings, calls: u32, open: Duration) {
    settings.limits.breaker.window = LONG;
    settings.limits.breaker.min_calls = calls;
    settings.limits.breaker.open_for = open;
    settings.limits.breaker.open_cap = open;
}

async fn read(door: &Door, status: u16) -> Answer {
    client::get(door.address, &format!("/status?is={status}")).await
}

pub(crate) async fn reads(house: &House) -> u64 {
    house.upstream.state().await["statuses"].as_u64().unwrap()
}

fn rests(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.problem(), "service-resting");
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(
        answer.header("location"),
        None,
        "there is nothing to ask for"
    );
}

/// It has its place until its end: another attempt could wait for just that place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_answer_that_is_too_long_to_be_kept_is_the_answer() {
    let house = House::on_sqlite().await;
    let (door, _) = opened(&house, false, |settings| {
        settings.connections = 1;
        settings.limits.bulkhead.limit = 1;
        settings.connect_timeout = LONG;
    })
    .await;

    for (size, calls) in [(1 << 10, 6), (1 << 20, 1)] {
        let before = reads(&house).await;
        let told = client::get(door.address, &format!("/status?is=500&size={size}")).await;

        assert_eq!((told.status, told.body.len()), (500, size));
        assert_eq!(reads(&house).await - before, calls, "{size}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_always_fails_is_asked_as_often_as_the_one_place_for_retries_says() {
    let house = House::on_sqlite().await;
    let (door, _) = opened(&house, false, |_| {}).await;

    // (what is sent, calls that reach the service, status, what is recorded)
    let mut before = house.upstream.calls().await;
    for (what, calls, status, record) in [
        ("503", 5, 503, None),
        ("500", 1, 500, Some(Record::Uncertain)),
        ("429", 5, 429, None),
        ("425", 5, 425, None),
        ("408", 1, 408, Some(Record::Uncertain)),
        ("vanish-before", 1, 502, Some(Record::Uncertain)),
        ("vanish-after", 1, 502, Some(Record::Uncertain)),
    ] {
        let told = door.order(what, what).await;

        let after = house.upstream.calls().await;
        assert_eq!((told.status, after - before), (status, calls), "{what}");
        assert_eq!(house.state_of(what).await, record, "{what}");
        before = after;
    }
    let mut bare = client::order("", "503");
    bare.headers_mut().remove("idempotency-key");
    assert_eq!(client::send(door.address, bare).await.status, 503);
    let mut put = client::order("put", "503");
    *put.method_mut() = http::Method::PUT;
    assert_eq!(client::send(door.address, put).await.status, 503);
    assert_eq!(house.upstream.calls().await, before + 2, "no key, no guard");
    assert_eq!(read(&door, 500).await.status, 500);
    assert_eq!(reads(&house).await, 6);
    assert_eq!(read(&door, 404).await.status, 404);
    assert_eq!(reads(&house).await, 7);
    let body = client::request("GET", "/status?is=500").body(Body::from("x"));
    assert_eq!(
        client::send(door.address, body.unwrap()).await.status,
        500,
        "what is streamed is sent once"
    );
    assert_eq!(reads(&house).await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_slow_is_left_alone_and_a_caller_that_is_slow_is_not_its_fault() {
    let house = House::on_sqlite().await;
    let always = Slow {
        longer_than: Duration::from_nanos(1),
        ratio: Ratio::percent(1),
    };
    let slow = |s: &mut UpstreamSettings| {
        s.limits.breaker.slow = Some(always);
        s.limits.breaker.min_calls = 1;
    };
    let (door, shop) = opened(&house, false, slow).await;

    let upload = client::request("PUT", "/echo").body(Body::from("hello"));
    assert_eq!(
        client::send(door.address, upload.unwrap()).await.status,
        200
    );
    assert_eq!(shop.state(), State::Closed);

    assert_eq!(read(&door, 200).await.status, 200);
    assert_eq!(shop.status().cause, Cause::SlowRatio);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_retries_together_are_within_the_budget_of_the_service() {
    let house = House::on_sqlite().await;
    let floor = |s: &mut UpstreamSettings| s.limits.budget.floor = 10;
    let (door, shop) = opened(&house, false, floor).await;

    for _ in 0..20 {
        assert_eq!(read(&door, 500).await.status, 500, "the last answer stands");
    }

    assert_eq!(reads(&house).await, 20 + 10);
    assert_eq!(shop.retries_left(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_which_nothing_was_sent_is_made_again_and_takes_effect_once() {
    let mut house = House::on_sqlite().await;
    // The service may take its time to come back.
    let settings = settings(|s| {
        let waits = [1, 2, 4, 8, 16].map(Duration::from_secs);
        let backoff = Backoff::listed(&waits).unwrap();
        s.limits.backoff = backoff.with_jitter(Jitter::None);
        s.limits.deadline = Duration::from_secs(60);
    });
    let mut route = route(&house, settings, false);
    route.guard.as_mut().unwrap().rules.lease = Duration::from_secs(180);
    let (door, registry) = house.resilient_door(vec![route]).await;
    let shop = shop(&registry);
    house.upstream.kill();

    let order = door.spawn("k", "");
    until("a retry", async || {
        (shop.retries_left() < 1_000).then_some(())
    })
    .await;
    house.upstream.run();

    assert_eq!(order.await.unwrap().status, 201);
    assert_eq!(house.upstream.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_in_trouble_is_left_alone() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| in_trouble(s, 10, LONG)).await;
    while shop.state() == State::Closed {
        read(&door, 500).await;
    }
    let asked = reads(&house).await;
    assert!(asked <= 10, "an open breaker ends the retries: {asked}");

    for _ in 0..20 {
        rests(&read(&door, 500).await);
    }

    assert_eq!(reads(&house).await, asked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_in_trouble_is_probed_now_and_then_until_it_is_well() {
    const OPEN: Duration = Duration::from_secs(1);
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| in_trouble(s, 10, OPEN)).await;
    let begun = Instant::now();
    while shop.state() == State::Closed {
        read(&door, 500).await;
    }

    let asked = reads(&house).await;
    until("a probe", async || {
        let answer = read(&door, 500).await;
        if answer.status == 503 {
            rests(&answer);
        }
        (reads(&house).await > asked).then_some(())
    })
    .await;

    let probes = reads(&house).await - asked;
    let turns = begun.elapsed().as_millis() / OPEN.as_millis();
    assert!(u128::from(probes) <= turns, "{probes} in {turns} turns");
    until("a service that is well", async || {
        (read(&door, 200).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(shop.state(), State::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_an_open_breaker_nothing_is_accepted_and_the_claim_is_released() {
    let house = House::on_sqlite().await;
    let trouble = |s: &mut UpstreamSettings| in_trouble(s, 3, LONG);
    let plain = route(&house, settings(trouble), false);
    let (door, registry) = house.resilient_door(vec![plain]).await;
    while shop(&registry).state() == State::Closed {
        read(&door, 500).await;
    }
    rests(&door.order("k", "").await);
    let (soft, other) = opened(&house, true, trouble).await;
    while other.state() == State::Closed {
        read(&soft, 500).await;
    }

    rests(&soft.order("k", "").await);
    let mut bare = client::order("", "");
    bare.headers_mut().remove("idempotency-key");
    let bare = client::send(soft.address, bare).await;

    rests(&bare);
    assert_eq!(house.state_of("k").await, None);
    assert_eq!(house.upstream.calls().await, 0);
    other.force(Some(Forced::Closed), "test");
    assert_eq!(soft.order("k", "").await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_spent_budget_only_what_is_recorded_is_accepted() {
    let mut house = House::on_sqlite().await;
    let spent = |s: &mut UpstreamSettings| s.limits.budget.floor = 0;
    let (soft, _) = opened(&house, true, spent).await;
    let (plain, _) = opened(&house, false, spent).await;

    let harmless = soft.order("harmless", "503").await;
    let its_own = plain.order("its-own", "503").await;
    let done = soft.order("done", "500").await;
    house.upstream.kill();
    rests(&soft.order("unreached", "").await);
    rests(&plain.order("plain", "").await);

    assert_eq!(
        (done.status, &done.json()["state"]),
        (202, &"uncertain".into())
    );
    let place = client::get(soft.address, done.header("location").unwrap()).await;
    assert_eq!(
        (place.status, &place.json()["state"]),
        (200, &"uncertain".into())
    );
    for told in [harmless, its_own] {
        assert_eq!(told.json()["error"], "503", "what the service has said");
    }
    for key in ["harmless", "its-own", "unreached", "plain"] {
        assert_eq!(house.state_of(key).await, None, "{key}");
    }
    house.upstream.run();
    assert_eq!(soft.order("unreached", "").await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_all_places_taken_is_told_at_once() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, true, |s| {
        s.limits.bulkhead.limit = 1;
        s.limits.bulkhead.queue = 0;
    })
    .await;
    let first = door.spawn("first", "hold-before");
    house.upstream.waiting(1).await;

    let second = door.order("second", "").await;
    let third = read(&door, 200).await;
    house.upstream.go().await;

    rests(&second);
    rests(&third);
    assert_eq!(house.state_of("second").await, None);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!((shop.status().in_use, shop.state()), (0, State::Closed));
    assert_eq!(house.upstream.calls().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_comes_too_often_waits_as_long_as_it_is_asked_to_and_takes_effect_once() {
    let house = House::on_sqlite().await;
    let (door, _) = opened(&house, false, |_| {}).await;
    let begun = Instant::now();

    let told = door.order("k", "busy-once").await;

    assert_eq!(told.status, 201);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(house.upstream.calls().await, 2);
    assert_eq!(house.upstream.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_still_coming_has_its_place() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| {
        s.limits.bulkhead.limit = 2;
        s.limits.bulkhead.queue = 0;
    })
    .await;
    let mut streams = Vec::new();
    for key in ["first", "second"] {
        let mut caller = client::connect(door.address).await;
        let order = client::order(key, "events");
        streams.push(caller.send_request(order).await.unwrap());
    }
    house.upstream.waiting(2).await;

    assert_eq!(shop.status().in_use, 2);
    rests(&read(&door, 200).await);

    house.upstream.go().await;
    house.upstream.go().await;
    for stream in streams {
        assert_eq!(Answer::read(stream).await.body, "data: 1\n\ndata: 2\n\n");
    }
    until("free places", async || {
        (shop.status().in_use == 0).then_some(())
    })
    .await;
    assert_eq!(read(&door, 200).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_place_in_vain_is_told_so_and_counts_for_nothing() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| {
        s.limits.bulkhead.limit = 1;
        s.limits.breaker.consecutive = Some(1);
    })
    .await;
    let first = door.spawn("first", "hold-before");
    house.upstream.waiting(1).await;

    rests(&read(&door, 200).await);

    assert_eq!(shop.status().waiting, 0);
    assert_eq!(shop.state(), State::Closed);
    house.upstream.go().await;
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_answer_does_not_keep_the_place_that_its_repeat_needs() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| {
        s.limits.bulkhead.limit = 1;
        s.limits.bulkhead.queue = 0;
    })
    .await;

    let told = door.order("k", "503").await;

    assert_eq!((told.status, &told.json()["error"]), (503, &"503".into()));
    assert_eq!(house.upstream.calls().await, 5);
    assert_eq!(shop.status().in_use, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_cannot_open_the_breaker_for_others() {
    let house = House::on_sqlite().await;
    let quick_to_open = settings(|s| {
        in_trouble(s, 1_000, LONG);
        s.limits.breaker.consecutive = Some(1);
    });
    let route = route(&house, quick_to_open, false);
    let (door, registry) = house.resilient_door(vec![route.clone()]).await;
    let shop = shop(&registry);
    let calls = resilient(registry)(&route, Step::forward(&route));

    for n in 0..10 {
        let status = ["400", "408", "425", "429"][n % 4];
        door.order(&format!("k{n}"), status).await;
    }
    let pieces = [Ok("x"), Err(std::io::Error::other("gone"))];
    let upload = Body::from_stream(futures_util::stream::iter(pieces));
    let upload = client::request("POST", "/echo").body(upload).unwrap();
    let spoiled = calls.oneshot(upload).await;

    assert!(spoiled.is_err(), "{spoiled:?}");
    assert_eq!(shop.state(), State::Closed);
    assert_eq!(read(&door, 200).await.status, 200);
    read(&door, 500).await;
    assert_eq!(
        shop.state(),
        State::Open,
        "one failure of its own is enough"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_cut_off_where_configured_and_a_write_never_is() {
    let house = House::on_sqlite().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let settings = settings(|s| {
        s.timeout = Duration::from_millis(600);
        s.limits.attempt = Duration::from_millis(50);
        s.limits.backoff = s.limits.backoff.with_max_attempts(2);
    });
    let mut route = route(&house, settings.clone(), false);
    route.upstream = Arc::new(Upstream::new("shop", &url, settings).unwrap());
    let (door, _) = house.resilient_door(vec![route]).await;
    let (count, counted) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = silent.accept().await {
            count.send_modify(|n| *n += 1);
            tokio::spawn(async move { stream.read_to_end(&mut Vec::new()).await });
        }
    });

    let begun = Instant::now();
    let order = door.order("k", "").await;
    assert!(begun.elapsed() >= Duration::from_millis(600));
    assert_eq!((order.status, *counted.borrow()), (504, 1));
    assert_eq!(house.state_of("k").await, Some(Record::Uncertain));

    assert_eq!(read(&door, 200).await.status, 504);
    until("two more", async || (*counted.borrow() >= 3).then_some(())).await;
    assert_eq!(*counted.borrow(), 3, "twice");
}

async fn probes(house: &House) -> u64 {
    house.upstream.state().await["probes"].as_u64().unwrap()
}

/// A request that took effect and was not answered, and about which the next round asks.
async fn doubtful(house: &House, door: &Door, key: &str) {
    assert_eq!(door.order(key, "vanish-after").await.status, 502);
    until("a request to ask about", async || {
        let age = Duration::from_millis(1);
        let stuck = house.records.stuck(age, None, 10).await.unwrap();
        (!stuck.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_an_operator_has_taken_out_is_not_probed() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |_| {}).await;
    doubtful(&house, &door, "k").await;

    shop.force(Some(Forced::Open), "test");
    let resting = door.gateway.reconcile().round().await.unwrap();
    assert_eq!((resting.left, probes(&house).await), (1, 0));
    assert_eq!(house.state_of("k").await, Some(Record::Uncertain));

    shop.force(None, "test");
    let asked = door.gateway.reconcile().round().await.unwrap();
    assert_eq!((asked.settled, probes(&house).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_made_again_and_open_the_breaker_as_other_reads_do() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| {
        s.limits.breaker.open_for = Duration::from_secs(60);
        s.limits.breaker.open_cap = Duration::from_secs(60);
        // The call itself is the first failure.
        s.limits.breaker.consecutive = Some(5);
    })
    .await;
    doubtful(&house, &door, "sick").await;

    for _ in 0..2 {
        let round = door.gateway.reconcile().round().await.unwrap();

        assert_eq!((round.left, probes(&house).await), (1, 4));
        assert_eq!(shop.state(), State::Open);
    }
    rests(&read(&door, 200).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_needs_a_place_like_every_call() {
    let house = House::on_sqlite().await;
    let (door, shop) = opened(&house, false, |s| {
        s.limits.bulkhead.limit = 1;
        s.limits.bulkhead.queue = 0;
    })
    .await;
    doubtful(&house, &door, "k").await;
    let first = door.spawn("first", "hold-before");
    house.upstream.waiting(1).await;

    let full = door.gateway.reconcile().round().await.unwrap();
    assert_eq!((full.left, probes(&house).await), (1, 0));

    house.upstream.go().await;
    assert_eq!(first.await.unwrap().status, 201);
    let asked = door.gateway.reconcile().round().await.unwrap();
    assert_eq!((asked.settled, probes(&house).await), (1, 1));
    assert_eq!(shop.status().in_use, 0);
}
