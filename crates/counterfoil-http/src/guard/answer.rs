//! Answers: what is recorded of them, and how they are given again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use counterfoil::guard::End;
use counterfoil_core::guard::{Found, Snapshot, State};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;

use super::policy::Policy;
use super::quota::Quota;
use crate::Problem;

/// Says that an answer is a repetition.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Says in the extensions of an answer that it comes whole from its record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replayed;

/// Asked before the copy of an answer grows to so many bytes. After a "no" the answer is given as it
/// comes, and not kept. It is found in the answer's extensions.
#[derive(Clone)]
pub(crate) struct Leave(pub(crate) Arc<dyn Fn(usize) -> bool + Send + Sync>);

/// How one answer is recorded, whatever its status: put it into the response's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    /// It took effect; the answer is replayed.
    Succeeded,
    /// A business error: the business rows are taken back, the answer is replayed.
    Failed,
    /// A business error that a person has to look at: as [`Recording::Failed`], and told once, as an
    /// error in the log and in `counterfoil_guard_needs_person_total`.
    NeedsPerson,
    /// A business error that may pass later: the same request runs again after this time.
    Later(Duration),
    /// Nothing happened: the key stays free.
    Released,
    /// It may have happened. In transactional mode everything is rolled back.
    Uncertain,
}

/// Whether errors of the server leave doubt, or were rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effects {
    RolledBack,
    Anywhere,
}

/// How an answer is recorded: as it says itself, or by its status.
pub(super) fn judge(response: &Response, policy: &Policy, effects: Effects) -> Recording {
    if let Some(said) = response.extensions().get::<Recording>() {
        return *said;
    }
    let status = response.status();
    if policy.final_errors.contains(&status) {
        return Recording::Failed;
    }
    let taken_back = effects == Effects::RolledBack;
    if policy.harmless.contains(&status) || policy.is_refusal(status, taken_back) {
        return Recording::Released;
    }
    // A time limit around the handler says 408, wherever the handler was.
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return match effects {
            Effects::RolledBack => Recording::Released,
            Effects::Anywhere => Recording::Uncertain,
        };
    }
    if status.is_client_error() {
        return Recording::Failed;
    }
    Recording::Succeeded
}

/// What is to be recorded for an answer that is over.
pub(super) fn end(recording: Recording, snapshot: Snapshot) -> Option<End> {
    match recording {
        Recording::Succeeded => Some(End::Succeeded(snapshot)),
        Recording::Failed => Some(End::Failed(snapshot)),
        Recording::NeedsPerson => Some(End::NeedsPerson(snapshot)),
        Recording::Later(after) => Some(End::Later(snapshot, after)),
        Recording::Released | Recording::Uncertain => None,
    }
}

/// What is kept of an answer: of a failure that is too large, or one too many of this caller, nothing but
/// its status.
pub(super) fn kept(
    recording: Recording,
    snapshot: Snapshot,
    (policy, quota): (&Policy, &Quota),
    caller: &str,
) -> Snapshot {
    if recording == Recording::Succeeded || snapshot.body.is_none() {
        return snapshot;
    }
    let headers = snapshot.headers.iter();
    let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
    let size = headers + snapshot.body.as_ref().map_or(0, Bytes::len);
    if size <= policy.max_failure && quota.take(caller, size, policy.failure_quota) {
        return snapshot;
    }
    Snapshot {
        status: snapshot.status,
        headers: Vec::new(),
        body: None,
    }
}

/// How long the rest of an answer of unknown length is waited for. What takes longer is a stream.
const STREAM: Duration = Duration::from_secs(2);

/// Takes a copy of an answer. A body that is streamed, or too large, is not copied and not
/// waited for.
pub(super) async fn capture(
    response: Response,
    policy: &Policy,
) -> Result<(Response, Snapshot), axum::Error> {
    let (mut parts, body) = response.into_parts();
    let leave = parts.extensions.remove::<Leave>();
    let mut snapshot = Snapshot {
        status: parts.status.as_u16(),
        headers: kept_headers(&parts.headers),
        body: None,
    };
    let fits = match body.size_hint().exact() {
        Some(size) => usize::try_from(size).is_ok_and(|n| n <= policy.max_answer),
        None => policy.keep_chunked,
    };
    if !fits || is_event_stream(&parts.headers) {
        return Ok((Response::from_parts(parts, body), snapshot));
    }
    // What has said its length has to keep its word.
    let patience = body.size_hint().exact().is_none().then_some(STREAM);
    let fits = |size: usize| {
        size <= policy.max_answer && leave.as_ref().is_none_or(|leave| (leave.0)(size))
    };
    let (body, copy) = copied(body, fits, patience).await?;
    snapshot.body = copy;
    Ok((Response::from_parts(parts, body), snapshot))
}

