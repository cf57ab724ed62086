//! The parking lot: what waits for whom, and the way back.

use chrono::Utc;
use counterfoil_core::desk::Filter;
use counterfoil_core::explain::Facts;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{Park, Reroute, Settlement};

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, Relay, id, ids, keys, lane, message, messages, park, versions,
};
use crate::harness::Harness;

async fn park_as(relay: &Relay, park: Park) {
    relay
        .settle(
            QUEUE,
            &Settlement {
                park: vec![park],
                ..Settlement::default()
            },
        )
        .await;
}

/// Three messages of one aggregate: the first is parked, the others are held behind it.
async fn parked_head<H: Harness>(t: &Fixture<H>) -> (Relay, Vec<RawRow>) {
    t.put(&messages("a", 3)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let stuck = Settlement {
        park: vec![park(&rows[0])],
        hold: keys(&rows[1..]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &stuck).await;
    (relay, rows)
}

async fn redrive<H: Harness>(t: &Fixture<H>, row: &RawRow) -> bool {
    let answer = t
        .desk
        .redrive(&[id(row).to_string()], false, "ann")
        .await
        .unwrap();
    assert_eq!(answer.redriven.len() + answer.refused.len(), 1);
    answer.redriven == [id(row)]
}

async fn state_in_lot<H: Harness>(t: &Fixture<H>, row: &RawRow) -> String {
    for state in ["pending", "redriven", "delivered", "ignored"] {
        let filter = Filter {
            state: Some(state.into()),
            ..Filter::default()
        };
        if t.desk
            .parked(&filter)
            .await
            .unwrap()
            .iter()
            .any(|e| e.seq == row.seq)
        {
            return state.into();
        }
    }
    "nowhere".into()
}

/// A parked message leaves the outbox and says why.
pub async fn a_parked_message_is_listed_with_its_reason<H: Harness>(t: Fixture<H>) {
    let all = [message("a", 7), message("b", 1).queue(OTHER)];
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);

    relay.park(QUEUE, &row).await;

    assert!(relay.everything(QUEUE).await.is_empty());
    let listed = t.desk.parked(&Filter::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    let entry = &listed[0];
    assert_eq!((entry.seq, &entry.id), (row.seq, &all[0].id.to_string()));
    assert_eq!((entry.queue.as_str(), entry.version), (QUEUE, Some(7)));
    assert_eq!(entry.aggregate, Some(lane("a")));
    assert_eq!(
        (entry.event_type.as_str(), entry.state.as_str()),
        ("OrderPaid", "pending")
    );
    assert_eq!(
        (entry.code.as_deref(), entry.attempts),
        (Some("UPSTREAM_4XX"), 1)
    );
    assert_eq!(entry.error.as_deref(), Some("410 Gone"));
    assert!(entry.ended_at.is_some());
    let shown = t.desk.show(&entry.id).await.unwrap().unwrap();
    assert_eq!(shown.place, "parked");
    assert_eq!(shown.payload.as_deref(), Some(r#"{"version":7}"#));
    assert_eq!(
        shown
            .events
            .iter()
            .map(|e| e.kind.as_str())
            .collect::<Vec<_>>(),
        ["parked"]
    );
}

/// Under `hold`, everything later of the aggregate waits for the parked one.
pub async fn a_parked_message_holds_its_aggregate<H: Harness>(t: Fixture<H>) {
    let (relay, _) = parked_head(&t).await;
    t.put(&[message("a", 4), message("b", 1)]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(
        rows.iter().map(|r| r.behind).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(relay.runnable(QUEUE).await, []);
    assert!(relay.lane(QUEUE, &lane("a")).await.is_empty());
}

/// The same aggregate in another queue has an order of its own.
pub async fn a_parked_message_holds_nobody_in_other_queues<H: Harness>(t: Fixture<H>) {
    let (_, _) = parked_head(&t).await;
    t.put(&[message("a", 1).queue(OTHER)]).await;
    let other = t.relay(&[OTHER]).await;

    let rows = other.read(OTHER).await;

    assert!(!rows[0].behind);
}

/// Under `skip`, the aggregate goes on.
pub async fn a_message_parked_without_hold_blocks_nobody<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 3)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.hold(QUEUE, &rows[1..2]).await;

    park_as(
        &relay,
        Park {
            hold: false,
            ..park(&rows[0])
        },
    )
    .await;

    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
    relay
        .sent(QUEUE, &relay.lane(QUEUE, &lane("a")).await)
        .await;
    let rest = relay.read(QUEUE).await;
    assert_eq!(versions(&rest), [3]);
    assert!(!rest[0].behind);
}

/// Redriven: the same id, the same number, and still the head of its lane.
pub async fn a_redriven_message_comes_back_under_the_same_id<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;

    assert!(redrive(&t, &rows[0]).await);

    let back = relay.waiting(QUEUE).await;
    assert_eq!(ids(&back), ids(&rows[..1]));
    assert_eq!((back[0].seq, back[0].shard), (rows[0].seq, rows[0].shard));
    assert_eq!(back[0].state, RowState::Retrying);
    assert!(!back[0].behind, "its own record does not stand in its way");
    assert_eq!(
        (&back[0].payload, back[0].version),
        (&rows[0].payload, rows[0].version)
    );
    assert_eq!(back[0].created_at, rows[0].created_at);
    assert!(
        relay.read(QUEUE).await.is_empty(),
        "it comes by one way only"
    );
    assert_eq!(state_in_lot(&t, &rows[0]).await, "redriven");
}

/// Redriven is now, whatever time the message once waited for.
pub async fn a_redriven_message_is_due_at_once<H: Harness>(t: Fixture<H>) {
    t.put(&[message("a", 1).not_before(Utc::now() + LATER)])
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    relay.park(QUEUE, &row).await;

    assert!(redrive(&t, &row).await);

    assert_eq!(ids(&relay.waiting(QUEUE).await), [id(&row)]);
}

/// The block stays until the redriven message is settled; then the lane goes on.
pub async fn a_redriven_message_lifts_its_block_when_it_is_sent<H: Harness>(t: Fixture<H>) {
    for keep_sent in [false, true] {
        let (relay, rows) = parked_head(&t).await;
        assert!(redrive(&t, &rows[0]).await);
        assert_eq!(
            relay.runnable(QUEUE).await,
            [],
            "redriven is not yet settled"
        );
        t.put(&[message("a", 4)]).await;
        assert!(relay.read(QUEUE).await[0].behind);

        let back = relay.waiting(QUEUE).await;
        let sent = Settlement {
            sent: keys(&back),
            keep_sent,
            ..Settlement::default()
        };
        relay.settle(QUEUE, &sent).await;

        assert_eq!(state_in_lot(&t, &rows[0]).await, "delivered");
        assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
        assert_eq!(versions(&relay.lane(QUEUE, &lane("a")).await), [2, 3]);
        let shown = t
            .desk
            .show(&id(&rows[0]).to_string())
            .await
            .unwrap()
            .unwrap();
        let kinds: Vec<_> = shown.events.iter().map(|e| e.kind.as_str()).collect();
        assert_eq!(kinds, ["parked", "redriven", "delivered"]);
        assert_eq!(shown.events[1].actor.as_deref(), Some("ann"));
        let audit = t.desk.audit().await.unwrap();
        assert_eq!(audit.findings(keep_sent), Vec::<String>::new());
        relay.sent(QUEUE, &relay.everything(QUEUE).await).await;
        relay.store.leave(&relay.id).await.unwrap();
    }
}

/// A redriven message that fails once more waits as a retry; its block stays.
pub async fn a_redriven_message_may_fail_and_be_tried_again<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;
    assert!(redrive(&t, &rows[0]).await);

    relay.retry(QUEUE, &relay.waiting(QUEUE).await[0]).await;

    assert_eq!(relay.runnable(QUEUE).await, []);
    assert_eq!(state_in_lot(&t, &rows[0]).await, "redriven");
    t.harness.make_due().await;
    relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
    assert_eq!(state_in_lot(&t, &rows[0]).await, "delivered");
    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
}

/// Parked again, the record is open again, and can be redriven again.
pub async fn parking_again_reopens_the_record<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;
    for attempts in 2..4 {
        assert!(redrive(&t, &rows[0]).await);
        let back = relay.waiting(QUEUE).await.remove(0);

        park_as(
            &relay,
            Park {
                attempts,
                error: "still gone".into(),
                ..park(&back)
            },
        )
        .await;

        assert!(relay.everything(QUEUE).await.is_empty());
        let listed = t.desk.parked(&Filter::default()).await.unwrap();
        assert_eq!(listed.len(), 1, "one record, however often");
        assert_eq!(
            (listed[0].seq, listed[0].state.as_str()),
            (rows[0].seq, "pending")
        );
        assert_eq!(
            (listed[0].attempts, listed[0].error.as_deref()),
            (attempts, Some("still gone"))
        );
    }
    assert_eq!(
        t.desk.audit().await.unwrap().findings(true),
        Vec::<String>::new()
    );
}

/// Whoever asks hears of the last parking, not of the first.
pub async fn a_message_that_is_parked_again_tells_the_last_time<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;
    let parked_at = async || match t.desk.facts(&id(&rows[0]).to_string()).await.unwrap() {
        Facts::Parked { at, .. } => at,
        other => panic!("{other:?}"),
    };
    let first = parked_at().await;
    assert!(redrive(&t, &rows[0]).await);
    let back = relay.waiting(QUEUE).await.remove(0);
    // Times have milliseconds in some databases.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;

    relay.park(QUEUE, &back).await;

    assert!(parked_at().await > first);
}

