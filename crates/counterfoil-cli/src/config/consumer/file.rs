//! `[[consumer]]` as it stands in the file.

use counterfoil_core::policy::Backoff;
use serde::Deserialize;

use super::super::brokers::From;
use super::super::file::OnPark;
use super::super::value::{Pointed, Span};

const DAY: u64 = 86_400;

/// By what a repeat is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Dedup {
    /// By its id.
    #[default]
    Id,
    /// By aggregate and version.
    Version,
}

/// What is expected of the versions of an aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Versions {
    /// They do not go back.
    #[default]
    Rising,
    /// None is left out.
    Gapless,
}

/// What becomes of what can never pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Poison {
    /// It is parked here.
    #[default]
    Park,
    /// It goes to the dead letters of its broker.
    DeadLetter,
}

/// `[[consumer]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Consumer {
    /// What is processed is remembered under this name.
    pub(crate) name: Option<String>,
    /// `from`: a section of its own, read by its type.
    #[serde(skip)]
    pub(crate) from: Option<From>,
    /// `dead-letters`: a section of its own, as `from`.
    #[serde(skip)]
    pub(crate) dead_letters: Option<From>,
    /// `to`: a section of its own.
    #[serde(skip)]
    pub(crate) to: Option<To>,
    /// Where the id is found; absent: in the envelope.
    pub(crate) id: Option<String>,
    /// Where the type of the aggregate is found.
    pub(crate) aggregate_type: Option<String>,
    /// Where the id of the aggregate is found.
    pub(crate) aggregate_id: Option<String>,
    /// Where the version is found.
    pub(crate) version: Option<String>,
    /// Where the event type is found.
    pub(crate) event_type: Option<String>,
    /// By what a repeat is recognised.
    pub(crate) dedup: Dedup,
    /// What is expected of the versions of an aggregate.
    pub(crate) versions: Versions,
    /// The first version of an aggregate, where none is left out.
    pub(crate) first_version: i64,
    /// Patterns of event types that are acknowledged and left alone.
    pub(crate) skip: Vec<String>,
    /// Transactions at one time.
    pub(crate) workers: usize,
    /// Messages in one transaction.
    pub(crate) batch: usize,
    /// Messages that are received and not settled.
    pub(crate) held: usize,
    /// Messages that are put off, above which no more are received.
    pub(crate) most_waiting: u32,
    /// For one message.
    pub(crate) timeout: Span,
    /// Attempts after which a message is parked.
    pub(crate) max_attempts: u32,
    /// The longest wait after the first failure; doubles with each further one.
    pub(crate) backoff_base: Span,
    /// The longest wait of all.
    pub(crate) backoff_cap: Span,
    /// What parking does to later messages of the aggregate.
    pub(crate) on_park: OnPark,
    /// What becomes of messages that can never pass.
    pub(crate) poison: Poison,
    /// How long a repeat is recognised.
    pub(crate) keep: Span,
    /// A Redis that knows what was processed lately.
    pub(crate) gate: Option<Pointed>,
    /// The beginning of its names there.
    pub(crate) gate_prefix: String,
    /// How long it remembers.
    pub(crate) gate_ttl: Span,
    /// How long it may take to answer.
    pub(crate) gate_patience: Span,
    /// A file with the certificates to trust, with `rediss://`.
    pub(crate) gate_ca_file: Option<String>,
}

impl Default for Consumer {
    fn default() -> Self {
        let backoff = Backoff::DEFAULT;
        let seconds = |n| Span(std::time::Duration::from_secs(n));
        Self {
            name: None,
            from: None,
            dead_letters: None,
            to: None,
            id: None,
            aggregate_type: None,
            aggregate_id: None,
            version: None,
            event_type: None,
            dedup: Dedup::Id,
            versions: Versions::Rising,
            first_version: 1,
            skip: Vec::new(),
            workers: 8,
            batch: 100,
            held: 2_000,
            most_waiting: 10_000,
            timeout: seconds(30),
            max_attempts: backoff.max_attempts(),
            backoff_base: Span(backoff.ceiling(1)),
            backoff_cap: Span(backoff.ceiling(u32::MAX)),
            on_park: OnPark::Hold,
            poison: Poison::Park,
            keep: seconds(30 * DAY),
            gate: None,
            gate_prefix: "de:".into(),
            gate_ttl: seconds(DAY),
            gate_patience: Span(std::time::Duration::from_millis(50)),
            gate_ca_file: None,
        }
    }
}

/// `to`: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct To {
    /// The name of a destination.
    pub(crate) destination: Option<String>,
    /// A statement.
    pub(crate) sql: Option<String>,
    /// Whether a statement that changes nothing has failed.
    pub(crate) expect_rows: bool,
}
