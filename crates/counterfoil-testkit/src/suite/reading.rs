//! Which rows a relay gets to see.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};
use counterfoil_core::mark::Reach;
use counterfoil_core::message::{Message, Payload};
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{ShardSet, Want};

use crate::fixture::{
    Fixture, OTHER, PLENTY, QUEUE, id, ids, ids_of, judge, keyed, message, messages, versions,
};
use crate::harness::Harness;

/// Numbers are given at enqueue, and one transaction's messages keep their order.
pub async fn committed_messages_are_read_in_the_order_of_their_numbers<H: Harness>(t: Fixture<H>) {
    let all = [messages("a", 3), messages("b", 2)].concat();
    t.put(&all[..4]).await;
    t.put(&all[4..]).await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(ids(&rows), ids_of(&all));
    assert!(rows.windows(2).all(|w| w[0].seq < w[1].seq));
    assert!(
        rows.iter()
            .all(|r| !r.early && !r.behind && r.attempts == 0 && r.crashes == 0)
    );
}

/// Reading changes nothing: what was read and not settled is read again.
pub async fn reading_twice_gives_the_same_rows<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 3)).await;
    let relay = t.relay(&[QUEUE]).await;

    let (first, second) = (relay.read(QUEUE).await, relay.read(QUEUE).await);

    assert_eq!(first.len(), 3);
    assert_eq!(ids(&first), ids(&second));
}

/// No effect without its commit.
pub async fn what_is_not_committed_is_not_read<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let mut tx = t.harness.begin().await;
    t.harness.enqueue(&mut tx, &messages("a", 2)).await.unwrap();

    assert!(relay.read(QUEUE).await.is_empty());

    t.harness.commit(tx).await.unwrap();
    assert_eq!(relay.read(QUEUE).await.len(), 2);
}

/// No effect of what was taken back, by word or by dropping the transaction.
pub async fn a_rolled_back_enqueue_is_never_read<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let mut tx = t.harness.begin().await;
    t.harness.enqueue(&mut tx, &messages("a", 2)).await.unwrap();
    t.harness
        .enqueue_keyed(&mut tx, &keyed(message("a", 3), "task", "k"))
        .await
        .unwrap();
    t.harness.rollback(tx).await;
    let mut tx = t.harness.begin().await;
    t.harness.enqueue(&mut tx, &messages("b", 2)).await.unwrap();
    drop(tx);

    let after = message("c", 1);
    t.put(std::slice::from_ref(&after)).await;

    assert_eq!(ids(&relay.read(QUEUE).await), [after.id]);
}

/// A savepoint takes back what came after it, and nothing else.
pub async fn an_enqueue_that_a_savepoint_took_back_is_never_read<H: Harness>(t: Fixture<H>) {
    let (kept, undone, later) = (message("a", 1), message("a", 2), message("a", 3));
    let mut tx = t.harness.begin().await;
    t.harness
        .enqueue(&mut tx, std::slice::from_ref(&kept))
        .await
        .unwrap();
    t.harness.savepoint(&mut tx).await;
    t.harness.enqueue(&mut tx, &[undone]).await.unwrap();

    t.harness.rollback_to(&mut tx).await;
    t.harness
        .enqueue(&mut tx, std::slice::from_ref(&later))
        .await
        .unwrap();
    t.harness.commit(tx).await.unwrap();

    let relay = t.relay(&[QUEUE]).await;
    assert_eq!(ids(&relay.read(QUEUE).await), [kept.id, later.id]);
}

/// A message that cannot be stored is refused before anything is written.
pub async fn a_refused_message_leaves_the_transaction_usable<H: Harness>(t: Fixture<H>) {
    let mut tx = t.harness.begin().await;
    let broken = Message::new("OrderPaid", Payload::Json("{".into())).queue(QUEUE);
    let fine = message("a", 1);

    let refused = t.harness.enqueue(&mut tx, &[message("a", 0), broken]).await;
    t.harness
        .enqueue(&mut tx, std::slice::from_ref(&fine))
        .await
        .unwrap();
    t.harness.commit(tx).await.unwrap();

    assert!(refused.is_err());
    let relay = t.relay(&[QUEUE]).await;
    assert_eq!(ids(&relay.read(QUEUE).await), [fine.id]);
}

