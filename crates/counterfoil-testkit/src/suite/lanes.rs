//! Order within an aggregate: who waits behind whom, and who goes next.

use counterfoil_core::message::{Aggregate, Message};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Settlement, ShardSet};

use crate::fixture::{
    Fixture, LATER, OTHER, PLENTY, QUEUE, ids, ids_of, judge, lane, message, messages, pairs,
    retry, versions,
};
use crate::harness::{ForeignRow, Harness};
use crate::suite::reading::{FEW, fits, sizes};

/// What comes after a retry waits; other aggregates and other queues do not.
pub async fn rows_behind_a_retry_are_flagged<H: Harness>(t: Fixture<H>) {
    t.put(&[message("a", 1)]).await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    relay.retry(QUEUE, &relay.read(QUEUE).await[0]).await;
    let of_other_type = Message::json("invoice", "a", "Sent", &1)
        .unwrap()
        .queue(QUEUE);
    let alone = Message::new("Tick", counterfoil_core::Payload::Json("1".into())).queue(QUEUE);
    t.put(&[message("a", 2), message("b", 1), of_other_type, alone])
        .await;
    t.put(&[message("a", 1).queue(OTHER)]).await;

    let rows = relay.read(QUEUE).await;
    let others = relay.read(OTHER).await;

    assert_eq!(
        rows.iter().map(|r| r.behind).collect::<Vec<_>>(),
        [true, false, false, false]
    );
    assert_eq!(others.iter().map(|r| r.behind).collect::<Vec<_>>(), [false]);
}

/// What comes after a held row waits too, although the head is already gone.
pub async fn rows_behind_a_held_row_are_flagged<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let both = Settlement {
        sent: pairs(&rows[..1]),
        hold: pairs(&rows[1..]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &both).await;
    t.put(&[message("a", 3)]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(versions(&rows), [3]);
    assert!(rows[0].behind);
}

/// Held rows come in order, and only when nothing is in their way.
pub async fn held_rows_come_when_the_head_is_settled<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 4);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let stuck = Settlement {
        retry: vec![retry(&rows[0], LATER)],
        hold: pairs(&rows[1..]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &stuck).await;
    assert!(relay.read(QUEUE).await.is_empty());
    assert!(
        relay.lane(QUEUE, &lane("a")).await.is_empty(),
        "the retry blocks"
    );
    assert_eq!(relay.runnable(QUEUE).await, []);
    t.harness.make_due().await;
    assert!(
        relay.lane(QUEUE, &lane("a")).await.is_empty(),
        "a due retry blocks as well"
    );

    let head = relay.waiting(QUEUE).await;
    relay.sent(QUEUE, &head).await;

    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
    let held = relay.lane(QUEUE, &lane("a")).await;
    assert_eq!(ids(&held), ids_of(&all[1..]));
    assert!(
        held.iter()
            .all(|r| r.state == RowState::Held && !r.behind && !r.early)
    );
    relay.sent(QUEUE, &held).await;
    assert_eq!(relay.runnable(QUEUE).await, []);
}

/// A held row that fails becomes the head, and the rest waits for it again.
pub async fn a_held_row_that_fails_blocks_the_rest<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 3)).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.hold(QUEUE, &relay.read(QUEUE).await).await;
    let held = relay.lane(QUEUE, &lane("a")).await;

    relay.retry(QUEUE, &held[0]).await;

    assert_eq!(relay.runnable(QUEUE).await, []);
    assert!(relay.lane(QUEUE, &lane("a")).await.is_empty());
    t.harness.make_due().await;
    relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
    assert_eq!(versions(&relay.lane(QUEUE, &lane("a")).await), [2, 3]);
}

/// At most so many of each lane, from the front; lanes that are blocked or empty are left out.
pub async fn lanes_are_read_from_the_front_up_to_a_limit<H: Harness>(t: Fixture<H>) {
    t.put(&[messages("a", 5), messages("b", 3), messages("c", 2)].concat())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    relay.hold(QUEUE, &relay.read(QUEUE).await).await;
    let c = relay.lane(QUEUE, &lane("c")).await;
    relay.retry(QUEUE, &c[0]).await;
    let wanted = [lane("b"), lane("a"), lane("c"), lane("nobody")];

    let rows = relay
        .store
        .read_lanes(QUEUE, &wanted, 2, PLENTY)
        .await
        .unwrap()
        .rows;
    let nothing = relay
        .store
        .read_lanes(QUEUE, &[], 2, PLENTY)
        .await
        .unwrap()
        .rows;
    let elsewhere = relay
        .store
        .read_lanes(OTHER, &wanted, 2, PLENTY)
        .await
        .unwrap()
        .rows;

    let of = |name: &str| -> Vec<i64> {
        let of_lane = rows
            .iter()
            .filter(|r| r.aggregate_id.as_deref() == Some(name));
        of_lane.map(|r| r.version.unwrap()).collect()
    };
    assert_eq!((of("a"), of("b"), rows.len()), (vec![1, 2], vec![1, 2], 4));
    assert!(nothing.is_empty() && elsewhere.is_empty());
}

