//! The configuration as it stands in the file: the first of two stages.
//!
//! # Promise
//! One struct for each section, with the keys of the file as its fields and the program's own
//! defaults as its default. Nothing here says whether the values can work; [`super::settings`] does.

use std::collections::BTreeMap;

use counterfoil_core::store::Retention;
use counterfoil_engine::Settings as Engine;
use serde::Deserialize;

use super::brokers::kafka::Kafka;
use super::brokers::nats::Nats;
use super::brokers::rabbitmq::RabbitMq;
use super::brokers::redis::Redis;
use super::brokers::sqs::Sqs;
use super::consumer::file::Consumer;
use super::gateway::file::{Gateway, GatewayRoute, Upstream};
use super::tokens::Token;
use super::value::{KeepSent, Pointed, Size, Span};

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct File {
    /// `[database]`
    pub(crate) database: Database,
    /// `[server]`
    pub(crate) server: Server,
    /// `[token.NAME]`, by name.
    pub(crate) tokens: BTreeMap<String, Token>,
    /// `[relay]`
    pub(crate) relay: Relay,
    /// `[[route]]`
    pub(crate) routes: Vec<Route>,
    /// `[destination.NAME]`, by name.
    pub(crate) destinations: BTreeMap<String, Destination>,
    /// `[[consumer]]`
    pub(crate) consumers: Vec<Consumer>,
    /// `[gateway]`, where there is one.
    pub(crate) gateway: Option<Gateway>,
    /// `[[gateway.route]]`
    pub(crate) gateway_routes: Vec<GatewayRoute>,
    /// `[upstream.NAME]`, by name.
    pub(crate) upstreams: BTreeMap<String, Upstream>,
}

/// `[database]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Database {
    /// Where the outbox is. Absent: SQLite in the data directory.
    pub(crate) url: Option<Pointed>,
    /// Where to listen for other processes' commits. Absent: there too.
    pub(crate) listen_url: Option<Pointed>,
}

/// `[server]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Server {
    /// Address and port.
    pub(crate) listen: String,
    /// Who may do everything.
    pub(crate) tokens: Vec<Pointed>,
    /// A file with the certificate to show, and those that vouch for it. Absent: plain HTTP.
    pub(crate) certificate_file: Option<String>,
    /// And one with its key.
    pub(crate) key_file: Option<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7070".into(),
            tokens: Vec::new(),
            certificate_file: None,
            key_file: None,
        }
    }
}

/// `[relay]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Relay {
    /// For people; absent: the name of the host.
    pub(crate) name: Option<String>,
    /// A relay that is silent for so long loses its shards.
    pub(crate) lease: Span,
    /// How often to look without being woken.
    pub(crate) poll: Span,
    /// Rows in one read.
    pub(crate) batch: usize,
    /// Bytes in memory, for each queue.
    pub(crate) queue_memory: Size,
    /// Bytes in memory, for all queues.
    pub(crate) memory: Size,
    /// Rows of one aggregate in memory.
    pub(crate) lane: usize,
    /// How often to look below the low mark.
    pub(crate) rescan: Span,
    /// How long a shard that is given away waits for its handlers.
    pub(crate) handover: Span,
    /// How long a stopping relay waits for its handlers.
    pub(crate) drain: Span,
    /// How long an unavailable destination uses up no attempts.
    pub(crate) patience: Span,
    /// How often to remove what is over.
    pub(crate) sweep: Span,
    /// Rows removed in one go.
    pub(crate) sweep_batch: u32,
    /// Keep sent messages for so long.
    pub(crate) keep_sent: KeepSent,
    /// Keep cancelled messages for so long, when sent ones are not kept.
    pub(crate) keep_cancelled: Span,
    /// Recognise a repeated id for so long.
    pub(crate) keep_keys: Span,
    /// Keep parked messages that are decided about for so long.
    pub(crate) keep_parked: Span,
}

impl Default for Relay {
    fn default() -> Self {
        let (engine, retention) = (Engine::default(), Retention::default());
        Self {
            name: None,
            lease: Span(engine.lease),
            poll: Span(engine.poll),
            batch: engine.batch,
            queue_memory: Size(engine.queue_memory),
            memory: Size(engine.memory),
            lane: engine.lane,
            rescan: Span(engine.rescan),
            handover: Span(engine.handover),
            drain: Span(engine.drain),
            patience: Span(engine.patience),
            sweep: Span(engine.sweep),
            sweep_batch: retention.batch,
            keep_sent: KeepSent(engine.keep_sent.then_some(retention.history)),
            keep_cancelled: Span(retention.history),
            keep_keys: Span(retention.ledger),
            keep_parked: Span(retention.parked),
        }
    }
}

/// `[[route]]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Route {
    /// A pattern for event types.
    pub(crate) events: Option<String>,
    /// Names of destinations.
    pub(crate) to: Vec<String>,
}

