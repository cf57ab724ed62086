//! Bytes that nobody polite would send: none of them reaches the service.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::client;
use crate::house::{House, quick};

/// A request line and a host, and then what the test adds.
fn post(rest: &str) -> String {
    format!("POST /echo HTTP/1.1\r\nhost: a\r\n{rest}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_can_be_read_in_two_ways_are_refused() {
    let house = House::on_sqlite().await;
    let door = house.door().await;
    let smuggled = "0\r\n\r\nGET /echo?smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let with = |head: &str| post(&format!("{head}\r\n{smuggled}"));
    let (spaces, zeros) = (" ".repeat(250), "0".repeat(300));
    let chunk = |size: &str| {
        let rest = smuggled.trim_start_matches('0');
        post(&format!("transfer-encoding: chunked\r\n\r\n{size}{rest}"))
    };
    for (expected, bytes) in [
        (
            400,
            with("content-length: 4\r\ntransfer-encoding: chunked\r\n"),
        ),
        (
            400,
            with("transfer-encoding: chunked\r\ncontent-length: 4\r\n"),
        ),
        (400, with("content-length: 4\r\ncontent-length: 5\r\n")),
        (400, with("content-length: 4\r\ncontent-length: 4\r\n")),
        (400, with("content-length: 4, 5\r\n")),
        (400, with("content-length: +4\r\n")),
        (400, with("content-length: -4\r\n")),
        (400, with("content-length: 0x4\r\n")),
        (400, with("content-length: 99999999999999999999999\r\n")),
        (400, with(&format!("content-length:{spaces}0\r\n"))),
        (400, with(&format!("content-length:{spaces}3\r\n"))),
        (400, with(&format!("content-length: {zeros}\r\n"))),
        (400, with(&format!("transfer-encoding:{spaces}chunked\r\n"))),
        (400, chunk(&zeros)),
        (400, chunk(&format!("0;{zeros}"))),
        (400, with("transfer-encoding: xchunked\r\n")),
        (400, with("transfer-encoding: chunked, identity\r\n")),
        (400, with("transfer-encoding: identity\r\n")),
        (400, with("transfer-encoding : chunked\r\n")),
        (400, with("transfer-encoding:\u{b}chunked\r\n")),
        (
            400,
            with("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n"),
        ),
        (
            400,
            with("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
        ),
        (501, with("transfer-encoding: gzip, chunked\r\n")),
        (400, with("x-a: b\r\n transfer-encoding: chunked\r\n")),
        (400, with("x-a: b\r\n\tfolded\r\n")),
        (400, with("x\u{0}: b\r\n")),
        (400, with("x-a: b\u{0}c\r\n")),
        (400, with("x a: b\r\n")),
        (
            400,
            with("connection: content-length\r\ncontent-length: 0\r\n"),
        ),
        (400, with("host: b\r\n")),
        (400, format!("POST /echo HTTP/1.1\r\n\r\n{smuggled}")),
        (
            400,
            format!(
                "POST /echo HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{smuggled}"
            ),
        ),
        (400, "GET /a/../echo HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (400, "GET /%2e%2e/echo HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (400, "GET echo HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (400, "GET /echo HTTP/9.9\r\nhost: a\r\n\r\n".into()),
        (400, "GET /a b HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (
            400,
            "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1} a TLS hello, or so it seems\r\n\r\n".into(),
        ),
        (501, "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n".into()),
        (501, "TRACE /echo HTTP/1.1\r\nhost: a\r\n\r\n".into()),
    ] {
        let told = client::raw(door.address, bytes.as_bytes()).await;

        assert!(
            told.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{bytes:?}: {told:?}"
        );
        assert_eq!(told.matches("HTTP/1.1 ").count(), 1, "{bytes:?}: {told:?}");
    }
    assert_eq!(house.upstream.calls().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_request_that_is_ambiguous_does_not_spoil_the_first() {
    let house = House::on_sqlite().await;
    let door = house.door().await;
    let clear = post("content-length: 2\r\n\r\nhi");
    let odd = post("content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");

    let told = client::raw(door.address, [clear, odd].concat().as_bytes()).await;

    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    assert!(told.contains("HTTP/1.1 400 "), "{told}");
    assert_eq!(house.upstream.calls().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_turns_out_to_be_ambiguous_is_refused_as_well() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let house = House::on_sqlite().await;
    let door = house.door().await;
    let zeros = format!("{}\r\n\r\n", "0".repeat(300));
    for key in ["", "x-caller: alice\r\nidempotency-key: k\r\n"] {
        let head = post(&format!(
            "{key}expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
        ));
        let mut stream = tokio::net::TcpStream::connect(door.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // The body is asked for: its head has been found clear.
        let mut asked = [0; 25];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");

        let rest = format!("2\r\nhi\r\n{zeros}{}", post("content-length: 0\r\n\r\n"));
        stream.write_all(rest.as_bytes()).await.unwrap();
        let told = client::rest(stream).await;

        assert!(told.starts_with("HTTP/1.1 400 "), "{key:?}: {told}");
        assert_eq!(told.matches("HTTP/1.1 ").count(), 1, "{key:?}: {told}");
    }
    assert_eq!(house.upstream.calls().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_without_end_are_cut_off() {
    let house = House::on_sqlite().await;
    let door = house.door().await;
    let many: String = (0..500).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "a".repeat(200_000));
    let uri = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(200_000));
    for (expected, bytes) in [
        (vec![431], post(&format!("{many}\r\n"))),
        (vec![431], post(&format!("{long}\r\n"))),
        (vec![414, 431], uri),
    ] {
        let mut stream = tokio::net::TcpStream::connect(door.address).await.unwrap();
        // The other side may have closed it before everything is written.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, bytes.as_bytes()).await;
        let mut told = vec![0; 12];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut told)
            .await
            .unwrap();
        let told = String::from_utf8(told).unwrap();
        let fits = |status: &u16| told == format!("HTTP/1.1 {status}");
        assert!(
            expected.iter().any(fits),
            "{told:?} is not one of {expected:?}"
        );
    }
    assert_eq!(house.upstream.calls().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_nobody_should_send_are_refused() {
    let house = House::on_sqlite().await;
    let door = house.door().await;
    let long = "x".repeat(256);
    for key in [
        "",
        "\"\"",
        "a b",
        "a,b",
        "\"open",
        "\u{e9}",
        &*long,
        "a\r\nidempotency-key: b",
    ] {
        let text = post(&format!(
            "x-caller: alice\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\n{{}}"
        ));
        let told = client::raw(door.address, text.as_bytes()).await;
        assert!(told.starts_with("HTTP/1.1 400 "), "{key:?}: {told}");
    }
    assert_eq!(house.upstream.calls().await, 0);
}

/// Goes away in the middle of an upload or of an answer, or sends what can be read in two ways.
async fn misbehave(to: std::net::SocketAddr, round: usize) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let (bytes, read) = match round % 3 {
        0 => (post("x-mark: gone\r\ncontent-length: 1000\r\n\r\nhalf"), 0),
        1 => {
            let get = "GET /source?bytes=5000000 HTTP/1.1\r\nhost: a\r\nx-mark: gone\r\n\r\n";
            (get.to_owned(), 1_000)
        }
        _ => {
            let head = "x-mark: gone\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n";
            (post(&format!("{head}0\r\n\r\n{}", post("\r\n"))), 12)
        }
    };
    let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.read_exact(&mut vec![0; read]).await.unwrap();
}

/// One caller on one connection: what it gets is always its own.
async fn polite(to: std::net::SocketAddr, name: String) {
    let mut connection = client::connect(to).await;
    for round in 0..20 {
        misbehave(to, round).await;
        let mark = format!("{name}-{round}");
        let mut body = mark.repeat(1 + 97 * round);
        body.truncate(30_000);
        let size = body.len();
        let echo = http::Request::post("/echo").header("host", "a");
        let echo = echo.header("x-mark", &mark).body(body.into()).unwrap();
        connection.ready().await.unwrap();
        let told = connection.send_request(echo).await.unwrap();
        let told = client::Answer::read(told).await;
        assert_eq!(told.seen("x-mark"), [mark]);
        assert_eq!(told.json()["size"], size);

        // All callers use the same keys.
        let mut bodies = std::collections::HashSet::new();
        for replayed in [false, true] {
            let mut order = client::order(&format!("k-{round}"), "");
            let caller = name.parse().unwrap();
            order.headers_mut().insert("x-caller", caller);
            connection.ready().await.unwrap();
            let told = connection.send_request(order).await.unwrap();
            let told = client::Answer::read(told).await;
            assert_eq!((told.status, told.replayed()), (201, replayed));
            bodies.insert(told.body);
        }
        assert_eq!(bodies.len(), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_never_see_each_others_answers_whoever_misbehaves_between_them() {
    let house = House::on_sqlite().await;
    let door = house.door().await;
    let callers: Vec<_> = (0..10)
        .map(|n| tokio::spawn(polite(door.address, format!("caller-{n}"))))
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }

    let state = house.upstream.state().await;
    let effects = state["effects"].as_array().unwrap().len();
    assert_eq!(effects, 10 * 20, "one for each caller and key");
    // Connections to the service are used again, except those that somebody has left half-way.
    let connections = state["connections"].as_u64().unwrap();
    assert!(connections < 10 * 20 * 2, "{connections} for 600 requests");
}

/// A connection from another address of this machine.
async fn connect_from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

/// As many as the service has places, and as many that would wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_and_reads_slowly_does_not_shut_out_others() {
    let house = House::on_sqlite().await;
    let route = house.route(quick(), None);
    let (door, _) = house.resilient_door(vec![route]).await;
    let upload = "POST /sink HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nslow";
    let download = "GET /source?bytes=1000000000 HTTP/1.1\r\nhost: a\r\n\r\n";

    let mut slow = Vec::new();
    for head in [upload, download] {
        for _ in 0..512 {
            let mut stream = connect_from("127.0.0.2", door.address).await;
            stream.write_all(head.as_bytes()).await.unwrap();
            slow.push(stream);
        }
    }
    // The slow ones have what they can get.
    let many = house
        .upstream
        .until(|state| state["connections"].as_u64() >= Some(200));
    many.await;

    for _ in 0..20 {
        let answer = client::get(door.address, "/status?is=204").await;
        assert_eq!(answer.status, 204);
    }
    drop(slow);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_trickles_is_cut_off() {
    let house = House::on_sqlite().await;
    let door = house.door_with(house.route(quick(), None)).await;
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let head = "POST /sink HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();

    // Never silent, and never done.
    let trickle = async {
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let cut = tokio::time::timeout(Duration::from_secs(120), trickle).await;

    assert!(cut.is_ok(), "it is still read");
    house.upstream.until(|state| state["aborted"] == 1).await;
}
