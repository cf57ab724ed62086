//! `[gateway]`, `[[gateway.route]]` and `[upstream.NAME]`: from the file to routes that can work.

mod contradictions;
pub(super) mod file;
mod gate;
mod limits;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::{Gate, Mode, Rules, RulesError};
use counterfoil_core::message::check_name;
use counterfoil_engine::pipeline::UPSTREAM;
use counterfoil_http::gateway::{
    CallerRule, Guarded, Pattern, PeerLimits, Probe, ProbeError, Route, Trust, Upstream,
    UpstreamError, UpstreamSettings,
};
use counterfoil_http::{Policy, PolicyError};

use self::file::{Degraded, GatewayRoute, KeyRule};
use super::file::File;
use super::nearest::hint;
use super::settings::{Judge, address};
use super::value::shown;

/// When those who must not wait should ask.
const ASK_LATER: Duration = Duration::from_secs(10);
/// Guarded requests and their answers are held in memory: more than this is a slip of the fingers.
const LARGEST: usize = 64 << 20;

/// Everything that the gateway needs.
pub(crate) struct Gateway {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// Which requests go where.
    pub(crate) routes: Vec<Route>,
    /// Proxies whose word is believed.
    pub(crate) trust: Trust,
    /// What one peer may have at one time.
    pub(crate) peers: PeerLimits,
    /// Memory for copies of answers, and how long they are believed.
    pub(crate) cache: Option<(usize, Duration)>,
    /// In front of the database, where there is one.
    pub(crate) gate: Option<Arc<dyn Gate>>,
}

/// The gateway, unless there is none or something is wrong with it.
pub(super) fn gateway(file: &File, judge: &mut Judge<'_>) -> Option<Gateway> {
    let upstreams = upstreams(file, judge);
    let Some(section) = &file.gateway else {
        if let Some(name) = file.upstreams.keys().next() {
            let text = format!("[upstream.{name}] is used by no [[gateway.route]]");
            judge.refuse(&format!("upstream.{name}"), text);
        }
        return None;
    };
    let listen = address("gateway.listen", &section.listen, judge);
    let trust = Trust::parse(&section.trusted_proxies);
    if let Err(error) = &trust {
        let key = "trusted-proxies";
        refuse(judge, &format!("gateway.{key}"), key, "[gateway]", error);
    }
    if section.replay_cache.is_some() && section.replay_cache_age.0.is_zero() {
        let text = "`replay-cache-age` in [gateway] must not be zero";
        judge.refuse("gateway.replay-cache-age", text);
    }
    for (key, most, value) in [
        ("peer-connections", 4_096, section.peer_connections),
        ("peer-requests", 100_000, section.peer_requests),
    ] {
        if value == 0 || value > most {
            let text = format!("`{key}` in [gateway] must be between 1 and {most}");
            judge.refuse(&format!("gateway.{key}"), text);
        }
    }
    if file.gateway_routes.is_empty() {
        judge.refuse("gateway", "[gateway] needs at least one [[gateway.route]]");
    }
    contradictions::of_gateway(section, judge);
    let gate = gate::gate(section, judge);
    let routes = routes(file, &upstreams, judge);
    let age = section.replay_cache_age.0;
    let gateway = Gateway {
        listen: listen?,
        routes,
        trust: trust.ok()?,
        peers: PeerLimits {
            connections: section.peer_connections,
            requests: section.peer_requests,
        },
        cache: section.replay_cache.map(|size| (size.0, age)),
        gate,
    };
    if let Err(text) = gateway.check_callers(gateway.listen) {
        judge.refuse("gateway.listen", text);
    }
    Some(gateway)
}