/// What comes out is what went in, to the letter.
pub async fn a_message_comes_back_as_it_was_written<H: Harness>(t: Fixture<H>) {
    let spaced = "{ \"b\":1,  \"a\": [1.10, \"\u{e9}\\u00e9 \u{1F980}\"], \"b\": null }";
    let all = [
        Message::new("Spaced", Payload::Json(spaced.into())).queue(QUEUE),
        Message::opaque(
            "file",
            "a/b c",
            "Stored",
            "image/png",
            vec![0, 159, 146, 150, 255],
        )
        .queue(QUEUE)
        .version(i64::MAX)
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .header("note", "gr\u{fc}\u{df} \u{1F980} \" ' \\ %"),
        Message::json("", "alone", "Negative", &())
            .unwrap()
            .version(-7)
            .queue(QUEUE),
        Message::new("Empty", Payload::Opaque(Vec::new().into())).queue(QUEUE),
        Message::json("big", 1, "Big", &"x".repeat(1_000_000))
            .unwrap()
            .queue(QUEUE),
    ];
    // One alone and several at once may go different ways into the table.
    t.put(&all[..1]).await;
    t.put(&all[1..]).await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(rows.len(), all.len());
    for (row, message) in rows.iter().zip(&all) {
        let found = judge(row);
        assert_eq!(found.defect, None);
        assert_eq!(found.id, message.id);
        assert_eq!(found.aggregate, message.aggregate);
        assert_eq!(found.version, message.version);
        assert_eq!(found.event_type, message.event_type);
        assert_eq!(found.payload, message.payload);
        assert_eq!(found.headers, message.headers);
        assert!((Utc::now() - found.created_at).abs() < TimeDelta::minutes(5));
    }
}

/// The unrouted queue is a queue like others: its name is empty.
pub async fn rows_of_other_queues_are_not_read<H: Harness>(t: Fixture<H>) {
    let unrouted = Message::json("order", "a", "OrderPaid", &1).unwrap();
    let all = [message("a", 1), message("a", 1).queue(OTHER), unrouted];
    t.put(&all).await;
    let relay = t.relay(&[QUEUE, OTHER, ""]).await;

    for (queue, expected) in [QUEUE, OTHER, ""].into_iter().zip(&all) {
        assert_eq!(ids(&relay.read(queue).await), [expected.id], "in {queue:?}");
    }
}

/// Queue names are compared byte by byte.
pub async fn queues_whose_names_look_alike_are_different<H: Harness>(t: Fixture<H>) {
    let names = [
        "caf\u{e9}",
        "cafe\u{301}",
        "cafe",
        "CAFE",
        "cafe ",
        "ca%e",
        "ca_e",
    ];
    let all: Vec<Message> = names
        .iter()
        .map(|name| message("a", 1).queue(*name))
        .collect();
    t.put(&all).await;
    let relay = t.relay(&names).await;

    for (name, expected) in names.iter().zip(&all) {
        assert_eq!(ids(&relay.read(name).await), [expected.id], "in {name:?}");
    }
}

/// A shard is read by who asks for it, and each row belongs to one.
pub async fn rows_of_shards_that_are_not_asked_for_are_not_read<H: Harness>(t: Fixture<H>) {
    let all: Vec<Message> = (0..40).map(|n| message(n, 1)).collect();
    t.put(&all).await;
    let want = |shards| Want {
        queue: QUEUE,
        shards,
        after: 0,
        limit: 100,
        bytes: PLENTY,
    };

    let none = t.store.read(&[want(ShardSet::EMPTY)], &[]).await.unwrap();
    let mut found = BTreeSet::new();
    for shard in 0..t.store.shards() {
        let read = t
            .store
            .read(&[want([shard].into_iter().collect())], &[])
            .await
            .unwrap();
        for row in &read.rows[0] {
            assert_eq!(row.shard, shard);
            assert!(found.insert(id(row)), "a row belongs to one shard");
        }
    }

    assert!(none.rows[0].is_empty());
    assert_eq!(found, all.iter().map(|m| m.id).collect());
}

