//! The gateway: idempotent writes for a service in any language, without a change of its code.
//!
//! # Promise
//! A request with a key takes effect once: it is claimed in the database, forwarded once, and its
//! answer is given again to every repeat. Whether a request that failed may have reached the
//! service is never guessed: every byte that goes to the service's socket is counted. No byte
//! sent: the key is free again, and the repeat runs. A byte sent and no answer: the outcome is
//! uncertain, the repeat is told so and does not run, until a probe of the service or an operator
//! settles it. A service in trouble is left alone, and no retry can do something twice:
//! [`resilient`]. When the records cannot be read or written, nothing is forwarded.
//!
//! Everything else passes through as it is, in both directions, without being stored: bodies are
//! streamed with bounded buffers, headers that belong to one connection stay on it.
//!
//! # The way of a request
//! | step | module | what may end it |
//! |---|---|---|
//! | connection: bounds of size, time and number; framing that two readers could read differently | `inbound`, `framing`, `peers` | 400, 408, 429, 431 |
//! | host, path | `target` | 400 |
//! | route, the most specific | [`route`] | 404, 405 |
//! | guard, where there is one: key, caller, body, claim | [`crate::guard`] | replay; 4xx; 503 |
//! | what is wrapped around the call ([`Wrap`]): [`resilient`] | `resilience` | 503 |
//! | the call: [`Step`], a tower service | `forward`, `headers`, [`upstream`] | 502, 503, 504 |
//! | an answer while the outcome is uncertain, where configured | `degraded` | 202 |
//! | a former answer while the service is in trouble, where configured | `stale` | 2xx |
//!
//! # Not here
//! TLS on either side, HTTP/2 to the service, upgrades (WebSocket), and several addresses with a
//! choice between them.

mod cache;
mod connection;
mod degraded;
mod desk;
mod forward;
mod framing;
mod hands;
mod headers;
mod inbound;
mod lent;
mod memory;
mod pace;
mod patient;
mod peers;
mod probe;
mod reader;
mod resilience;
pub mod route;
mod shelf;
mod silence;
mod stale;
mod status;
mod target;
pub mod upstream;
mod wire;

pub use cache::ReplayCache;
pub use desk::{Gateway, Options};
pub use forward::{ForwardError, Step, Wrap};
pub use headers::{Trust, TrustError};
pub use inbound::serve;
pub use patient::Patient;
pub use peers::PeerLimits;
pub use probe::{Probe, ProbeError};
pub use resilience::{register, resilient};
pub use route::{CallerRule, Guarded, Pattern, PatternError, Route};
pub use status::status;
pub use upstream::{Upstream, UpstreamError, UpstreamSettings};
