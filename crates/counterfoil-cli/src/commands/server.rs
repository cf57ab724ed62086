//! Asks a running server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::args::{Global, Reach};
use crate::config::{Loaded, Scope};
use crate::failure::{Failure, Result};
use crate::print;

const PATIENCE: Duration = Duration::from_secs(10);
const MOST: usize = 4 * 1024 * 1024;

/// A running server.
pub(super) struct Server {
    /// `host:port`, or a host.
    authority: String,
    /// Where connections are encrypted: whom to believe.
    encrypt: Option<TlsConnector>,
    token: Option<String>,
}

impl Server {
    /// The server that is named, or the one that the configuration describes, for somebody who wants
    /// to do this there.
    pub(super) fn find(global: &Global, reach: &Reach, scope: Scope) -> Result<Self> {
        let loaded = Loaded::load(global.config.as_deref())?;
        let configured = (loaded.encrypted(), loaded.reachable());
        let named = reach.server.as_deref().map(parse).transpose()?;
        let token = match &reach.token {
            Some(token) => Some(token.clone()),
            // What the configuration holds is for the server that it describes, and for nobody else.
            None if named.as_ref().is_none_or(|named| *named == configured) => {
                loaded.token_for(scope)?
            }
            None => None,
        };
        let (tls, authority) = named.unwrap_or(configured);
        let encrypt = tls
            .then(|| connector(reach.ca_file.as_deref()))
            .transpose()?;
        Ok(Self {
            authority,
            encrypt,
            token,
        })
    }

    /// Sends a request and reads the answer, which is JSON.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value> {
        let asked = tokio::time::timeout(PATIENCE, self.exchange(method, path, body));
        let (status, bytes) = match asked.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.away(&error)),
            Err(_) => return Err(self.away("no answer in time")),
        };
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let detail = answer["detail"].as_str().or(answer["title"].as_str());
        let detail = print::clean(detail.unwrap_or("no reason given"));
        match status {
            200..=299 => Ok(answer),
            401 => Err(Failure::failed(format!(
                "{} wants a token: use --token or COUNTERFOIL_TOKEN",
                self.authority
            ))),
            404 => Err(Failure::NotFound(detail)),
            _ => Err(Failure::failed(format!("{}: {detail}", self.authority))),
        }
    }

    fn away(&self, error: &str) -> Failure {
        Failure::failed(format!(
            "no server answers at {}: {error}; name it with --server",
            self.authority
        ))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> std::result::Result<(u16, Bytes), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let host = self.host();
        let port = match &self.authority[host.len()..] {
            "" if self.encrypt.is_some() => 443,
            "" => 80,
            port => port[1..].parse().map_err(|_| "the port is no number")?,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(|e| text(&e))?;
        let Some(encrypt) = &self.encrypt else {
            return self.send(TokioIo::new(stream), method, path, body).await;
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| text(&e))?;
        let stream = encrypt.connect(name, stream).await.map_err(|e| text(&e))?;
        self.send(TokioIo::new(stream), method, path, body).await
    }

    /// The host of the authority, an address of IPv6 in its brackets.
    fn host(&self) -> &str {
        let all = self.authority.as_str();
        let after = all.rfind(']').map_or(0, |at| at + 1);
        let end = all[after..].find(':').map_or(all.len(), |at| after + at);
        &all[..end]
    }

    async fn send(
        &self,
        io: impl Read + Write + Unpin + Send + 'static,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> std::result::Result<(u16, Bytes), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let (mut sender, connection) = http1::handshake(io).await.map_err(|e| text(&e))?;
        let connection = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = body.map(|b| b.to_string()).unwrap_or_default();
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| text(&e))?;
        let answer = sender.send_request(request).await.map_err(|e| text(&e))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        connection.abort();
        Ok((status, body.map_err(|e| text(&e))?.to_bytes()))
    }
}

/// A URL, as whether it is encrypted and its authority.
fn parse(url: &str) -> Result<(bool, String)> {
    let (tls, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => (false, ""),
    };
    let authority = rest.trim_end_matches('/');
    if authority.is_empty() || authority.contains(['/', '@', '?', '#']) {
        let forms = "http://127.0.0.1:7070 or https://counterfoil.example.com";
        return Err(Failure::config(format!(
            "--server: write an address such as {forms}"
        )));
    }
    Ok((tls, authority.to_owned()))
}

/// Believes the public authorities, or those of a file instead.
fn connector(ca_file: Option<&Path>) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let wrong = |why: &dyn std::fmt::Display| {
                Failure::config(format!("--ca-file: {}: {why}", file.display()))
            };
            for certificate in CertificateDer::pem_file_iter(file).map_err(|e| wrong(&e))? {
                roots
                    .add(certificate.map_err(|e| wrong(&e))?)
                    .map_err(|e| wrong(&e))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"it holds no certificate"));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Failure::failed(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_scheme_and_authority() {
        let parsed = |url: &str| parse(url).ok();
        let plain = Some((false, "127.0.0.1:7070".into()));
        assert_eq!(parsed("http://127.0.0.1:7070/"), plain);
        let encrypted = Some((true, "cf.example.com".into()));
        assert_eq!(parsed("https://cf.example.com"), encrypted);
        for wrong in [
            "127.0.0.1:7070",
            "ftp://a",
            "https://",
            "https://a/b",
            "http://u@h",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_host_of_an_authority_is_found() {
        let host = |authority: &str| {
            let server = Server {
                authority: authority.into(),
                encrypt: None,
                token: None,
            };
            server.host().to_owned()
        };
        assert_eq!(host("127.0.0.1:7070"), "127.0.0.1");
        assert_eq!(host("example.com"), "example.com");
        assert_eq!(host("[::1]:7070"), "[::1]");
        assert_eq!(host("[::1]"), "[::1]");
    }
}
