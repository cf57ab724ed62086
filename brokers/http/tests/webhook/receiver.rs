//! A receiver on a real socket that answers exactly what a test tells it to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// What the receiver does with one request.
pub(crate) enum Reply {
    /// These bytes, and the next request may come on the same connection.
    Raw(String),
    /// These bytes, and then the connection is closed.
    Close(String),
    /// Nothing, for ever.
    Silence,
    /// A 200 whose body never ends, as fast as it goes.
    Endless,
    /// These bytes, and then one more every few milliseconds, for ever.
    Drip(String),
}

/// A request as it came over the wire.
pub(crate) struct Received {
    /// Which connection it came on, counted from zero.
    pub(crate) connection: usize,
    pub(crate) first_line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Received>,
    /// Bytes written to each connection that came to its end.
    ended: mpsc::UnboundedReceiver<usize>,
}

type Script = Arc<Mutex<VecDeque<Reply>>>;

impl Receiver {
    /// Answers requests in this order, and with 200 afterwards.
    pub(crate) async fn answering(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::start(replies, None).await
    }

    /// The same behind TLS.
    pub(crate) async fn encrypted(acceptor: tokio_rustls::TlsAcceptor) -> Self {
        Self::start([], Some(acceptor)).await
    }

    async fn start(
        replies: impl IntoIterator<Item = Reply>,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script: Script = Arc::new(Mutex::new(replies.into_iter().collect()));
        let (seen, requests) = mpsc::unbounded_channel();
        let (end, ended) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, seen, end) = (Arc::clone(&script), seen.clone(), end.clone());
                let tls = tls.clone();
                tokio::spawn(async move {
                    let written = match tls {
                        None => serve(stream, connection, &script, &seen).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, connection, &script, &seen).await,
                            Err(_) => 0,
                        },
                    };
                    let _ = end.send(written);
                });
            }
        });
        Self {
            address,
            requests,
            ended,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?a=b", self.address)
    }

    /// The next request; waits for it.
    pub(crate) async fn request(&mut self) -> Received {
        self.requests.recv().await.unwrap()
    }

    /// Waits until a connection has ended; answers how many bytes were written to it.
    pub(crate) async fn end(&mut self) -> usize {
        self.ended.recv().await.unwrap()
    }
}

/// A whole answer. `head` holds further header lines, each ended by CR LF.
pub(crate) fn answer(status: u16, head: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} Whatever\r\n{head}content-length: {length}\r\n\r\n{body}")
}

async fn serve<S>(
    mut stream: S,
    connection: usize,
    script: &Script,
    seen: &mpsc::UnboundedSender<Received>,
) -> usize
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut written = 0;
    while let Some(request) = read_request(&mut stream, connection).await {
        let _ = seen.send(request);
        let reply = script.lock().unwrap().pop_front();
        let (text, more) = match reply.unwrap_or_else(|| Reply::Raw(answer(200, "", ""))) {
            Reply::Raw(text) => (text, None),
            Reply::Close(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                let _ = stream.shutdown().await;
                return text.len();
            }
            Reply::Silence => {
                let _ = stream.read(&mut [0]).await;
                return 0;
            }
            Reply::Endless => (
                "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".into(),
                Some(("x".repeat(8192), Duration::ZERO)),
            ),
            Reply::Drip(text) => (text, Some(("x".into(), Duration::from_millis(5)))),
        };
        let _ = stream.write_all(text.as_bytes()).await;
        if let Some((chunk, pause)) = more {
            while stream.write_all(chunk.as_bytes()).await.is_ok() {
                written += chunk.len();
                tokio::time::sleep(pause).await;
            }
            return written;
        }
    }
    written
}

async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    connection: usize,
) -> Option<Received> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let first_line = lines.next().unwrap().to_owned();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, value.trim().parse().unwrap());
    }
    let length = headers
        .get("content-length")
        .map_or("0", |v| v.to_str().unwrap());
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some(Received {
        connection,
        first_line,
        headers,
        body,
    })
}
