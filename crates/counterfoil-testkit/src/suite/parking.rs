//! The parking lot: what waits for whom, and the way back.

use chrono::Utc;
use counterfoil_core::desk::Filter;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{Park, Settlement};

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, Relay, id, ids, lane, message, messages, pairs, park, versions,
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
        hold: pairs(&rows[1..]),
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
            sent: pairs(&back),
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
