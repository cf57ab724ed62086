//! The line from a server to its database, to be cut and mended, silenced and heard again.
//!
//! # Promise
//! When the cut returns, every connection is closed on both ends, and new ones are refused. On a
//! silent line connections stay open, new ones are accepted, and nothing arrives.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

/// Below the range from which systems take ports for outgoing connections: while the line is cut,
/// nobody else shall get its port.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A line to one database.
pub struct Line {
    url: Url,
    far: SocketAddr,
    connections: Arc<Mutex<JoinSet<()>>>,
    listener: Option<JoinHandle<()>>,
    silent: watch::Sender<bool>,
    trap: Trap,
}

/// What makes the line fall silent, and whether that still reaches the database.
type Trap = Arc<std::sync::Mutex<Option<(String, Passes)>>>;

/// Whether what makes the line fall silent still reaches the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// It does: only the answer is missing.
    Yes,
    /// It arrives when the line is heard again.
    Later,
}

impl Line {
    /// A line to the database at this URL.
    pub async fn to(database: &str) -> Self {
        let mut url = Url::parse(database).expect("a URL");
        let far = url.socket_addrs(|| None).expect("an address and a port")[0];
        let ports = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(1_000);
        for port in ports {
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                url.set_ip_host(Ipv4Addr::LOCALHOST.into()).expect("a host");
                url.set_port(Some(port)).expect("a port");
                let mut line = Self {
                    url,
                    far,
                    connections: Arc::default(),
                    listener: None,
                    silent: watch::Sender::new(false),
                    trap: Trap::default(),
                };
                line.listen(listener);
                return line;
            }
        }
        panic!("no free port on 127.0.0.1")
    }

    /// The database as it is seen through this line.
    pub fn url(&self) -> String {
        self.url.to_string()
    }

    fn listen(&mut self, listener: TcpListener) {
        let (far, connections) = (self.far, Arc::clone(&self.connections));
        let ear = Ear {
            silent: self.silent.clone(),
            trap: Arc::clone(&self.trap),
        };
        self.listener = Some(tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                connections
                    .lock()
                    .await
                    .spawn(carry(near, far, ear.clone()));
            }
        }));
    }

    /// Cuts it.
    pub async fn cut(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.abort();
            // It was cancelled; that is known.
            let _ = listener.await;
        }
        self.connections.lock().await.shutdown().await;
    }

    /// Mends it.
    pub async fn mend(&mut self) {
        let port = self.url.port().expect("it was set");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        self.listen(listener.expect("somebody else has taken the port"));
    }
}

impl Line {
    /// Nothing arrives any more.
    pub fn silence(&self) {
        self.silent.send_replace(true);
    }

    /// Nothing arrives any more from the moment that this word is sent to the database.
    pub fn silence_at(&self, word: &str, passes: Passes) {
        *self.trap.lock().unwrap() = Some((word.to_owned(), passes));
    }

    /// Until the word was sent.
    pub async fn silenced(&self) {
        let mut silent = self.silent.subscribe();
        let silenced = silent.wait_for(|silent| *silent);
        let silenced = tokio::time::timeout(std::time::Duration::from_secs(20), silenced).await;
        silenced.expect("the word was never sent").expect("a line");
    }

    /// What was held back arrives.
    pub fn speak(&self) {
        self.silent.send_replace(false);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// What a connection hears of its line.
#[derive(Clone)]
struct Ear {
    silent: watch::Sender<bool>,
    trap: Trap,
}

impl Ear {
    /// Whether this is what the line was to fall silent at.
    fn sprung(&self, sent: &[u8]) -> Option<Passes> {
        let mut trap = self.trap.lock().unwrap();
        let (word, passes) = trap.as_ref()?;
        let passes = *passes;
        let found = sent.windows(word.len()).any(|part| part == word.as_bytes());
        found.then(|| {
            *trap = None;
            passes
        })
    }
}

/// A broken connection ends for both.
async fn carry(mut near: TcpStream, far: SocketAddr, ear: Ear) {
    if let Ok(mut far) = TcpStream::connect(far).await {
        let (near, far) = (near.split(), far.split());
        let silent = ear.silent.subscribe();
        tokio::select! {
            _ = pump(near.0, far.1, ear.silent.subscribe(), |sent| ear.sprung(sent), &ear.silent) => {}
            _ = pump(far.0, near.1, silent, |_| None, &ear.silent) => {}
        }
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut silent: watch::Receiver<bool>,
    sprung: impl Fn(&[u8]) -> Option<Passes>,
    silence: &watch::Sender<bool>,
) -> std::io::Result<()> {
    // A statement is not larger than this, so that a word is never in two pieces.
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut bytes).await?;
        let sprung = sprung(&bytes[..n]);
        if sprung == Some(Passes::Later) {
            silence.send_replace(true);
        }
        // A line that is gone ends its pumps.
        let _ = silent.wait_for(|silent| !*silent).await;
        if n == 0 {
            return Ok(());
        }
        if sprung == Some(Passes::Yes) {
            silence.send_replace(true);
        }
        to.write_all(&bytes[..n]).await?;
    }
}
