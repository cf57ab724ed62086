//! From a name to a connection: address, TCP, TLS.
//!
//! # Promise
//! Nothing of a message is sent here, so every error means that nothing was stored. A name is
//! resolved once for a connection, its addresses are checked, and the connection goes to one of
//! those that passed: a name server that answers differently the next time changes nothing.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::{Code, Outcome};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use url::Host;

use crate::address::is_public;
use crate::endpoint::Endpoint;
use crate::settings::{Checked, SettingsError};
use crate::tls;

/// A byte stream, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Addresses = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
/// Finds the addresses of a name. The system's resolver, except in tests.
type Lookup = Arc<dyn Fn(String, u16) -> Addresses + Send + Sync>;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{host} is at the private address {address}, which is not allowed")]
    Private { host: String, address: IpAddr },
    #[error("{host} is at the public address {address}, and http:// is not allowed there")]
    Plain { host: String, address: IpAddr },
    #[error("cannot find the address of {host}: {source}")]
    Lookup { host: String, source: io::Error },
    #[error("cannot connect: {0}")]
    Tcp(io::Error),
    #[error("cannot agree on encryption: {0}")]
    Tls(io::Error),
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    #[error("the connection closed before anything was sent: {0}")]
    Unsent(hyper::Error),
}

impl ConnectError {
    /// Nothing was sent, whatever it was.
    pub(crate) fn outcome(&self) -> Outcome {
        let error = self.to_string();
        match self {
            ConnectError::Private { .. } | ConnectError::Plain { .. } => {
                Outcome::DestinationRefused {
                    code: Code::ADDRESS_REFUSED,
                    error,
                }
            }
            _ => Outcome::Unavailable { error },
        }
    }
}

/// Opens connections to one endpoint.
pub(crate) struct Dialer {
    host: Host<String>,
    /// The address in the URL, if there is one.
    literal: Option<IpAddr>,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    allow_private: bool,
    /// Whether public addresses may be connected to without encryption.
    allow_plain: bool,
    limit: Duration,
    lookup: Lookup,
}

impl Dialer {
    /// Fails if the endpoint cannot be encrypted as the settings say.
    pub(crate) fn new(checked: &Checked) -> Result<Self, SettingsError> {
        let endpoint = &checked.endpoint;
        // Built for plain URLs too, so that a wrong certificate file never goes unnoticed.
        let connector = tls::connector(checked.extra_ca.as_deref())?;
        let tls = match endpoint.tls {
            true => Some((connector, server_name(endpoint)?)),
            false => None,
        };
        Ok(Self {
            host: endpoint.host.clone(),
            literal: endpoint.literal(),
            port: endpoint.port,
            tls,
            allow_private: checked.allow_private,
            allow_plain: checked.allow_plain,
            limit: checked.connect_timeout,
            lookup: Arc::new(|name, port| Box::pin(system_lookup(name, port))),
        })
    }

    /// A connection to an address that was checked, within the connect timeout.
    pub(crate) async fn dial(&self) -> Result<Box<dyn Stream>, ConnectError> {
        timeout(self.limit, self.dial_unbounded())
            .await
            .unwrap_or(Err(ConnectError::Timeout(self.limit)))
    }

    async fn dial_unbounded(&self) -> Result<Box<dyn Stream>, ConnectError> {
        let deadline = Instant::now() + self.limit;
        let addresses = self.permitted(self.addresses().await?)?;
        let tcp = connect_to_one(&addresses, deadline)
            .await
            .map_err(ConnectError::Tcp)?;
        // A request goes out in one piece or two; waiting to fill a packet only costs time.
        tcp.set_nodelay(true).map_err(ConnectError::Tcp)?;
        match &self.tls {
            None => Ok(Box::new(tcp)),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), tcp).await;
                Ok(Box::new(stream.map_err(ConnectError::Tls)?))
            }
        }
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Some(address) = self.literal {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let found = (self.lookup)(self.host.to_string(), self.port).await;
        match found {
            Ok(addresses) if addresses.is_empty() => {
                Err(self.unknown(io::ErrorKind::NotFound.into()))
            }
            Ok(addresses) => Ok(addresses),
            Err(source) => Err(self.unknown(source)),
        }
    }

    fn unknown(&self, source: io::Error) -> ConnectError {
        ConnectError::Lookup {
            host: self.host.to_string(),
            source,
        }
    }

    /// Those that may be connected to; an error if there is none.
    fn permitted(&self, all: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ConnectError> {
        let refused = all.first().map(SocketAddr::ip);
        let plain = self.tls.is_some() || self.allow_plain;
        let permitted: Vec<SocketAddr> = all
            .into_iter()
            .filter(|a| match is_public(a.ip()) {
                true => plain,
                false => self.allow_private,
            })
            .collect();
        let host = || self.host.to_string();
        match refused {
            Some(address) if permitted.is_empty() && is_public(address) => {
                Err(ConnectError::Plain {
                    host: host(),
                    address,
                })
            }
            Some(address) if permitted.is_empty() => Err(ConnectError::Private {
                host: host(),
                address,
            }),
            _ => Ok(permitted),
        }
    }
}

fn server_name(endpoint: &Endpoint) -> Result<ServerName<'static>, SettingsError> {
    match (&endpoint.host, endpoint.literal()) {
        (_, Some(address)) => Ok(ServerName::IpAddress(address.into())),
        (host, None) => ServerName::try_from(host.to_string())
            .map_err(|e| SettingsError::Url(format!("the host has no valid name: {e}"))),
    }
}

