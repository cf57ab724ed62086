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

use super::body::Room;
use super::problem::Problem;
use super::ready::Ready;
use super::{access, messages, policies, requests};
use crate::config::Tokens;
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
    pub(super) tokens: Tokens,
    pub(super) ready: Arc<Ready>,
    pub(super) metrics: PrometheusHandle,
    pub(super) room: Room,
}

fn router(app: App) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/messages", post(messages::post))
        .route("/v1/messages/{id}", get(messages::get))
        .route("/v1/policies", get(policies::list))
        .route("/v1/policies/{destination}", put(policies::set))
        .route("/v1/requests/{business_type}/{key}", get(requests::get))
        .route_layer(axum::middleware::from_fn_with_state(
            app.clone(),
            access::check,
        ));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .merge(guarded)
        .fallback(|| async { Problem::not_found("there is nothing at this path") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .with_state(app)
}

async fn ready(State(app): State<App>) -> Response {
    match app.ready.check().await {
        Ok(()) => "ready\n".into_response(),
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
pub(super) async fn serve(listener: TcpListener, app: App, stop: impl Future<Output = ()>) {
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
        let connection = http.serve_connection(TokioIo::new(Patient::new(stream)), service.clone());
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
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