impl Gateway {
    /// Refuses that everybody who reaches this address may say who the caller is, and so get the
    /// answers of others.
    pub(crate) fn check_callers(&self, listen: SocketAddr) -> Result<(), String> {
        let named = |route: &&Route| {
            let guard = route.guard.as_ref();
            guard.is_some_and(|guard| matches!(guard.caller, CallerRule::Header(_)))
        };
        match self.routes.iter().find(named) {
            Some(route) if !listen.ip().is_loopback() && self.trust.is_empty() => Err(format!(
                "{listen} can be reached from other machines, and each of them could say who its \
                 caller is on the route to {}: name those that may in `trusted-proxies`, or listen \
                 on 127.0.0.1",
                route.path
            )),
            _ => Ok(()),
        }
    }
}

fn refuse(judge: &mut Judge<'_>, path: &str, key: &str, section: &str, error: impl Display) {
    judge.refuse(path, format!("`{key}` in {section}: {error}"));
}

fn upstreams(file: &File, judge: &mut Judge<'_>) -> BTreeMap<String, Option<Arc<Upstream>>> {
    let mut all = BTreeMap::new();
    for (name, section) in &file.upstreams {
        let (path, shown) = (format!("upstream.{name}"), format!("[upstream.{name}]"));
        // Its breaker is remembered under this name.
        if let Err(error) = check_name("the name of an upstream", &format!("{UPSTREAM}{name}")) {
            judge.refuse(&path, error.to_string());
        }
        contradictions::of_upstream(name, section, judge);
        let limits = limits::limits(name, section, judge);
        let settings = limits.map(|limits| UpstreamSettings {
            connect_timeout: section.connect_timeout.0,
            timeout: section.timeout.0,
            idle_timeout: section.idle_timeout.0,
            connections: section.connections,
            limits,
        });
        let made = match &section.url {
            None => {
                let text =
                    format!("{shown} needs a `url`, such as url = \"http://127.0.0.1:8000\"");
                judge.refuse(&path, text);
                None
            }
            Some(url) => judge
                .resolve(&format!("{path}.url"), &format!("`url` in {shown}"), url)
                .and_then(|url| {
                    let made = Upstream::new(name, &url, settings?);
                    made.map_err(|e| wrong_upstream(judge, &path, &shown, &e))
                        .ok()
                }),
        };
        all.insert(name.clone(), made.map(Arc::new));
    }
    all
}

fn wrong_upstream(judge: &mut Judge<'_>, path: &str, shown: &str, error: &UpstreamError) {
    let key = match error {
        UpstreamError::Zero(key) => key,
        _ => "url",
    };
    judge.refuse(&format!("{path}.{key}"), format!("{shown}: {error}"));
}

fn routes(
    file: &File,
    upstreams: &BTreeMap<String, Option<Arc<Upstream>>>,
    judge: &mut Judge<'_>,
) -> Vec<Route> {
    let mut routes: Vec<(usize, Route)> = Vec::new();
    for (i, section) in file.gateway_routes.iter().enumerate() {
        let mut reader = RouteReader {
            path: format!("gateway.route.{i}"),
            section,
            judge,
        };
        if let Some(route) = reader.route(upstreams) {
            routes.push((i, route));
        }
    }
    for (n, (i, route)) in routes.iter().enumerate() {
        for (j, other) in &routes[..n] {
            let line = judge.line(&format!("gateway.route.{j}"));
            let place = line.map_or(String::new(), |line| format!(" (line {line})"));
            if route.overlaps(other) {
                let text = format!(
                    "the route to {} takes the same requests as an earlier one{place}: nobody \
                     could say which of them wins",
                    route.path
                );
                judge.refuse(&format!("gateway.route.{i}"), text);
            } else if disagree(
                &file.gateway_routes[*i],
                &file.gateway_routes[*j],
                route,
                other,
            ) {
                let text = format!(
                    "this route and an earlier one{place} have the same business type and differ \
                     in `caller`, `key-per-host`, `probe`, `mode` or times: give one of them another \
                     `business-type`"
                );
                judge.refuse(&format!("gateway.route.{i}"), text);
            }
        }
    }
    routes.into_iter().map(|(_, route)| route).collect()
}

