//! Every request on its way: from its head to the route's services, and back.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Gate, Key, Record, Records, Rules, Verdict};
use counterfoil_engine::guard::Warden;
use counterfoil_engine::guard::reconcile::{Reconcile, Reconciler};
use counterfoil_engine::metric::OftenCounted;
use http::header::{CONNECTION, EXPECT, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, ServiceExt as _};

use super::forward::{Answered, Space, Step, Wrap};
use super::headers::{self, Origin, Peer, Trust};
use super::memory::{self, Lot, Pot, Refused, Share};
use super::peers::PeerLimits;
use super::probe::Prober;
use super::route::{Guarded, Route};
use super::stale::{self, Stale};
use super::target::Target;
use super::{degraded, status, target};
use crate::guard::answer::Leave;
use crate::{LeasedLayer, Problem};

/// Memory that an answer has before it is known how large it is.
const AHEAD: usize = 4096;

/// Classes of statuses.
const CLASSES: [&str; 9] = [
    "1xx", "2xx", "3xx", "4xx", "5xx", "6xx", "7xx", "8xx", "9xx",
];

type Service = BoxCloneSyncService<Request, Response, Infallible>;

/// What holds for all routes.
#[derive(Clone, Default)]
pub struct Options {
    /// Proxies before us whose word is believed.
    pub trust: Trust,
    /// What is wrapped around the calls to services.
    pub wrap: Option<Wrap>,
    /// What one peer may have at one time, unless it is trusted.
    pub peers: PeerLimits,
}

/// Routes at work. A clone is the same gateway.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

struct Inner {
    warden: Warden,
    table: RwLock<Arc<Table>>,
    memory: Memory,
    stale: Stale,
}

/// For guarded requests, for answers that are held whole, and for former answers on their way.
struct Memory<T = Pot> {
    requests: T,
    answers: T,
    stale: T,
}

impl Memory {
    fn share(&self, service: &str) -> Memory<Share> {
        Memory {
            requests: self.requests.share(service),
            answers: self.answers.share(service),
            stale: self.stale.share(service),
        }
    }
}

struct Table {
    trust: Trust,
    peers: PeerLimits,
    /// The most specific first.
    entries: Vec<Entry>,
}

impl Table {
    /// Whether this peer may say who the caller is. Where nobody is trusted, everybody who reaches
    /// us may.
    fn may_say_who(&self, peer: &Peer) -> bool {
        self.trust.is_empty() || self.trust.holds(peer.ip)
    }
}

struct Entry {
    route: Route,
    way: Way,
    /// How uncertain requests are settled.
    prober: Option<Arc<Prober>>,
    memory: Memory<Share>,
    /// Headers that a caller must not have removed.
    protected: Vec<HeaderName>,
    /// The counters of answers, by class of their status.
    counters: [OftenCounted; CLASSES.len()],
}

/// How the requests of a route are answered.
enum Way {
    /// By its service.
    Plain(Answered),
    /// Through the guard.
    Guarded(Service),
}

impl Way {
    async fn answer(&self, request: Request) -> Response {
        match self {
            Way::Plain(answered) => answered.answer(request).await,
            Way::Guarded(service) => {
                let Ok(response) = service.clone().oneshot(request).await;
                response
            }
        }
    }
}

impl Entry {
    fn new(route: Route, inner: &Inner, wrap: Option<&Wrap>) -> Self {
        let forward = Step::forward(&route);
        let step = match wrap {
            Some(wrap) => wrap(&route, forward),
            None => forward,
        };
        let prober = route.guard.as_ref().and_then(|guard| {
            Some(Arc::new(Prober {
                probe: guard.probe.clone()?,
                per_host: guard.per_host,
                preserve_host: route.preserve_host,
                upstream: Arc::clone(&route.upstream),
                step: step.clone(),
            }))
        });
        let answered = Answered(step);
        let protected = route.telling();
        let way = match &route.guard {
            None => Way::Plain(answered),
            Some(guard) => {
                let name = route.upstream.destination();
                let warden = inner.warden.clone().destination(&name);
                Way::Guarded(guarded(guard, warden, answered))
            }
        };
        let upstream = route.upstream.name();
        let counters = CLASSES.map(|class| {
            let labels = [("upstream", upstream), ("status", class)];
            let labels = labels.map(|(name, value)| metrics::Label::new(name, value.to_owned()));
            let name = "counterfoil_gateway_requests_total";
            OftenCounted::new(metrics::Key::from_parts(name, labels.to_vec()))
        });
        Self {
            counters,
            memory: inner.memory.share(upstream),
            route,
            way,
            prober,
            protected,
        }
    }

