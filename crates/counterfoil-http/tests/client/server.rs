//! A service that does what the test tells it to do, and remembers what it was asked.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use counterfoil_engine::pipeline::policy::Backoff;
use counterfoil_engine::pipeline::{Dependency, Limits};
use counterfoil_http::client::{Builder, Client};
use http::HeaderMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Nothing here takes longer, unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A request as the service saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").expect("it has a key")
    }
}

/// What the service does.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Answers with this status.
    Says(u16),
    /// Answers with this status and this header.
    With(u16, &'static str, String),
    /// Answers 200 with so many bytes.
    Brings(usize),
    /// Never answers.
    Hangs,
    /// Answers 200 when it may.
    Waits,
    /// Answers 200, or 400 to who comes before this moment.
    NotBefore(std::time::SystemTime),
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    next: Mutex<VecDeque<Does>>,
    always: Does,
    go: Semaphore,
}

/// The service.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Service {
    /// Does these things one after the other, and then always the same.
    pub(crate) async fn start(first: impl IntoIterator<Item = Does>, always: Does) -> Self {
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            next: Mutex::new(first.into_iter().collect()),
            always,
            go: Semaphore::new(0),
        });
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        let address = serve(app).await;
        Self { address, shared }
    }

    pub(crate) async fn always(does: Does) -> Self {
        Self::start([], does).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.shared.seen.lock().unwrap().len()
    }

    /// Lets so many of those go on that wait.
    pub(crate) fn go(&self, so_many: usize) {
        self.shared.go.add_permits(so_many);
    }

    /// Waits until it was asked so often.
    pub(crate) async fn asked(&self, times: usize) {
        let enough = async {
            while self.calls() < times {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, enough)
            .await
            .expect("too few calls");
    }

    pub(crate) fn dependency(&self, client: &Client) -> Arc<Dependency> {
        let name = format!("client:{}", self.address);
        client.registry().get(&name).expect("it was called")
    }
}

pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await;
    shared.seen.lock().unwrap().push(Seen {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: body.unwrap_or_default(),
    });
    let next = shared.next.lock().unwrap().pop_front();
    let says = |status: u16| {
        let body = Body::from(status.to_string());
        http::Response::builder().status(status).body(body).unwrap()
    };
    match next.unwrap_or_else(|| shared.always.clone()) {
        Does::Says(status) => says(status),
        Does::With(status, name, value) => {
            let mut response = says(status);
            response.headers_mut().insert(name, value.parse().unwrap());
            response
        }
        Does::Brings(bytes) => Response::new(Body::from("x".repeat(bytes))),
        Does::Hangs => std::future::pending().await,
        Does::Waits => {
            shared.go.acquire().await.unwrap().forget();
            says(200)
        }
        Does::NotBefore(moment) => match std::time::SystemTime::now() < moment {
            true => says(400),
            false => says(200),
        },
    }
}

/// A server below HTTP: it reads a whole request from each connection, answers with these bytes and
/// closes it.
pub(crate) struct Raw {
    pub(crate) address: SocketAddr,
    pub(crate) read: Arc<Mutex<Vec<String>>>,
}

impl Raw {
    /// After the last of the answers nobody listens.
    pub(crate) async fn start(answers: Vec<&'static [u8]>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let read = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&read);
        tokio::spawn(async move {
            let mut listener = Some(listener);
            let last = answers.len();
            for (n, answer) in answers.into_iter().enumerate() {
                let (mut stream, _) = listener.as_ref().unwrap().accept().await.unwrap();
                let request = whole(&mut stream).await;
                log.lock().unwrap().push(request);
                if n + 1 == last {
                    listener = None;
                }
                stream.write_all(answer).await.unwrap();
            }
        });
        Self { address, read }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.read.lock().unwrap().clone()
    }
}

/// One request, whose body is `hello` or nothing.
async fn whole(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let n = stream.read(&mut piece).await.unwrap();
        all.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&all).to_lowercase();
        let bodiless = text.ends_with("\r\n\r\n") && !text.contains("content-length: 5");
        if n == 0 || bodiless || text.ends_with("hello") {
            return text;
        }
    }
}

/// Waits that do not last, and nothing that stops a test by accident.
pub(crate) fn quick() -> Limits {
    let mut limits = Limits {
        backoff: Backoff::listed(&[Duration::from_millis(1); 5]).unwrap(),
        write_attempts: 6,
        deadline: LIMIT,
        attempt: LIMIT,
        ..Limits::default()
    };
    limits.budget.floor = 1_000;
    limits.breaker.consecutive = None;
    limits.breaker.min_calls = 1_000;
    limits
}

pub(crate) fn builder() -> Builder {
    Client::builder().limits(quick())
}

pub(crate) fn client() -> Client {
    builder().build().unwrap()
}

/// A client with other limits.
pub(crate) fn limited(change: impl FnOnce(&mut Limits)) -> Client {
    let mut limits = quick();
    change(&mut limits);
    Client::builder().limits(limits).build().unwrap()
}

/// An address at which nobody listens.
pub(crate) async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}/", listener.local_addr().unwrap())
}
