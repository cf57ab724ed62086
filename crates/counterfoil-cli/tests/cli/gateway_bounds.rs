//! What callers do to the gateway costs it little, and others nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::Request;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::client::ask;
use crate::gateway::{configure, door};
use crate::home::{Home, Served, until};
use crate::upstream::Upstream;

/// KiB of memory that a gateway may need more than at its start.
const LITTLE: u64 = 32 * 1024;
const GIGABYTE: usize = 1 << 30;

fn start() -> (Home, Upstream, Served) {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let served = home.serve();
    // Everything that is made once is made.
    assert_eq!(down(&served, 1 << 20), 1 << 20);
    (home, upstream, served)
}

#[track_caller]
fn costs(served: &Served, before: u64, limit: u64) {
    let grown = served.most_memory() - before;
    assert!(grown < limit, "{grown} KiB more");
}

/// Downloads so many bytes, and counts them.
fn down(served: &Served, size: usize) -> usize {
    let mut down = TcpStream::connect(door(served)).unwrap();
    let head = format!("GET /source?bytes={size} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    down.write_all(head.as_bytes()).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let (mut got, mut body) = (Vec::new(), None);
    loop {
        let n = down.read(&mut buffer).unwrap();
        if n == 0 {
            return body.unwrap_or(0);
        }
        match &mut body {
            Some(body) => *body += n,
            None => {
                got.extend_from_slice(&buffer[..n]);
                let end = got.windows(4).position(|w| w == b"\r\n\r\n");
                body = end.map(|end| got.len() - end - 4);
            }
        }
    }
}

#[test]
fn a_gigabyte_comes_down_at_constant_memory() {
    let (_home, _upstream, served) = start();
    let before = served.most_memory();

    assert_eq!(down(&served, GIGABYTE), GIGABYTE);

    costs(&served, before, LITTLE);
    served.stop();
}

#[test]
fn a_gigabyte_goes_up_at_constant_memory() {
    let (_home, _upstream, served) = start();
    let before = served.most_memory();

    let mut up = TcpStream::connect(door(&served)).unwrap();
    let head = format!(
        "POST /sink HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {GIGABYTE}\r\n\r\n"
    );
    up.write_all(head.as_bytes()).unwrap();
    let piece = vec![7; 1 << 20];
    for _ in 0..GIGABYTE / piece.len() {
        up.write_all(&piece).unwrap();
    }
    let mut answer = String::new();
    up.read_to_string(&mut answer).unwrap();

    assert!(
        answer.contains(&format!("\"read\": {GIGABYTE}")),
        "{answer}"
    );
    costs(&served, before, LITTLE);
    served.stop();
}

/// A connection that asks, and whose driver can be stopped: then nobody reads from the socket.
struct Caller {
    send: SendRequest<Bytes>,
    stop: Option<oneshot::Sender<()>>,
}

async fn caller(door: &str, window: u32) -> Caller {
    let stream = tokio::net::TcpStream::connect(door).await.unwrap();
    let mut builder = Builder::new();
    builder
        .initial_window_size(window)
        .initial_connection_window_size(window.max(1 << 20) * 8);
    let (send, connection) = builder.handshake(stream).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = &mut connection => {}
            _ = stopped => std::future::pending().await,
        }
    });
    Caller {
        send,
        stop: Some(stop),
    }
}

fn get(path: &str) -> Request<()> {
    let uri = format!("http://shop{path}");
    Request::builder().uri(uri).body(()).unwrap()
}

#[test]
fn http_2_callers_that_do_not_read_cost_little() {
    const STREAMS: u64 = 100;
    let (_home, upstream, served) = start();
    let runtime = Runtime::new().unwrap();
    let before = served.most_memory();
    let asked = upstream.state()["sources"].as_u64().unwrap();

    // The first has small windows and reads nothing of the bodies; the second gives leave to send
    // everything, and then reads nothing at all.
    let (mut callers, mut held) = (Vec::new(), Vec::new());
    for (n, window) in [65_535, 1 << 24].into_iter().enumerate() {
        let mut caller = runtime.block_on(caller(door(&served), window));
        for _ in 0..STREAMS {
            let mut ready = runtime.block_on(caller.send.clone().ready()).unwrap();
            let request = get("/source?bytes=1000000000");
            held.push(ready.send_request(request, true).unwrap().0);
        }
        let expected = asked + STREAMS * (n as u64 + 1);
        until("all requests", || {
            (upstream.state()["sources"] == expected).then_some(())
        });
        let _ = caller.stop.take().unwrap().send(());
        callers.push(caller);
    }

    // Somebody else is served meanwhile.
    assert_eq!(down(&served, 100 << 20), 100 << 20);
    costs(&served, before, 3 * LITTLE);
    drop(runtime);
    served.stop();
}

