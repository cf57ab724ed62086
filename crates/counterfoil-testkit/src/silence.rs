//! A network that swallows: connections stay open and nothing comes through any more, not even an
//! error. So a client sees it whose firewall has forgotten the connection, or whose server's host
//! has vanished.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What every statement of a relay's work has in it.
const WORK: &[u8] = b"counterfoil_";

/// A proxy in front of a server. Dropping it closes every connection.
pub struct Proxy {
    address: SocketAddr,
    rules: Arc<Rules>,
    _tasks: JoinSet<()>,
}

struct Rules {
    /// A connection that has sent this can be spared.
    marker: &'static [u8],
    opened: AtomicU64,
    /// Connections with a lower number are silent.
    silent_below: AtomicU64,
    /// Connections that work without the marker fall silent.
    only_marked: AtomicBool,
    lines: Mutex<Vec<Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    number: u64,
    marked: AtomicBool,
    silent: AtomicBool,
}

impl Proxy {
    /// A proxy in front of the server at this address (host and port). `marker` is what tells one
    /// connection from the others, see [`Proxy::silence_all_but_marked`].
    pub async fn start(server: &str, marker: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let rules = Arc::new(Rules {
            marker: marker.as_bytes(),
            opened: AtomicU64::new(0),
            silent_below: AtomicU64::new(0),
            only_marked: AtomicBool::new(false),
            lines: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server.to_owned(), Arc::clone(&rules)));
        Self {
            address,
            rules,
            _tasks: tasks,
        }
    }

    /// The port on which it listens, on the loopback address.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Every connection that is open now falls silent, for good. New ones work.
    pub fn silence(&self) {
        let now = self.rules.opened.load(Ordering::SeqCst);
        self.rules.silent_below.store(now, Ordering::SeqCst);
    }

    /// Only connections that have sent the marker work from now on; others, new ones too, fall
    /// silent.
    pub fn silence_all_but_marked(&self) {
        self.rules.only_marked.store(true, Ordering::SeqCst);
        for line in self.rules.lines().iter().filter(|line| !line.marked()) {
            line.silent.store(true, Ordering::SeqCst);
        }
    }

    /// New connections work again. What has fallen silent stays so.
    pub fn heal(&self) {
        self.rules.only_marked.store(false, Ordering::SeqCst);
    }

    /// Whether a connection has sent the marker.
    pub fn has_marked(&self) -> bool {
        self.rules.lines().iter().any(|line| line.marked())
    }
}

impl Rules {
    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_silent(&self, line: &Line) -> bool {
        line.silent.load(Ordering::SeqCst) || line.number < self.silent_below.load(Ordering::SeqCst)
    }

    /// Looks at what a client sends.
    fn sent(&self, line: &Line, bytes: &[u8]) {
        if holds(bytes, self.marker) {
            line.marked.store(true, Ordering::SeqCst);
        } else if self.only_marked.load(Ordering::SeqCst) && !line.marked() && holds(bytes, WORK) {
            line.silent.store(true, Ordering::SeqCst);
        }
    }
}

impl Line {
    fn marked(&self) -> bool {
        self.marked.load(Ordering::SeqCst)
    }
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

async fn accept(listener: TcpListener, server: String, rules: Arc<Rules>) {
    let mut lines = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(upstream) = TcpStream::connect(&server).await else {
            continue;
        };
        let line = Arc::new(Line {
            number: rules.opened.fetch_add(1, Ordering::SeqCst),
            ..Line::default()
        });
        rules.lines().push(Arc::clone(&line));
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), upstream.into_split());
        let (a, b) = (Arc::clone(&rules), Arc::clone(&rules));
        let other = Arc::clone(&line);
        lines.spawn(async move {
            carry(from_client, to_server, |bytes| {
                a.sent(&line, bytes);
                a.is_silent(&line)
            })
            .await;
        });
        lines.spawn(async move { carry(from_server, to_client, |_| b.is_silent(&other)).await });
    }
}

/// Carries bytes until one side ends. When the connection is silent, nobody learns of the end.
async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    silent: impl Fn(&[u8]) -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if silent(&buffer[..read]) {
            if read == 0 {
                std::future::pending::<()>().await;
            }
            continue;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