/// `[destination.NAME]`, by its `type`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Destination {
    /// `type = "webhook"`
    Webhook(Webhook),
    /// `type = "kafka"`
    Kafka(Kafka),
    /// `type = "rabbitmq"`
    RabbitMq(RabbitMq),
    /// `type = "nats"`
    Nats(Nats),
    /// `type = "redis"`
    Redis(Redis),
    /// `type = "sqs"`
    Sqs(Sqs),
}

impl Destination {
    /// The words that `type` may be.
    pub(crate) const TYPES: [&'static str; 6] =
        ["webhook", "kafka", "rabbitmq", "nats", "redis", "sqs"];
}

/// What parking does to later messages of the aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnPark {
    /// They wait.
    #[default]
    Hold,
    /// They go on.
    Skip,
}

/// A kind of destination: its own keys, and those that all kinds have.
macro_rules! destination {
    ($(#[$doc:meta])* $name:ident, $kind:literal, {
        $($(#[$about:meta])* $key:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub(crate) struct $name {
            /// Always the same.
            pub(crate) r#type: String,
            $($(#[$about])* pub(crate) $key: $type,)*
            /// What parking does to later messages of the aggregate.
            pub(crate) on_park: $crate::config::file::OnPark,
            /// Attempts after which a message is parked.
            pub(crate) max_attempts: Option<u32>,
            /// The longest wait after the first failure; doubles with each further one.
            pub(crate) backoff_base: Option<$crate::config::value::Span>,
            /// The longest wait of all.
            pub(crate) backoff_cap: Option<$crate::config::value::Span>,
            /// Failures in a row that open the breaker; zero: never for that.
            pub(crate) breaker_failures: u32,
            /// The share of failures that opens it.
            pub(crate) breaker_ratio: f64,
            /// With fewer calls the share says nothing.
            pub(crate) breaker_min_calls: u32,
            /// How long it is open before the first probe.
            pub(crate) breaker_open: $crate::config::value::Span,
            /// The longest time between two probes.
            pub(crate) breaker_open_cap: $crate::config::value::Span,
            /// Retries in a minute, for each delivery that succeeded.
            pub(crate) retry_ratio: f64,
            /// Retries in a minute without any success.
            pub(crate) retry_floor: u64,
            /// The most retries in a minute.
            pub(crate) retry_cap: u64,
        }

        impl Default for $name {
            fn default() -> Self {
                let breaker = counterfoil_engine::QueueSpec::BREAKER;
                let budget = counterfoil_engine::QueueSpec::BUDGET;
                Self {
                    r#type: $kind.into(),
                    $($key: $default,)*
                    on_park: $crate::config::file::OnPark::Hold,
                    max_attempts: None,
                    backoff_base: None,
                    backoff_cap: None,
                    breaker_failures: breaker.consecutive.unwrap_or(0),
                    breaker_ratio: breaker.failure_ratio.as_f64(),
                    breaker_min_calls: breaker.min_calls,
                    breaker_open: $crate::config::value::Span(breaker.open_for),
                    breaker_open_cap: $crate::config::value::Span(breaker.open_cap),
                    retry_ratio: budget.ratio.as_f64(),
                    retry_floor: budget.floor,
                    retry_cap: budget.cap,
                }
            }
        }

        impl $name {
            /// The keys that all kinds have.
            pub(crate) fn keys(&self) -> $crate::config::queue::Keys {
                $crate::config::queue::Keys {
                    on_park: self.on_park,
                    max_attempts: self.max_attempts,
                    backoff_base: self.backoff_base,
                    backoff_cap: self.backoff_cap,
                    figures: $crate::config::figures::Figures {
                        failures: self.breaker_failures,
                        ratio: self.breaker_ratio,
                        min_calls: self.breaker_min_calls,
                        open: self.breaker_open.0,
                        open_cap: self.breaker_open_cap.0,
                        retry_ratio: self.retry_ratio,
                        retry_floor: self.retry_floor,
                        retry_cap: self.retry_cap,
                    },
                }
            }
        }
    };
}
pub(super) use destination;

destination!(
    /// `[destination.NAME]` with `type = "webhook"`
    Webhook, "webhook", {
        /// Where requests go.
        url: Option<Pointed> = None,
        /// Keys to sign with.
        secrets: Vec<Pointed> = Vec::new(),
        /// Send without a signature.
        unsigned: bool = false,
        /// How long to wait before each further attempt; empty: as receivers expect.
        retry_waits: Vec<Span> = Vec::new(),
        /// For a whole attempt.
        timeout: Span = Span(std::time::Duration::from_secs(10)),
        /// For name, TCP and TLS; absent: 3 s, at most half of the timeout.
        connect_timeout: Option<Span> = None,
        /// Requests at one time.
        concurrency: usize = 16,
        /// Bytes of an answer that are read.
        max_response: usize = 64 * 1024,
        /// Let requests go to private addresses.
        allow_private: bool = false,
        /// Let requests go over plain HTTP to public addresses.
        allow_plain: bool = false,
        /// A file with certificates that are trusted besides the public ones.
        extra_ca: Option<String> = None,
        /// Sent with every request.
        headers: BTreeMap<String, Pointed> = BTreeMap::new(),
    }
);
