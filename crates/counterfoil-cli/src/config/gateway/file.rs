//! `[gateway]`, `[[gateway.route]]` and `[upstream.NAME]` as they stand in the file.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use counterfoil_core::guard::Rules;
use counterfoil_http::gateway::{PeerLimits, UpstreamSettings};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::config::value::{Pointed, Size, Span};

/// `[gateway]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Gateway {
    /// Address and port.
    pub(crate) listen: String,
    /// Proxies whose `X-Forwarded-*` is believed.
    pub(crate) trusted_proxies: Vec<String>,
    /// Connections of one peer at one time.
    pub(crate) peer_connections: usize,
    /// Requests of one peer in progress.
    pub(crate) peer_requests: usize,
    /// Memory for copies of answers; absent: none.
    pub(crate) replay_cache: Option<Size>,
    /// How long a copy is believed.
    pub(crate) replay_cache_age: Span,
    /// The Redis of the gate; absent: there is none.
    pub(crate) gate: Option<Pointed>,
    /// Names in Redis begin with this.
    pub(crate) gate_prefix: String,
    /// How long it stays shut behind a gateway that died.
    pub(crate) gate_ttl: Span,
    /// How long Redis may take to answer.
    pub(crate) gate_patience: Span,
    /// A file with the certificates to trust, with `rediss://`.
    pub(crate) gate_ca_file: Option<String>,
}

impl Default for Gateway {
    fn default() -> Self {
        let peers = PeerLimits::default();
        Self {
            listen: "127.0.0.1:7080".into(),
            trusted_proxies: Vec::new(),
            peer_connections: peers.connections,
            peer_requests: peers.requests,
            replay_cache: None,
            replay_cache_age: Span(Duration::from_secs(60)),
            gate: None,
            gate_prefix: "cf:gate:".into(),
            gate_ttl: Span(Duration::from_secs(15)),
            gate_patience: Span(Duration::from_millis(50)),
            gate_ca_file: None,
        }
    }
}

/// Whether a request without a key is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeyRule {
    /// It passes unguarded.
    #[default]
    Optional,
    /// It is refused.
    Required,
}

/// What another payload under a known key does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// It is refused.
    #[default]
    Strict,
    /// It replaces the earlier one.
    Overwrite,
}

/// How waits between attempts are spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Jitter {
    /// Between nothing and the whole wait.
    #[default]
    Full,
    /// Around the wait before.
    Decorrelated,
    /// Not at all.
    None,
}

/// What callers get while a service is in trouble: `false`, `true` or `"accepted"`, `"cached"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Degraded {
    /// They are told.
    #[default]
    No,
    /// 202 for guarded requests.
    Accepted,
    /// The last good answer of a GET.
    Cached,
}

impl<'de> Deserialize<'de> for Degraded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DegradedVisitor)
    }
}

struct DegradedVisitor;

