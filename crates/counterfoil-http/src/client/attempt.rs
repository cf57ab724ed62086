//! One attempt: the request goes out, and the whole answer comes in.
//!
//! # Promise
//! [`Trail::sent`] stays false only while no attempt has been given a connection. A connection
//! that turns out to be closed before anything was sent is exchanged for another one, which the
//! destination cannot notice. An answer is complete, or there is none.
//! # When it is dropped
//! The connection is closed, and with it the request; the trail knows whether it had one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use counterfoil_engine::pipeline::{CallFuture, Effect, Ended};
use http::Request;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::Service;

use super::answer::Answer;
use super::connect::Connector;
use super::error::Lost;

/// A connection that has waited for longer is not used: many services close them after 5 s, and
/// may do so at this very moment.
const IDLE: Duration = Duration::from_secs(4);
/// Connections that wait, for each host.
const IDLE_MOST: usize = 64;
/// The largest head of an answer.
const HEAD_BYTES: usize = 64 * 1024;

/// A call on its way, with what every attempt needs.
pub(super) struct Call {
    pub(super) parts: Parts,
    pub(super) body: Carried,
    pub(super) effect: Effect,
    pub(super) key: Option<String>,
    /// The time for all attempts.
    pub(super) within: Duration,
    /// The time for one.
    pub(super) attempt: Duration,
    /// What makes two calls the same; absent when it is not shared.
    pub(super) same: Option<String>,
    pub(super) trail: Arc<Trail>,
}

/// The content of a request.
pub(super) enum Carried {
    /// In memory.
    Whole(Bytes),
    /// As it comes, once.
    Stream(Body),
}

/// What is known about a call besides its result.
#[derive(Default)]
pub(super) struct Trail {
    attempts: AtomicU32,
    sent: AtomicBool,
    ended: Mutex<Option<Ended>>,
}

impl Trail {
    pub(super) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Acquire)
    }

    /// Whether any attempt may have reached the destination.
    pub(super) fn sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self, ended: Ended) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    }
}

/// Knows in the end whether an attempt had a connection.
struct Footprint {
    connection: CaptureConnection,
    trail: Arc<Trail>,
}

impl Drop for Footprint {
    fn drop(&mut self) {
        if self.connection.connection_metadata().is_some() {
            self.trail.sent.store(true, Ordering::Release);
        }
    }
}

/// Makes attempts.
#[derive(Clone)]
pub(super) struct Attempt {
    http: Hyper<Connector, Body>,
    max_answer: usize,
}

impl Attempt {
    pub(super) fn new(connector: Connector, max_answer: usize) -> Self {
        let http = Hyper::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MOST)
            .http1_max_buf_size(HEAD_BYTES)
            .build(connector);
        Self { http, max_answer }
    }

    async fn run(self, call: Call) -> Result<Answer, Lost> {
        let trail = call.trail;
        trail.attempts.fetch_add(1, Ordering::AcqRel);
        let (body, spoiled) = outward(call.body);
        let mut request = Request::from_parts(call.parts, body);
        let _footprint = Footprint {
            connection: capture_connection(&mut request),
            trail,
        };
        let lost = |error: axum::BoxError| match spoiled.load(Ordering::Acquire) {
            true => Lost::Upload,
            false => Lost::Broken(Arc::from(error)),
        };
        let response = self.http.request(request).await;
        let response = response.map_err(|error| lost(error.into()))?;
        let (parts, body) = response.into_parts();
        match Limited::new(body, self.max_answer).collect().await {
            Ok(read) => Ok(Answer::new(parts, read.to_bytes(), call.key)),
            Err(error) if error.is::<LengthLimitError>() => Err(Lost::TooLarge {
                limit: self.max_answer,
            }),
            Err(error) => Err(lost(error)),
        }
    }
}

/// The body itself, and whether reading it from the caller has failed.
fn outward(body: Carried) -> (Body, Arc<AtomicBool>) {
    let spoiled = Arc::new(AtomicBool::new(false));
    let body = match body {
        Carried::Whole(bytes) => Body::from(bytes),
        Carried::Stream(body) => {
            let failed = Arc::clone(&spoiled);
            Body::new(body.map_err(move |error| {
                failed.store(true, Ordering::Release);
                error
            }))
        }
    };
    (body, spoiled)
}

impl Service<Call> for Attempt {
    type Response = Answer;
    type Error = Lost;
    type Future = CallFuture<Answer, Lost>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        Box::pin(self.clone().run(call))
    }
}
