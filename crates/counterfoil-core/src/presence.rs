//! Who is there: what running consumers and relays say of themselves.
//!
//! # Why
//! A consumer that cannot reach its broker fails nowhere: nothing arrives, so nothing is late and
//! nothing is parked. So each says every few seconds how it is, in the database, where operators
//! find all consumers of all processes, and those that have fallen silent.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::store::RelayId;

/// How a running consumer is. Times are by the clock of its process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerStatus {
    /// Where it receives from.
    pub source: String,
    /// Whether it is subscribed.
    pub connected: bool,
    /// Since when `connected` is what it is.
    pub since: Option<DateTime<Utc>>,
    /// When a message last came.
    pub last_message_at: Option<DateTime<Utc>>,
    /// Messages that wait at the broker, when it was last asked. Absent where it does not tell.
    pub lag: Option<u64>,
    /// Messages that were received and are not settled.
    pub in_progress: u64,
    /// The database did not answer: nothing begins before this time.
    pub resume_at: Option<DateTime<Utc>>,
    /// So much is put off that nothing more is received.
    pub full: bool,
    /// The last error of the broker or of the database.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<DateTime<Utc>>,
}

impl ConsumerStatus {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As it was stored, perhaps by another version of the program.
    pub fn of_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Notes an error, in one line of bounded length.
    pub fn failed(&mut self, error: &str, now: DateTime<Utc>) {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        self.last_error = Some(error.chars().take(500).map(plain).collect());
        self.last_error_at = Some(now);
    }

    /// Notes whether it is subscribed.
    pub fn connected(&mut self, connected: bool, now: DateTime<Utc>) {
        if self.connected != connected || self.since.is_none() {
            self.since = Some(now);
        }
        self.connected = connected;
    }

    /// Whether it takes in what its broker has.
    pub fn is_consuming(&self) -> bool {
        self.connected && !self.full && self.resume_at.is_none()
    }

    /// How it is, in a few words that repeat no error.
    pub fn words(&self) -> String {
        let time = |at: Option<DateTime<Utc>>| match at {
            Some(at) => at.to_rfc3339_opts(SecondsFormat::Secs, true),
            None => "the start".into(),
        };
        if !self.connected {
            return format!("not connected since {}", time(self.since));
        }
        if let Some(at) = self.resume_at {
            return format!("waits for the database until {}", time(Some(at)));
        }
        match self.full {
            true => "receives nothing: too much is put off".into(),
            false => "ok".into(),
        }
    }
}

/// What a consumer says of itself.
#[derive(Debug, Clone, Copy)]
pub struct ConsumerReport<'a> {
    /// The name of this running one: unique for each start.
    pub member: &'a RelayId,
    /// The consumer's name, which others may have, too.
    pub consumer: &'a str,
    /// How it is.
    pub status: &'a ConsumerStatus,
    /// For how long this counts as a sign of life.
    pub lease: Duration,
}

/// A running consumer, or one that has fallen silent, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerEntry {
    /// Its name.
    pub consumer: String,
    /// Which of those with this name.
    pub member: String,
    /// Whether it has reported lately.
    pub alive: bool,
    /// When it last reported, by the database's clock.
    pub reported_at: DateTime<Utc>,
    /// How it was then.
    pub status: ConsumerStatus,
}

impl ConsumerEntry {
    /// How it is, in a few words.
    pub fn words(&self) -> String {
        match self.alive {
            true => self.status.words(),
            false => {
                let at = self.reported_at.to_rfc3339_opts(SecondsFormat::Secs, true);
                format!("no sign of life since {at}")
            }
        }
    }
}

/// A relay, as operators see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayEntry {
    /// Its name.
    pub relay: String,
    /// Whether it lives. One that does not is listed for as long as it owns something or nobody has
    /// cleared it away.
    pub alive: bool,
    /// The queues that it can serve.
    pub queues: Vec<String>,
    /// The shards that it owns, by queue.
    pub owns: BTreeMap<String, Vec<u16>>,
    /// When it joined, where the store knows.
    pub since: Option<DateTime<Utc>>,
    /// Until when it lives without another heartbeat, where there are leases.
    pub lease_until: Option<DateTime<Utc>>,
}

/// Relays by name, with what they own. An owner that nobody knows any more has died.
pub fn relays(
    known: Vec<RelayEntry>,
    owned: impl IntoIterator<Item = (String, u16, String)>,
) -> Vec<RelayEntry> {
    let mut all: BTreeMap<String, RelayEntry> = BTreeMap::new();
    for relay in known {
        all.insert(relay.relay.clone(), relay);
    }
    for (queue, shard, owner) in owned {
        let dead = |relay: &String| RelayEntry {
            relay: relay.clone(),
            ..RelayEntry::default()
        };
        let relay = all.entry(owner).or_insert_with_key(dead);
        relay.owns.entry(queue).or_default().push(shard);
    }
    for relay in all.values_mut() {
        relay
            .owns
            .values_mut()
            .for_each(|shards| shards.sort_unstable());
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    #[test]
    fn the_words_say_what_keeps_it_from_consuming() {
        let mut status = ConsumerStatus::default();
        assert_eq!(status.words(), "not connected since the start");
        status.connected(false, at(5));
        status.connected(false, at(9));
        status.failed("refused:\n\u{0} no", at(9));
        assert_eq!(status.words(), "not connected since 1970-01-01T00:00:05Z");
        assert_eq!(status.last_error.as_deref(), Some("refused:   no"));

        status.connected(true, at(10));
        assert!(status.is_consuming());
        status.full = true;
        assert!(status.words().starts_with("receives nothing"));
        status.resume_at = Some(at(20));
        assert!(status.words().starts_with("waits for the database"));
        assert!(!status.is_consuming());
    }

    #[test]
    fn a_status_of_another_version_can_be_read() {
        let read = ConsumerStatus::of_json(r#"{"connected": true, "colour": "red"}"#);

        assert!(read.connected && read.lag.is_none());
    }

    #[test]
    fn an_owner_that_is_not_known_has_died() {
        let lives = RelayEntry {
            relay: "b".into(),
            alive: true,
            ..RelayEntry::default()
        };
        let owned = [("q", 3, "a"), ("q", 1, "a"), ("r", 0, "b")];

        let all = relays(
            vec![lives],
            owned.map(|(queue, shard, owner)| (queue.into(), shard, owner.into())),
        );

        assert_eq!((all.len(), all[0].alive, all[1].alive), (2, false, true));
        assert_eq!(all[0].owns["q"], [1, 3]);
        assert_eq!(all[1].owns["r"], [0]);
    }
}