/// Whether two routes share records and would treat them differently.
fn disagree(a: &GatewayRoute, b: &GatewayRoute, left: &Route, right: &Route) -> bool {
    let kind = |section: &GatewayRoute| section.business_type.clone().or(section.upstream.clone());
    let (Some(one), Some(two)) = (&left.guard, &right.guard) else {
        return false;
    };
    kind(a) == kind(b)
        && (one.caller != two.caller
            || one.per_host != two.per_host
            || one.probe != two.probe
            || one.rules != two.rules
            || (one.probe.is_some() && left.upstream.name() != right.upstream.name()))
}

struct RouteReader<'a, 'j> {
    path: String,
    section: &'a GatewayRoute,
    judge: &'a mut Judge<'j>,
}

impl RouteReader<'_, '_> {
    fn wrong(&mut self, key: &str, error: impl Display) {
        let path = format!("{}.{key}", self.path);
        refuse(self.judge, &path, key, "[[gateway.route]]", error);
    }

    /// Whether this key stands in the file.
    fn says(&self, key: &str) -> bool {
        self.judge.has(&format!("{}.{key}", self.path))
    }

    fn route(&mut self, upstreams: &BTreeMap<String, Option<Arc<Upstream>>>) -> Option<Route> {
        let upstream = self.upstream(upstreams);
        let path = Pattern::parse(&self.section.path);
        let path = path.map_err(|e| self.wrong("path", e)).ok();
        let methods = self.methods("methods", &self.section.methods);
        let host = self.host();
        contradictions::of_route(self);
        let guard = match self.section.guard {
            true => Some(self.guarded(upstream.as_deref())),
            false => None,
        };
        let guard = match guard {
            None => None,
            Some(guard) => Some(guard?),
        };
        let stale = self.section.degraded == Degraded::Cached;
        Some(Route {
            host: host?,
            path: path?,
            methods: methods?,
            upstream: upstream?,
            preserve_host: self.section.preserve_host,
            guard,
            stale: stale.then_some(self.section.cached_age.0),
        })
    }

    fn upstream(
        &mut self,
        upstreams: &BTreeMap<String, Option<Arc<Upstream>>>,
    ) -> Option<Arc<Upstream>> {
        let Some(name) = &self.section.upstream else {
            self.wrong(
                "upstream",
                "every route needs one, such as upstream = \"shop\"",
            );
            return None;
        };
        match upstreams.get(name) {
            Some(upstream) => upstream.clone(),
            None => {
                let hint = hint(name, upstreams.keys().map(String::as_str));
                self.wrong("upstream", format!("there is no [upstream.{name}]{hint}"));
                None
            }
        }
    }

    fn host(&mut self) -> Option<Option<String>> {
        let Some(host) = &self.section.host else {
            return Some(None);
        };
        let host = host.to_ascii_lowercase();
        let name = host.strip_prefix("*.").unwrap_or(&host);
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"-._[]:".contains(&b);
        let port = !name.starts_with('[') && name.contains(':');
        if name.is_empty() || port || !name.bytes().all(fine) {
            let text = "write a name without scheme and port, such as \"shop.example.com\" or \
                        \"*.example.com\"";
            self.wrong("host", text);
            return None;
        }
        Some(Some(host))
    }