/// What comes back into the unrouted queue is replaced by copies: its record is over.
pub async fn a_redriven_message_that_is_rerouted_closes_its_record<H: Harness>(t: Fixture<H>) {
    let mut unrouted = message("a", 1);
    unrouted.queue = None;
    t.put(&[unrouted]).await;
    let relay = t.relay(&["", QUEUE, OTHER]).await;
    let row = relay.read("").await.remove(0);
    relay.park("", &row).await;
    assert!(redrive(&t, &row).await);
    let back = relay.waiting("").await.remove(0);

    let copies = [QUEUE, OTHER].map(|queue| (id(&back).derive(queue), queue.to_owned()));
    let reroute = vec![Reroute {
        row: back.key(),
        copies: copies.to_vec(),
    }];
    relay
        .settle(
            "",
            &Settlement {
                reroute,
                ..Settlement::default()
            },
        )
        .await;

    assert_eq!(state_in_lot(&t, &row).await, "delivered");
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked), (2, 0));
    assert_eq!(audit.findings(true), Vec::<String>::new());
    let shown = t.desk.show(&id(&row).to_string()).await.unwrap().unwrap();
    assert_eq!(shown.events.last().unwrap().kind, "rerouted");
}

/// Whoever redrives second is told so.
pub async fn a_message_is_redriven_once<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;

    assert!(redrive(&t, &rows[0]).await);
    assert!(!redrive(&t, &rows[0]).await, "it is on its way");
    relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
    assert!(!redrive(&t, &rows[0]).await, "it has arrived");

    assert!(relay.waiting(QUEUE).await.is_empty());
}

