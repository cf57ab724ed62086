//! The last good answer, for the time in which a service is in trouble.
//!
//! # Promise
//! Where a route wants it, a GET that its service does not answer (it gets a rest, has no place left,
//! cannot be reached, is silent) or answers by 500, 502, 503 or 504 gets the last 2xx answer of the
//! same service to the same host, target, `Accept-Encoding` and caller, if that is young enough. It
//! is marked: `Counterfoil-Stale: true`, and `Age` says how old it is. Without such a copy the caller
//! is told what happened, as ever. Nothing but GET is answered by a copy.
//!
//! No copy is made or given when it might be another one's:
//!
//! | of the request | of the answer |
//! |---|---|
//! | `Authorization`, `Proxy-Authorization`, `Cookie` | `Set-Cookie` |
//! | `Cache-Control: no-store`, `no-cache` | `Cache-Control: no-store`, `private`, `no-cache`, `must-revalidate`, `proxy-revalidate`, `s-maxage` |
//! | `Range`, a body | `Vary` by anything but `Accept-Encoding`; 206; trailers |
//!
//! Any other answer of the service, 404 for example, takes the copy away. Copies are bounded: 1 MiB
//! each, 64 MiB and 10,000 together, and the age that the route names.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use counterfoil_core::guard::FingerprintBuilder;
use http::header::{
    ACCEPT_ENCODING, AGE, AUTHORIZATION, CACHE_CONTROL, COOKIE, PROXY_AUTHORIZATION, RANGE,
    SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::Instant;

use super::memory::{self, Lot, Share};
use super::route::{CallerRule, Route};
use super::shelf::{self, Bounds, OVERHEAD, Shelf};
use crate::guard::answer::Replayed;

/// Says that an answer is a former one.
const STALE: HeaderName = HeaderName::from_static("counterfoil-stale");
/// The largest body that is copied.
const LARGEST: usize = 1 << 20;
/// All copies together.
const BOUNDS: Bounds = Bounds {
    bytes: 64 << 20,
    copies: 10_000,
};
/// Answers after which a former one is better.
const FAILED: [StatusCode; 4] = [
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

type Target = [u8; 32];

/// An answer that was given to its end.
struct Former {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// Former answers of all services. One that is taken away leaves nothing in its place.
#[derive(Clone)]
pub(super) struct Stale {
    shelf: Arc<Mutex<Shelf<Target, Option<Former>>>>,
}

/// A request that may be answered by a former answer, and whose answer may become one.
pub(super) struct Asked {
    target: Target,
    age: Duration,
    at: Instant,
}

/// Whether a copy can be the answer of a request to this host, and which.
pub(super) fn asked(route: &Route, host: &HeaderValue, request: &Request) -> Option<Asked> {
    const OWN: [HeaderName; 4] = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, RANGE];
    let (age, headers) = (route.stale?, request.headers());
    if request.method() != Method::GET
        || !request.body().is_end_stream()
        || OWN.iter().any(|name| headers.contains_key(name))
        || says(headers, &["no-store", "no-cache"])
    {
        return None;
    }
    let upstream = &route.upstream;
    let caller = route.guard.as_ref().map(|guard| &guard.caller);
    let mut target = FingerprintBuilder::new()
        .part(upstream.name().as_bytes())
        .part(upstream.authority().as_bytes())
        .part(host.as_bytes())
        .part(request.uri().path_and_query()?.as_str().as_bytes());
    let listed = [
        Some(&ACCEPT_ENCODING),
        match caller {
            Some(CallerRule::Header(name)) => Some(name),
            _ => None,
        },
    ];
    for name in listed.into_iter().flatten() {
        target = target.part(name.as_str().as_bytes());
        for value in headers.get_all(name) {
            target = target.part(value.as_bytes());
        }
    }
    Some(Asked {
        target: target.finish().0,
        age,
        at: Instant::now(),
    })
}

/// Whether `Cache-Control` has one of these words, or one that cannot be read.
fn says(headers: &HeaderMap, words: &[&str]) -> bool {
    items(headers, &CACHE_CONTROL).any(|item| {
        let word = item.split('=').next().unwrap_or_default().trim();
        word == UNREADABLE || words.iter().any(|w| word.eq_ignore_ascii_case(w))
    })
}

/// An item of a line that is no text.
const UNREADABLE: &str = "?";

/// The items of a header that is a list. What cannot be read is one that nobody knows.
fn items<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter();
    lines.flat_map(|line| {
        line.to_str()
            .unwrap_or(UNREADABLE)
            .split(',')
            .map(str::trim)
    })
}

/// Whether others may get this answer too, and it is the service's own and not a copy already.
fn is_for_all(status: StatusCode, headers: &HeaderMap) -> bool {
    const NOT: [&str; 6] = [
        "no-store",
        "private",
        "no-cache",
        "must-revalidate",
        "proxy-revalidate",
        "s-maxage",
    ];
    status.is_success()
        && status != StatusCode::PARTIAL_CONTENT
        && !headers.contains_key(SET_COOKIE)
        && !headers.contains_key(STALE)
        && !says(headers, &NOT)
        && items(headers, &VARY).all(|name| name.eq_ignore_ascii_case(ACCEPT_ENCODING.as_str()))
}

impl Stale {
    /// No copies yet.
    pub(super) fn new() -> Self {
        Self {
            shelf: Arc::new(Mutex::new(Shelf::new(BOUNDS))),
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf<Target, Option<Former>>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, or the former one in its place. A good answer is copied while it is given.
    pub(super) fn answer(&self, asked: &Asked, share: &Share, response: Response) -> Response {
        let status = response.status();
        if FAILED.contains(&status) {
            return self.former(asked, share).unwrap_or(response);
        }
        if is_for_all(status, response.headers()) {
            return self.copied(asked, share, response);
        }
        if !matches!(
            status,
            StatusCode::NOT_MODIFIED | StatusCode::TOO_MANY_REQUESTS
        ) && !status.is_server_error()
        {
            self.take_away(asked);
        }
        response
    }

    fn former(&self, asked: &Asked, share: &Share) -> Option<Response> {
        let (former, age) = self.shelf().get(&asked.target, asked.age)?;
        let former = Option::as_ref(&former)?;
        let lot = share.lot(former.body.len())?;
        let mut response = Response::new(Body::from(former.body.clone()));
        *response.status_mut() = former.status;
        *response.headers_mut() = former.headers.clone();
        response.extensions_mut().insert(Replayed);
        let headers = response.headers_mut();
        let before = headers.get(AGE).and_then(|v| v.to_str().ok()?.parse().ok());
        let age = age.as_secs().saturating_add(before.unwrap_or(0));
        if Duration::from_secs(age) >= asked.age {
            return None;
        }
        headers.insert(AGE, age.into());
        headers.insert(STALE, HeaderValue::from_static("true"));
        metrics::counter!("counterfoil_gateway_stale_total").increment(1);
        memory::outgoing(response, lot).ok()
    }

    /// The service has given another answer.
    fn take_away(&self, asked: &Asked) {
        let mut shelf = self.shelf();
        // A slow caller has asked before what is there was given.
        if shelf
            .since(&asked.target)
            .is_some_and(|since| since <= asked.at)
        {
            shelf.put(asked.target, Arc::new(None), OVERHEAD, asked.at);
        }
    }

    fn copied(&self, asked: &Asked, share: &Share, response: Response) -> Response {
        let known = response.body().size_hint().exact();
        let large = known.is_some_and(|size| size > LARGEST as u64);
        let Some(lot) = share.lot(0).filter(|_| !large) else {
            return response;
        };
        // So that an answer which comes before the copy is made can forbid it.
        let mut shelf = self.shelf();
        if shelf.since(&asked.target).is_none() {
            shelf.put(asked.target, Arc::new(None), OVERHEAD, asked.at);
        }
        drop(shelf);
        let copy = Copying {
            stale: self.clone(),
            target: asked.target,
            at: asked.at,
            status: response.status(),
            headers: response.headers().clone(),
            bytes: BytesMut::new(),
            lot,
        };
        response.map(|body| {
            let mut copied = Copied {
                body,
                copy: Some(copy),
            };
            copied.end_if_over();
            Body::new(copied)
        })
    }
}

/// A copy in the making.
struct Copying {
    stale: Stale,
    target: Target,
    at: Instant,
    status: StatusCode,
    headers: HeaderMap,
    bytes: BytesMut,
    lot: Arc<Lot>,
}

impl Copying {
    /// Whether it still fits.
    fn add(&mut self, data: &[u8]) -> bool {
        let size = self.bytes.len() + data.len();
        let fits = size <= LARGEST && self.lot.reach(size);
        if fits {
            self.bytes.extend_from_slice(data);
        }
        fits
    }

    fn end(self) {
        let lines = self.headers.iter();
        let lines = shelf::lines(lines.map(|(n, v)| (n.as_str().len(), v.len())));
        let size = OVERHEAD + lines + self.bytes.len();
        let former = Former {
            status: self.status,
            headers: self.headers,
            // Not a view into a buffer that is larger.
            body: Bytes::copy_from_slice(&self.bytes),
        };
        let mut shelf = self.stale.shelf();
        // A slow reader must not put an older answer in the place of a newer one.
        if shelf.since(&self.target).is_none_or(|at| at <= self.at) {
            shelf.put(self.target, Arc::new(Some(former)), size, self.at);
        }
    }
}

/// An answer that is copied while it is given.
struct Copied {
    body: Body,
    copy: Option<Copying>,
}

impl Copied {
    fn end_if_over(&mut self) {
        if self.body.is_end_stream()
            && let Some(copy) = self.copy.take()
        {
            copy.end();
        }
    }
}

impl http_body::Body for Copied {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match (&frame, &mut self.copy) {
            (None, copy) => {
                if let Some(copy) = copy.take() {
                    copy.end();
                }
            }
            (Some(Ok(frame)), Some(copy)) => {
                let data = frame.data_ref();
                if !data.is_some_and(|data| copy.add(data)) {
                    self.copy = None;
                }
                self.end_if_over();
            }
            (Some(Err(_)), copy) => *copy = None,
            (Some(Ok(_)), None) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::memory::Pot;

    fn asked() -> Asked {
        Asked {
            target: [7; 32],
            age: Duration::from_secs(60),
            at: Instant::now(),
        }
    }

    fn given(status: u16, lines: &[(HeaderName, &str)]) -> Response {
        let mut response = Response::new(Body::from("page"));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in lines {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    }

    async fn read(response: Response) {
        use http_body_util::BodyExt as _;
        response.into_body().collect().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_forbidden_while_it_was_copied_does_not_come_back() {
        let (stale, share) = (Stale::new(), Pot::new("stale", 1 << 20).share("shop"));
        let tick = || tokio::time::advance(Duration::from_secs(1));
        let early = asked();
        let slow = stale.answer(&early, &share, given(200, &[]));
        tick().await;
        let gone = stale.answer(&asked(), &share, given(404, &[]));
        assert_eq!(gone.status(), 404);
        read(slow).await;
        assert_eq!(
            stale.answer(&asked(), &share, given(503, &[])).status(),
            503
        );

        // And who was told long ago that there is nothing takes nothing away.
        let late = asked();
        tick().await;
        read(stale.answer(&asked(), &share, given(200, &[]))).await;
        stale.answer(&late, &share, given(404, &[]));
        assert_eq!(
            stale.answer(&asked(), &share, given(503, &[])).status(),
            200
        );
    }

    #[tokio::test(start_paused = true)]
    async fn copies_of_copies_and_what_cannot_be_read_are_not_kept() {
        let (stale, share) = (Stale::new(), Pot::new("stale", 1 << 20).share("shop"));
        for lines in [
            &[(STALE, "true")][..],
            &[(CACHE_CONTROL, "x=\u{e9}")],
            &[(AGE, "60")],
        ] {
            read(stale.answer(&asked(), &share, given(200, lines))).await;

            let told = stale.answer(&asked(), &share, given(503, &[]));
            assert_eq!(told.status(), 503, "{lines:?}");
        }
    }
}