    fn methods(&mut self, key: &str, names: &[String]) -> Option<Vec<http::Method>> {
        let mut methods = Vec::new();
        for name in names {
            match name.parse::<http::Method>() {
                Ok(method) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase()) => {
                    methods.push(method);
                }
                _ => {
                    self.wrong(key, format!("`{name}` is no method: write it as \"POST\""));
                    return None;
                }
            }
        }
        Some(methods)
    }

    fn guarded(&mut self, upstream: Option<&Upstream>) -> Option<Guarded> {
        let (caller, policy) = (self.caller(), self.policy());
        let (rules, probe) = (self.rules(upstream), self.probe());
        Some(Guarded {
            caller: caller?,
            policy: policy?,
            rules: rules?,
            probe: probe?,
            per_host: self.section.key_per_host,
            degraded: (self.section.degraded == Degraded::Accepted).then_some(ASK_LATER),
        })
    }

    fn caller(&mut self) -> Option<CallerRule> {
        match self.section.caller.as_deref() {
            Some("one") => return Some(CallerRule::One),
            Some(text) => {
                let name = text.strip_prefix("header:").map(str::trim);
                if let Some(Ok(name)) = name.map(str::parse) {
                    return Some(CallerRule::Header(name));
                }
                self.wrong("caller", "write \"one\", or \"header:NAME\"");
            }
            None => {
                let text = "a guarded route says whose keys are whose: \"one\" when all requests \
                            may share their answers, or \"header:NAME\"";
                self.wrong("caller", text);
            }
        }
        None
    }

    fn policy(&mut self) -> Option<Policy> {
        let section = self.section;
        // Without an upstream that was said already.
        let kind = section.business_type.clone().or(section.upstream.clone())?;
        let methods = self.methods("guarded-methods", &section.guarded_methods)?;
        // Said already, with its line.
        if methods.is_empty() {
            return None;
        }
        for (key, size) in [
            ("max-body", section.max_body),
            ("max-answer", section.max_answer),
        ] {
            if size.0 > LARGEST {
                self.wrong(key, "it is held in memory: at most 64 MiB");
            }
        }
        let [not_recorded, harmless, last] = [
            ("not-recorded", &section.not_recorded),
            ("harmless", &section.harmless),
            ("final", &section.r#final),
        ]
        .map(|(key, list)| self.statuses(key, list));
        let mut policy = Policy::new()
            .business_type(kind)
            .map_err(|e| self.wrong_policy(&e))
            .ok()?
            .methods(methods)
            .map_err(|e| self.wrong_policy(&e))
            .ok()?
            .header(&section.key_header)
            .map_err(|e| self.wrong_policy(&e))
            .ok()?
            .max_body(section.max_body.0)
            .map_err(|e| self.wrong_policy(&e))
            .ok()?
            .max_answer(section.max_answer.0)
            .max_failure(section.max_failure.0)
            .failure_quota(section.failure_quota.0)
            .keep_chunked()
            .not_recorded(not_recorded?)
            .harmless(harmless?)
            .final_errors(last?);
        if section.key == KeyRule::Optional {
            policy = policy.optional();
        }
        if section.strict_keys {
            policy = policy.strict_syntax();
        }
        if section.canonical_json {
            policy = policy.canonical_json();
        }
        if !section.ignored_fields.is_empty() {
            policy = policy.ignored_fields(section.ignored_fields.clone());
        }
        if section.plain_duplicate {
            policy = policy.plain_duplicate();
        }
        if let Some(help) = self.help()? {
            policy = policy.help(help);
        }
        Some(policy)
    }

    /// Nothing: something is wrong with it.
    fn help(&mut self) -> Option<Option<String>> {
        let Some(help) = &self.section.help else {
            return Some(None);
        };
        // It stands between angle brackets in a header.
        let fine = |b: u8| b.is_ascii_graphic() && !b"<>\"".contains(&b);
        if help.is_empty() || !help.bytes().all(fine) {
            let text = "write an address, such as \"https://shop.example.com/docs/keys\"";
            self.wrong("help", text);
            return None;
        }
        Some(Some(help.clone()))
    }

    fn wrong_policy(&mut self, error: &PolicyError) {
        let key = match error {
            PolicyError::Header(_) => "key-header",
            PolicyError::SafeMethod(_) => "guarded-methods",
            PolicyError::Zero(_) => "max-body",
            _ => "business-type",
        };
        self.wrong(key, error);
    }

    fn statuses(&mut self, key: &str, list: &[u16]) -> Option<Vec<http::StatusCode>> {
        let mut statuses = Vec::new();
        for status in list {
            match http::StatusCode::from_u16(*status) {
                Ok(code) if code.is_client_error() || code.is_server_error() => {
                    let server = matches!(key, "harmless" | "final");
                    if server && !code.is_server_error() {
                        self.wrong(key, format!("{status} is no server error (500 to 599)"));
                        return None;
                    }
                    if !server && code.is_server_error() {
                        let text = format!(
                            "{status} is an error of the server: if nothing has happened after \
                             it, write it into `harmless`"
                        );
                        self.wrong(key, text);
                        return None;
                    }
                    statuses.push(code);
                }
                _ => {
                    self.wrong(key, format!("{status} is no status of an error"));
                    return None;
                }
            }
        }
        Some(statuses)
    }

    fn rules(&mut self, upstream: Option<&Upstream>) -> Option<Rules> {
        let section = self.section;
        let rules = Rules {
            mode: match section.mode {
                file::Mode::Strict => Mode::Strict,
                file::Mode::Overwrite => Mode::Overwrite,
            },
            alert_age: section.alert_age.0,
            lease: section.lease.0,
            keep: section.keep.0,
            keep_failures: section.keep_failures.0,
            wait: section.wait.0,
            record_within: section.record_within.0,
            rerun_uncertain: section.rerun_uncertain,
            reconcile_age: match section.probe {
                Some(_) => section.probe_after.0,
                // Nobody asks: no lease is too long for it.
                None => section.probe_after.0.max(section.lease.0),
            },
            ..Rules::default()
        };
        if let Err(error) = rules.check() {
            let (key, text) = match &error {
                RulesError::Zero("keep") => ("keep", "must be greater than zero".into()),
                RulesError::Zero("keep_failures") => {
                    ("keep-failures", "must be greater than zero".into())
                }
                RulesError::Zero("alert_age") => ("alert-age", "must be greater than zero".into()),
                RulesError::Zero("reconcile_age") => {
                    ("probe-after", "must be greater than zero".into())
                }
                RulesError::Zero(_) => ("lease", "must be greater than zero".into()),
                RulesError::KeptTooShort { .. } => {
                    let failures = section.keep_failures.0 < section.keep.0;
                    let key = if failures { "keep-failures" } else { "keep" };
                    (key, "is shorter than the `lease`".to_owned())
                }
                RulesError::ReconciledTooSoon { .. } => (
                    "probe-after",
                    "is shorter than the `lease`: a request could still be on its way".into(),
                ),
                other => ("lease", other.to_string()),
            };
            self.wrong(key, text);
            return None;
        }
        if let Some(settings) = upstream.map(Upstream::settings) {
            let attempt = settings.connect_timeout + settings.timeout;
            if rules.lease < attempt {
                let text = format!(
                    "{} is too short for an upstream that may take {} to connect and {} to \
                     answer: raise it, or lower the upstream's timeouts",
                    shown(rules.lease),
                    shown(settings.connect_timeout),
                    shown(settings.timeout),
                );
                self.wrong("lease", text);
                return None;
            }
        }
        Some(rules)
    }

    fn probe(&mut self) -> Option<Option<Probe>> {
        let section = self.section;
        let Some(text) = &section.probe else {
            return Some(None);
        };
        let mut wrong = |key: &str, error: ProbeError| self.wrong(key, error);
        let mut probe = Probe::parse(text).map_err(|e| wrong("probe", e)).ok()?;
        if section.probe_answer {
            let kept = probe.keep_answer(section.max_answer.0);
            probe = kept.map_err(|e| wrong("probe-answer", e)).ok()?;
        }
        if let Some(host) = &section.probe_host {
            let named = probe.host(host);
            probe = named.map_err(|e| wrong("probe-host", e)).ok()?;
        }
        let mut fine = true;
        for (name, value) in &section.probe_headers {
            let path = format!("{}.probe-headers.{name}", self.path);
            let shown = "`probe-headers` in [[gateway.route]]";
            let Some(value) = self.judge.resolve(&path, shown, value) else {
                fine = false;
                continue;
            };
            let carrying = probe.header(name, &value);
            let refused = |e| self.judge.refuse(&path, format!("{shown}: {e}"));
            probe = carrying.map_err(refused).ok()?;
        }
        fine.then_some(Some(probe))
    }
}