/// What belongs together is owned together, whoever wrote it and when.
pub async fn an_aggregate_stays_in_one_shard<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 3)).await;
    t.put(&[message("a", 4).queue(OTHER)]).await;
    let relay = t.relay(&[QUEUE, OTHER]).await;

    let mut rows = relay.read(QUEUE).await;
    rows.extend(relay.read(OTHER).await);

    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|r| r.shard == rows[0].shard));
}

/// A read that was cut short goes on where it stopped.
pub async fn a_truncated_read_continues_without_loss<H: Harness>(t: Fixture<H>) {
    let all: Vec<Message> = (0..25).map(|n| message(n % 7, n)).collect();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let mut found = Vec::new();
    let mut after = 0;

    for _ in 0..all.len() {
        let want = Want {
            after,
            limit: 4,
            ..relay.want(QUEUE)
        };
        let rows = relay.store.read(&[want], &[]).await.unwrap().rows.remove(0);
        assert!(rows.len() <= 4, "the limit is a limit");
        found.extend(ids(&rows));
        match rows.last() {
            Some(last) => after = last.seq,
            None => break,
        }
    }

    assert_eq!(found, ids_of(&all));
}

/// What is under way is not read again.
pub async fn rows_in_the_skip_list_are_left_out<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 6);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let skip = [rows[0].seq, rows[3].seq, i64::MAX, -1];

    let want = Want {
        limit: 3,
        ..relay.want(QUEUE)
    };
    let rest = relay
        .store
        .read(&[want], &skip)
        .await
        .unwrap()
        .rows
        .remove(0);

    assert_eq!(
        versions(&rest),
        [2, 3, 5],
        "the limit counts what is returned"
    );
}

/// One question for several queues, each with its own shards, beginning and limit.
pub async fn several_wants_are_answered_in_their_order<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 4)).await;
    let others: Vec<Message> = messages("b", 3)
        .into_iter()
        .map(|m| m.queue(OTHER))
        .collect();
    t.put(&others).await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    let first = relay.read(QUEUE).await[0].seq;
    let wants = [
        Want {
            limit: 2,
            ..relay.want(OTHER)
        },
        Want {
            shards: ShardSet::EMPTY,
            ..relay.want(QUEUE)
        },
        Want {
            after: first,
            ..relay.want(QUEUE)
        },
        relay.want("nobody writes here"),
    ];

    let read = relay.store.read(&wants, &[]).await.unwrap();
    let nothing = relay.store.read(&[], &[]).await.unwrap();

    let found: Vec<Vec<i64>> = read.rows.iter().map(|rows| versions(rows)).collect();
    assert_eq!(found, [vec![1, 2], vec![], vec![2, 3, 4], vec![]]);
    assert_eq!(
        read.reach,
        [Reach::Limit, Reach::End, Reach::End, Reach::End]
    );
    assert!(nothing.rows.is_empty());
}

/// A paused queue rests; the others of the same read do not.
pub async fn a_paused_queue_is_not_read_until_it_is_resumed<H: Harness>(t: Fixture<H>) {
    t.put(&[message("a", 1), message("b", 1).queue(OTHER)])
        .await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    let wants = [relay.want(QUEUE), relay.want(OTHER)];

    t.desk
        .pause_queue(QUEUE, "the printer burns", "ann")
        .await
        .unwrap();
    let paused = relay.store.read(&wants, &[]).await.unwrap();
    let resumed = t.desk.resume_queue(QUEUE, "ann").await.unwrap();
    let again = t.desk.resume_queue(QUEUE, "ann").await.unwrap();

    assert!(paused.rows[0].is_empty());
    assert_eq!(paused.rows[1].len(), 1);
    assert_eq!(
        paused.reach,
        [Reach::Paused, Reach::End],
        "an empty answer of a paused queue does not mean that it is empty"
    );
    assert!(resumed && !again, "resuming tells whether it was paused");
    assert_eq!(relay.read(QUEUE).await.len(), 1);
}

