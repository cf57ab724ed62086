//! The connection.
//!
//! # Promise
//! Connecting ends within its timeout, with a connection that RabbitMQ has let in or with a reason.
//! A connection that is dropped is gone at once, also when the server hangs: nothing of it stays
//! behind, neither a thread nor a socket.

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_rs::TokioRuntime;
use lapin::tcp::{AMQPUriTcpExt as _, OwnedTLSConfig, TLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};
use tokio::time::timeout;

use crate::classify::Failure;

/// How to get to one RabbitMQ.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) uri: AMQPUri,
    pub(crate) tls: OwnedTLSConfig,
    /// The address for people.
    pub(crate) shown: String,
    /// What operators see in the list of connections.
    pub(crate) name: String,
    pub(crate) connect_timeout: Duration,
    /// For every step after that.
    pub(crate) timeout: Duration,
}

/// A connection that RabbitMQ has let in.
pub(crate) struct Wire {
    pub(crate) connection: Connection,
    // Dropped last: it ends what waits for a goodbye.
    _plug: Plug,
}

impl Dial {
    /// Connects and logs in.
    pub(crate) async fn open(&self) -> Result<Wire, Failure> {
        let plug = Plug::default();
        // The driver's own recovery is off: after an error nobody could tell which channel is the
        // old one, and what it still knows.
        let properties = ConnectionProperties::default()
            .with_connection_name(self.name.as_str().into())
            .with_client_property("product".into(), "counterfoil".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let runtime = lapin::runtime::default_runtime().map_err(|e| Failure::of(&e))?;
        let (tls, socket, limit) = (self.tls.clone(), plug.socket.clone(), self.connect_timeout);
        let dial = async move |uri: AMQPUri, runtime: TokioRuntime| {
            let connecting = async {
                let plain = AMQPUri {
                    scheme: AMQPScheme::AMQP,
                    ..uri.clone()
                };
                let stream = plain
                    .connect_with_config_async(TLSConfig::default(), &runtime)
                    .await?;
                if let AsyncTcpStream::Plain(inner) = &stream {
                    let inner = inner.get_ref();
                    inner.set_nodelay(true)?;
                    socket.keep(inner.as_fd().try_clone_to_owned()?.into())?;
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => stream.into_tls(&uri.authority.host, tls.as_ref()).await,
                }
            };
            let connected = timeout(limit, connecting).await;
            let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
            Ok(connected.map_err(late)??)
        };
        let connecting = Connection::connector(self.uri.clone(), runtime, dial, properties);
        match timeout(self.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(Wire {
                connection,
                _plug: plug,
            }),
            Ok(Err(error)) => Err(Failure::of(&error)),
            Err(_) => Err(silent(self.connect_timeout)),
        }
    }

    /// One more step after the connection.
    pub(crate) async fn within<T>(
        &self,
        step: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Failure> {
        match timeout(self.timeout, step).await {
            Ok(done) => done.map_err(|e| Failure::of(&e)),
            Err(_) => Err(silent(self.timeout)),
        }
    }

    /// A new channel of this connection.
    pub(crate) async fn channel(&self, wire: &Wire) -> Result<Channel, Failure> {
        self.within(wire.connection.create_channel()).await
    }
}

fn silent(limit: Duration) -> Failure {
    Failure::Unavailable(format!("RabbitMQ did not answer within {limit:?}"))
}

impl Wire {
    /// Whether nobody has seen it break.
    pub(crate) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }

    /// Says goodbye, and waits for the answer, but not long.
    pub(crate) async fn close(&self, patience: Duration) {
        let goodbye = self.connection.close(200, "OK".into());
        // Nobody there any more is as good as closed.
        let _ = timeout(patience, goodbye).await;
    }
}

/// Pulls the socket from under a connection. Without this, one to a server that hangs would keep
/// its thread until the server answers.
#[derive(Default)]
struct Plug {
    socket: Socket,
}

#[derive(Default, Clone)]
struct Socket(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    Dialling,
    Connected(TcpStream),
    Pulled,
}

impl Socket {
    fn keep(&self, socket: TcpStream) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Pulled) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        *state = State::Connected(socket);
        Ok(())
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        let mut state = self.socket.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Connected(socket) = std::mem::replace(&mut *state, State::Pulled) {
            // An error means that it is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
