//! Why has this message not arrived? One sentence, from facts that a store gathers.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::code::Code;
use crate::policy::breaker::Opened;
use crate::row::RowState;

/// What a store knows about one message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "place", rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "one at a time, for a person")]
pub enum Facts {
    /// Nothing is known under this id.
    Unknown {
        /// A key in the ledger names it: it was enqueued and is settled.
        in_ledger: bool,
    },
    /// Delivered; kept in the history.
    Sent {
        /// When.
        at: DateTime<Utc>,
    },
    /// Cancelled by an operator.
    Cancelled {
        /// When.
        at: DateTime<Utc>,
        /// Why and by whom.
        why: Option<String>,
    },
    /// In the parking lot.
    Parked {
        /// When.
        at: DateTime<Utc>,
        /// pending, redriven or ignored.
        state: String,
        /// Why.
        code: String,
        /// The last error.
        error: Option<String>,
        /// Failed attempts.
        attempts: u32,
        /// How many later messages of its aggregate wait for it.
        holds: u64,
    },
    /// In the outbox.
    Pending(Pending),
}

/// What a store knows about a message in the outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pending {
    /// The queue; empty while no route has taken it.
    pub queue: String,
    /// What happened.
    pub event_type: String,
    /// Where the row stands.
    pub state: RowState,
    /// Failed attempts.
    pub attempts: u32,
    /// When its time comes or came.
    pub available_at: Option<DateTime<Utc>>,
    /// Whether that is still ahead.
    pub early: bool,
    /// The last error code.
    pub code: Option<String>,
    /// An earlier row of the same aggregate that is not resolved.
    pub behind: Option<Blocker>,
    /// A parked message of the same aggregate that holds it.
    pub parked: Option<Blocker>,
    /// Why the queue is paused.
    pub paused: Option<String>,
    /// Since when nobody answers at the destination.
    pub unavailable_since: Option<DateTime<Utc>>,
    /// The breaker of the destination, while it is open.
    pub breaker: Option<Opened>,
    /// The relay that owns its shard, and until when its lease runs.
    pub owner: Option<(String, Option<DateTime<Utc>>)>,
    /// Live relays that can serve the queue.
    pub relays: u64,
}

/// A message that stands in the way of another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Blocker {
    /// Its id.
    pub id: String,
    /// Its version.
    pub version: Option<i64>,
    /// The aggregate, for people.
    pub aggregate: String,
    /// Its last error code.
    pub code: Option<String>,
}

impl Blocker {
    fn name(&self) -> String {
        match self.version {
            Some(v) => format!("version {v} of {}", self.aggregate),
            None => format!("message {} of {}", self.id, self.aggregate),
        }
    }

    fn after(&self) -> String {
        self.code
            .as_ref()
            .map(|c| format!(" ({c})"))
            .unwrap_or_default()
    }
}

fn clock(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

impl Facts {
    /// The answer in one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Facts::Unknown { in_ledger: true } => {
                "Settled: its key is in the ledger, and sent messages are not kept.".into()
            }
            Facts::Unknown { in_ledger: false } => {
                "Unknown: never committed under this id, or settled while sent messages were not kept."
                    .into()
            }
            Facts::Sent { at } => format!("Sent at {}.", clock(*at)),
            Facts::Cancelled { at, why } => {
                let why = why.as_ref().map(|w| format!(": {w}")).unwrap_or_default();
                format!("Cancelled at {}{why}.", clock(*at))
            }
            Facts::Parked { at, state, code, attempts, holds, .. } => {
                let tries = plural(u64::from(*attempts), "attempt");
                let holds = match holds {
                    0 => String::new(),
                    n => format!("; {} of its aggregate wait for it", plural(*n, "later message")),
                };
                match state.as_str() {
                    "ignored" => format!(
                        "Parked at {} with {code}, and ignored; \
                         `counterfoil parked redrive --confirm` takes it back.",
                        clock(*at)
                    ),
                    _ => format!(
                        "Parked at {} with {code} after {tries}{holds}; \
                         fix the cause, then `counterfoil parked redrive`.",
                        clock(*at)
                    ),
                }
            }
            Facts::Pending(pending) => pending.sentence(),
        }
    }
}