/// Naming a message twice in one call redrives it once.
pub async fn a_message_that_is_named_twice_is_redriven_once<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;
    let twice = [id(&rows[0]).to_string(), id(&rows[0]).to_string()];

    let answer = t.desk.redrive(&twice, false, "ann").await.unwrap();

    assert_eq!(answer.redriven, [id(&rows[0])]);
    assert_eq!(relay.waiting(QUEUE).await.len(), 1);
}

/// What a handler wants confirmed goes back only with a person's word.
pub async fn a_confirmation_that_is_needed_must_be_given<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    park_as(
        &relay,
        Park {
            confirm: true,
            ..park(&row)
        },
    )
    .await;
    let ids = [id(&row).to_string()];

    let without = t.desk.redrive(&ids, false, "ann").await.unwrap();
    let with = t.desk.redrive(&ids, true, "ann").await.unwrap();

    assert!(without.redriven.is_empty());
    assert_eq!(without.refused.len(), 1);
    assert!(!without.refused[0].1.is_empty(), "refused with a reason");
    assert_eq!(with.redriven, [id(&row)]);
}

/// Many at once: lowest number first; what cannot go is refused with a reason.
pub async fn a_batch_is_redriven_lowest_first<H: Harness>(t: Fixture<H>) {
    t.put(&(0..4).map(|n| message(n, n)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let all = Settlement {
        park: rows[..3].iter().map(park).collect(),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &all).await;
    let named: Vec<String> = [2, 0, 3, 1]
        .iter()
        .map(|n| id(&rows[*n]).to_string())
        .collect();
    let named = [named, vec!["no such thing".into()]].concat();

    let answer = t.desk.redrive(&named, false, "ann").await.unwrap();

    assert_eq!(answer.redriven, ids(&rows[..3]));
    let refused: Vec<&String> = answer.refused.iter().map(|r| &r.0).collect();
    assert_eq!(refused, [&named[2], &named[4]]);
    assert!(answer.refused.iter().all(|r| !r.1.is_empty()));
    assert_eq!(relay.waiting(QUEUE).await.len(), 3);
    assert_eq!(relay.read(QUEUE).await.len(), 1);
}

/// Parks every row, each so that its aggregate waits for it.
async fn park_all(relay: &Relay, rows: &[RawRow]) {
    let all = Settlement {
        park: rows.iter().map(park).collect(),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &all).await;
}

fn named(rows: &[RawRow]) -> Vec<String> {
    rows.iter().map(|row| id(row).to_string()).collect()
}

/// A later message of a lane does not overtake an earlier one that still waits for a decision.
pub async fn a_redrive_does_not_overtake_what_is_parked_before_it<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 3)).await;
    t.put(&[message("a", 9).queue(OTHER), message("b", 9)])
        .await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    let rows = relay.read(QUEUE).await;
    park_all(&relay, &rows).await;
    relay.park(OTHER, &relay.read(OTHER).await[0]).await;
    let first = id(&rows[0]).to_string();

    let later = t.desk.redrive(&named(&rows[1..]), true, "ann").await;
    let later = later.unwrap();

    assert_eq!(later.redriven, [id(&rows[3])], "another aggregate goes");
    let refused: Vec<&String> = later.refused.iter().map(|r| &r.0).collect();
    assert_eq!(refused, named(&rows[1..3]).iter().collect::<Vec<_>>());
    for (_, why) in &later.refused {
        let expected = format!(
            "{first} of the same aggregate is parked before it: redrive or ignore that one first"
        );
        assert_eq!(*why, expected);
    }
    assert_eq!(state_in_lot(&t, &rows[1]).await, "pending");

    let ignored = t.desk.ignore(&[first], "never mind", "ann").await.unwrap();
    assert_eq!(ignored.ignored, [id(&rows[0])]);
    let now = t.desk.redrive(&named(&rows[1..3]), true, "ann").await;
    assert_eq!(now.unwrap().redriven, ids(&rows[1..3]));
}

