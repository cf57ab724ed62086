//! What guarded requests and their answers hold in memory, and who is turned away for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use counterfoil_http::gateway::{Gateway, Guarded, Options, Route, Upstream};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::client::{self, Answer, order};
use crate::house::{Door, House, guarded, policy, quick};
use crate::upstream::until;

/// Two of these are what one service may have.
const HALF: usize = 64 << 20;
/// And eight of these.
const UPLOAD: usize = 16 << 20;

/// Room for large requests and large answers.
fn roomy() -> Guarded {
    Guarded {
        policy: policy().max_body(HALF).unwrap().max_answer(HALF),
        ..guarded()
    }
}

#[track_caller]
fn busy(told: &Answer) {
    assert_eq!(
        (told.status, told.problem().as_str()),
        (503, "busy"),
        "{told:?}"
    );
    assert!(told.headers.contains_key("retry-after"));
}

/// An upload that announces a body and lacks all of it.
async fn announced(door: &Door) -> TcpStream {
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: shop.example\r\nx-caller: alice\r\n\
         idempotency-key: slow\r\ncontent-length: {UPLOAD}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// One that lacks its last byte.
async fn slow_upload(door: &Door) -> TcpStream {
    let mut stream = announced(door).await;
    // One for which there is no memory is not read to its end.
    let _ = stream.write_all(&vec![b' '; UPLOAD - 1]).await;
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_uploads_to_one_service_do_not_turn_away_those_to_another() {
    let house = House::on_sqlite().await;
    let to = |name: &str| Route {
        host: Some(format!("{name}.example")),
        upstream: Arc::new(Upstream::new(name, &house.upstream.url(), quick()).unwrap()),
        ..house.route(
            quick(),
            Some(Guarded {
                policy: roomy().policy.business_type(name).unwrap(),
                ..roomy()
            }),
        )
    };
    let gateway = Gateway::new(Arc::clone(&house.records));
    gateway.set_routes(vec![to("shop"), to("bank")], &Options::default());
    let door = Door::open(gateway).await;
    let keys = AtomicU32::new(0);
    let new_order = || {
        let n = keys.fetch_add(1, Ordering::Relaxed);
        order(&format!("k-{n}"), "")
    };

    // What is only announced takes nothing.
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(announced(&door).await);
    }
    assert_eq!(client::send(door.address, new_order()).await.status, 201);
    drop(idle);

    // An upload that is turned away, because an order had the last memory, leaves its place to another.
    let held = Mutex::new(Vec::new());
    let told = until("no memory for this service", async || {
        held.lock().await.push(slow_upload(&door).await);
        let told = client::send(door.address, new_order()).await;
        Some(told).filter(|told| told.status != 201)
    })
    .await;
    let mut elsewhere = new_order();
    let bank = "bank.example".parse().unwrap();
    elsewhere.headers_mut().insert("host", bank);
    let elsewhere = client::send(door.address, elsewhere).await;

    busy(&told);
    assert_eq!(elsewhere.status, 201);
    drop(held);
    until("memory again", async || {
        let told = client::send(door.address, new_order()).await;
        (told.status == 201).then_some(())
    })
    .await;
}

/// A repeat whose answer is not read.
async fn unread(caller: &SendRequest<Body>, key: &str, what: &str) -> http::Response<Incoming> {
    until("a repeat", async || {
        let mut caller = caller.clone();
        caller.ready().await.unwrap();
        let told = caller.send_request(order(key, what)).await.unwrap();
        Some(told).filter(|told| told.status() == 200)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_bounded() {
    let house = House::on_sqlite().await;
    let door = house.door_with(house.route(quick(), Some(roomy()))).await;
    let first = door.order("k", "large").await;
    assert_eq!((first.status, first.body.len()), (200, HALF / 2));
    let caller = client::connect_narrow_h2(door.address).await;

    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(unread(&caller, "k", "large").await);
    }
    let calls = house.upstream.calls().await;
    let (repeat, fresh) = (door.order("k", "large").await, door.order("new", "").await);

    busy(&repeat);
    busy(&fresh);
    assert_eq!(house.upstream.calls().await, calls);
    assert_eq!(house.state_of("new").await, None);
    drop(held);
    until("memory again", async || {
        let told = door.order("k", "large").await;
        (told.replayed() && told.body == first.body).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_finds_no_memory_is_given_and_not_kept() {
    let house = House::on_sqlite().await;
    let door = house.door_with(house.route(quick(), Some(roomy()))).await;
    assert_eq!(door.order("k", "large").await.status, 200);
    assert_eq!(door.order("b", "big").await.status, 200);
    let caller = client::connect_narrow_h2(door.address).await;
    let mut held = vec![unread(&caller, "b", "big").await];
    for _ in 0..3 {
        held.push(unread(&caller, "k", "large").await);
    }

    let given = door.order("x", "large").await;
    drop(held);
    let again = until("memory again", async || {
        Some(door.order("x", "large").await).filter(|told| told.status != 503)
    })
    .await;

    assert_eq!((given.status, given.body.len()), (200, HALF / 2));
    assert_eq!(
        (again.status, again.problem().as_str()),
        (410, "result-not-kept")
    );
}