/// A row whose time has not come is shown, with a flag; the relay puts it aside.
pub async fn an_early_row_is_flagged<H: Harness>(t: Fixture<H>) {
    let (hour, now) = (TimeDelta::hours(1), Utc::now());
    let all = [
        message("past", 1).not_before(now - hour),
        message("future", 1).not_before(now + hour),
        message("any", 1),
    ];
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(
        rows.iter().map(|r| r.early).collect::<Vec<_>>(),
        [false, true, false]
    );
}

/// Thousands of messages of one aggregate are no trouble.
pub async fn a_hot_lane_is_read_in_order<H: Harness>(t: Fixture<H>) {
    let all = messages("hot", 3_000);
    for part in all.chunks(500) {
        t.put(part).await;
    }
    let relay = t.relay(&[QUEUE]).await;
    let mut expected = 1;

    while expected <= 3_000 {
        let rows = relay.read(QUEUE).await;
        assert!(!rows.is_empty(), "nothing is lost");
        let last = expected + i64::try_from(rows.len()).unwrap();
        assert_eq!(versions(&rows), (expected..last).collect::<Vec<_>>());
        relay.sent(QUEUE, &rows).await;
        expected = last;
    }

    assert!(relay.read(QUEUE).await.is_empty());
}

/// Messages of very different sizes, of different aggregates; each third is opaque.
pub(crate) fn sizes() -> Vec<Message> {
    const SIZES: [usize; 12] = [
        10, 200_000, 1, 600_000, 300, 70_000, 70_000, 70_000, 5, 1_500_000, 2_000_000, 20,
    ];
    let message = |(n, size): (usize, &usize)| {
        let message = match n % 3 {
            2 => Message::opaque("order", n, "Big", "image/png", vec![255; *size]),
            _ => Message::json("order", n, "Big", &"x".repeat(*size)).unwrap(),
        };
        message.header("size", size.to_string()).queue(QUEUE)
    };
    SIZES.iter().enumerate().map(message).collect()
}

/// The bytes that [`sizes`] are read with.
pub(crate) const FEW: usize = 512 << 10;

pub(crate) fn fits(rows: &[RawRow]) -> bool {
    rows.len() == 1 || rows.iter().map(RawRow::weight).sum::<usize>() <= FEW
}

/// Memory is bounded in bytes: a read ends before it brings more, says so, and goes on later.
pub async fn a_read_brings_no_more_bytes_than_it_may<H: Harness>(t: Fixture<H>) {
    let all = sizes();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let (mut found, mut after, mut reads) = (Vec::new(), 0, 0);

    loop {
        let want = Want {
            after,
            bytes: FEW,
            ..relay.want(QUEUE)
        };
        let mut read = relay.store.read(&[want], &[]).await.unwrap();
        let rows = read.rows.remove(0);
        assert!(fits(&rows), "{:?}", ids(&rows));
        reads += 1;
        let end = read.reach[0] == Reach::End;
        assert!(end || !rows.is_empty(), "there is always one that may come");
        after = rows.last().map_or(after, |last| last.seq);
        found.extend(rows);
        if end {
            break;
        }
        assert_eq!(read.reach[0], Reach::Limit, "this is not all");
    }

    assert_eq!(ids(&found), ids_of(&all));
    assert!(reads > 3 && reads < all.len(), "{reads} reads");
    for (row, message) in found.iter().zip(&all) {
        assert_eq!(judge(row).payload, message.payload);
        assert_eq!(judge(row).headers, message.headers);
        assert_eq!(judge(row).defect, None);
    }
}
