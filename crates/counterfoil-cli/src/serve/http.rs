//! The HTTP server: routes, connections, and their bounds.
//!
//! # Promise
//! Connections, their heads, bodies and answers are bounded in number, size and time. A request
//! that is under way when the server stops is answered, within [`GOODBYE`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use counterfoil_core::guard::Records;
use counterfoil_engine::Nudge;
use counterfoil_engine::pipeline::Registry;
use counterfoil_http::gateway::Patient;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::access::Access;
use super::body::Room;
use super::problem::Problem;
use super::ready::Ready;
use super::{access, messages, policies, presence, requests};
use crate::config::Scope;
use crate::database::Outbox;

/// Connections at one time; more wait in the backlog.
const CONNECTIONS: usize = 1_024;
/// A request's head has arrived by then, and an idle connection is closed.
const HEAD: Duration = Duration::from_secs(15);
/// The largest head of a request.
const HEAD_BYTES: usize = 64 * 1024;
/// How long requests under way may take once the server stops.
const GOODBYE: Duration = Duration::from_secs(5);

/// What handlers work with.
#[derive(Clone)]
pub(super) struct App {
    pub(super) outbox: Arc<dyn Outbox>,
    pub(super) records: Arc<dyn Records>,
    pub(super) nudge: Nudge,
    pub(super) registry: Registry,
    pub(super) access: Arc<Access>,
    pub(super) ready: Arc<Ready>,
    pub(super) metrics: PrometheusHandle,
    pub(super) room: Room,
}

fn router(app: App) -> Router {
    let only = |scope: Scope| {
        let state = (Arc::clone(&app.access), scope);
        axum::middleware::from_fn_with_state(state, access::check)
    };
    let produce = post(messages::post).route_layer(only(Scope::Producer));
    let set_policy = put(policies::set).route_layer(only(Scope::Operator));
    let figures = get(metrics).route_layer(only(Scope::Metrics));
    let read = Router::new()
        .route("/v1/messages/{id}", get(messages::get))
        .route("/v1/consumers", get(presence::consumers))
        .route("/v1/relays", get(presence::relays))
        .route("/v1/policies", get(policies::list))
        .route("/v1/requests/{business_type}/{key}", get(requests::get))
        .route_layer(only(Scope::Reader));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", figures)
        .route("/v1/messages", produce)
        .route("/v1/policies/{destination}", set_policy)
        .merge(read)
        .fallback(|| async { Problem::not_found("there is nothing at this path") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .with_state(app)
}

async fn ready(State(app): State<App>) -> Response {
    match app.ready.check().await {
        // How consumers are is told and does not count: whoever asks the API needs no broker.
        Ok(()) => format!("ready\n{}", app.ready.consumers()).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    app.registry.measure();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.render())
}

/// The next connection, when there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are small: waiting for more to send would only delay them.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            // Out of file descriptors, or a caller that has already gone.
            tracing::debug!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Answers requests until `stop`, then finishes those under way.
pub(super) async fn serve(
    listener: TcpListener,
    encrypt: Option<TlsAcceptor>,
    app: App,
    stop: impl Future<Output = ()>,
) {
    let service = TowerToHyperService::new(router(app));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES);
    let (graceful, room) = (
        GracefulShutdown::new(),
        Arc::new(Semaphore::new(CONNECTIONS)),
    );
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            () = &mut stop => break,
        };
        let Some((stream, place)) = accepted else {
            continue;
        };
        let (http, service, watcher) = (http.clone(), service.clone(), graceful.watcher());
        let encrypt = encrypt.clone();
        tokio::spawn(async move {
            let ended = match encrypt {
                None => {
                    let io = TokioIo::new(Patient::new(stream));
                    watcher.watch(http.serve_connection(io, service)).await
                }
                Some(encrypt) => match shake_hands(&encrypt, stream).await {
                    Some(io) => watcher.watch(http.serve_connection(io, service)).await,
                    None => Ok(()),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended badly");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(GOODBYE, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some requests were still under way and are cut off");
    }
}

/// Encrypts a connection, in the time that a head may take.
async fn shake_hands(
    encrypt: &TlsAcceptor,
    stream: TcpStream,
) -> Option<TokioIo<TlsStream<Patient>>> {
    match tokio::time::timeout(HEAD, encrypt.accept(Patient::new(stream))).await {
        Ok(Ok(encrypted)) => Some(TokioIo::new(encrypted)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection could not be encrypted");
            None
        }
        Err(_) => None,
    }
}