    /// Whether a request is going to be read whole, and so is its answer.
    fn held_whole(&self, method: &Method, headers: &HeaderMap) -> bool {
        self.route.guard.as_ref().is_some_and(|guard| {
            guard.policy.methods.contains(method) && headers.contains_key(&guard.policy.header)
        })
    }

    async fn answer_whole(&self, request: Request) -> Result<Response, Problem> {
        let lots = (self.memory.requests.lot(0), self.memory.answers.lot(AHEAD));
        let (Some(upload), Some(answer)) = lots else {
            return Err(Problem::busy());
        };
        let refused = Refused::default();
        let (mut parts, body) = request.into_parts();
        let body = memory::arriving(body, Arc::clone(&upload), Arc::clone(&refused));
        parts.extensions.insert(Space { _lot: upload });
        parts.extensions.insert(leave(&answer));
        let response = self.way.answer(Request::from_parts(parts, body)).await;
        match refused.get() {
            Some(problem) => Err(problem.clone()),
            None => memory::outgoing(response, answer),
        }
    }

    fn count(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.counters.get(class) {
            counter.increment();
        }
    }
}

fn leave(lot: &Arc<Lot>) -> Leave {
    let lot = Arc::clone(lot);
    Leave(Arc::new(move |bytes| lot.reach(bytes)))
}

fn guarded(guard: &Guarded, warden: Warden, answered: Answered) -> Service {
    let warden = warden.rules(guard.rules.clone());
    let whose = guard.clone();
    let probed = guard.probe.is_some();
    let mut policy = guard.policy.clone();
    policy.reconciled |= probed;
    let layer = LeasedLayer::new(warden, policy, move |parts| {
        let origin = parts.extensions.get::<Origin>()?;
        whose.scope(parts, &origin.authority)
    });
    let service = layer.layer(answered);
    match guard.degraded {
        None => Service::new(service),
        Some(after) => {
            let instead = move |response| degraded::instead(response, after, probed);
            Service::new(service.map_response(instead))
        }
    }
}

