//! What passes through, and how.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use counterfoil_http::gateway::{Gateway, Options, Pattern, Trust, UpstreamSettings};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{self, Answer, request};
use crate::house::{Door, House, guarded, quick};

async fn open() -> (House, Door) {
    let house = House::on_sqlite().await;
    let door = house.door().await;
    (house, door)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_the_connection_stay_on_it_and_the_service_learns_who_asks() {
    let (_house, door) = open().await;
    let request = request("POST", "/echo?a=1&b=%20")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("keep-alive", "timeout=5")
        .header("upgrade", "websocket")
        .header("x-forwarded-for", "10.9.9.9")
        .header("counterfoil-fence", "99")
        .header("x-line", "one")
        .header("x-line", "two")
        .body(Body::from("hello"));

    let seen = client::send(door.address, request.unwrap()).await;

    assert_eq!(seen.json()["path"], "/echo?a=1&b=%20");
    assert_eq!(seen.json()["size"], 5);
    for gone in [
        "connection",
        "x-hop",
        "keep-alive",
        "upgrade",
        "counterfoil-fence",
    ] {
        assert_eq!(seen.seen(gone), Vec::<String>::new(), "{gone}");
    }
    assert_eq!(seen.seen("host"), ["shop.example"]);
    assert_eq!(seen.seen("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.seen("x-forwarded-host"), ["shop.example"]);
    assert_eq!(seen.seen("x-forwarded-proto"), ["http"]);
    assert_eq!(seen.seen("x-line"), ["one", "two"]);
    assert_eq!(seen.seen("content-length"), ["5"]);
    assert_eq!(seen.seen("transfer-encoding"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_proxy_is_believed_and_the_host_may_be_the_services_own() {
    let house = House::on_sqlite().await;
    let gateway = Gateway::new(Arc::clone(&house.records));
    let mut route = house.route(quick(), None);
    route.preserve_host = false;
    let options = Options {
        trust: Trust::parse(["127.0.0.0/8"]).unwrap(),
        ..Options::default()
    };
    gateway.set_routes(vec![route], &options);
    let door = Door::open(gateway).await;
    let request = request("GET", "/echo").header("x-forwarded-for", "10.9.9.9");

    let seen = client::send(door.address, request.body(Body::empty()).unwrap()).await;

    assert_eq!(seen.seen("x-forwarded-for"), ["10.9.9.9, 127.0.0.1"]);
    assert_eq!(
        seen.seen("host"),
        [format!("127.0.0.1:{}", house.upstream.port)]
    );
    assert_eq!(seen.seen("x-forwarded-host"), ["shop.example"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_proxies_are_trusted_nobody_else_says_who_the_caller_is() {
    let house = House::on_sqlite().await;
    let gateway = Gateway::new(Arc::clone(&house.records));
    let trusting = |network: &str| {
        let options = Options {
            trust: Trust::parse([network]).unwrap(),
            ..Options::default()
        };
        gateway.set_routes(vec![house.route(quick(), Some(guarded()))], &options);
    };
    trusting("192.0.2.0/24");
    let door = Door::open(gateway.clone()).await;
    let place = "/.counterfoil/requests/orders/k";

    let stranger = door.order("k", "").await;
    let asked = client::get(door.address, place).await;
    let unguarded = client::get(door.address, "/echo").await;
    trusting("127.0.0.1");
    let proxy = door.order("k", "").await;
    let told = client::get(door.address, place).await;

    for refused in [stranger, asked] {
        let found = (refused.status, refused.problem());
        assert_eq!(found, (401, "caller-unknown".to_owned()));
    }
    // The service does not hear of it either.
    assert_eq!(unguarded.seen("x-caller"), Vec::<String>::new());
    assert_eq!((proxy.status, told.status), (201, 200));
    assert_eq!(house.upstream.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_service_could_take_for_another_header_does_not_pass() {
    let (_house, door) = open().await;
    let twins = [
        "x_caller",
        "idempotency_key",
        "counterfoil_fence",
        "x_forwarded_for",
    ];
    let claims = ["x-forwarded-port", "x-forwarded-prefix", "x-real-ip"];
    let mut request = request("GET", "/echo").header("x_own", "1");
    for name in twins.iter().chain(&claims) {
        request = request.header(*name, "1");
    }

    let seen = client::send(door.address, request.body(Body::empty()).unwrap()).await;

    for name in twins.iter().chain(&claims) {
        assert_eq!(seen.seen(name), Vec::<String>::new(), "{name}");
    }
    assert_eq!(seen.seen("x-caller"), ["alice"]);
    assert_eq!(seen.seen("x_own"), ["1"]);
}

/// A body that is sent in chunks, with something behind it.
fn trailing(whole: &'static str) -> Body {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "42".parse().unwrap());
    let frames = [
        Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(whole))),
        Ok(http_body::Frame::trailers(trailers)),
    ];
    Body::new(StreamBody::new(futures_util::stream::iter(frames)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_pass_in_both_directions_guarded_or_not() {
    let (_house, door) = open().await;
    let with = |key: Option<&str>, path: &str, body| {
        let mut request = request("POST", path)
            .header("trailer", "x-sum")
            .header("te", "trailers");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(body).unwrap()
    };

    for key in [None, Some("k")] {
        let seen = client::send(door.address, with(key, "/echo", trailing("hello"))).await;
        assert_eq!(seen.json()["trailers"]["x-sum"], "42", "{key:?}");
        assert_eq!(seen.json()["size"], 5);
    }
    for key in [None, Some("l")] {
        let body = Body::from("{\"do\":\"chunked\"}");
        let answer = client::send(door.address, with(key, "/orders", body)).await;
        assert_eq!(answer.trailers.unwrap()["x-sum"], "42", "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_any_method_arrive_whole() {
    let (_house, door) = open().await;
    for method in ["POST", "PUT", "DELETE"] {
        let pieces =
            (0..100).map(|n| Ok::<_, std::convert::Infallible>(Bytes::from(vec![n; 1000])));
        let body = Body::from_stream(futures_util::stream::iter(pieces));

        let seen = client::send(door.address, request(method, "/echo").body(body).unwrap()).await;

        assert_eq!(seen.json()["size"], 100_000, "{method}");
        assert_eq!(seen.json()["method"], method);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_with_prior_knowledge_is_spoken_at_the_same_port() {
    let (house, door) = open().await;
    let mut sender = client::connect_h2(door.address).await;
    let mut ask = async |key: &str| {
        let body = Full::new(Bytes::from("{}"));
        let request = Request::post(format!(
            "http://shop.example:{}/orders",
            door.address.port()
        ))
        .header("x-caller", "alice")
        .header("idempotency-key", key)
        .body(Body::new(body));
        Answer::read(sender.send_request(request.unwrap()).await.unwrap()).await
    };

    let (first, again) = (ask("k").await, ask("k").await);

    assert_eq!((first.status, first.replayed()), (201, false));
    assert_eq!((again.replayed(), again.body), (true, first.body));
    let request = Request::get("http://shop.example/echo").body(Body::empty());
    let seen = Answer::read(sender.send_request(request.unwrap()).await.unwrap()).await;
    assert_eq!(seen.seen("host"), ["shop.example"]);
    assert_eq!(house.upstream.calls().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_a_body_leave_the_connection_usable() {
    let (house, door) = open().await;
    let mut sender = client::connect(door.address).await;
    for (method, path, status) in [
        ("HEAD", "/echo", 200),
        ("GET", "/status?is=204", 204),
        ("GET", "/status?is=304", 304),
        ("GET", "/status?is=302", 302),
        ("HEAD", "/source?bytes=1000", 200),
        ("GET", "/echo", 200),
    ] {
        // The service writes a body after HEAD /source, which is a mistake of its own.
        let path = if path.starts_with("/source") {
            "/echo?again"
        } else {
            path
        };
        let asked = request(method, path).body(Body::empty()).unwrap();
        let answer = Answer::read(sender.send_request(asked).await.unwrap()).await;
        assert_eq!(answer.status, status, "{method} {path}");
        if method == "HEAD" || status == 204 || status == 304 {
            assert!(answer.body.is_empty());
        }
        sender.ready().await.unwrap();
    }
    let connections = house.upstream.state().await["connections"]
        .as_u64()
        .unwrap();
    // One of them asks for the state.
    assert!(
        connections <= 3,
        "{connections} connections for six requests"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_expects_100_is_told_to_go_on_or_why_not() {
    let (_house, door) = open().await;
    let head = "POST /orders HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\nexpect: 100-continue\r\n";

    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let polite = format!("{head}x-caller: alice\r\ncontent-length: 2\r\n\r\n");
    stream.write_all(polite.as_bytes()).await.unwrap();
    let mut told = [0; 25];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").await.unwrap();
    let mut told = [0; 12];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 201");

    // A request that is refused by its head is not asked for its body.
    let large = format!("{head}x-caller: alice\r\ncontent-length: 9999999\r\n\r\n");
    let told = client::raw(door.address, large.as_bytes()).await;
    assert!(told.starts_with("HTTP/1.1 413 "), "{told}");
    let odd = "POST / HTTP/1.1\r\nhost: a\r\nexpect: cake\r\ncontent-length: 1\r\n\r\n";
    let told = client::raw(door.address, odd.as_bytes()).await;
    assert!(told.starts_with("HTTP/1.1 417 "), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_may_answer_before_it_has_read_everything() {
    let (_house, door) = open().await;
    let endless = futures_util::stream::repeat_with(|| {
        Ok::<_, std::convert::Infallible>(Bytes::from_static(&[0; 16 * 1024]))
    });
    let endless = futures_util::StreamExt::take(endless, 4096);
    let asked = request("POST", "/refuse-early").body(Body::from_stream(endless));

    let mut sender = client::connect(door.address).await;
    let answer = sender.send_request(asked.unwrap()).await.unwrap();

    // What it answers is not lost, unless its own reset has overtaken it.
    assert!([413, 502].contains(&answer.status().as_u16()), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_breaks_off_breaks_off_at_the_service_too() {
    let (house, door) = open().await;
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let head = "POST /sink HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[0; 100_000]).await.unwrap();
    house
        .upstream
        .until(|state| state["bytes"].as_u64() >= Some(65_536))
        .await;

    drop(stream);

    house.upstream.until(|state| state["aborted"] == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_stream_in_both_directions() {
    const SIZE: usize = 64 << 20;
    let (_house, door) = open().await;
    let pieces = (0..SIZE / 65_536)
        .map(|_| Ok::<_, std::convert::Infallible>(Bytes::from_static(&[7; 65_536])));
    let up = request("POST", "/sink")
        .header("content-length", SIZE)
        .body(Body::from_stream(futures_util::stream::iter(pieces)));

    let read = client::send(door.address, up.unwrap()).await;
    let mut sender = client::connect(door.address).await;
    let down = request("GET", &format!("/source?bytes={SIZE}")).body(Body::empty());
    let mut body = sender
        .send_request(down.unwrap())
        .await
        .unwrap()
        .into_body();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        size += frame.unwrap().into_data().unwrap().len();
    }

    assert_eq!(read.json()["read"], SIZE);
    assert_eq!(size, SIZE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_caller_is_waited_for_and_a_slow_service_is_not() {
    let house = House::on_sqlite().await;
    let settings = UpstreamSettings {
        timeout: Duration::from_secs(3),
        ..quick()
    };
    let door = house.door_with(house.route(settings, None)).await;
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let head = "POST /sink HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 8\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();

    // Longer than the service may be silent, but never silent for that long.
    let mut beat = tokio::time::interval(Duration::from_millis(450));
    for byte in b"slowpoke" {
        beat.tick().await;
        stream.write_all(&[*byte]).await.unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let hung = client::send(door.address, client::order("k", "hang")).await;

    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(hung.status, 504);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_go_by_host_path_and_method() {
    let house = House::on_sqlite().await;
    let route = |host: Option<&str>, path: &str, method: Option<&str>| {
        let mut route = house.route(quick(), None);
        route.host = host.map(ToOwned::to_owned);
        route.path = Pattern::parse(path).unwrap();
        route.methods = method.map(|m| m.parse().unwrap()).into_iter().collect();
        route
    };
    let gateway = Gateway::new(Arc::clone(&house.records));
    let routes = vec![
        route(Some("shop.example"), "/echo", Some("GET")),
        route(Some("*.other.example"), "/echo/**", None),
    ];
    gateway.set_routes(routes, &Options::default());
    let door = Door::open(gateway).await;
    let ask = async |method: &str, host: &str, path: &str| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", host);
        client::send(door.address, request.body(Body::empty()).unwrap())
            .await
            .status
    };

    assert_eq!(ask("GET", "shop.example:80", "/echo").await, 200);
    assert_eq!(ask("HEAD", "SHOP.example", "/%65cho").await, 200);
    assert_eq!(ask("POST", "shop.example", "/echo").await, 405);
    assert_eq!(ask("GET", "shop.example", "/echo/1").await, 404);
    assert_eq!(ask("POST", "a.other.example", "/echo/1").await, 200);
    assert_eq!(ask("GET", "stranger.example", "/echo").await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_resets_after_the_head_was_sent_is_not_asked_again() {
    let house = House::on_sqlite().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut route = house.route(quick(), None);
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = counterfoil_http::gateway::Upstream::new("x", &url, quick()).unwrap();
    route.upstream = Arc::new(upstream);
    let door = house.door_with(route).await;
    let service = tokio::spawn(async move {
        let mut heads = 0;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 64];
            if stream.read(&mut head).await.unwrap() > 0 {
                heads += 1;
            }
            drop(stream);
            if heads == 2 {
                return;
            }
        }
    });

    for _ in 0..2 {
        let told = client::get(door.address, "/").await;
        assert_eq!(
            (told.status, told.problem().as_str()),
            (502, "service-unanswered")
        );
    }

    service.await.unwrap();
}

/// What a caller is told when the service says exactly this.
async fn when_the_service_says(said: &'static str) -> Answer {
    let house = House::on_sqlite().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut route = house.route(quick(), None);
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = counterfoil_http::gateway::Upstream::new("x", &url, quick()).unwrap();
    route.upstream = Arc::new(upstream);
    let door = house.door_with(route).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(said.as_bytes()).await.unwrap();
        // Until the gateway closes it.
        let _ = stream.read(&mut head).await;
    });
    client::get(door.address, "/").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_service_must_not_say_is_not_passed_on() {
    let both = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n";
    let answer = when_the_service_says(both).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"whole"[..]));
    assert_ne!(answer.header("content-length"), Some("3"));

    for odd in [
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx-a: b\r\n folded: c\r\ncontent-length: 0\r\n\r\n",
    ] {
        let answer = when_the_service_says(odd).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (502, "service-unanswered"),
            "{odd}"
        );
    }
    let early = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    assert_eq!(when_the_service_says(early).await.status, 200);
}
