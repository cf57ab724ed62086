//! Order: what is offered for the first time finds everything before it stored.

use std::collections::BTreeMap;

use crate::app::Fact;
use crate::site::Place;
use crate::wire::Verdict;

use super::{Case, Violation};

impl<'a> Case<'a> {
    pub(super) fn order(&self, found: &mut Vec<Violation>) {
        let mut lanes: BTreeMap<(&str, &str), Vec<&Fact>> = BTreeMap::new();
        for fact in &self.evidence.committed {
            lanes
                .entry((&fact.queue, &fact.aggregate))
                .or_default()
                .push(fact);
        }
        for mut lane in lanes.into_values() {
            lane.sort_by_key(|f| f.version);
            self.lane_order(&lane, found);
        }
    }

    fn lane_order(&self, lane: &[&'a Fact], found: &mut Vec<Violation>) {
        for (n, late) in lane.iter().enumerate() {
            let Some(first) = self.offers_of(late.id).first() else {
                continue;
            };
            let overtaken = lane[..n]
                .iter()
                .rev()
                .find(|earlier| !self.resolved_by(earlier, first.tick));
            if let Some(earlier) = overtaken {
                found.push(Violation::Overtook {
                    late: (*late).clone(),
                    earlier: (**earlier).clone(),
                });
            }
        }
    }

    /// Whether a message was out of the way of its successors at this moment.
    fn resolved_by(&self, fact: &Fact, tick: u64) -> bool {
        let told = |wanted: Verdict| {
            self.offers_of(fact.id).iter().any(|o| {
                o.decided
                    .is_some_and(|d| d.verdict == wanted && d.tick < tick)
            })
        };
        if told(Verdict::Stored) {
            return true;
        }
        let skipped = self.rules.skipping.contains(&fact.queue);
        skipped
            && (told(Verdict::Refused) || matches!(self.place_of(fact.id), Some(Place::Parked(_))))
    }
}
