//! `serve`: the relay, the API, the gateway and the consumers until stopped.
//!
//! # Promise
//! It starts whole or not at all: configuration, port, database and schema are checked in this
//! order, and each failure is one line. SIGTERM and SIGINT end it in order: no new requests, the
//! requests under way are answered, what is being consumed and delivered is finished, the shards are
//! given back.
//! A second signal ends it at once.

mod access;
mod banner;
mod body;
mod gateway;
mod gauges;
mod http;
mod incoming;
mod messages;
mod policies;
mod presence;
mod problem;
mod ready;
mod reload;
mod requests;
pub(crate) mod signal;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use counterfoil_core::guard::{Records, Rules};
use counterfoil_engine::guard::reconcile::Reconcile;
use counterfoil_engine::pipeline::Registry;
use counterfoil_engine::{Engine, EngineBuilder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

use crate::args::{Global, Serve};
use crate::bridge;
#[cfg(feature = "sqlite")]
use crate::config::Tokens;
use crate::config::{Certificate, Consumer, Loaded, Settings};
use crate::database::{Outbox, Place, unusable};
use crate::failure::{Failure, Result};
use ready::Ready;
use signal::Signals;

/// Whether the API could show this.
pub(crate) fn check_certificate(files: Certificate) -> std::result::Result<(), String> {
    tls::Identity::read(files).map(|_| ())
}

/// How often requests are looked after.
const TEND: std::time::Duration = std::time::Duration::from_secs(60);

/// Starts, waits for a signal, stops.
pub(crate) async fn run(global: &Global, args: Serve) -> Result {
    let signals = Signals::listen()?;
    let overrides = global.overrides(args.listen);
    let (loaded, mut settings) = Loaded::check(global.config.as_deref(), &overrides)?;
    let place = Place::find(global, &loaded)?;
    let identity = settings.certificate.take().map(tls::Identity::read);
    let identity = identity.transpose().map_err(Failure::config)?;
    let encrypt = identity.as_ref().map(tls::Identity::acceptor).transpose();
    let encrypt = encrypt.map_err(Failure::failed)?;
    let source = loaded
        .path()
        .map(|path| reload::Source::new(path, overrides, &settings.tokens, identity.as_ref()));
    let hangups = reload::hangups()?;
    let listener = bind(settings.listen).await?;
    let address = listener.local_addr()?;
    let registry = Registry::new();
    let gateway = match settings.gateway.take() {
        Some(gateway) => Some(gateway::bind(gateway, &registry).await?),
        None => None,
    };
    let metrics = install_metrics()?;
    let outbox = place.open()?;
    let engine = tokio::select! {
        started = start(&outbox, &settings, registry, !args.no_migrate) => started?,
        // Whoever stops it while it waits for its database does not want to wait too.
        () = signals.first() => return Ok(()),
    };
    let scheme = if encrypt.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let described = banner::Beside {
        gateway: gateway.as_ref().map(gateway::Bound::describe).transpose()?,
        consumers: settings.consumers.iter().map(Consumer::describe).collect(),
        encryption: match outbox.encryption().await {
            Ok(encryption) => encryption,
            Err(error) => Some(format!("unknown: {}", error.one_line())),
        },
    };
    let consumers = std::mem::take(&mut settings.consumers);
    let consumers = tokio::select! {
        started = consume(&place, consumers, &settings, &engine) => match started {
            Ok(consumers) => consumers,
            Err(failure) => {
                engine.stop().await;
                return Err(failure);
            }
        },
        () = signals.first() => {
            engine.stop().await;
            return Ok(());
        }
    };
    banner::print(&*outbox, &settings, &url, loaded.path(), &described)?;

    let sampler = tokio::spawn(gauges::sample(Arc::clone(&outbox), metrics.clone()));
    let records = outbox.records(None)?;
    let (gateway, live) = gateway
        .map(|gateway| {
            let goodbye = settings.engine.drain;
            gateway.start(Arc::clone(&records), signals.first(), goodbye)
        })
        .unzip();
    let access = access::Access::new(settings.tokens);
    let parts = reload::Parts {
        access: Arc::clone(&access),
        exposed: !address.ip().is_loopback(),
        identity,
        gateway: live,
    };
    let watching = tokio::spawn(async move {
        match source {
            Some(source) => reload::watch(source, parts, hangups).await,
            // The gateway's requests are looked after for as long as this is here.
            None => {
                let _parts = parts;
                std::future::pending::<()>().await;
            }
        }
    });
    // A gateway looks after requests itself: it may know how to settle them.
    let warden = match gateway {
        Some(_) => None,
        None => Some(tend_requests(&records)),
    };
    let served = settings
        .queues
        .iter()
        .map(|queue| Arc::clone(&queue.name))
        .collect();
    let records_watch = tokio::spawn(ready::watch(Arc::clone(&records)));
    let app = http::App {
        ready: Arc::new(Ready::new(
            Arc::clone(&outbox),
            Arc::clone(&records),
            served,
            &settings.engine.label,
            consumers.monitors(),
        )),
        outbox: Arc::clone(&outbox),
        nudge: engine.nudge(),
        registry: engine.registry().clone(),
        records,
        access,
        metrics,
        room: body::Room::default(),
    };
    let whole = async {
        http::serve(listener, encrypt, app, signals.first()).await;
        if let Some(gateway) = gateway {
            gateway.end().await;
        }
        watching.abort();
        tracing::info!("stopping: finishing deliveries; a second signal stops at once");
        consumers.stop().await;
        engine.stop().await;
        sampler.abort();
        records_watch.abort();
        if let Some(warden) = warden {
            warden.abort();
        }
        outbox.close().await;
        tracing::info!("stopped");
    };
    tokio::select! {
        () = whole => Ok(()),
        () = signals.second() => {
            Err(Failure::failed("stopped at once: deliveries under way will be offered again"))
        }
    }
}

/// The API beside an engine that somebody else has started, until `stop`. Nobody needs a token.
#[cfg(feature = "sqlite")]
pub(crate) async fn beside(
    listener: TcpListener,
    outbox: Arc<dyn Outbox>,
    (nudge, registry): (counterfoil_engine::Nudge, Registry),
    label: &str,
    stop: impl Future<Output = ()>,
) -> Result {
    let metrics = install_metrics()?;
    let sampler = tokio::spawn(gauges::sample(Arc::clone(&outbox), metrics.clone()));
    let records = outbox.records(None)?;
    let app = http::App {
        ready: Arc::new(Ready::new(
            Arc::clone(&outbox),
            Arc::clone(&records),
            Vec::new(),
            label,
            Vec::new(),
        )),
        records,
        outbox,
        nudge,
        registry,
        access: access::Access::new(Tokens::default()),
        metrics,
        room: body::Room::default(),
    };
    http::serve(listener, None, app, stop).await;
    sampler.abort();
    Ok(())
}

pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::AddrInUse => "another program listens there".to_owned(),
            _ => error.to_string(),
        };
        Failure::failed(format!(
            "cannot listen on {address}: {why}; choose another address with --listen"
        ))
    })
}

