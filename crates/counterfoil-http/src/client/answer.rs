//! What came back.

use bytes::Bytes;
use counterfoil_engine::pipeline::Ended;
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

/// The whole answer, in memory. Everybody who shared the call has the same one.
#[derive(Debug, Clone)]
pub struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    key: Option<String>,
    attempts: u32,
    ended: Ended,
}

impl Answer {
    pub(super) fn new(parts: Parts, body: Bytes, key: Option<String>) -> Self {
        Self {
            status: parts.status,
            headers: parts.headers,
            body,
            key,
            attempts: 1,
            ended: Ended::Answered,
        }
    }

    pub(super) fn after(mut self, attempts: u32, ended: Ended) -> Self {
        (self.attempts, self.ended) = (attempts, ended);
        self
    }

    /// The status. Every status is an answer, also 500.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The content.
    pub fn bytes(&self) -> &Bytes {
        &self.body
    }

    /// The content as text; what is no UTF-8 becomes `\u{fffd}`.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The content as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The key that the request carried, also one that was generated.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// How many attempts it took.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Why there was no further attempt: [`Ended::Answered`] when this answer stands. Otherwise it
    /// could have passed later, and this says what was in the way.
    pub fn ended(&self) -> Ended {
        self.ended
    }
}