/// There is one connection to the service, and somebody holds it who does not read.
fn lets_go(hold: impl FnOnce(&str)) {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let file = home.path().join("counterfoil.toml");
    let text = std::fs::read_to_string(file).unwrap();
    home.configure(&format!("{text}connections = 1\n"));
    let served = home.serve();
    hold(door(&served));
    until("the answer that nobody reads", || {
        (upstream.state()["sources"] == 1).then_some(())
    });
    let other = || ask(door(&served), "GET", "/status?is=204", &[], b"").status;
    assert_eq!(other(), 503);

    until("a free connection", || (other() == 204).then_some(()));
    served.stop();
}

#[test]
fn who_does_not_read_over_http_1_lets_go_of_the_service() {
    let mut held = None;
    lets_go(|door| {
        let mut stream = TcpStream::connect(door).unwrap();
        let head = "GET /source?bytes=1000000000 HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        held = Some(stream);
    });
}

#[test]
fn who_does_not_read_over_http_2_lets_go_of_the_service() {
    let runtime = Runtime::new().unwrap();
    let mut held = None;
    lets_go(|door| {
        // The connection lives, and is asked now and then whether it does; the window stays shut.
        let caller = runtime.block_on(caller(door, 0));
        let mut ready = runtime.block_on(caller.send.clone().ready()).unwrap();
        let request = get("/source?bytes=1000000000");
        held = Some((caller, ready.send_request(request, true).unwrap()));
    });
}

#[test]
fn http_2_requests_that_are_taken_back_at_once_cost_little() {
    let (_home, upstream, served) = start();
    let runtime = Runtime::new().unwrap();
    let before = served.most_memory();

    let mut taken_back = 0;
    runtime.block_on(async {
        for _ in 0..5 {
            let caller = caller(door(&served), 65_535).await;
            for _ in 0..10_000 {
                let Ok(mut ready) = caller.send.clone().ready().await else {
                    break;
                };
                let Ok((_, mut stream)) = ready.send_request(get("/echo"), true) else {
                    break;
                };
                stream.send_reset(h2::Reason::CANCEL);
                taken_back += 1;
                tokio::task::yield_now().await;
            }
        }
    });

    assert!(taken_back > 100, "{taken_back}");
    assert_eq!(
        ask(door(&served), "GET", "/status?is=204", &[], b"").status,
        204
    );
    let calls = upstream.calls();
    assert!(calls <= taken_back, "{calls} calls for {taken_back}");
    until("free places", || {
        let metrics = served.get("/metrics").body;
        let free = "counterfoil_bulkhead_in_use{destination=\"upstream:shop\"} 0";
        metrics.contains(free).then_some(())
    });
    costs(&served, before, LITTLE);
    drop(runtime);
    served.stop();
}

#[test]
fn http_2_heads_without_end_are_cut_off() {
    let (_home, upstream, served) = start();
    let before = served.most_memory();
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let stream = u32::from(kind != 4).to_be_bytes();
        [&length[1..], &[kind, flags], &stream, payload].concat()
    };
    // A header that is not remembered: `x: a…`.
    let header = [&[0, 1, b'x', 100][..], &[b'a'; 100]].concat().repeat(100);

    let mut stream = TcpStream::connect(door(&served)).unwrap();
    let mut sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, b""),
    ]
    .concat();
    sent.extend(frame(1, 0, &header));
    stream.write_all(&sent).unwrap();
    let mut written = 0_usize;
    let continuation = frame(9, 0, &header);
    while written < 256 << 20 && stream.write_all(&continuation).is_ok() {
        written += continuation.len();
    }

    assert!(written < 64 << 20, "{written} bytes were taken");
    assert_eq!(
        ask(door(&served), "GET", "/status?is=204", &[], b"").status,
        204
    );
    assert_eq!(upstream.calls(), 0);
    costs(&served, before, LITTLE);
    served.stop();
}
