//! Several that could try again stand in a row: one of them does.

use std::time::Duration;

use counterfoil_engine::pipeline::policy::backoff::Backoff;
use counterfoil_engine::pipeline::{Limits, spent};
use counterfoil_http::Client;
use counterfoil_http::client::Ended;
use counterfoil_http::gateway::UpstreamSettings;

use crate::client::{self, Answer};
use crate::house::{Door, House, guarded, quick, route_to};
use crate::resilience::{reads, settings};

/// Nothing here takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// The usual limits, but for time: waits do not last, and nothing is cut off.
fn usual(limits: &mut Limits) {
    limits.backoff = Backoff::listed(&[Duration::from_millis(1); 5]).unwrap();
    limits.deadline = LIMIT;
}

fn usual_upstream() -> UpstreamSettings {
    let mut settings = quick();
    usual(&mut settings.limits);
    settings
}

fn usual_client() -> Client {
    let mut limits = Limits {
        write_attempts: Backoff::CALL.max_attempts(),
        attempt: LIMIT,
        ..Limits::default()
    };
    usual(&mut limits);
    let client = Client::builder().limits(limits).connect_timeout(LIMIT);
    client.header("x-caller", "alice").build().unwrap()
}

async fn door(house: &House) -> Door {
    let route = house.route(usual_upstream(), Some(guarded()));
    house.resilient_door(vec![route]).await.0
}

fn is_spent(answer: &Answer) -> bool {
    spent::is_marked(&answer.headers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_before_the_gateway_adds_no_calls_to_those_of_the_gateway() {
    let (alone, both) = (House::on_sqlite().await, House::on_sqlite().await);
    let (plain, door) = (door(&alone).await, door(&both).await);
    client::get(plain.address, "/status?is=503").await;
    plain.order("k", "503").await;

    let client = usual_client();
    let url = |path: &str| format!("http://{}{path}", door.address);
    let read = client.get(url("/status?is=503")).send().await.unwrap();
    let order = client.post(url("/orders")).key("k");
    let order = order.json(&serde_json::json!({ "do": "503" })).send();
    let order = order.await.unwrap();

    for answer in [&read, &order] {
        assert_eq!(answer.status(), 503);
        assert_eq!((answer.attempts(), answer.ended()), (1, Ended::Elsewhere));
    }
    assert_eq!((reads(&alone).await, reads(&both).await), (6, 6));
    let calls = (alone.upstream.calls().await, both.upstream.calls().await);
    assert_eq!(calls, (5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_before_a_gateway_adds_no_calls_and_passes_the_word_on() {
    let house = House::on_sqlite().await;
    let inner = door(&house).await;
    let url = format!("http://{}", inner.address);
    let outer = House::on_sqlite().await;
    let route = route_to(&url, usual_upstream(), Some(guarded()));
    let (door, _) = outer.resilient_door(vec![route]).await;

    let read = client::get(door.address, "/status?is=503").await;
    let order = door.order("k", "503").await;

    assert!(is_spent(&read) && is_spent(&order));
    assert_eq!(reads(&house).await, 6);
    assert_eq!(house.upstream.calls().await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_word_is_said_when_something_was_used_up_and_only_then() {
    let mut house = House::on_sqlite().await;
    let said = async |settings: UpstreamSettings, what: &str| {
        let route = house.route(settings, Some(guarded()));
        let (door, _) = house.resilient_door(vec![route]).await;
        is_spent(&door.order(&format!("k-{}", fastrand::u64(..)), what).await)
    };

    assert!(said(settings(|_| {}), "503").await, "all attempts");
    let spent = settings(|s| s.limits.budget.floor = 0);
    assert!(said(spent, "503").await, "no budget");
    let open = settings(|s| s.limits.breaker.consecutive = Some(1));
    assert!(said(open, "503").await, "the breaker has opened");
    let none = settings(|s| s.limits.backoff = s.limits.backoff.with_max_attempts(1));
    assert!(!said(none, "503").await, "none are configured here");
    for what in ["", "400", "500", "vanish-before"] {
        assert!(!said(settings(|_| {}), what).await, "{what} stands");
    }
    let full = settings(|s| s.limits.bulkhead.queue = 0);
    let route = house.route(full, Some(guarded()));
    let (door, registry) = house.resilient_door(vec![route]).await;
    let shop = registry.get("upstream:shop").unwrap();
    shop.force(Some(counterfoil_engine::pipeline::Forced::Open), "test");
    assert!(!is_spent(&door.order("k", "").await), "not called at all");

    house.upstream.kill();
    shop.force(None, "test");
    let unreached = door.order("k", "").await;
    assert_eq!(unreached.status, 502);
    assert!(is_spent(&unreached));
}
