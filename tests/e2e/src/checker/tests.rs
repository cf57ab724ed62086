//! Small made-up histories, each right or wrong in one way.

use std::time::Duration;

use counterfoil_core::MessageId;

use super::*;
use crate::book::Decided;
use crate::wire::Item;

/// A history under construction.
#[derive(Default)]
struct History {
    evidence: Evidence,
    tick: u64,
}

impl History {
    /// Commits messages of one lane.
    fn committed(&mut self, aggregate: &str, versions: std::ops::RangeInclusive<i64>) -> Vec<Fact> {
        let fact = |version| Fact {
            id: MessageId::new(),
            queue: "orders".into(),
            aggregate: aggregate.into(),
            version,
        };
        let facts: Vec<Fact> = versions.map(fact).collect();
        self.evidence.committed.extend(facts.clone());
        facts
    }

    /// A relay offers a message under a fencing number; `None` is never answered.
    fn offered(
        &mut self,
        fact: &Fact,
        relay: &str,
        epoch: i64,
        verdict: Option<Verdict>,
    ) -> &mut Offer {
        self.tick += 2;
        let at = Duration::from_secs(self.tick);
        let decided = verdict.map(|verdict| Decided {
            verdict,
            tick: self.tick + 1,
            at,
        });
        self.evidence.offers.push(Offer {
            tick: self.tick,
            at,
            relay: relay.into(),
            item: Item {
                seq: 1,
                shard: 0,
                epoch,
                id: fact.id,
                queue: fact.queue.clone(),
                aggregate: fact.aggregate.clone(),
                version: fact.version,
                event: "Moved".into(),
                attempt: 1,
            },
            decided,
            replied: decided.map(|d| d.at),
            cut: false,
            seen: decided.is_some(),
        });
        self.evidence.offers.last_mut().expect("it was just pushed")
    }

    fn stored(&mut self, fact: &Fact, relay: &str, epoch: i64) {
        self.offered(fact, relay, epoch, Some(Verdict::Stored));
    }

    fn stands(&mut self, fact: &Fact, place: Place) {
        self.evidence
            .standings
            .push(Standing { id: fact.id, place });
    }

    fn all_sent(mut self) -> Self {
        for fact in self.evidence.committed.clone() {
            self.stands(&fact, Place::Sent);
        }
        self
    }

    fn violations(&self, rules: &Rules) -> Vec<Violation> {
        check(&self.evidence, rules)
    }
}

fn parked() -> Place {
    Place::Parked("UPSTREAM_4XX".into())
}

#[test]
fn a_history_without_a_flaw_passes() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=3);
    lane.iter().for_each(|fact| history.stored(fact, "r", 1));

    let found = history.all_sent().violations(&Rules::nothing_repeated());

    assert_eq!(found, []);
}

#[test]
fn a_message_that_stands_nowhere_is_lost() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history.stored(&lane[0], "r", 1);

    let found = history.violations(&Rules::nothing_repeated());

    assert!(matches!(found[..], [Violation::Lost(..)]), "{found:?}");
}

#[test]
fn a_message_that_is_marked_sent_and_never_arrived_is_lost() {
    let mut history = History::default();
    history.committed("a", 1..=1);

    let found = history.all_sent().violations(&Rules::nothing_repeated());

    assert!(matches!(found[..], [Violation::Lost(..)]), "{found:?}");
}

#[test]
fn what_was_never_committed_must_not_arrive() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history.evidence.committed.clear();
    history.stored(&lane[0], "r", 1);

    let found = history.violations(&Rules::nothing_repeated());

    assert!(matches!(found[..], [Violation::Phantom(_)]), "{found:?}");
}

#[test]
fn what_arrives_is_what_was_committed() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history
        .offered(&lane[0], "r", 1, Some(Verdict::Stored))
        .item
        .version = 7;

    let found = history.all_sent().violations(&Rules::nothing_repeated());

    assert!(matches!(found[..], [Violation::Altered(_)]), "{found:?}");
}

#[test]
fn an_offer_before_the_one_before_it_is_stored_is_out_of_order() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=2);
    history.offered(&lane[0], "r", 1, Some(Verdict::Failed));
    history.stored(&lane[1], "r", 1);
    history.stored(&lane[0], "r", 1);

    let found = history.all_sent().violations(&Rules::nothing_repeated());

    let [Violation::Overtook { late, earlier }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((late.version, earlier.version), (2, 1));
}

#[test]
fn lanes_do_not_wait_for_each_other() {
    let mut history = History::default();
    let (a, b) = (history.committed("a", 1..=2), history.committed("b", 1..=1));
    history.offered(&a[0], "r", 1, Some(Verdict::Failed));
    history.stored(&b[0], "r", 1);
    history.stored(&a[0], "r", 1);
    history.stored(&a[1], "r", 1);

    let found = history.all_sent().violations(&Rules::nothing_repeated());

    assert_eq!(found, []);
}

#[test]
fn a_lane_that_skips_goes_on_behind_a_refused_message_and_one_that_holds_does_not() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=2);
    history.offered(&lane[0], "r", 1, Some(Verdict::Refused));
    history.stored(&lane[1], "r", 1);
    history.stands(&lane[0], parked());
    history.stands(&lane[1], Place::Sent);
    let hold = Rules::nothing_repeated().or_parked();
    let skip = Rules {
        skipping: ["orders".to_owned()].into(),
        ..hold.clone()
    };

    assert_eq!(history.violations(&skip), []);
    let found = history.violations(&hold);
    assert!(
        matches!(found[..], [Violation::Overtook { .. }]),
        "{found:?}"
    );
}