/// An earlier message that is refused itself is still in the way.
pub async fn a_refused_redrive_keeps_the_later_ones_back<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let confirm = Park {
        confirm: true,
        ..park(&rows[0])
    };
    park_as(&relay, confirm).await;
    relay.park(QUEUE, &rows[1]).await;

    let without = t.desk.redrive(&named(&rows), false, "ann").await.unwrap();
    let with = t.desk.redrive(&named(&rows), true, "ann").await.unwrap();

    assert_eq!((without.redriven.len(), without.refused.len()), (0, 2));
    assert_eq!(with.redriven, ids(&rows));
}

/// Several of one aggregate go back together: one after the other, before what waits behind them.
pub async fn an_aggregate_is_redriven_in_its_order<H: Harness>(t: Fixture<H>) {
    for hold in [true, false] {
        t.put(&messages("a", 5)).await;
        let relay = t.relay(&[QUEUE]).await;
        let rows = relay.read(QUEUE).await;
        let stuck = Settlement {
            park: rows[..3].iter().map(|r| Park { hold, ..park(r) }).collect(),
            hold: keys(&rows[3..]),
            ..Settlement::default()
        };
        relay.settle(QUEUE, &stuck).await;
        let mut backwards = named(&rows[..3]);
        backwards.reverse();

        let answer = t.desk.redrive(&backwards, false, "ann").await.unwrap();

        assert_eq!(answer.redriven, ids(&rows[..3]));
        let due = relay.waiting(QUEUE).await;
        assert_eq!(versions(&due), [1], "the first alone is due");
        assert_eq!(relay.runnable(QUEUE).await, []);
        relay.sent(QUEUE, &due).await;
        assert!(relay.waiting(QUEUE).await.is_empty());
        assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
        let rest = relay.lane(QUEUE, &lane("a")).await;
        assert_eq!(versions(&rest), [2, 3, 4, 5]);
        assert_eq!(state_in_lot(&t, &rows[1]).await, "redriven");

        relay.park(QUEUE, &rest[0]).await;
        assert_eq!(relay.runnable(QUEUE).await, [], "it holds again");
        assert!(redrive(&t, &rows[1]).await);
        relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
        relay.sent(QUEUE, &relay.everything(QUEUE).await).await;
        assert_eq!(state_in_lot(&t, &rows[2]).await, "delivered");
        let audit = t.desk.audit().await.unwrap();
        assert_eq!((audit.pending, audit.parked), (0, 0));
        assert_eq!(audit.findings(false), Vec::<String>::new());
        relay.store.leave(&relay.id).await.unwrap();
    }
}

