//! Callers.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use counterfoil_core::BoxError;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{CHARGE, HALT, Moment, PAY, Receipt};
use crate::wait::PATIENCE;

/// How long a caller waits before it asks again.
const PAUSE: Duration = Duration::from_millis(50);

/// A request to pay. Its repetitions are equal to it but for where they want to stand still.
#[derive(Debug, Clone)]
pub struct Ask {
    path: &'static str,
    key: String,
    halt: Option<Moment>,
}

impl Ask {
    /// In transactional mode.
    pub fn pay(key: impl Into<String>) -> Self {
        Self {
            path: PAY,
            key: key.into(),
            halt: None,
        }
    }

    /// In leased mode.
    pub fn charge(key: impl Into<String>) -> Self {
        Self {
            path: CHARGE,
            ..Self::pay(key)
        }
    }

    /// The same; it stands still at this moment.
    #[must_use]
    pub fn halting(&self, moment: Moment) -> Self {
        Self {
            halt: Some(moment),
            ..self.clone()
        }
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::post(self.path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{}\"", self.key));
        if let Some(moment) = self.halt {
            request = request.header(HALT, moment.name());
        }
        request.body(Full::from(r#"{"amount":7}"#))
    }
}

/// An answer, read to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// Whether it says that it was given before.
    pub fn replayed(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// Whether it says when to come again.
    pub fn says_when(&self) -> bool {
        let after = self.headers.get("retry-after");
        after
            .and_then(|v| v.to_str().ok()?.parse::<u32>().ok())
            .is_some_and(|seconds| seconds > 0)
    }

    /// The last word of the problem's type; empty when it is no problem.
    pub fn problem(&self) -> String {
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let uri = document["type"].as_str().unwrap_or_default();
        uri.rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// The receipt in it.
    ///
    /// # Panics
    /// When there is none.
    pub fn receipt(&self) -> Receipt {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("no receipt ({e}): {self:?}"))
    }
}

/// Where a server can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door(pub u16);

impl Door {
    /// Sends a request once. An error: no answer has come.
    pub async fn ask(self, ask: &Ask) -> Result<Answer, BoxError> {
        self.exchange(ask.request()?).await
    }

    /// Sends a request again and again, until it is not told that it is in progress.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn settled(self, ask: &Ask) -> Answer {
        let busy = |answer: &Answer| answer.problem() == "in-progress";
        insist(&[self], ask, busy).await
    }

    /// Everybody who stands still goes on, and nobody stands still again.
    pub async fn go(self) {
        let request = Request::post("/go").body(Full::default()).unwrap();
        let answer = self.exchange(request).await.expect("no answer");
        assert_eq!(answer.status, 200);
    }

    /// How often a handler was begun.
    pub async fn runs(self) -> usize {
        let request = Request::get("/runs").body(Full::default()).unwrap();
        let answer = self.exchange(request).await.expect("no answer");
        serde_json::from_slice(&answer.body).expect("a number")
    }

    async fn exchange(self, request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
        let answer = tokio::time::timeout(2 * PATIENCE, self.exchange_in_time(request)).await;
        answer.unwrap_or_else(|_| panic!("a caller waits for ever"))
    }

    async fn exchange_in_time(self, request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.0)).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let pump = tokio::spawn(connection);
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        pump.abort();
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        })
    }
}

/// Sends a request at one door after the other until there is an answer that need not be asked for
/// again.
///
/// # Panics
/// When that takes too long.
pub(super) async fn insist(doors: &[Door], ask: &Ask, again: impl Fn(&Answer) -> bool) -> Answer {
    let begun = Instant::now();
    for door in doors.iter().cycle() {
        let answer = door.ask(ask).await;
        match answer {
            Ok(answer) if !again(&answer) => return answer,
            told => assert!(begun.elapsed() < PATIENCE, "never answered: {told:?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("there is no door")
}

impl Ask {
    /// Sends it at one door after the other, as a patient caller does: again after a lost
    /// connection, a 409 and a 503.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn insist(&self, doors: &[Door]) -> Answer {
        insist(doors, self, |answer| matches!(answer.status, 409 | 503)).await
    }
}
