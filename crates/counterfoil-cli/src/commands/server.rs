//! Asks a running server.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::args::{Global, Reach};
use crate::config::Loaded;
use crate::failure::{Failure, Result};
use crate::print;

const PATIENCE: Duration = Duration::from_secs(10);
const MOST: usize = 4 * 1024 * 1024;

/// A running server.
pub(super) struct Server {
    /// `host:port`.
    authority: String,
    token: Option<String>,
}

impl Server {
    /// The server that is named, or the one that the configuration describes.
    pub(super) fn find(global: &Global, reach: &Reach) -> Result<Self> {
        let loaded = Loaded::load(global.config.as_deref())?;
        let authority = match &reach.server {
            Some(url) => {
                let rest = url.strip_prefix("http://").ok_or_else(|| {
                    Failure::config("--server: write an address such as http://127.0.0.1:7070")
                })?;
                rest.trim_end_matches('/').to_owned()
            }
            None => loaded.reachable(),
        };
        let token = match &reach.token {
            Some(token) => Some(token.clone()),
            None => loaded.first_token()?,
        };
        Ok(Self { authority, token })
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
            401 | 403 => Err(Failure::failed(format!(
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
        let stream = TcpStream::connect(&self.authority)
            .await
            .map_err(|e| text(&e))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| text(&e))?;
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
