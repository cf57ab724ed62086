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
        let silent = self.silent.subscribe();
        self.listener = Some(tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                connections
                    .lock()
                    .await
                    .spawn(carry(near, far, silent.clone()));
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

/// A broken connection ends for both.
async fn carry(mut near: TcpStream, far: SocketAddr, silent: watch::Receiver<bool>) {
    if let Ok(mut far) = TcpStream::connect(far).await {
        let (near, far) = (near.split(), far.split());
        tokio::select! {
            _ = pump(near.0, far.1, silent.clone()) => {}
            _ = pump(far.0, near.1, silent) => {}
        }
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut silent: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let n = from.read(&mut bytes).await?;
        // A line that is gone ends its pumps.
        let _ = silent.wait_for(|silent| !*silent).await;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..n]).await?;
    }
}