/// What goes back while an earlier one of its aggregate is being tried waits behind that.
pub async fn a_redriven_message_waits_behind_an_earlier_retry<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.park(QUEUE, &rows[1]).await;
    relay.retry(QUEUE, &rows[0]).await;

    assert!(redrive(&t, &rows[1]).await);

    assert!(relay.everything(QUEUE).await.is_empty());
    t.harness.make_due().await;
    assert_eq!(versions(&relay.everything(QUEUE).await), [1]);
    relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
    assert_eq!(versions(&relay.everything(QUEUE).await), [2]);
}

/// An ignored message lets its aggregate go on, and says who gave it up and why.
pub async fn an_ignored_message_lifts_its_block<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;
    let one = named(&rows[..1]);

    let answer = t.desk.ignore(&one, "refunded by hand", "ann").await;

    let answer = answer.unwrap();
    assert_eq!(answer.ignored, [id(&rows[0])]);
    assert!(answer.refused.is_empty());
    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
    assert_eq!(versions(&relay.lane(QUEUE, &lane("a")).await), [2, 3]);
    assert_eq!(state_in_lot(&t, &rows[0]).await, "ignored");
    let shown = t.desk.show(&one[0]).await.unwrap().unwrap();
    let last = shown.events.last().unwrap();
    assert_eq!(
        (last.kind.as_str(), last.actor.as_deref()),
        ("ignored", Some("ann"))
    );
    assert_eq!(last.detail.as_deref(), Some("refunded by hand"));
    let sentence = t.desk.facts(&one[0]).await.unwrap().sentence();
    assert!(sentence.contains("and ignored"), "{sentence}");
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.parked, audit.ignored, audit.pending), (0, 1, 2));
    assert_eq!(audit.findings(true), Vec::<String>::new());
}