/// Reads a body, as long as it fits. Gives it back whole, and the copy if there is one.
pub(crate) async fn copied(
    mut body: Body,
    fits: impl Fn(usize) -> bool,
    patience: Option<Duration>,
) -> Result<(Body, Option<Bytes>), axum::Error> {
    let until = patience.map(|patience| tokio::time::Instant::now() + patience);
    let mut all = BytesMut::new();
    let mut trailers = None;
    loop {
        let frame = match until {
            None => body.frame().await,
            Some(until) => match tokio::time::timeout_at(until, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return Ok((Body::new(Resumed::new(all.freeze(), body)), None)),
            },
        };
        match frame.transpose()?.map(http_body::Frame::into_data) {
            None => break,
            Some(Ok(data)) => all.extend_from_slice(&data),
            Some(Err(frame)) => trailers = frame.into_trailers().ok(),
        }
        if !fits(all.len()) {
            return Ok((Body::new(Resumed::new(all.freeze(), body)), None));
        }
    }
    let bytes = all.freeze();
    let copy = Some(bytes.clone());
    let body = super::body::whole(bytes, trailers);
    Ok((body, copy))
}

/// A body whose beginning was read already.
struct Resumed {
    beginning: Option<Bytes>,
    rest: Body,
}

impl Resumed {
    fn new(beginning: Bytes, rest: Body) -> Self {
        Self {
            beginning: Some(beginning).filter(|b| !b.is_empty()),
            rest,
        }
    }
}

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        match self.beginning.take() {
            Some(bytes) => Poll::Ready(Some(Ok(http_body::Frame::data(bytes)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.starts_with("text/event-stream"))
}

/// Headers that belong to the answer, and not to the connection, the moment or the first caller's
/// session.
pub(crate) fn kept_headers(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    const DROPPED: &[HeaderName] = &[
        header::SET_COOKIE,
        header::DATE,
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::CONTENT_LENGTH,
        header::CACHE_CONTROL,
    ];
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|n| n.trim().to_ascii_lowercase())
        .collect();
    headers
        .iter()
        .filter(|(name, _)| {
            !DROPPED.contains(name)
                && name.as_str() != "keep-alive"
                && !named.iter().any(|n| n == name.as_str())
        })
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

/// The stored answer, to be given again. One without a status does not come from this layer: a check
/// of the outside world has found it, as JSON.
pub(super) fn replay(found: &Found) -> Response {
    use axum::response::IntoResponse as _;
    let Some(snapshot) = found.record.snapshot.as_ref() else {
        return marked(Problem::not_kept(0).into_response());
    };
    let Some(body) = snapshot.body.clone() else {
        let problem = match found.state() {
            State::Succeeded => Problem::not_kept(snapshot.status),
            _ => Problem::failure_not_kept(snapshot.status),
        };
        return marked(problem.into_response());
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = match (snapshot.status, found.state()) {
        (0, State::Succeeded) => StatusCode::OK,
        (0, _) => StatusCode::UNPROCESSABLE_ENTITY,
        (status, _) => StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    if snapshot.status == 0 && snapshot.headers.is_empty() {
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    for (name, value) in &snapshot.headers {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value),
        ) {
            response.headers_mut().append(name, value);
        }
    }
    marked(response)
}

fn marked(mut response: Response) -> Response {
    response.extensions_mut().insert(Replayed);
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    reason = "this is test code: a surprise ends the test"
)]
mod tests {
    use chrono::Utc;
    use counterfoil_core::guard::{Fingerprint, Key, Record};

    use super::*;

    #[test]
    fn what_a_check_has_found_is_given_as_json() {
        let now = Utc::now();
        let found = |state| Found {
            record: Record {
                key: Key::new("", "pay", "k").unwrap(),
                fingerprint: Fingerprint([0; 32]),
                state,
                fence: 1,
                attempts: 1,
                lease_until: None,
                retry_at: None,
                expires_at: now,
                created_at: now,
                updated_at: now,
                snapshot: Some(Snapshot::json(&7).unwrap()),
            },
            now,
        };

        for (state, status) in [(State::Succeeded, 200), (State::Failed, 422)] {
            let response = replay(&found(state));
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["content-type"], "application/json");
            assert!(response.headers().contains_key(REPLAYED));
        }
    }
}