/// Exactly the lanes with held rows that nothing holds back, in the shards asked for.
pub async fn runnable_lanes_are_found_exactly<H: Harness>(t: Fixture<H>) {
    let names: Vec<String> = (0..20).map(|n| format!("free-{n:02}")).collect();
    for name in &names {
        t.put(&messages(name, 2)).await;
    }
    let relay = t.relay(&[QUEUE, OTHER]).await;
    relay.hold(QUEUE, &relay.read(QUEUE).await).await;
    t.put(&[messages("retrying", 2), messages("parked", 2)].concat())
        .await;
    let rows = relay.read(QUEUE).await;
    relay.retry(QUEUE, &rows[0]).await;
    relay.park(QUEUE, &rows[2]).await;
    relay.hold(QUEUE, &[rows[1].clone(), rows[3].clone()]).await;
    t.put(&messages("new", 2)).await;
    t.put(&[message("elsewhere", 1).queue(OTHER)]).await;
    relay.hold(OTHER, &relay.read(OTHER).await).await;

    let found = relay.runnable(QUEUE).await;

    let expected: Vec<Aggregate> = names.iter().map(lane).collect();
    assert_eq!(found, expected);
    assert_eq!(relay.runnable(OTHER).await, [lane("elsewhere")]);
    let store = &relay.store;
    let few = store
        .runnable_lanes(QUEUE, relay.shards(QUEUE), 3)
        .await
        .unwrap();
    assert!(
        few.len() == 3 && few.iter().all(|l| expected.contains(l)),
        "the limit is a limit"
    );
    let none = store
        .runnable_lanes(QUEUE, ShardSet::EMPTY, 100)
        .await
        .unwrap();
    assert_eq!(none, []);
    let mut by_shard = Vec::new();
    for shard in 0..store.shards() {
        let one = [shard].into_iter().collect();
        by_shard.extend(store.runnable_lanes(QUEUE, one, 100).await.unwrap());
    }
    by_shard.sort();
    assert_eq!(by_shard, expected, "each lane is in one shard");
}

/// A limit counts lanes that can run: blocked ones must not use it up.
pub async fn blocked_lanes_do_not_use_up_the_limit<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    for name in ["a", "b", "c", "z"] {
        t.put(&messages(name, 2)).await;
        let rows = relay.read(QUEUE).await;
        relay.hold(QUEUE, &rows[1..]).await;
        if name == "z" {
            relay.sent(QUEUE, &rows[..1]).await;
        } else {
            relay.retry(QUEUE, &rows[0]).await;
        }
    }

    let found = relay
        .store
        .runnable_lanes(QUEUE, relay.shards(QUEUE), 1)
        .await
        .unwrap();

    assert_eq!(found, [lane("z")]);
}

/// Names are compared byte by byte, and look-alikes never wait for each other.
pub async fn aggregates_whose_names_look_alike_are_different<H: Harness>(t: Fixture<H>) {
    let names = [
        "caf\u{e9}",
        "cafe\u{301}",
        "cafe",
        "CAFE",
        "cafe ",
        " cafe",
        "ca%e",
        "ca_e",
    ];
    let relay = t.relay(&[QUEUE]).await;
    t.put(&[message(names[0], 1)]).await;
    relay.retry(QUEUE, &relay.read(QUEUE).await[0]).await;

    t.put(
        &names
            .iter()
            .map(|name| message(name, 2))
            .collect::<Vec<_>>(),
    )
    .await;
    let rows = relay.read(QUEUE).await;

    let behind: Vec<_> = rows
        .iter()
        .filter(|r| r.behind)
        .map(|r| r.aggregate_id.clone())
        .collect();
    assert_eq!(behind, [Some(names[0].to_owned())]);
    relay.hold(QUEUE, &rows).await;
    let mut expected: Vec<Aggregate> = names[1..].iter().map(lane).collect();
    expected.sort();
    assert_eq!(relay.runnable(QUEUE).await, expected);
    for name in &expected {
        assert_eq!(relay.lane(QUEUE, name).await.len(), 1, "{name}");
    }
}