async fn system_lookup(name: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((name, port)).await?.collect())
}

/// The first address that answers. Each gets an equal share of the time that is left, so that a
/// silent one does not use up the time of the others.
async fn connect_to_one(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (tried, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn dialer(settings: Settings, lookup: Lookup) -> Dialer {
        Dialer {
            lookup,
            ..Dialer::new(&settings.check().unwrap()).unwrap()
        }
    }

    fn settings() -> Settings {
        Settings::unsigned("http://hook.test/").allow_plain(true)
    }

    fn always(addresses: Vec<SocketAddr>) -> Lookup {
        Arc::new(move |_, _| Box::pin(std::future::ready(Ok(addresses.clone()))))
    }

    async fn failure(dialer: &Dialer) -> ConnectError {
        dialer.dial().await.err().unwrap()
    }

    /// A kernel takes connections whether or not anybody accepts them.
    fn nobody_came(listener: &TcpListener) -> bool {
        listener.set_nonblocking(true).unwrap();
        listener
            .accept()
            .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn a_name_at_private_addresses_is_never_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let mapped = format!("[::ffff:127.0.0.1]:{}", here.port())
            .parse()
            .unwrap();
        let dialer = dialer(settings(), always(vec![here, mapped]));

        let error = failure(&dialer).await;

        let words = "hook.test is at the private address 127.0.0.1, which is not allowed";
        let expected = Outcome::DestinationRefused {
            code: Code::ADDRESS_REFUSED,
            error: words.into(),
        };
        assert_eq!(error.outcome(), expected);
        assert!(nobody_came(&listener));
    }

    #[tokio::test]
    async fn the_private_ones_among_several_addresses_are_left_out() {
        let dialer = dialer(settings(), always(vec![]));
        let mixed = ["10.0.0.1:80", "8.8.8.8:80", "[::1]:80"].map(|a| a.parse().unwrap());

        let permitted = dialer.permitted(mixed.to_vec()).unwrap();

        assert_eq!(permitted, ["8.8.8.8:80".parse().unwrap()]);
    }

    #[tokio::test]
    async fn without_encryption_public_addresses_are_left_out() {
        let own = Settings::unsigned("http://hook.test/").allow_private(true);
        let dialer = dialer(own, always(vec![]));
        let mixed = ["10.0.0.1:80", "8.8.8.8:80"].map(|a| a.parse().unwrap());

        let permitted = dialer.permitted(mixed.to_vec()).unwrap();
        let refused = dialer.permitted(mixed[1..].to_vec()).unwrap_err();

        assert_eq!(permitted, ["10.0.0.1:80".parse().unwrap()]);
        let code = match refused.outcome() {
            Outcome::DestinationRefused { code, .. } => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code, Code::ADDRESS_REFUSED);
    }

    #[test]
    fn plain_http_to_public_places_must_be_meant() {
        let plain = |url: &str| Settings::unsigned(url);
        for url in ["http://example.com/", "http://8.8.8.8/"] {
            let refused = plain(url).check().err();
            assert_eq!(refused, Some(SettingsError::Plain), "{url}");
            assert!(plain(url).allow_plain(true).check().is_ok(), "{url}");
        }
        let public = plain("http://8.8.8.8/").allow_private(true).check();
        assert_eq!(public.err(), Some(SettingsError::Plain));
        assert!(plain("https://example.com/").check().is_ok());
        assert!(plain("http://own/").allow_private(true).check().is_ok());
    }

    #[tokio::test]
    async fn a_name_is_resolved_once_for_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let rebinding: Lookup = Arc::new(move |_, _| {
            let first = counter.fetch_add(1, Ordering::SeqCst) == 0;
            let answer = if first {
                here
            } else {
                "192.0.2.1:9".parse().unwrap()
            };
            Box::pin(std::future::ready(Ok(vec![answer])))
        });
        let dialer = dialer(settings().allow_private(true), rebinding);

        dialer.dial().await.unwrap();

        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(!nobody_came(&listener));
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_is_dead() {
        let dead = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let dialer = dialer(settings().allow_private(true), always(vec![dead, here]));

        assert!(dialer.dial().await.is_ok());
    }

    #[tokio::test]
    async fn an_unknown_name_and_a_silent_name_server_are_unavailable() {
        let unknown: Lookup = Arc::new(|_, _| {
            Box::pin(std::future::ready(Err(io::Error::other(
                "Name or service not known",
            ))))
        });
        let silent: Lookup = Arc::new(|_, _| Box::pin(std::future::pending()));
        let limit = Duration::from_millis(30);

        let unknown = failure(&dialer(settings(), unknown)).await;
        let empty = failure(&dialer(settings(), always(vec![]))).await;
        let start = Instant::now();
        let silent = failure(&dialer(settings().connect_timeout(limit), silent)).await;
        assert!(start.elapsed() < Duration::from_secs(20));

        assert!(
            unknown
                .to_string()
                .starts_with("cannot find the address of hook.test")
        );
        assert_eq!(silent.to_string(), "no connection within 30ms");
        for error in [unknown, empty, silent] {
            assert_eq!(error.outcome().label(), "unavailable", "{error}");
        }
    }
}