impl Gateway {
    /// A gateway over these records, with no routes yet.
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self::over(Warden::new(records, Rules::default()))
    }

    /// The same with a fast gate in front of the records. It saves work and decides nothing.
    pub fn gated(records: Arc<dyn Records>, gate: Arc<dyn Gate>) -> Self {
        Self::over(Warden::new(records, Rules::default()).gate(gate))
    }

    fn over(warden: Warden) -> Self {
        let table = Table {
            trust: Trust::default(),
            peers: PeerLimits::default(),
            entries: Vec::new(),
        };
        Self {
            inner: Arc::new(Inner {
                warden,
                table: RwLock::new(Arc::new(table)),
                memory: Memory {
                    requests: Pot::new("requests", memory::MOST),
                    answers: Pot::new("answers", memory::MOST),
                    stale: Pot::new("stale", memory::MOST / 4),
                },
                stale: Stale::new(),
            }),
        }
    }

    /// From now on these routes hold. Requests under way go on under the former ones, and repeats
    /// wait for them as before.
    pub fn set_routes(&self, mut routes: Vec<Route>, options: &Options) {
        routes.sort_by(Route::compare);
        let entries = routes
            .into_iter()
            .map(|route| Entry::new(route, &self.inner, options.wrap.as_ref()))
            .collect();
        let table = Table {
            trust: options.trust.clone(),
            peers: options.peers,
            entries,
        };
        let mut place = self
            .inner
            .table
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(table);
    }

    fn table(&self) -> Arc<Table> {
        let table = self
            .inner
            .table
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }

    /// What this peer may have at one time; none: it is trusted.
    pub(super) fn peer_limits(&self, peer: IpAddr) -> Option<PeerLimits> {
        let table = self.table();
        (!table.trust.holds(peer)).then_some(table.peers)
    }

    /// The records.
    pub fn records(&self) -> &Arc<dyn Records> {
        self.inner.warden.records()
    }

    /// Settles uncertain requests by the probes of the present routes.
    pub fn reconcile(&self) -> Reconcile {
        let mut reconcile = Reconcile::new(Arc::clone(self.records()), Rules::default());
        let table = self.table();
        let guards = table.entries.iter();
        let guards = guards.filter_map(|e| Some((&e.prober, e.route.guard.as_ref()?)));
        // Routes with a probe last: of those that share a business type, theirs is the word.
        let (unprobed, probed): (Vec<_>, Vec<_>) = guards.partition(|(p, _)| p.is_none());
        for (prober, guard) in unprobed.into_iter().chain(probed) {
            let check: Arc<dyn Reconciler> = match prober {
                Some(prober) => Arc::clone(prober) as Arc<dyn Reconciler>,
                // What is stuck is reported by the rules of the route all the same.
                None => Arc::new(Nobody),
            };
            let kind = guard.policy.business_type.clone();
            reconcile = reconcile.check(kind, guard.rules.clone(), check);
        }
        reconcile
    }

    /// Answers a request of this peer.
    pub(super) async fn answer(&self, request: Request, peer: Peer) -> Response {
        let old = request.version() < Version::HTTP_2;
        match self.admit(request, peer).await {
            Ok(response) => response,
            Err(problem) if old && problem.status() != StatusCode::NOT_FOUND => closing(problem),
            Err(problem) => problem.into_response(),
        }
    }

    /// The answer to a request of HTTP/1 of which it is not clear where it ends.
    pub(super) fn doubtful() -> Response {
        closing(Problem::bad_request(
            "Where the request ends can be read in two ways.",
        ))
    }

    async fn admit(&self, request: Request, peer: Peer) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        check_head(&parts)?;
        let target = target::read(&parts)?;
        let table = self.table();
        if target.path.starts_with(status::OURS) {
            return self.ours(&table, &mut parts, &target, &peer).await;
        }
        let entry = find(&table, &parts.method, &target)?;
        headers::check_connection(&parts.headers, &entry.protected)?;
        if let Some(guard) = entry.route.guard.as_ref()
            && !table.may_say_who(&peer)
        {
            guard.caller.unsay(&mut parts.headers);
        }
        let authority = target.authority.clone();
        parts.extensions.insert(Origin {
            trusted: table.trust.holds(peer.ip),
            peer,
            authority: target.authority,
        });
        let request = Request::from_parts(parts, body);
        let asked = stale::asked(&entry.route, &authority, &request);
        let response = match entry.held_whole(request.method(), request.headers()) {
            true => {
                let answered = entry.answer_whole(request).await;
                answered.inspect_err(|problem| entry.count(problem.status()))?
            }
            false => entry.way.answer(request).await,
        };
        let response = match asked {
            Some(asked) => {
                let share = &entry.memory.stale;
                self.inner.stale.answer(&asked, share, response)
            }
            None => response,
        };
        entry.count(response.status());
        Ok(response)
    }

    /// Paths of the gateway itself: how a request stands, for its caller.
    async fn ours(
        &self,
        table: &Table,
        parts: &mut Parts,
        target: &Target,
        peer: &Peer,
    ) -> Result<Response, Problem> {
        let named = status::named(&target.path, parts.uri.query());
        let (kind, key) = named.ok_or_else(Problem::no_route)?;
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(Problem::method_not_allowed());
        }
        let guards = table.entries.iter().filter_map(|e| e.route.guard.as_ref());
        let guard = guards.into_iter().find(|g| g.policy.business_type == kind);
        let guard = guard.ok_or_else(Problem::request_unknown)?;
        if !table.may_say_who(peer) {
            guard.caller.unsay(&mut parts.headers);
        }
        let scope = guard.scope(parts, &target.authority);
        let scope = scope.ok_or_else(Problem::caller_unknown)?;
        let key = Key::new(scope, kind, key).map_err(|_| Problem::request_unknown())?;
        Ok(status::status(&**self.records(), &key).await)
    }
}

/// A refusal after which the connection is closed.
fn closing(problem: Problem) -> Response {
    let mut response = problem.into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// Nobody can say whether a request took effect.
struct Nobody;

#[async_trait]
impl Reconciler for Nobody {
    async fn did_it_happen(&self, _: &Record) -> Result<Verdict, BoxError> {
        Ok(Verdict::Unknown)
    }
}

fn find<'a>(table: &'a Table, method: &Method, target: &Target) -> Result<&'a Entry, Problem> {
    let mut covering = false;
    for entry in &table.entries {
        if entry.route.covers(&target.host, &target.path) {
            covering = true;
            if entry.route.allows(method) {
                return Ok(entry);
            }
        }
    }
    Err(match covering {
        true => Problem::method_not_allowed(),
        false => Problem::no_route(),
    })
}

/// What hyper lets pass and we do not.
fn check_head(parts: &Parts) -> Result<(), Problem> {
    if matches!(parts.method, Method::CONNECT | Method::TRACE) {
        let status = StatusCode::NOT_IMPLEMENTED;
        let text = "CONNECT and TRACE are not for services behind a gateway.";
        return Err(Problem::not_supported(status, text));
    }
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let plain = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !plain || codings.next().is_some() {
            let status = StatusCode::NOT_IMPLEMENTED;
            let text = "The only transfer encoding is `chunked`.";
            return Err(Problem::not_supported(status, text));
        }
    }
    let mut expectations = parts.headers.get_all(EXPECT).iter();
    if expectations.any(|e| !e.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        let status = StatusCode::EXPECTATION_FAILED;
        return Err(Problem::not_supported(
            status,
            "The only expectation is `100-continue`.",
        ));
    }
    Ok(())
}
