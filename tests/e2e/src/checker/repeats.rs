//! Repeats: a message is offered again only when its relay could not know, or could not write
//! down, that it had arrived.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil_core::MessageId;

use crate::app::Fact;
use crate::book::Offer;
use crate::wire::Verdict;

use super::{Case, Violation};

/// Something that happened to a relay, so that it may have lost track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disturbance {
    /// Whose; absent means everybody's.
    pub relay: Option<String>,
    /// The messages that it had offered and not settled, where that is known. Then the time does
    /// not matter.
    pub touched: Option<BTreeSet<MessageId>>,
    /// From this time of the book on.
    pub from: Duration,
    /// Until this time.
    pub until: Duration,
}

impl Disturbance {
    fn touches(&self, offer: &Offer) -> bool {
        if self.relay.as_ref().is_some_and(|r| *r != offer.relay) {
            return false;
        }
        if let Some(touched) = &self.touched {
            return touched.contains(&offer.item.id);
        }
        // An offer without an answer lasts until its relay goes away.
        let over = offer.decided.is_some_and(|d| d.at < self.from);
        offer.at <= self.until && !over
    }
}

/// What excuses a repeat after a delivery that should have been the only one.
#[derive(Debug, Clone)]
pub enum Repeats {
    /// The test knows exactly which messages a death or a pause has touched.
    Only(BTreeSet<MessageId>),
    /// Another owner: it cannot know what the last one did not write down.
    NewOwner,
    /// A disturbance of the relay that made the first offer, or the second one.
    Near(Vec<Disturbance>),
}

impl Case<'_> {
    pub(super) fn repeats(&self, found: &mut Vec<Violation>) {
        for fact in &self.evidence.committed {
            let offers = self.offers_of(fact.id);
            for pair in offers.windows(2) {
                let (first, second) = (pair[0], pair[1]);
                if self.gave_up(first, second) {
                    continue;
                }
                if let Some(why) = self.unexcused(fact.id, first, second) {
                    found.push(repeated(fact, offers, why));
                    break;
                }
            }
        }
    }

    /// Whether the relay had reason to try again by itself: it was told so, or got no answer in time.
    fn gave_up(&self, first: &Offer, second: &Offer) -> bool {
        let verdict = first
            .decided
            .filter(|d| d.tick < second.tick)
            .map(|d| d.verdict);
        match verdict {
            Some(Verdict::Failed | Verdict::Refused | Verdict::Away | Verdict::HungUp) => true,
            Some(Verdict::Stored) | None => {
                let waited = first
                    .replied
                    .unwrap_or(second.at)
                    .min(second.at)
                    .saturating_sub(first.at);
                // A little less, because the relay's clock started before the book's.
                let late = |limit: Duration| waited >= limit.mul_f64(0.8);
                first.cut || self.rules.timeout.is_some_and(late)
            }
        }
    }

    fn unexcused(&self, id: MessageId, first: &Offer, second: &Offer) -> Option<&'static str> {
        let same_owner = first.relay == second.relay && first.item.epoch == second.item.epoch;
        if same_owner && first.seen {
            return Some("by an owner that had its answer");
        }
        let excused = match &self.rules.repeats {
            Repeats::Only(ids) => ids.contains(&id),
            Repeats::NewOwner => !same_owner,
            Repeats::Near(disturbances) => disturbances
                .iter()
                .any(|d| d.touches(first) || d.touches(second)),
        };
        (!excused).then_some("and nothing had happened to its relay")
    }
}

fn repeated(fact: &Fact, offers: &[&Offer], why: &'static str) -> Violation {
    let offers = offers
        .iter()
        .map(|o| (o.relay.clone(), o.item.epoch))
        .collect();
    Violation::Repeated {
        fact: fact.clone(),
        offers,
        why,
    }
}
