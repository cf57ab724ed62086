//! Order within an aggregate: who waits behind whom, and who goes next.

use std::time::Duration;

use counterfoil_core::message::{Aggregate, Message};
use counterfoil_core::row::RowState;
use counterfoil_core::store::{Occupied, Settlement, ShardSet, Want};

use crate::fixture::{
    Fixture, LATER, OTHER, PLENTY, QUEUE, ids, ids_of, judge, keys, lane, message, messages, retry,
    versions,
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
        sent: keys(&rows[..1]),
        hold: keys(&rows[1..]),
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
        hold: keys(&rows[1..]),
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
    let in_shards = async |shards: ShardSet| {
        let want = Want {
            shards,
            ..relay.want(QUEUE)
        };
        let found = store.runnable_lanes(&[want], None, 100).await.unwrap();
        found.lanes.into_iter().map(|l| l.1).collect::<Vec<_>>()
    };
    assert_eq!(in_shards(ShardSet::EMPTY).await, []);
    let mut by_shard = Vec::new();
    for shard in 0..store.shards() {
        by_shard.extend(in_shards([shard].into_iter().collect()).await);
    }
    by_shard.sort();
    assert_eq!(by_shard, expected, "each lane is in one shard");
}

/// A search looks at so many lanes of all its queues and no more, and goes on where it stopped; what
/// it passes on the way, lanes that are blocked and queues that nobody asked for, hides nothing.
pub async fn a_search_for_lanes_goes_on_where_it_stopped<H: Harness>(t: Fixture<H>) {
    let queues = ["a", "b", "c", "d"];
    let relay = t.relay(&queues).await;
    for queue in queues {
        for n in 0..5 {
            let name = format!("{n}-of-{queue}");
            t.put(&[
                message(&name, 1).queue(queue),
                message(&name, 2).queue(queue),
            ])
            .await;
            let rows = relay.read(queue).await;
            relay.hold(queue, &rows[1..]).await;
            match n {
                1 => relay.retry(queue, &rows[0]).await,
                3 => relay.park(queue, &rows[0]).await,
                _ => drop(relay.sent(queue, &rows[..1]).await),
            }
        }
    }

    for at_most in [1, 2, 3, 7, 100] {
        let wants = [relay.want("d"), relay.want("a"), relay.want("c")];
        let (mut found, mut from, mut searches) = (Vec::new(), None, 0);
        loop {
            let some = relay.store.runnable_lanes(&wants, from.as_ref(), at_most);
            let some = some.await.unwrap();
            assert!(some.lanes.len() <= at_most, "it looks at {at_most}");
            found.extend(
                some.lanes
                    .into_iter()
                    .map(|(want, l)| (wants[want].queue, l)),
            );
            searches += 1;
            match some.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        found.sort();
        let expected: Vec<_> = ["a", "c", "d"]
            .into_iter()
            .flat_map(|queue| [0, 2, 4].map(|n| (queue, lane(format!("{n}-of-{queue}")))))
            .collect();
        assert_eq!(found, expected, "at most {at_most}");
        assert!(searches > 15 / at_most, "{searches} searches of {at_most}");
    }
}

/// Exactly the queues in which there is work of each kind, among queues of others.
pub async fn queues_with_work_are_told<H: Harness>(t: Fixture<H>) {
    let relay = t
        .relay(&["held", "idle", "new", "parked", "retrying", ""])
        .await;
    let nothing = relay.store.occupied().await.unwrap();
    for queue in ["held", "parked", "retrying"] {
        t.put(&[message("x", 1).queue(queue), message("x", 2).queue(queue)])
            .await;
        let rows = relay.read(queue).await;
        match queue {
            "held" => relay.hold(queue, &rows).await,
            "parked" => {
                relay.park(queue, &rows[0]).await;
                relay.sent(queue, &rows[1..]).await;
            }
            _ => {
                relay.retry_in(queue, &rows[0], Duration::ZERO).await;
                relay.sent(queue, &rows[1..]).await;
            }
        }
    }
    t.put(&[message("x", 1).queue("new"), message("x", 1)])
        .await;
    relay
        .store
        .pause("idle", "for a test", "suite")
        .await
        .unwrap();

    let mut occupied = relay.store.occupied().await.unwrap();

    assert_eq!(nothing, Occupied::default());
    for queues in [&mut occupied.new, &mut occupied.due, &mut occupied.held] {
        queues.sort();
    }
    let expected = |queues: &[&str]| queues.iter().map(|q| (*q).to_owned()).collect::<Vec<_>>();
    assert_eq!(occupied.new, expected(&[QUEUE, "new"]));
    assert_eq!(occupied.due, expected(&["retrying"]));
    assert_eq!(occupied.held, expected(&["held", "retrying"]));
    assert_eq!(occupied.paused, expected(&["idle"]));
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