impl Visitor<'_> for DegradedVisitor {
    type Value = Degraded;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("false, true, \"accepted\" or \"cached\"")
    }

    fn visit_bool<E: de::Error>(self, accepted: bool) -> Result<Degraded, E> {
        Ok(match accepted {
            true => Degraded::Accepted,
            false => Degraded::No,
        })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Degraded, E> {
        match text {
            "accepted" => Ok(Degraded::Accepted),
            "cached" => Ok(Degraded::Cached),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

/// `[[gateway.route]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct GatewayRoute {
    /// Only requests to this host.
    pub(crate) host: Option<String>,
    /// Only requests to these paths.
    pub(crate) path: String,
    /// Only these methods.
    pub(crate) methods: Vec<String>,
    /// The name of the service.
    pub(crate) upstream: Option<String>,
    /// Whether the service sees the host that the caller wrote.
    pub(crate) preserve_host: bool,
    /// Whether requests with a key are guarded.
    pub(crate) guard: bool,
    /// Whose requests are whose.
    pub(crate) caller: Option<String>,
    /// Whether each host has keys of its own.
    pub(crate) key_per_host: bool,
    /// The kind of business; absent: the name of the upstream.
    pub(crate) business_type: Option<String>,
    /// Whether a request without a key is refused.
    pub(crate) key: KeyRule,
    /// Where the key is.
    pub(crate) key_header: String,
    /// The key must be a quoted string.
    pub(crate) strict_keys: bool,
    /// The methods that are guarded.
    pub(crate) guarded_methods: Vec<String>,
    /// The largest guarded request.
    pub(crate) max_body: Size,
    /// The largest answer that is kept.
    pub(crate) max_answer: Size,
    /// The largest answer of a failure that is kept.
    pub(crate) max_failure: Size,
    /// What is kept of one caller's failures in an hour.
    pub(crate) failure_quota: Size,
    /// Statuses of refusals.
    pub(crate) not_recorded: Vec<u16>,
    /// Server errors after which nothing has happened.
    pub(crate) harmless: Vec<u16>,
    /// Server errors that are recorded.
    pub(crate) r#final: Vec<u16>,
    /// JSON in another spelling is the same request.
    pub(crate) canonical_json: bool,
    /// JSON fields that change from try to try.
    pub(crate) ignored_fields: Vec<String>,
    /// What another payload under a known key does.
    pub(crate) mode: Mode,
    /// A repeat gets 409 instead of the answer.
    pub(crate) plain_duplicate: bool,
    /// Where callers find out about keys; absent: the IETF draft.
    pub(crate) help: Option<String>,
    /// How long a repeat waits.
    pub(crate) wait: Span,
    /// How long it is tried to record an answer.
    pub(crate) record_within: Span,
    /// How long the gateway may be silent.
    pub(crate) lease: Span,
    /// How long answers are kept.
    pub(crate) keep: Span,
    /// How long failures are kept.
    pub(crate) keep_failures: Span,
    /// Whether what may have happened may be done again.
    pub(crate) rerun_uncertain: bool,
    /// When a request that is stuck is reported.
    pub(crate) alert_age: Span,
    /// How to find out whether a request took effect.
    pub(crate) probe: Option<String>,
    /// When to find out.
    pub(crate) probe_after: Span,
    /// Whether the answer of the probe is the answer of the request.
    pub(crate) probe_answer: bool,
    /// The host that the probe asks for; absent: that of the request.
    pub(crate) probe_host: Option<String>,
    /// What else the probe carries.
    pub(crate) probe_headers: BTreeMap<String, Pointed>,
    /// What callers get while the service is in trouble.
    pub(crate) degraded: Degraded,
    /// How old a copy may be.
    pub(crate) cached_age: Span,
}

impl Default for GatewayRoute {
    fn default() -> Self {
        let rules = Rules::default();
        Self {
            host: None,
            path: "/**".into(),
            methods: Vec::new(),
            upstream: None,
            preserve_host: true,
            guard: true,
            caller: None,
            key_per_host: true,
            business_type: None,
            key: KeyRule::Optional,
            key_header: "idempotency-key".into(),
            strict_keys: false,
            guarded_methods: vec!["POST".into(), "PATCH".into()],
            max_body: Size(1 << 20),
            max_answer: Size(1 << 20),
            max_failure: Size(16 << 10),
            failure_quota: Size(4 << 20),
            not_recorded: vec![401, 413, 415, 425, 429],
            harmless: Vec::new(),
            r#final: Vec::new(),
            canonical_json: false,
            ignored_fields: Vec::new(),
            mode: Mode::Strict,
            plain_duplicate: false,
            help: None,
            wait: Span(rules.wait),
            record_within: Span(rules.record_within),
            lease: Span(Duration::from_secs(60)),
            keep: Span(rules.keep),
            keep_failures: Span(rules.keep_failures),
            rerun_uncertain: false,
            alert_age: Span(rules.alert_age),
            probe: None,
            probe_after: Span(rules.reconcile_age),
            probe_answer: false,
            probe_host: None,
            probe_headers: BTreeMap::new(),
            degraded: Degraded::No,
            cached_age: Span(Duration::from_secs(3600)),
        }
    }
}

/// `[upstream.NAME]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Upstream {
    /// Where it is.
    pub(crate) url: Option<Pointed>,
    /// To connect.
    pub(crate) connect_timeout: Span,
    /// Until the answer begins.
    pub(crate) timeout: Span,
    /// Between two pieces of an answer.
    pub(crate) idle_timeout: Span,
    /// At one time.
    pub(crate) connections: usize,
    /// Callers that may wait for one of them.
    pub(crate) waiting: usize,
    /// The most times that a call is made again.
    pub(crate) retries: u32,
    /// After this time no call is made again.
    pub(crate) retry_deadline: Span,
    /// For one attempt of a read; absent: as the other timeouts say.
    pub(crate) attempt_timeout: Option<Span>,
    /// How the waits before retries are spread.
    pub(crate) retry_jitter: Jitter,
    /// The time over which retries are counted.
    pub(crate) retry_window: Span,
    /// Retries in this time, for each call that succeeded.
    pub(crate) retry_ratio: f64,
    /// Retries in this time without any success.
    pub(crate) retry_floor: u64,
    /// The most retries in this time.
    pub(crate) retry_cap: u64,
    /// Failures in a row that open the breaker; zero: never for that.
    pub(crate) breaker_failures: u32,
    /// The share of failures that opens it.
    pub(crate) breaker_ratio: f64,
    /// With fewer calls the share says nothing.
    pub(crate) breaker_min_calls: u32,
    /// A call that takes so long is slow; absent: none is.
    pub(crate) breaker_slow_after: Option<Span>,
    /// The share of slow calls that opens it.
    pub(crate) breaker_slow_ratio: f64,
    /// How long it is open before the first probe.
    pub(crate) breaker_open: Span,
    /// The longest time between two probes.
    pub(crate) breaker_open_cap: Span,
}

impl Default for Upstream {
    fn default() -> Self {
        let settings = UpstreamSettings::default();
        let limits = settings.limits;
        Self {
            url: None,
            connect_timeout: Span(settings.connect_timeout),
            timeout: Span(settings.timeout),
            idle_timeout: Span(settings.idle_timeout),
            connections: settings.connections,
            waiting: limits.bulkhead.queue,
            retries: limits.backoff.max_attempts() - 1,
            retry_deadline: Span(limits.deadline),
            attempt_timeout: None,
            retry_jitter: Jitter::Full,
            retry_window: Span(limits.budget.window),
            retry_ratio: limits.budget.ratio.as_f64(),
            retry_floor: limits.budget.floor,
            retry_cap: limits.budget.cap,
            breaker_failures: limits.breaker.consecutive.unwrap_or(0),
            breaker_ratio: limits.breaker.failure_ratio.as_f64(),
            breaker_min_calls: limits.breaker.min_calls,
            breaker_slow_after: None,
            breaker_slow_ratio: 0.5,
            breaker_open: Span(limits.breaker.open_for),
            breaker_open_cap: Span(limits.breaker.open_cap),
        }
    }
}