async fn start(
    outbox: &Arc<dyn Outbox>,
    settings: &Settings,
    registry: Registry,
    migrate: bool,
) -> Result<Engine> {
    let mut builder = EngineBuilder::new(Arc::clone(outbox) as _)
        .settings(settings.engine.clone())
        .routes(settings.routes.clone())
        .registry(registry)
        .migrate(migrate);
    for queue in &settings.queues {
        builder = builder.queue(queue.clone());
    }
    builder.start().await.map_err(|error| match error {
        counterfoil_engine::StartError::Store(error) => unusable(&**outbox, &error),
        other => other.into(),
    })
}

/// Starts what is consumed, beside the relay.
async fn consume(
    place: &Place,
    consumers: Vec<Consumer>,
    settings: &Settings,
    engine: &Engine,
) -> Result<bridge::Running> {
    let beside = bridge::Beside {
        engine: settings.engine.clone(),
        registry: engine.registry().clone(),
        nudge: engine.nudge(),
    };
    match consumers.is_empty() {
        true => Ok(bridge::Running::default()),
        false => bridge::start(place, consumers, &beside).await,
    }
}

/// Reports requests that are stuck, and purges what is remembered for long enough. Settling needs
/// somebody who knows: an application's check, or `counterfoil guard reconcile`.
fn tend_requests(records: &Arc<dyn Records>) -> tokio::task::JoinHandle<()> {
    Reconcile::new(Arc::clone(records), Rules::default()).run(TEND)
}

fn install_metrics() -> Result<PrometheusHandle> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)
        .map_err(|e| Failure::failed(format!("cannot record metrics: {e}")))?;
    metrics::gauge!("counterfoil_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}
