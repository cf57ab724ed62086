//! The gateway beside the relay and the API, and its routes that may change while it runs.
//!
//! # Promise
//! Routes, upstreams and trusted proxies can be exchanged; requests under way are not disturbed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::Records;
use counterfoil_engine::pipeline::Registry;
use counterfoil_http::gateway::{
    CallerRule, Gateway, Options, ReplayCache, Route, Wrap, register, resilient, serve,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::TEND;
use crate::config;
use crate::failure::{Failure, Result};

/// The gateway before it runs: its port is taken.
pub(super) struct Bound {
    listener: TcpListener,
    settings: config::Gateway,
    wrap: Wrap,
}

/// The gateway at work.
pub(super) struct Running {
    serving: JoinHandle<()>,
}

/// What of it may change while it works.
pub(super) struct Live {
    /// Where it listens: another `listen` in the file holds from the next start on.
    listen: SocketAddr,
    gateway: Gateway,
    wrap: Wrap,
    tending: Tending,
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

    /// Starts it. The second part looks after requests until it is dropped.
    pub(super) fn start(
        self,
        records: Arc<dyn Records>,
        stop: impl Future<Output = ()> + Send + 'static,
        goodbye: Duration,
    ) -> (Running, Live) {
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
        let live = Live {
            listen: settings.listen,
            tending: Tending(apply(&gateway, settings, &self.wrap)),
            gateway: gateway.clone(),
            wrap: self.wrap,
        };
        let serving = tokio::spawn(serve(self.listener, gateway, stop, goodbye));
        (Running { serving }, live)
    }
}

impl Running {
    /// Waits until the requests under way are answered.
    pub(super) async fn end(self) {
        let _ = self.serving.await;
    }
}

impl Live {
    /// Whether these routes can hold where the gateway listens.
    pub(super) fn check(&self, settings: &config::Gateway) -> std::result::Result<(), String> {
        settings.check_callers(self.listen)
    }

    /// From now on these routes hold.
    pub(super) fn apply(&mut self, settings: config::Gateway) {
        let tending = apply(&self.gateway, settings, &self.wrap);
        self.tending.hand_over(tending);
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
        peers: settings.peers,
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
