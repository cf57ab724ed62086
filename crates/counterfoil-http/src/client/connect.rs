//! Connections: address, TCP, TLS.
//!
//! # Promise
//! Nothing of a request is sent here, so every error means that nothing was sent. All of it
//! together takes no longer than its limit. The public authorities are compiled in; others can be
//! added. The provider is named here, and no process-wide default is needed or changed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tower::{Service, ServiceExt as _};

use super::builder::BuildError;

/// A byte stream, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: TlsConnector,
    limit: Duration,
}

impl Connector {
    /// Trusts the public authorities and those in `authorities`, as PEM.
    pub(super) fn new(authorities: &[Vec<u8>], limit: Duration) -> Result<Self, BuildError> {
        let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        for pem in authorities {
            trust(&mut roots, pem)?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| BuildError::Authority(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Shared out among the addresses of a name, so that a silent one leaves time for the next.
        tcp.set_connect_timeout(Some(limit));
        Ok(Self {
            tcp,
            tls: TlsConnector::from(Arc::new(config)),
            limit,
        })
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<Wire>> {
        let encrypted = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let host = host.to_owned();
        let tcp = self.tcp.oneshot(uri).await.map_err(io::Error::other)?;
        let tcp = tcp.into_inner();
        if !encrypted {
            return Ok(TokioIo::new(Wire(Box::new(tcp))));
        }
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = self.tls.connect(name, tcp).await?;
        Ok(TokioIo::new(Wire(Box::new(stream))))
    }
}

fn trust(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), BuildError> {
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| BuildError::Authority(e.to_string()))?;
        roots
            .add(certificate)
            .map_err(|e| BuildError::Authority(e.to_string()))?;
    }
    match roots.len() == before {
        true => Err(BuildError::Authority("it holds no certificate".into())),
        false => Ok(()),
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Wire>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connector, limit) = (self.clone(), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connector.connect(uri)).await {
                Ok(result) => result,
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {limit:?}"),
                )),
            }
        })
    }
}

/// A connection.
pub(super) struct Wire(Box<dyn Stream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_is_none_is_refused() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in ["", "hello", broken] {
            let made = Connector::new(&[pem.into()], Duration::from_secs(1));
            assert!(matches!(made.err(), Some(BuildError::Authority(_))));
        }
        assert!(Connector::new(&[], Duration::from_secs(1)).is_ok());
    }
}
