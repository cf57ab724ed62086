//! Callers: polite ones, and ones that write bytes.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn read<B>(response: http::Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            trailers: collected.trailers().cloned(),
            body: collected.to_bytes(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn replayed(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    /// The last word of the problem's type.
    pub(crate) fn problem(&self) -> String {
        let document = self.json();
        let uri = document["type"].as_str().unwrap_or_default();
        uri.rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// The lines of a header that the service has seen.
    pub(crate) fn seen(&self, name: &str) -> Vec<String> {
        let lines = self.json()["headers"].clone();
        let lines = lines.as_array().unwrap().iter();
        lines
            .filter(|line| line[0] == name)
            .map(|line| line[1].as_str().unwrap().to_owned())
            .collect()
    }
}

/// A connection of HTTP/1.
pub(crate) async fn connect(to: SocketAddr) -> http1::SendRequest<Body> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A connection of HTTP/2, with prior knowledge.
pub(crate) async fn connect_h2(to: SocketAddr) -> http2::SendRequest<Body> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

/// The same, and its caller gives leave for a few bytes only until it reads.
pub(crate) async fn connect_narrow_h2(to: SocketAddr) -> http2::SendRequest<Body> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1_000)
        .initial_connection_window_size(65_535)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "shop.example")
        .header("x-caller", "alice")
}

/// An order under a key.
pub(crate) fn order(key: &str, what: &str) -> Request<Body> {
    let body = serde_json::json!({ "do": what }).to_string();
    request("POST", "/orders")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body))
        .unwrap()
}

pub(crate) async fn send(to: SocketAddr, request: Request<Body>) -> Answer {
    let response = connect(to).await.send_request(request).await.unwrap();
    Answer::read(response).await
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    send(to, request("GET", path).body(Body::empty()).unwrap()).await
}

/// Writes bytes, and reads until the other side closes the connection.
pub(crate) async fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    rest(stream).await
}

/// Reads until the other side closes the connection.
pub(crate) async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let ended = tokio::time::timeout(Duration::from_secs(10), read).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(ended.is_ok(), "the connection stays open: {text:?}");
    text
}
