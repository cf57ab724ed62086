//! All of it together: a message becomes a request, an answer becomes an outcome.
//!
//! # Promise
//! One outcome per message, in order, each within the timeout. What was sent and not answered is
//! never called unavailable, and what was certainly not sent is never called unconfirmed.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use counterfoil_core::policy::Backoff;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::classify::{Answer, BodyEnd, EXCERPT_BYTES};
use crate::connect::{ConnectError, Dialer};
use crate::pool::{Connection, Outgoing, Pool, SendError};
use crate::request;
use crate::settings::{Settings, SettingsError};
use crate::signature::Secret;

/// The relay's own cut comes this much after ours, which knows more about what was sent.
const GRACE: Duration = Duration::from_secs(1);

/// Offers each message as a signed POST to one URL.
///
/// See [`Settings`] for what can be configured and an example.
pub struct WebhookDestination {
    shown: String,
    target: Uri,
    authority: HeaderValue,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    timeout: Duration,
    concurrency: usize,
    max_response: usize,
    pool: Pool,
}

impl WebhookDestination {
    /// Builds the destination. Nothing is connected yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        let dialer = Dialer::new(&checked)?;
        Ok(Self {
            pool: Pool::new(dialer, checked.concurrency, checked.timeout),
            shown: checked.endpoint.shown,
            target: checked.endpoint.target,
            authority: checked.endpoint.authority,
            headers: checked.headers,
            secrets: checked.secrets,
            timeout: checked.timeout,
            concurrency: checked.concurrency,
            max_response: checked.max_response,
        })
    }

    async fn offer(&self, delivery: &Delivery) -> Outcome {
        let deadline = Instant::now() + self.timeout;
        let mut request = self.request(delivery);
        loop {
            let mut connection = match self.pool.take().await {
                Ok(connection) => connection,
                Err(error) => return error.outcome(),
            };
            match timeout_at(deadline, connection.send(request)).await {
                Ok(Ok(response)) => {
                    return self.read(connection, response, deadline).await.outcome();
                }
                // It waited too long and was closed. Each one taken leaves the pool, and a new
                // connection ends the loop either way.
                Ok(Err(SendError::Unsent(back, _))) if connection.reused => request = *back,
                Ok(Err(SendError::Unsent(_, error))) => {
                    return ConnectError::Unsent(error).outcome();
                }
                Ok(Err(SendError::Broken(error))) => {
                    let error =
                        format!("the connection broke before the answer: {}", chain(&error));
                    return Outcome::retry(Code::UNCONFIRMED, error);
                }
                Err(_) => {
                    let error = format!("no answer within {:?}", self.timeout);
                    return Outcome::retry(Code::TIMEOUT, error);
                }
            }
        }
    }

    fn request(&self, delivery: &Delivery) -> Outgoing {
        let now = SystemTime::now();
        let body = request::body(&delivery.payload);
        let length = HeaderValue::from(body.len());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = request::headers(&self.headers, &self.secrets, delivery, now);
        let headers = request.headers_mut();
        headers.insert(http::header::HOST, self.authority.clone());
        // Said for an empty body too: some servers answer 411 without it.
        headers.insert(http::header::CONTENT_LENGTH, length);
        request
    }

    async fn read(
        &self,
        connection: Connection,
        response: Response<Incoming>,
        deadline: Instant,
    ) -> Answer {
        let arrived = SystemTime::now();
        let (head, mut body) = response.into_parts();
        let mut excerpt = Vec::new();
        let end = timeout_at(
            deadline,
            read_body(&mut body, self.max_response, &mut excerpt),
        )
        .await
        .unwrap_or(BodyEnd::Late);
        if matches!(end, BodyEnd::Complete) {
            self.pool.give_back(connection).await;
        }
        Answer {
            status: head.status,
            headers: head.headers,
            arrived,
            excerpt,
            end,
        }
    }
}

/// Reads up to `limit` bytes and keeps the first of them.
async fn read_body(body: &mut Incoming, limit: usize, excerpt: &mut Vec<u8>) -> BodyEnd {
    let mut read = 0usize;
    while let Some(frame) = body.frame().await {
        let data = match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(_trailers)) => continue,
            Err(error) => return BodyEnd::Broken(chain(&error)),
        };
        let room = EXCERPT_BYTES.min(limit).saturating_sub(excerpt.len());
        excerpt.extend_from_slice(data.get(..room).unwrap_or(&data));
        read = read.saturating_add(data.len());
        if read > limit {
            return BodyEnd::OverLimit;
        }
    }
    BodyEnd::Complete
}

/// An error with its causes: the outermost alone says little.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[async_trait]
impl Destination for WebhookDestination {
    fn describe(&self) -> String {
        format!("webhook {}", self.shown)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::single(self.concurrency, Some(self.timeout + GRACE))
    }

    /// Receivers expect to be tried for more than a day.
    fn backoff(&self) -> Backoff {
        Backoff::WEBHOOK
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            outcomes.push(self.offer(delivery).await);
        }
        outcomes
    }
}

impl fmt::Debug for WebhookDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookDestination")
            .field("url", &self.shown)
            .finish_non_exhaustive()
    }
}
