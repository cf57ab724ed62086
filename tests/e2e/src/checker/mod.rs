//! The checker: proves from evidence that nothing happened that may not.
//!
//! # Promise
//! [`check`] knows nothing of relays or databases. It compares what was committed, what arrived, and
//! where everything stands in the end, and answers with every [`Violation`]. It is itself tested
//! against stores that are broken on purpose (see [`crate::broken`]).
//!
//! | rule | what it finds |
//! |---|---|
//! | nothing is lost | a committed message that was never stored and is not parked |
//! | nothing comes from nowhere | a delivery of something that was not committed, or was changed |
//! | order | a message that was offered before an earlier one of its lane was stored |
//! | repeats | a second offer that no death, pause or failure excuses |
//! | one end | a message in two places, or in a place that its last answer contradicts |
//! | fencing | two relays with the same fencing number |
//! | audit | whatever the store finds itself |

mod order;
mod repeats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use counterfoil_core::{Code, MessageId};

use crate::app::Fact;
use crate::book::Offer;
use crate::site::{Place, Standing};
use crate::wire::Verdict;

pub use repeats::{Disturbance, Repeats};

/// What is known when everything has come to rest.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// What the application committed.
    pub committed: Vec<Fact>,
    /// What arrived, in the order of arrival.
    pub offers: Vec<Offer>,
    /// Where messages stand.
    pub standings: Vec<Standing>,
    /// What the store's own audit found.
    pub audit: Vec<String>,
}

/// What this run allows.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Which messages may be offered again.
    pub repeats: Repeats,
    /// Relays give up waiting for an answer after this time.
    pub timeout: Option<Duration>,
    /// Queues whose lanes go on behind a parked message.
    pub skipping: BTreeSet<String>,
    /// Messages may be parked, and others wait behind them.
    pub parked: bool,
}

impl Rules {
    /// Everything arrives, and only these messages may arrive again.
    pub fn repeated_only(ids: impl IntoIterator<Item = MessageId>) -> Self {
        Self::new(Repeats::Only(ids.into_iter().collect()))
    }

    /// Everything arrives, and nothing arrives again.
    pub fn nothing_repeated() -> Self {
        Self::repeated_only([])
    }

    /// Everything arrives, and may arrive again under these conditions.
    pub fn new(repeats: Repeats) -> Self {
        Self {
            repeats,
            timeout: None,
            skipping: BTreeSet::new(),
            parked: false,
        }
    }

    /// Messages may also be parked.
    #[must_use]
    pub fn or_parked(mut self) -> Self {
        self.parked = true;
        self
    }
}

/// Something that may not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Committed, and gone without having been stored anywhere.
    Lost(Fact, &'static str),
    /// Committed, and still waiting.
    Pending(Fact, String),
    /// Committed, and parked although nothing may be.
    Parked(Fact, String),
    /// Arrived, and never committed.
    Phantom(Box<Offer>),
    /// Arrived, but not as it was committed.
    Altered(Box<Offer>),
    /// Offered before an earlier one of its lane was stored.
    Overtook {
        /// Which.
        late: Fact,
        /// What should have come first.
        earlier: Fact,
    },
    /// Offered again without an excuse.
    Repeated {
        /// Which.
        fact: Fact,
        /// The offers: by whom and under which fencing number.
        offers: Vec<(String, i64)>,
        /// Why this is wrong.
        why: &'static str,
    },
    /// In more than one place at once.
    TwoPlaces(MessageId, Vec<Place>),
    /// Its end contradicts what its last owner was told.
    WrongEnd(Fact, Place, Option<Verdict>),
    /// Two relays offered under the same fencing number.
    SharedEpoch {
        /// The queue.
        queue: String,
        /// The shard.
        shard: u16,
        /// The number.
        epoch: i64,
        /// Who.
        relays: Vec<String>,
    },
    /// What the store's own audit found.
    Audit(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |fact: &Fact| {
            format!(
                "{}/{} version {} ({})",
                fact.queue, fact.aggregate, fact.version, fact.id
            )
        };
        match self {
            Self::Lost(fact, how) => write!(f, "lost: {} {how}", name(fact)),
            Self::Pending(fact, state) => {
                write!(f, "not delivered: {} is still {state}", name(fact))
            }
            Self::Parked(fact, code) => {
                write!(f, "not delivered: {} is parked: {code}", name(fact))
            }
            Self::Phantom(offer) => write!(
                f,
                "never committed: {} arrived from {}",
                offer.item.id, offer.relay
            ),
            Self::Altered(offer) => write!(f, "changed on the way: {:?}", offer.item),
            Self::Overtook { late, earlier } => {
                write!(
                    f,
                    "out of order: {} was offered before {} was stored",
                    name(late),
                    name(earlier)
                )
            }
            Self::Repeated { fact, offers, why } => {
                write!(
                    f,
                    "repeated: {} {why}; offers (relay, epoch): {offers:?}",
                    name(fact)
                )
            }
            Self::TwoPlaces(id, places) => write!(f, "in two places: {id} is in {places:?}"),
            Self::WrongEnd(fact, place, verdict) => {
                write!(
                    f,
                    "wrong end: {} is {place:?} although its last owner was told {verdict:?}",
                    name(fact)
                )
            }
            Self::SharedEpoch {
                queue,
                shard,
                epoch,
                relays,
            } => {
                write!(
                    f,
                    "two owners: {relays:?} used epoch {epoch} of shard {shard} of {queue}"
                )
            }
            Self::Audit(finding) => write!(f, "audit: {finding}"),
        }
    }
}