#[test]
fn a_repeat_needs_an_excuse() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history.stored(&lane[0], "r", 1);
    history.stored(&lane[0], "s", 2);
    let history = history.all_sent();

    let found = history.violations(&Rules::nothing_repeated());
    assert!(
        matches!(found[..], [Violation::Repeated { .. }]),
        "{found:?}"
    );
    assert_eq!(history.violations(&Rules::repeated_only([lane[0].id])), []);
    assert_eq!(history.violations(&Rules::new(Repeats::NewOwner)), []);
}

#[test]
fn an_owner_that_had_its_answer_has_no_excuse() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history.stored(&lane[0], "r", 1);
    history.stored(&lane[0], "r", 1);
    let history = history.all_sent();

    for rules in [
        Rules::repeated_only([lane[0].id]),
        Rules::new(Repeats::NewOwner),
    ] {
        let found = history.violations(&rules);
        assert!(
            matches!(found[..], [Violation::Repeated { .. }]),
            "{found:?}"
        );
    }
}

#[test]
fn a_failed_attempt_and_one_without_an_answer_in_time_may_be_repeated() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history.offered(&lane[0], "r", 1, Some(Verdict::Failed));
    history.offered(&lane[0], "r", 1, None);
    history.stored(&lane[0], "r", 1);
    let history = history.all_sent();
    let patient = Rules {
        timeout: Some(Duration::from_secs(1)),
        ..Rules::nothing_repeated()
    };

    assert_eq!(history.violations(&patient), []);
    let found = history.violations(&Rules::nothing_repeated());
    assert!(
        matches!(found[..], [Violation::Repeated { .. }]),
        "{found:?}"
    );
}

#[test]
fn a_disturbance_excuses_what_it_touched_and_nothing_else() {
    let mut history = History::default();
    let (a, b) = (history.committed("a", 1..=1), history.committed("b", 1..=1));
    history.stored(&a[0], "r", 1);
    history.stored(&b[0], "r", 1);
    history.stored(&a[0], "s", 2);
    history.stored(&b[0], "s", 2);
    let history = history.all_sent();
    let repeated = |disturbance: Disturbance| -> Vec<String> {
        let found = history.violations(&Rules::new(Repeats::Near(vec![disturbance])));
        let aggregate = |violation| match violation {
            Violation::Repeated { fact, .. } => fact.aggregate,
            other => panic!("{other}"),
        };
        found.into_iter().map(aggregate).collect()
    };
    let death_of = |relay: &str| Disturbance {
        relay: Some(relay.into()),
        touched: None,
        from: Duration::from_secs(3),
        until: Duration::from_secs(5),
    };

    assert_eq!(
        repeated(death_of("r")),
        ["a"],
        "delivered long before the death"
    );
    assert_eq!(repeated(death_of("x")), ["a", "b"], "nobody's business");
    let touched = Some([a[0].id].into());
    assert_eq!(
        repeated(Disturbance {
            touched,
            ..death_of("r")
        }),
        ["b"],
        "known to be settled"
    );
}

#[test]
fn a_message_has_one_place() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=1);
    history.stored(&lane[0], "r", 1);
    history.stands(&lane[0], Place::Sent);
    history.stands(&lane[0], Place::Outbox("new".into()));

    let found = history.violations(&Rules::nothing_repeated());

    assert!(matches!(found[..], [Violation::TwoPlaces(..)]), "{found:?}");
}

#[test]
fn what_waits_in_the_end_waits_behind_a_parked_message() {
    let mut history = History::default();
    let (a, b) = (history.committed("a", 1..=2), history.committed("b", 1..=1));
    history.offered(&a[0], "r", 1, Some(Verdict::Refused));
    history.stands(&a[0], parked());
    history.stands(&a[1], Place::Outbox("held".into()));
    history.stands(&b[0], Place::Outbox("new".into()));

    let found = history.violations(&Rules::nothing_repeated().or_parked());

    let [Violation::Pending(fact, _)] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(fact.aggregate, "b");
}

#[test]
fn an_end_must_agree_with_what_the_last_owner_was_told() {
    let mut history = History::default();
    let (a, b) = (history.committed("a", 1..=1), history.committed("b", 1..=1));
    // The stale owner's word arrives last and must not count.
    history.offered(&a[0], "new", 2, Some(Verdict::Refused));
    history.offered(&a[0], "stale", 1, Some(Verdict::Stored));
    history.stands(&a[0], Place::Sent);
    history.stored(&b[0], "new", 2);
    history.stands(&b[0], parked());

    let found = history.violations(&Rules::repeated_only([a[0].id]).or_parked());

    assert!(
        matches!(
            found[..],
            [Violation::WrongEnd(..), Violation::WrongEnd(..)]
        ),
        "{found:?}"
    );
}

#[test]
fn a_fencing_number_has_one_owner() {
    let mut history = History::default();
    let lane = history.committed("a", 1..=2);
    history.stored(&lane[0], "r", 1);
    history.stored(&lane[1], "s", 1);

    let found = history.all_sent().violations(&Rules::nothing_repeated());

    assert!(
        matches!(found[..], [Violation::SharedEpoch { .. }]),
        "{found:?}"
    );
}

#[test]
fn what_the_audit_finds_counts() {
    let mut history = History::default();
    history
        .evidence
        .audit
        .push("1 messages stand in two places at once".into());

    let found = history.violations(&Rules::nothing_repeated());

    assert!(matches!(found[..], [Violation::Audit(_)]), "{found:?}");
}
