//! How a client is made.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil_engine::pipeline::policy::Backoff;
use counterfoil_engine::pipeline::{Limits, LimitsError, Registry};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::Client;
use super::attempt::Attempt;
use super::connect::Connector;

/// Makes a [`Client`].
///
/// | setting | default | what it is |
/// |---|---|---|
/// | [`deadline`](Builder::deadline) | 3 s | the time for all attempts; it outranks their count |
/// | [`attempt`](Builder::attempt) | 1.5 s | the time for one attempt, its whole answer included |
/// | [`connect_timeout`](Builder::connect_timeout) | 1 s | the time to find the address, connect and agree on encryption |
/// | [`limits`](Builder::limits) | 5 retries after 200 ms, 500 ms, 1.2 s, 2.5 s, 5 s (full jitter), the others as [`Limits`] says | retries, budget, breaker and ceiling of a destination |
/// | [`destination`](Builder::destination) | each host and port, with these limits | the limits of one destination |
/// | [`max_answer`](Builder::max_answer) | 2 MiB | the largest answer |
/// | [`key_header`](Builder::key_header) | `Idempotency-Key` | where the key goes |
/// | [`header`](Builder::header) | `User-Agent: counterfoil/VERSION` | sent with every request |
/// | [`trust`](Builder::trust) | the public authorities | whom to believe behind `https` |
/// | [`registry`](Builder::registry) | one of its own | where breakers and budgets are listed |
#[derive(Clone)]
#[must_use]
pub struct Builder {
    limits: Limits,
    named: BTreeMap<String, Limits>,
    connect_timeout: Duration,
    max_answer: usize,
    key_header: HeaderName,
    headers: HeaderMap,
    wrong_header: Option<String>,
    authorities: Vec<Vec<u8>>,
    registry: Option<Registry>,
}

impl Default for Builder {
    fn default() -> Self {
        let agent = concat!("counterfoil/", env!("CARGO_PKG_VERSION"));
        let agent = (header::USER_AGENT, HeaderValue::from_static(agent));
        Self {
            limits: Limits {
                write_attempts: Backoff::CALL.max_attempts(),
                ..Limits::default()
            },
            named: BTreeMap::new(),
            connect_timeout: Duration::from_secs(1),
            max_answer: 2 * 1024 * 1024,
            key_header: HeaderName::from_static("idempotency-key"),
            headers: HeaderMap::from_iter([agent]),
            wrong_header: None,
            authorities: Vec::new(),
            registry: None,
        }
    }
}

/// A client that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Limits that cannot be.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// A limit of zero.
    #[error("{0} must be greater than zero")]
    Zero(&'static str),
    /// Something that HTTP does not allow in a header.
    #[error("the header `{0}` cannot be sent")]
    Header(String),
    /// Not a certificate.
    #[error("an authority cannot be used: {0}")]
    Authority(String),
}

impl Builder {
    /// The time for all attempts of a call. Two or three seconds where a person waits.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.limits.deadline = within;
        self
    }

    /// The time for one attempt, its whole answer included.
    pub fn attempt(mut self, within: Duration) -> Self {
        self.limits.attempt = within;
        self
    }

    /// The limits of every destination that has none of its own. Replaces deadline and attempt, too.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The limits of one destination: a name that requests give with
    /// [`Request::destination`](super::Request::destination), or a host and port such as
    /// `payments.example:443`.
    pub fn destination(mut self, name: impl Into<String>, limits: Limits) -> Self {
        self.named.insert(name.into(), limits);
        self
    }

    /// The time to find the address, connect and agree on encryption. What is not connected by
    /// then was certainly not sent.
    pub fn connect_timeout(mut self, within: Duration) -> Self {
        self.connect_timeout = within;
        self
    }

    /// The largest answer, in bytes.
    pub fn max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// The header that carries the key.
    pub fn key_header(mut self, name: &str) -> Self {
        match name.parse() {
            Ok(name) => self.key_header = name,
            Err(_) => self.wrong_header = Some(name.to_owned()),
        }
        self
    }

    /// A header of every request.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (name.parse::<HeaderName>(), value.parse()) {
            (Ok(name), Ok(value)) if !super::request::is_ours(&name) => {
                self.headers.insert(name, value);
            }
            _ => self.wrong_header = Some(name.to_owned()),
        }
        self
    }

    /// Believes these authorities, too: certificates as PEM.
    pub fn trust(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(pem.into());
        self
    }

    /// Lists the destinations in this registry, under `client:NAME`. With that of a running
    /// `Counterfoil` they are next to those of its messages.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// The client. Settings that cannot work are refused.
    pub fn build(self) -> Result<Client, BuildError> {
        self.limits.validate()?;
        for limits in self.named.values() {
            limits.validate()?;
        }
        for (name, zero) in [
            ("the time to connect", self.connect_timeout.is_zero()),
            ("the largest answer", self.max_answer == 0),
        ] {
            if zero {
                return Err(BuildError::Zero(name));
            }
        }
        if let Some(name) = self.wrong_header {
            return Err(BuildError::Header(name));
        }
        // One key for everything would make one request of all.
        if self.headers.contains_key(&self.key_header) {
            return Err(BuildError::Header(self.key_header.to_string()));
        }
        let connector = Connector::new(&self.authorities, self.connect_timeout)?;
        Ok(Client::new(super::Inner {
            registry: self.registry.unwrap_or_default(),
            limits: self.limits,
            named: self.named,
            key_header: self.key_header,
            headers: self.headers,
            attempt: Attempt::new(connector, self.max_answer),
            known: std::sync::Mutex::default(),
        }))
    }
}