impl Pending {
    fn sentence(&self) -> String {
        if let Some(blocker) = &self.parked {
            return format!(
                "Blocked: waits behind parked {}{}.",
                blocker.name(),
                blocker.after()
            );
        }
        if let Some(blocker) = &self.behind {
            return format!("Waits behind {}{}.", blocker.name(), blocker.after());
        }
        if let Some(reason) = &self.paused {
            return format!("The queue {:?} is paused: {reason}.", self.queue);
        }
        if self.queue.is_empty() && self.relays == 0 {
            return "No route has taken it, and no live relay has routes.".into();
        }
        if self.relays == 0 {
            return format!("No live relay serves the queue {:?}.", self.queue);
        }
        if self.queue.is_empty() && self.code.as_deref() == Some(Code::NO_ROUTE.as_str()) {
            let again = match self.available_at {
                Some(at) if self.early => format!("at {}", clock(at)),
                _ => "now".into(),
            };
            return format!(
                "No route matches its event type {:?}; it is looked at again {again}.",
                self.event_type
            );
        }
        if let (true, Some(at)) = (self.early, self.available_at) {
            return match (&self.code, self.attempts) {
                (Some(code), n) if n > 0 => {
                    let breaker = self.breaker.as_ref();
                    let breaker =
                        breaker.map(|b| format!("; the breaker of its destination is {b}"));
                    format!(
                        "Next try at {} after {code} (attempt {n} failed){}.",
                        clock(at),
                        breaker.unwrap_or_default()
                    )
                }
                _ => format!("Scheduled for {}.", clock(at)),
            };
        }
        match (self.unavailable_since, &self.breaker) {
            (Some(since), Some(breaker)) => {
                return format!(
                    "Nobody answers at its destination since {}; its breaker is {breaker}.",
                    clock(since)
                );
            }
            (Some(since), None) => {
                return format!("Nobody answers at its destination since {}.", clock(since));
            }
            (None, Some(breaker)) => {
                return format!("Due; the breaker of its destination is {breaker}.");
            }
            (None, None) => {}
        }
        match &self.owner {
            Some((relay, Some(until))) => {
                format!("Due; claimed by {relay} until {}.", clock(*until))
            }
            Some((relay, None)) => format!("Due; claimed by {relay}."),
            None => "Due; no relay has claimed its shard yet.".into(),
        }
    }
}

fn plural(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Pending {
        Pending {
            queue: "billing".into(),
            event_type: "OrderPaid".into(),
            state: RowState::New,
            attempts: 0,
            available_at: None,
            early: false,
            code: None,
            behind: None,
            parked: None,
            paused: None,
            unavailable_since: None,
            breaker: None,
            owner: None,
            relays: 1,
        }
    }

    #[test]
    fn each_reason_has_its_sentence() {
        let blocker = Blocker {
            id: "x".into(),
            version: Some(41),
            aggregate: "order/7".into(),
            code: Some("TIMEOUT".into()),
        };
        let at = DateTime::UNIX_EPOCH;
        let cases = [
            (
                Pending {
                    behind: Some(blocker.clone()),
                    ..pending()
                },
                "Waits behind version 41",
            ),
            (
                Pending {
                    parked: Some(blocker),
                    ..pending()
                },
                "Blocked: waits behind parked",
            ),
            (
                Pending {
                    paused: Some("by ann".into()),
                    ..pending()
                },
                "is paused: by ann",
            ),
            (
                Pending {
                    relays: 0,
                    ..pending()
                },
                "No live relay serves",
            ),
            (
                Pending {
                    early: true,
                    available_at: Some(at),
                    code: Some("UPSTREAM_5XX".into()),
                    attempts: 2,
                    ..pending()
                },
                "Next try at 1970-01-01 00:00:00 UTC after UPSTREAM_5XX",
            ),
            (
                Pending {
                    queue: String::new(),
                    state: RowState::Scheduled,
                    early: true,
                    available_at: Some(at),
                    code: Some("NO_ROUTE".into()),
                    ..pending()
                },
                "No route matches its event type \"OrderPaid\"; it is looked at again at 1970-01-01",
            ),
            (
                Pending {
                    owner: Some(("relay-b".into(), Some(at))),
                    ..pending()
                },
                "claimed by relay-b until",
            ),
            (
                Pending {
                    owner: Some(("relay-b".into(), Some(at))),
                    breaker: Some(Opened {
                        since: Some(at),
                        error: Some("UPSTREAM_5XX: 503 Service Unavailable".into()),
                        next_probe: Some(at),
                        held_by: None,
                    }),
                    ..pending()
                },
                "Due; the breaker of its destination is open since 1970-01-01 00:00:00 UTC after \
                 UPSTREAM_5XX: 503 Service Unavailable; next probe at 00:00:00 UTC.",
            ),
            (
                Pending {
                    breaker: Some(Opened {
                        held_by: Some("ann".into()),
                        ..Opened::default()
                    }),
                    ..pending()
                },
                "breaker of its destination is open; held open by ann.",
            ),
            (pending(), "no relay has claimed"),
        ];
        for (facts, expected) in cases {
            let sentence = Facts::Pending(facts).sentence();
            assert!(sentence.contains(expected), "{sentence}");
        }
    }
}
