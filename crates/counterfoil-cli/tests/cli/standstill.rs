//! Places on the way to a service where a request stands still.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::home::PATIENCE;

/// An address where connecting takes for ever: nobody takes connections, and the queue is full.
pub struct Wall {
    pub address: String,
    _listener: tokio::net::TcpListener,
    _queue: Vec<TcpStream>,
    _runtime: tokio::runtime::Runtime,
}

impl Wall {
    pub fn build() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
            socket.listen(1).unwrap()
        });
        let address: SocketAddr = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            queue.push(stream);
            assert!(queue.len() < 100, "this queue has no end");
        }
        Self {
            address: address.to_string(),
            _listener: listener,
            _queue: queue,
            _runtime: runtime,
        }
    }
}

/// A way to a service that lets one connection pass, and of its request only the beginning.
pub struct Strait {
    pub address: String,
    halted: Receiver<()>,
    go: Sender<()>,
    ended: Receiver<()>,
}

impl Strait {
    pub fn to(service: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = service.to_owned();
        let ((halt, halted), (go, gone), (end, ended)) = (channel(), channel(), channel());
        std::thread::spawn(move || {
            let (mut near, _) = listener.accept().unwrap();
            let mut far = TcpStream::connect(service).unwrap();
            let mut beginning = vec![0; 64 * 1024];
            near.read_exact(&mut beginning).unwrap();
            far.write_all(&beginning).unwrap();
            halt.send(()).unwrap();
            let _ = gone.recv();
            // Whoever was killed has left something in the buffers: it arrives, as it would.
            let _ = std::io::copy(&mut near, &mut far);
            let _ = far.shutdown(Shutdown::Write);
            let _ = far.read_to_end(&mut Vec::new());
            let _ = end.send(());
        });
        Self {
            address,
            halted,
            go,
            ended,
        }
    }

    /// Waits for a request of which only the beginning has passed.
    #[track_caller]
    pub fn halted(&self) {
        self.halted.recv_timeout(PATIENCE).expect("no request");
    }

    /// What was sent meanwhile arrives. Waits until the service has closed the connection.
    #[track_caller]
    pub fn clear(&self) {
        self.go.send(()).unwrap();
        self.ended.recv_timeout(PATIENCE).expect("no end");
    }
}