/// Only what waits for a decision can be ignored; the rest is refused with a reason.
pub async fn only_what_is_pending_can_be_ignored<H: Harness>(t: Fixture<H>) {
    t.put(&(0..4).map(|n| message(n, n)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    park_all(&relay, &rows[..3]).await;
    assert!(redrive(&t, &rows[1]).await);
    let twice = named(&rows[2..3]);
    let mut all = [named(&rows), twice, vec!["no such thing".into()]].concat();

    let answer = t.desk.ignore(&all, "?", "ann").await.unwrap();

    assert_eq!(answer.ignored, [id(&rows[0]), id(&rows[2])]);
    all.retain(|n| !named(&[rows[0].clone(), rows[2].clone()]).contains(n));
    let refused: Vec<String> = answer.refused.iter().map(|r| r.0.clone()).collect();
    assert_eq!(refused, all);
    assert!(answer.refused.iter().all(|r| !r.1.is_empty()));
    let again = t.desk.ignore(&named(&rows[..1]), "?", "ann").await.unwrap();
    assert_eq!((again.ignored.len(), again.refused.len()), (0, 1));
    let shown = t.desk.show(&named(&rows)[2]).await.unwrap().unwrap();
    let ignored = shown.events.iter().filter(|e| e.kind == "ignored");
    assert_eq!(ignored.count(), 1, "named twice, ignored once");
}

/// An ignored message comes back with a confirmation only, also when it was cancelled.
pub async fn an_ignored_message_comes_back_when_it_is_confirmed<H: Harness>(t: Fixture<H>) {
    t.put(&[message("a", 1), message("b", 1)]).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    park_all(&relay, &rows).await;
    let all = named(&rows);
    t.desk.ignore(&all[..1], "never mind", "ann").await.unwrap();
    assert!(redrive(&t, &rows[1]).await);
    assert!(t.desk.cancel(&all[1], "never mind", "ann").await.unwrap());

    let without = t.desk.redrive(&all, false, "ann").await.unwrap();
    let with = t.desk.redrive(&all, true, "ann").await.unwrap();

    assert_eq!((without.redriven.len(), without.refused.len()), (0, 2));
    assert_eq!(with.redriven, ids(&rows));
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.ignored, audit.cancelled), (2, 0, 0));
    assert_eq!(audit.findings(true), Vec::<String>::new());
    let back = relay.waiting(QUEUE).await;
    assert_eq!(ids(&back), ids(&rows));
    relay.sent_and_kept(QUEUE, &back).await;
    assert_eq!(t.desk.audit().await.unwrap().sent_kept, 2);
}

/// A compensation is enqueued together with the parking.
pub async fn a_compensation_is_enqueued_with_the_parking<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    let row = relay.read(QUEUE).await.remove(0);
    let refund = message("a", 1).queue(OTHER);
    let park = Park {
        follow_up: Some(refund.clone()),
        ..park(&row)
    };
    let settlement = Settlement {
        park: vec![park],
        ..Settlement::default()
    };
    let mut stale = relay.fence(QUEUE);
    stale.shards.iter_mut().for_each(|s| s.1 -= 1);

    relay.store.settle(&stale, &settlement).await.unwrap();
    assert!(relay.read(OTHER).await.is_empty(), "not for a stale owner");
    relay.settle(QUEUE, &settlement).await;

    assert_eq!(ids(&relay.read(OTHER).await), [refund.id]);
}

/// Cancelling a redriven message decides about it: nobody waits for it any more.
pub async fn cancelling_a_redriven_message_lifts_its_block<H: Harness>(t: Fixture<H>) {
    let (relay, rows) = parked_head(&t).await;
    assert!(redrive(&t, &rows[0]).await);

    assert!(
        t.desk
            .cancel(&id(&rows[0]).to_string(), "refunded by hand", "ann")
            .await
            .unwrap()
    );

    assert!(relay.waiting(QUEUE).await.is_empty());
    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
    assert_eq!(state_in_lot(&t, &rows[0]).await, "ignored");
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.cancelled, audit.ignored), (1, 1));
    assert_eq!(audit.findings(true), Vec::<String>::new());
}

/// A message without an aggregate can be parked, and comes back.
pub async fn a_message_without_an_aggregate_is_parked_and_redriven<H: Harness>(t: Fixture<H>) {
    let mut alone = message("a", 1);
    alone.aggregate = None;
    t.put(&[alone.clone()]).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.park(QUEUE, &relay.read(QUEUE).await[0]).await;

    let answer = t
        .desk
        .redrive(&[alone.id.to_string()], false, "ann")
        .await
        .unwrap();

    assert_eq!(answer.redriven, [alone.id]);
    let back = relay.waiting(QUEUE).await;
    assert_eq!(ids(&back), [alone.id]);
    relay.sent(QUEUE, &back).await;
    assert_eq!(t.desk.audit().await.unwrap().pending, 0);
}