/// Everything that is wrong.
pub fn check(evidence: &Evidence, rules: &Rules) -> Vec<Violation> {
    let case = Case::new(evidence, rules);
    let mut found = Vec::new();
    found.extend(evidence.audit.iter().cloned().map(Violation::Audit));
    case.origins(&mut found);
    case.places(&mut found);
    case.ends(&mut found);
    case.owners(&mut found);
    case.order(&mut found);
    case.repeats(&mut found);
    found
}

/// The evidence, sorted.
struct Case<'a> {
    evidence: &'a Evidence,
    rules: &'a Rules,
    facts: BTreeMap<MessageId, &'a Fact>,
    offers: BTreeMap<MessageId, Vec<&'a Offer>>,
    places: BTreeMap<MessageId, Vec<&'a Place>>,
}

impl<'a> Case<'a> {
    fn new(evidence: &'a Evidence, rules: &'a Rules) -> Self {
        let mut offers: BTreeMap<MessageId, Vec<&Offer>> = BTreeMap::new();
        for offer in &evidence.offers {
            offers.entry(offer.item.id).or_default().push(offer);
        }
        let mut places: BTreeMap<MessageId, Vec<&Place>> = BTreeMap::new();
        for standing in &evidence.standings {
            places.entry(standing.id).or_default().push(&standing.place);
        }
        let facts = evidence.committed.iter().map(|f| (f.id, f)).collect();
        Self {
            evidence,
            rules,
            facts,
            offers,
            places,
        }
    }

    fn offers_of(&self, id: MessageId) -> &[&'a Offer] {
        self.offers.get(&id).map_or(&[], Vec::as_slice)
    }

    fn place_of(&self, id: MessageId) -> Option<&'a Place> {
        self.places.get(&id).and_then(|p| p.first()).copied()
    }

    fn origins(&self, found: &mut Vec<Violation>) {
        for offer in &self.evidence.offers {
            let item = &offer.item;
            match self.facts.get(&item.id) {
                None => found.push(Violation::Phantom(Box::new(offer.clone()))),
                Some(fact) => {
                    let same = fact.queue == item.queue
                        && fact.aggregate == item.aggregate
                        && fact.version == item.version;
                    if !same {
                        found.push(Violation::Altered(Box::new(offer.clone())));
                    }
                }
            }
        }
    }

    fn places(&self, found: &mut Vec<Violation>) {
        for (id, places) in self.places.iter().filter(|(_, places)| places.len() > 1) {
            found.push(Violation::TwoPlaces(
                *id,
                places.iter().map(|p| (*p).clone()).collect(),
            ));
        }
    }

    /// Every message has come to an end, and to the right one.
    fn ends(&self, found: &mut Vec<Violation>) {
        for fact in &self.evidence.committed {
            let stored = self.offers_of(fact.id).iter().any(|o| o.stored());
            let Some(place) = self.place_of(fact.id) else {
                found.push(Violation::Lost(fact.clone(), "stands nowhere"));
                continue;
            };
            match place {
                Place::Sent if !stored => {
                    found.push(Violation::Lost(
                        fact.clone(),
                        "is in the history as sent and was never stored",
                    ));
                }
                Place::Ended(how) if how != "sent" => {
                    found.push(Violation::Pending(fact.clone(), how.clone()));
                }
                Place::Outbox(state) if !self.may_wait(fact) => {
                    found.push(Violation::Pending(fact.clone(), state.clone()));
                }
                Place::Parked(code) if !self.rules.parked => {
                    found.push(Violation::Parked(fact.clone(), code.clone()));
                }
                _ => {}
            }
            if let Some(last) = self.contradicted(fact.id, place) {
                found.push(Violation::WrongEnd(fact.clone(), place.clone(), last));
            }
        }
    }

    /// A message may wait in the end only behind a parked one of its lane.
    fn may_wait(&self, fact: &Fact) -> bool {
        let before = |f: &&Fact| {
            f.queue == fact.queue && f.aggregate == fact.aggregate && f.version < fact.version
        };
        self.rules.parked
            && !self.rules.skipping.contains(&fact.queue)
            && self
                .evidence
                .committed
                .iter()
                .filter(before)
                .any(|f| matches!(self.place_of(f.id), Some(Place::Parked(_))))
    }

    /// What the last owner was told, when the message's end contradicts it. A stale owner that
    /// settles leaves this trace.
    fn contradicted(&self, id: MessageId, place: &Place) -> Option<Option<Verdict>> {
        let last = self
            .offers_of(id)
            .iter()
            .max_by_key(|o| (o.item.epoch, o.tick))?;
        let verdict = last.decided.map(|d| d.verdict);
        let wrong = match place {
            Place::Sent => verdict != Some(Verdict::Stored),
            // Whoever dies of a message does not hear the answer.
            Place::Parked(code) => {
                verdict == Some(Verdict::Stored) && code != Code::CRASH_SUSPECT.as_str()
            }
            _ => false,
        };
        wrong.then_some(verdict)
    }

    fn owners(&self, found: &mut Vec<Violation>) {
        let mut users: BTreeMap<(&str, u16, i64), BTreeSet<&str>> = BTreeMap::new();
        for offer in &self.evidence.offers {
            let item = &offer.item;
            users
                .entry((&item.queue, item.shard, item.epoch))
                .or_default()
                .insert(&offer.relay);
        }
        for ((queue, shard, epoch), relays) in users.into_iter().filter(|(_, r)| r.len() > 1) {
            let relays = relays.into_iter().map(str::to_owned).collect();
            found.push(Violation::SharedEpoch {
                queue: queue.to_owned(),
                shard,
                epoch,
                relays,
            });
        }
    }
}