/// Where the type ends and the id begins is part of the name.
pub async fn a_slash_in_a_name_does_not_join_two_aggregates<H: Harness>(t: Fixture<H>) {
    let of = |kind: &str, id: &str| Message::json(kind, id, "Sent", &1).unwrap().queue(QUEUE);
    let relay = t.relay(&[QUEUE]).await;
    t.put(&[of("a", "b/c")]).await;
    relay.retry(QUEUE, &relay.read(QUEUE).await[0]).await;

    t.put(&[of("a/b", "c"), of("", "a/b/c"), of("a", "b/c")])
        .await;

    let rows = relay.read(QUEUE).await;
    let behind: Vec<bool> = rows.iter().map(|r| r.behind).collect();
    assert_eq!(behind, [false, false, true]);
    relay.hold(QUEUE, &rows).await;
    let free = [Aggregate::new("", "a/b/c"), Aggregate::new("a/b", "c")];
    assert_eq!(relay.runnable(QUEUE).await, free);
    for lane in &free {
        assert_eq!(relay.lane(QUEUE, lane).await.len(), 1, "{lane}");
    }
}

/// A type that was left out and an empty one are the same: both are written by honest people.
pub async fn an_absent_and_an_empty_type_are_one_lane<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let empty = Message::json("", "a", "OrderPaid", &1)
        .unwrap()
        .queue(QUEUE);
    t.put(&[empty]).await;
    relay.retry(QUEUE, &relay.read(QUEUE).await[0]).await;

    let absent = ForeignRow {
        queue: Some(QUEUE.into()),
        aggregate_id: Some("a".into()),
        ..ForeignRow::default()
    };
    t.foreign(&[absent]).await;

    let rows = relay.read(QUEUE).await;
    assert_eq!(rows.len(), 1);
    assert!(rows[0].behind);
}

/// A message without an aggregate has no lane: its failure is nobody else's business.
pub async fn a_retry_without_an_aggregate_is_no_lane<H: Harness>(t: Fixture<H>) {
    let alone = || Message::new("Tick", counterfoil_core::Payload::Json("1".into())).queue(QUEUE);
    t.put(&[alone(), alone()]).await;
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.retry(QUEUE, &rows[0]).await;
    let nobody = relay.runnable(QUEUE).await;
    let held = relay.lane(QUEUE, &lane("a")).await;

    relay.hold(QUEUE, &rows[3..]).await;
    relay.sent(QUEUE, &rows[2..3]).await;

    assert!(nobody.is_empty() && held.is_empty());
    assert!(!relay.read(QUEUE).await[0].behind);
    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
    t.harness.make_due().await;
    assert_eq!(ids(&relay.waiting(QUEUE).await), ids(&rows[..1]));
}

/// Thousands of held rows come out in order, a few at a time.
pub async fn a_long_lane_drains_in_order<H: Harness>(t: Fixture<H>) {
    t.put(&messages("hot", 500)).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.hold(QUEUE, &relay.read(QUEUE).await).await;
    let mut expected = 1;

    while !relay.runnable(QUEUE).await.is_empty() {
        let rows = relay
            .store
            .read_lanes(QUEUE, &[lane("hot")], 60, PLENTY)
            .await
            .unwrap()
            .rows;
        assert!(!rows.is_empty(), "a runnable lane has rows");
        let last = expected + i64::try_from(rows.len()).unwrap();
        assert_eq!(versions(&rows), (expected..last).collect::<Vec<_>>());
        relay.sent(QUEUE, &rows).await;
        expected = last;
    }

    assert_eq!(expected, 501);
}

/// What was put aside is bounded in bytes, and it is told that there is more.
pub async fn lanes_bring_no_more_bytes_than_they_may<H: Harness>(t: Fixture<H>) {
    let all = sizes();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.hold(QUEUE, &relay.read(QUEUE).await).await;
    let mut found = Vec::new();

    loop {
        let lanes = relay.runnable(QUEUE).await;
        let held = relay.store.read_lanes(QUEUE, &lanes, 10, FEW).await;
        let held = held.unwrap();
        assert!(fits(&held.rows), "{:?}", ids(&held.rows));
        assert_eq!(held.cut, held.rows.len() < lanes.len());
        if held.rows.is_empty() {
            break;
        }
        relay.sent(QUEUE, &held.rows).await;
        found.extend(held.rows);
    }

    assert_eq!(ids(&found), ids_of(&all));
    for (row, message) in found.iter().zip(&all) {
        assert_eq!(judge(row).payload, message.payload);
    }
}
