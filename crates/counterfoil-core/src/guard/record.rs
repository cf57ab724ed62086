//! What is remembered of a request.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;
use super::key::Key;

/// How a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Somebody works on it.
    Processing,
    /// It took effect; its answer is replayed.
    Succeeded,
    /// A business error that may pass later: it may run again.
    Retryable,
    /// A business error: it is replayed.
    Failed,
    /// It may have taken effect and nobody knows. It does not run again before that is settled.
    Uncertain,
}

impl State {
    /// Every state.
    pub const ALL: [State; 5] = [
        State::Processing,
        State::Succeeded,
        State::Retryable,
        State::Failed,
        State::Uncertain,
    ];

    /// The name as stored.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Processing => "processing",
            State::Succeeded => "succeeded",
            State::Retryable => "retryable",
            State::Failed => "failed",
            State::Uncertain => "uncertain",
        }
    }

    /// Reads what [`State::as_str`] gave.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    /// Whether nothing more happens by itself: only such records are purged.
    pub fn is_over(self) -> bool {
        !matches!(self, State::Processing | State::Uncertain)
    }
}

/// The answer as it was given, to be given again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The HTTP status, or 0 for an answer that is not HTTP.
    pub status: u16,
    /// Header lines in their order; values may hold any byte.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body. `None`: completed, and the result was not kept.
    pub body: Option<Bytes>,
}

impl Snapshot {
    /// A result that is not HTTP: any value, as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Self> {
        Ok(Self {
            status: 0,
            headers: Vec::new(),
            body: Some(serde_json::to_vec(value)?.into()),
        })
    }

    /// The header lines as one text, for a column. Every byte of a value becomes one character, so
    /// that any value survives.
    pub fn headers_text(&self) -> Option<String> {
        if self.headers.is_empty() {
            return None;
        }
        let lines: Vec<(&str, String)> = self
            .headers
            .iter()
            .map(|(name, value)| {
                (
                    name.as_str(),
                    value.iter().map(|b| char::from(*b)).collect(),
                )
            })
            .collect();
        serde_json::to_string(&lines).ok()
    }

    /// Puts together what a store has read.
    pub fn from_columns(status: u16, headers: Option<&str>, body: Option<Vec<u8>>) -> Self {
        let lines: Vec<(String, String)> = headers
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let headers = lines
            .into_iter()
            .map(|(name, value)| {
                let bytes = value
                    .chars()
                    .filter_map(|c| u8::try_from(u32::from(c)).ok());
                (name, bytes.collect())
            })
            .collect();
        Self {
            status,
            headers,
            body: body.map(Bytes::from),
        }
    }
}

/// One request, as remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: Key,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// How it stands.
    pub state: State,
    /// The number of its present claim. It grows with every claim of the key: who writes under an
    /// older one is refused.
    pub fence: i64,
    /// How often it was begun.
    pub attempts: u32,
    /// Until when its owner is believed to live. Nothing in transactional mode.
    pub lease_until: Option<DateTime<Utc>>,
    /// Not again before this time.
    pub retry_at: Option<DateTime<Utc>>,
    /// How long it is remembered when it is over.
    pub expires_at: DateTime<Utc>,
    /// When it was first seen.
    pub created_at: DateTime<Utc>,
    /// When something last happened to it.
    pub updated_at: DateTime<Utc>,
    /// The answer, where there is one.
    pub snapshot: Option<Snapshot>,
}

/// A record, and what time it was at the database when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The record.
    pub record: Record,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

impl Found {
    /// How it stands now: the state as stored, but `uncertain` when its owner's lease is over.
    pub fn state(&self) -> State {
        match self.record.state {
            State::Processing if self.record.lease_until.is_some_and(|t| t <= self.now) => {
                State::Uncertain
            }
            other => other,
        }
    }

    /// Whether it is over and need not be remembered any more.
    pub fn expired(&self) -> bool {
        self.record.state.is_over() && self.record.expires_at <= self.now
    }

    /// How long nothing has happened to it.
    pub fn idle(&self) -> Duration {
        (self.now - self.record.updated_at)
            .to_std()
            .unwrap_or_default()
    }
}

/// What a check of the real world found about an uncertain request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It took effect: this is its answer.
    Happened(Snapshot),
    /// It ended with a business error: this is its answer.
    Failed(Snapshot),
    /// It did not take effect and will not: it may run again.
    DidNotHappen,
    /// It cannot be said yet: look again later.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_survive_the_column_whatever_their_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        let snapshot = Snapshot {
            status: 200,
            headers: vec![("x-odd".into(), all), ("x-odd".into(), b"2".to_vec())],
            body: None,
        };

        let text = snapshot.headers_text();

        assert_eq!(Snapshot::from_columns(200, text.as_deref(), None), snapshot);
    }

    #[test]
    fn states_keep_their_names() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("done"), None);
    }
}
