//! What the relay is told when no whole answer comes.

use std::time::{Duration, Instant};

use counterfoil_core::{Code, Outcome, Payload};
use counterfoil_webhook::{Settings, WebhookDestination};

use crate::receiver::{Receiver, Reply, answer};
use crate::{delivery, offer, reason, settings, unattended, webhook};

const SHORT: Duration = Duration::from_secs(2);
/// Much longer than a timeout, much shorter than a hang.
const SOON: Duration = Duration::from_secs(20);

fn impatient(receiver: &Receiver) -> WebhookDestination {
    WebhookDestination::new(settings(receiver).timeout(SHORT)).unwrap()
}

#[tokio::test]
async fn a_receiver_that_never_answers_is_a_timeout() {
    let mut receiver = Receiver::answering([Reply::Silence]).await;
    let start = Instant::now();

    let outcome = offer(&impatient(&receiver), &delivery()).await;

    assert_eq!(
        reason(&outcome),
        ("retry", Some(Code::TIMEOUT), "no answer within 2s")
    );
    assert!(start.elapsed() < SOON);
    // The socket is closed, too.
    receiver.end().await;
}

#[tokio::test]
async fn a_dripping_body_cannot_stretch_the_timeout() {
    for (status, code) in [(200, Code::TIMEOUT), (503, Code::UPSTREAM_5XX)] {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 9999\r\n\r\n");
        let mut receiver = Receiver::answering([Reply::Drip(head)]).await;
        let start = Instant::now();

        let outcome = offer(&impatient(&receiver), &delivery()).await;

        let (label, got, _) = reason(&outcome);
        assert_eq!((label, got), ("retry", Some(code)), "{status}");
        assert!(start.elapsed() < SOON);
        receiver.end().await;
    }
}

#[tokio::test]
async fn a_dripping_head_cannot_stretch_the_timeout() {
    let mut receiver = Receiver::answering([Reply::Drip("HTTP/1.1 200 OK\r\nx: ".into())]).await;
    let start = Instant::now();

    let outcome = offer(&impatient(&receiver), &delivery()).await;

    assert_eq!(reason(&outcome).1, Some(Code::TIMEOUT));
    assert!(start.elapsed() < SOON);
    receiver.end().await;
}

#[tokio::test]
async fn an_endless_answer_is_read_up_to_the_limit_only() {
    let mut receiver = Receiver::answering([Reply::Endless]).await;

    let outcome = offer(&webhook(&receiver), &delivery()).await;

    assert_eq!(outcome, Outcome::Stored);
    // What was written and not read sits in the buffers of two sockets.
    let written = receiver.end().await;
    assert!(written < 32 * 1024 * 1024, "{written}");
}

#[tokio::test]
async fn an_answer_of_exactly_the_limit_is_read_to_its_end() {
    let mut receiver = Receiver::answering([Reply::Raw(answer(200, "", "12345"))]).await;
    let webhook = WebhookDestination::new(settings(&receiver).max_response(5)).unwrap();

    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);
    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);

    // Only a connection whose answer was read to its end is used again.
    assert_eq!(
        receiver.request().await.connection,
        receiver.request().await.connection
    );
}

#[tokio::test]
async fn a_connection_that_breaks_after_sending_is_unconfirmed() {
    for said in [
        "",
        "HTTP/1.1 20",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        "SSH-2.0-OpenSSH_9.9\r\n",
    ] {
        let mut receiver = Receiver::answering([Reply::Close(said.into())]).await;

        let outcome = offer(&webhook(&receiver), &delivery()).await;

        let (label, code, words) = reason(&outcome);
        assert_eq!(
            (label, code),
            ("retry", Some(Code::UNCONFIRMED)),
            "{said:?}: {words}"
        );
        receiver.request().await;
    }
}

#[tokio::test]
async fn a_refusal_that_breaks_off_is_still_a_refusal() {
    let said = "HTTP/1.1 400 Bad\r\ncontent-length: 100\r\n\r\nno such order";
    let receiver = Receiver::answering([Reply::Close(said.into())]).await;

    let outcome = offer(&webhook(&receiver), &delivery()).await;

    let expected = "HTTP 400 Bad Request: no such order";
    assert_eq!(
        reason(&outcome),
        ("refused", Some(Code::UPSTREAM_4XX), expected)
    );
}

#[tokio::test]
async fn nobody_listening_is_unavailable() {
    let nobody = unattended().local_addr().unwrap();
    let settings = Settings::unsigned(format!("http://{nobody}/")).allow_private(true);

    let outcome = offer(&WebhookDestination::new(settings).unwrap(), &delivery()).await;

    let (label, _, words) = reason(&outcome);
    assert_eq!(label, "unavailable");
    assert!(words.starts_with("cannot connect"), "{words}");
}

#[tokio::test]
async fn a_peer_that_never_finishes_the_handshake_is_unavailable() {
    let silent = unattended();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    let settings = Settings::unsigned(url)
        .allow_private(true)
        .connect_timeout(SHORT);
    let start = Instant::now();

    let outcome = offer(&WebhookDestination::new(settings).unwrap(), &delivery()).await;

    assert_eq!(
        reason(&outcome),
        ("unavailable", None, "no connection within 2s")
    );
    assert!(start.elapsed() < SOON);
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_a_timeout_and_holds_no_socket() {
    let deaf = unattended();
    let url = format!("http://{}/", deaf.local_addr().unwrap());
    let settings = Settings::unsigned(url).allow_private(true).timeout(SHORT);
    let webhook = WebhookDestination::new(settings).unwrap();
    let mut message = delivery();
    message.payload = Payload::Opaque(vec![0; 16 * 1024 * 1024].into());

    let outcome = offer(&webhook, &message).await;

    assert_eq!(reason(&outcome).1, Some(Code::TIMEOUT));
    let (mut peer, _) = deaf.accept().unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    let drained =
        tokio::task::spawn_blocking(move || std::io::copy(&mut peer, &mut std::io::sink()));
    match drained.await.unwrap() {
        Ok(bytes) => assert!(bytes < 16 * 1024 * 1024, "{bytes}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[tokio::test]
async fn a_connection_that_closed_a_moment_ago_costs_no_attempt() {
    let listener = unattended();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let webhook = WebhookDestination::new(Settings::unsigned(url).allow_private(true)).unwrap();
    let (close, closing) = std::sync::mpsc::channel::<()>();
    let (gone, closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let first = answer_once(&listener);
        closing.recv().unwrap();
        drop(first);
        gone.send(()).unwrap();
        answer_once(&listener);
    });
    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);

    // Blocks the only thread of the runtime on purpose: nothing on our side has seen the end of
    // the connection when the next message is offered.
    close.send(()).unwrap();
    closed.recv().unwrap();

    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);
}

/// Takes a connection and answers one request on it.
fn answer_once(listener: &std::net::TcpListener) -> std::net::TcpStream {
    use std::io::{Read as _, Write as _};
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    let mut byte = [0];
    let body = delivery().payload;
    while !request.ends_with(body.as_bytes()) {
        stream.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
    stream.write_all(answer(200, "", "").as_bytes()).unwrap();
    stream
}
