//! The gateway beside the relay and the API, and its routes that may change while it runs.
//!
//! # Promise
//! Routes, upstreams and trusted proxies are read again on SIGHUP and when the file changes. A file
//! with a mistake is refused with the reason in the log, and the former routes stay; requests under
//! way are not disturbed either way. What else stands in the file holds from the next start on.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use counterfoil_core::guard::Records;
use counterfoil_engine::pipeline::Registry;
use counterfoil_http::gateway::{
    CallerRule, Gateway, Options, ReplayCache, Route, Wrap, register, resilient, serve,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::TEND;
use crate::config::{self, Loaded, Overrides};
use crate::failure::{Failure, Result};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The gateway before it runs: its port is taken.
pub(super) struct Bound {
    listener: TcpListener,
    settings: config::Gateway,
    wrap: Wrap,
}

/// The gateway at work.
pub(super) struct Running {
    serving: JoinHandle<()>,
    watching: JoinHandle<()>,
}

/// Where the routes are read from.
pub(super) struct Source {
    /// The file.
    pub(super) path: PathBuf,
    /// What the command line says instead of it.
    pub(super) overrides: Overrides,
}

/// Takes the port. The services are among the dependencies of this process from now on, so that
/// what is remembered about them is there before the first call.
pub(super) async fn bind(settings: config::Gateway, registry: &Registry) -> Result<Bound> {
    let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
        let address = settings.listen;
        Failure::failed(format!(
            "the gateway cannot listen on {address}: {error}; choose another `listen` in [gateway]"
        ))
    })?;
    for route in &settings.routes {
        register(registry, &route.upstream).map_err(|e| Failure::failed(e.to_string()))?;
    }
    Ok(Bound {
        listener,
        settings,
        wrap: resilient(registry.clone()),
    })
}

impl Bound {
    /// For people: where it listens, and what it does.
    pub(super) fn describe(&self) -> Result<Vec<String>> {
        let address = self.listener.local_addr()?;
        let routes = self.settings.routes.iter().map(|route| {
            let guard = match &route.guard {
                Some(_) => "requests with a key take effect once",
                None => "not guarded",
            };
            let host = route.host.as_deref().unwrap_or_default();
            format!(
                "{host}{} → {}  ({guard})",
                route.path,
                route.upstream.name()
            )
        });
        Ok(std::iter::once(format!("http://{address}"))
            .chain(routes)
            .collect())
    }

    /// Starts it. The second part looks after requests until it is aborted.
    pub(super) fn start(
        self,
        records: Arc<dyn Records>,
        source: Option<Source>,
        stop: impl Future<Output = ()> + Send + 'static,
        goodbye: Duration,
    ) -> Result<Running> {
        let settings = self.settings;
        let records = match settings.cache {
            Some((bytes, age)) => Arc::new(ReplayCache::new(records, bytes, age)) as _,
            None => records,
        };
        if !settings.listen.ip().is_loopback() {
            warn_about_callers(&settings);
        }
        let gateway = match &settings.gate {
            Some(gate) => Gateway::gated(records, Arc::clone(gate)),
            None => Gateway::new(records),
        };
        let listen = settings.listen;
        let tending = apply(&gateway, settings, &self.wrap);
        let source = source.map(|source| (source, listen));
        let watching = watch(gateway.clone(), self.wrap, source, hangups()?, tending);
        let watching = tokio::spawn(watching);
        let serving = tokio::spawn(serve(self.listener, gateway, stop, goodbye));
        Ok(Running { serving, watching })
    }
}

impl Running {
    /// Waits until the requests under way are answered.
    pub(super) async fn end(self) {
        let _ = self.serving.await;
        self.watching.abort();
    }
}

/// Where other machines can reach the gateway, those who share a scope may be strangers.
fn warn_about_callers(settings: &config::Gateway) {
    let shared = |route: &&Route| {
        let guard = route.guard.as_ref();
        guard.is_some_and(|guard| guard.caller == CallerRule::One)
    };
    if let Some(route) = settings.routes.iter().find(shared) {
        tracing::warn!(
            path = %route.path,
            "other machines can reach the gateway, and its callers share one scope: whoever \
             knows key and content of a request gets its answer; see `caller`"
        );
    }
}

/// Lets these routes hold, and looks after their requests until it is aborted.
fn apply(gateway: &Gateway, settings: config::Gateway, wrap: &Wrap) -> JoinHandle<()> {
    let guards = settings.routes.iter().filter_map(|r| r.guard.as_ref());
    let often = guards
        .map(|guard| match guard.probe {
            Some(_) => guard.rules.reconcile_age.min(guard.rules.alert_age),
            None => guard.rules.alert_age,
        })
        .min();
    let options = Options {
        trust: settings.trust,
        wrap: Some(Arc::clone(wrap)),
    };
    gateway.set_routes(settings.routes, &options);
    let often = often.map_or(TEND, |age| age.clamp(Duration::from_secs(1), TEND));
    gateway.reconcile().run(often)
}

/// A task that looks after requests, until another one does or this is dropped.
struct Tending(JoinHandle<()>);

impl Tending {
    fn hand_over(&mut self, to: JoinHandle<()>) {
        std::mem::replace(&mut self.0, to).abort();
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the file again when it is asked to, and when it has changed.
async fn watch(
    gateway: Gateway,
    wrap: Wrap,
    source: Option<(Source, SocketAddr)>,
    mut hangups: Hangups,
    tending: JoinHandle<()>,
) {
    let mut tending = Tending(tending);
    let Some((source, listen)) = source else {
        return std::future::pending::<()>().await;
    };
    let mut seen = stamp(&source.path);
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        let asked = tokio::select! {
            () = hangups.next() => true,
            _ = ticks.tick() => false,
        };
        let now = stamp(&source.path);
        if !asked && now == seen {
            continue;
        }
        seen = now;
        let read = read(&source, listen);
        let result = if matches!(read, Ok(Some(_))) {
            "applied"
        } else {
            "refused"
        };
        metrics::counter!("counterfoil_gateway_reloads_total", "result" => result).increment(1);
        match read {
            Ok(Some(settings)) => {
                let routes = settings.routes.len();
                tending.hand_over(apply(&gateway, settings, &wrap));
                tracing::info!(routes, "the routes of the gateway were read again");
            }
            Ok(None) => tracing::error!(
                "the file has no [gateway] any more: the former routes stay until the next start"
            ),
            Err(problems) => {
                for problem in problems {
                    tracing::error!(
                        problem,
                        "the changed file is refused: the former routes stay"
                    );
                }
            }
        }
    }
}

/// What tells one state of the file from the next.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

/// What the file says, if it can hold where the gateway listens: another `listen` in the file holds
/// from the next start on.
fn read(
    source: &Source,
    listen: SocketAddr,
) -> std::result::Result<Option<config::Gateway>, Vec<String>> {
    match Loaded::check(Some(&source.path), &source.overrides) {
        Ok((_, settings)) => {
            let checked = settings.gateway.as_ref();
            checked
                .map_or(Ok(()), |gateway| gateway.check_callers(listen))
                .map_err(|why| vec![why])?;
            Ok(settings.gateway)
        }
        Err(Failure::Config(problems)) => Err(problems),
        Err(Failure::Failed(why)) => Err(vec![why]),
        Err(other) => Err(vec![format!("{other:?}")]),
    }
}

/// SIGHUP, where there is such a thing.
struct Hangups {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

fn hangups() -> Result<Hangups> {
    Ok(Hangups {
        #[cfg(unix)]
        signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
    })
}

impl Hangups {
    async fn next(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        std::future::pending::<()>().await;
    }
}
