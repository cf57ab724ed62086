//! Rows that wait for their time: retries and scheduled ones.

use std::time::Duration;

use chrono::Utc;
use counterfoil_core::Message;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{Settlement, Want};

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, id, ids, ids_of, judge, message, messages, retry, versions,
};
use crate::harness::Harness;
use crate::suite::reading::{FEW, fits, sizes};

/// A retry is put aside, and comes back when its time has come.
pub async fn a_retry_comes_back_when_it_is_due<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);

    relay.retry(QUEUE, &row).await;

    assert!(relay.read(QUEUE).await.is_empty());
    assert!(relay.waiting(QUEUE).await.is_empty(), "not due yet");
    t.harness.make_due().await;
    let due = relay.waiting(QUEUE).await;
    assert_eq!(ids(&due), [id(&row)]);
    assert_eq!((due[0].seq, due[0].shard), (row.seq, row.shard));
    assert_eq!((&due[0].state, due[0].attempts), (&RowState::Retrying, 1));
    assert!(
        !due[0].early && !due[0].behind,
        "it is the head of its lane"
    );
    assert!(
        relay.read(QUEUE).await.is_empty(),
        "it comes by one way only"
    );
}

/// Each failure leaves its count, its code and its words.
pub async fn a_retry_keeps_what_went_wrong<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    relay.retry_in(QUEUE, &row, Duration::ZERO).await;
    let row = relay.waiting(QUEUE).await.remove(0);

    relay.retry(QUEUE, &row).await;

    let shown = t.desk.show(&id(&row).to_string()).await.unwrap().unwrap();
    assert_eq!(
        (shown.place, shown.entry.state.as_str()),
        ("outbox", "retrying")
    );
    assert_eq!(shown.entry.attempts, 2);
    assert_eq!(shown.entry.code.as_deref(), Some("TIMEOUT"));
    assert_eq!(shown.entry.error.as_deref(), Some("no answer within 5s"));
    assert!(shown.entry.available_at.unwrap() > Utc::now() + Duration::from_secs(3_000));
    let events: Vec<_> = shown
        .events
        .iter()
        .map(|e| (e.kind.as_str(), e.attempt))
        .collect();
    assert_eq!(events, [("retry", Some(1)), ("retry", Some(2))]);
    assert_eq!(shown.events[1].code.as_deref(), Some("TIMEOUT"));
    assert_eq!(shown.events[1].actor.as_deref(), Some(relay.id.as_str()));
}

/// Without a delay, a retry is due at once.
pub async fn a_retry_without_delay_is_due_at_once<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);

    relay.retry_in(QUEUE, &row, Duration::ZERO).await;

    assert_eq!(relay.waiting(QUEUE).await.len(), 1);
}

/// A delay of centuries is a delay, not an error.
pub async fn an_endless_delay_is_stored<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);

    relay
        .retry_in(QUEUE, &row, Duration::from_secs(500 * 365 * 86_400))
        .await;

    t.harness.make_due().await;
    assert!(relay.everything(QUEUE).await.is_empty());
    assert_eq!(t.desk.audit().await.unwrap().pending, 1);
}

/// Whoever waits longest comes first.
pub async fn waiting_rows_come_earliest_first<H: Harness>(t: Fixture<H>) {
    t.put(&(0..4).map(|n| message(n, n)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let minutes = [30, 10, 40, 20];
    let retry = rows
        .iter()
        .zip(minutes)
        .map(|(r, m)| retry(r, Duration::from_secs(m * 60)));
    let settlement = Settlement {
        retry: retry.collect(),
        ..Settlement::default()
    };

    relay.settle(QUEUE, &settlement).await;
    t.harness.make_due().await;

    assert_eq!(versions(&relay.waiting(QUEUE).await), [1, 3, 0, 2]);
    let want = Want {
        limit: 2,
        ..relay.want(QUEUE)
    };
    let two = relay.store.read_waiting(&[want], &[]).await.unwrap();
    assert_eq!(versions(&two.rows[0]), [1, 3], "the limit is a limit");
}

/// Queue, shards, skip list and pause hold here as they do for new rows.
pub async fn waiting_rows_are_read_by_queue_shard_and_skip_list<H: Harness>(t: Fixture<H>) {
    t.put(&[
        message("a", 1),
        message("b", 2),
        message("c", 3).queue(OTHER),
    ])
    .await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    for queue in [QUEUE, OTHER] {
        for row in relay.read(queue).await {
            relay.retry_in(queue, &row, Duration::ZERO).await;
        }
    }
    let rows = relay.waiting(QUEUE).await;
    let first = rows[0].seq;
    let nothing = Want {
        shards: [].into_iter().collect(),
        ..relay.want(QUEUE)
    };
    let wants = [relay.want(OTHER), relay.want(QUEUE), nothing];

    let skipping = relay.store.read_waiting(&wants, &[first]).await.unwrap();
    t.desk
        .pause_queue(QUEUE, "stock-taking", "ann")
        .await
        .unwrap();
    let paused = relay.store.read_waiting(&wants, &[]).await.unwrap();

    let found: Vec<_> = skipping.rows.iter().map(|rows| versions(rows)).collect();
    assert_eq!(found, [vec![3], vec![2], vec![]]);
    assert_eq!(skipping.paused, Vec::<String>::new());
    let found: Vec<_> = paused.rows.iter().map(|rows| versions(rows)).collect();
    assert_eq!(found, [vec![3], vec![], vec![]]);
    assert_eq!(paused.paused, [QUEUE]);
}

/// A scheduled row is out of the way until its time comes.
pub async fn a_scheduled_row_comes_when_its_time_has_come<H: Harness>(t: Fixture<H>) {
    let later = message("a", 1).not_before(Utc::now() + LATER);
    t.put(&[later.clone(), message("b", 1)]).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;

    relay.schedule(QUEUE, &rows[..1]).await;

    assert_eq!(ids(&relay.read(QUEUE).await), ids(&rows[1..]));
    assert!(relay.waiting(QUEUE).await.is_empty(), "not due yet");
    t.harness.make_due().await;
    let due = relay.waiting(QUEUE).await;
    assert_eq!(ids(&due), [later.id]);
    assert_eq!((&due[0].state, due[0].attempts), (&RowState::Scheduled, 0));
    assert!(!due[0].behind && !due[0].early);
}

/// A scheduled row holds nobody back.
pub async fn a_scheduled_row_is_overtaken<H: Harness>(t: Fixture<H>) {
    t.put(&[message("a", 1).not_before(Utc::now() + LATER)])
        .await;
    let relay = t.relay(&[QUEUE]).await;
    relay.schedule(QUEUE, &relay.read(QUEUE).await).await;
    t.put(&[message("a", 2)]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(versions(&rows), [2]);
    assert!(!rows[0].behind);
}

/// A scheduled row that comes due while its lane is taken is told so.
pub async fn a_scheduled_row_comes_due_behind_a_retry<H: Harness>(t: Fixture<H>) {
    t.put(&[
        message("a", 1),
        message("a", 2).not_before(Utc::now() + LATER),
    ])
    .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.schedule(QUEUE, &rows[1..]).await;
    relay
        .retry_in(QUEUE, &rows[0], Duration::from_secs(7_200))
        .await;
    t.harness.make_due().await;

    let due = relay.waiting(QUEUE).await;

    let behind = |version| {
        due.iter()
            .find(|r| r.version == Some(version))
            .unwrap()
            .behind
    };
    assert_eq!(due.len(), 2);
    assert!(!behind(1), "the retry is the head");
    assert!(behind(2), "the scheduled row is not");
    relay
        .sent(
            QUEUE,
            &[due.iter().find(|r| r.version == Some(1)).unwrap().clone()],
        )
        .await;
    let due = relay.waiting(QUEUE).await;
    assert_eq!(versions(&due), [2]);
    assert!(!due[0].behind);
}

/// A scheduled row that comes due behind a parked one waits for it.
pub async fn a_scheduled_row_comes_due_behind_a_parked_one<H: Harness>(t: Fixture<H>) {
    t.put(&[
        message("a", 1),
        message("a", 2).not_before(Utc::now() + LATER),
    ])
    .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.schedule(QUEUE, &rows[1..]).await;
    relay.park(QUEUE, &rows[0]).await;
    t.harness.make_due().await;

    let due = relay.waiting(QUEUE).await;

    assert_eq!(versions(&due), [2]);
    assert!(due[0].behind);
}

/// A row that is put off without having failed comes back later, and holds nobody back.
pub async fn a_deferred_row_comes_back_and_holds_nobody<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;

    let defer = vec![(rows[0].key(), LATER)];
    relay
        .settle(
            QUEUE,
            &Settlement {
                defer,
                ..Settlement::default()
            },
        )
        .await;

    let rest = relay.read(QUEUE).await;
    assert_eq!(versions(&rest), [2]);
    assert!(!rest[0].behind);
    assert!(relay.waiting(QUEUE).await.is_empty(), "not due yet");
    t.harness.make_due().await;
    let due = relay.waiting(QUEUE).await;
    assert_eq!(versions(&due), [1]);
    assert_eq!(due[0].attempts, 0, "it has not failed");
}

/// What has come due is bounded in bytes like what is new.
pub async fn waiting_rows_bring_no_more_bytes_than_they_may<H: Harness>(t: Fixture<H>) {
    let all = sizes();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    for row in relay.read(QUEUE).await {
        relay.retry_in(QUEUE, &row, Duration::ZERO).await;
    }
    let mut found = Vec::new();

    for _ in 0..all.len() {
        let want = Want {
            bytes: FEW,
            ..relay.want(QUEUE)
        };
        let skip: Vec<i64> = found.iter().map(|row: &RawRow| row.seq).collect();
        let read = relay.store.read_waiting(&[want], &skip).await.unwrap();
        assert!(fits(&read.rows[0]), "{:?}", ids(&read.rows[0]));
        found.extend(read.rows.into_iter().flatten());
    }

    found.sort_by_key(|row| row.seq);
    assert_eq!(ids(&found), ids_of(&all));
    for (row, message) in found.iter().zip(&all) {
        assert_eq!(judge(row).payload, message.payload);
    }
}

/// Routes have changed: what none of them wanted is due, and what waits for its time is not.
pub async fn what_no_route_wanted_can_be_made_due<H: Harness>(t: Fixture<H>) {
    let later = Utc::now() + chrono::TimeDelta::hours(1);
    let unrouted = |n: i64| {
        let message = Message::json("order", n, "OrderPaid", &n).unwrap();
        message.version(n)
    };
    t.put(&[unrouted(1), unrouted(2), unrouted(3)]).await;
    t.put(&[
        unrouted(4).not_before(later),
        message("a", 5).not_before(later),
    ])
    .await;
    let relay = t.relay(&["", QUEUE]).await;
    let rows = relay.read("").await;
    let settlement = Settlement {
        defer: rows[..3].iter().map(|r| (r.key(), LATER)).collect(),
        schedule: vec![rows[3].key()],
        ..Settlement::default()
    };
    relay.settle("", &settlement).await;
    relay.schedule(QUEUE, &relay.read(QUEUE).await).await;
    assert!(relay.waiting("").await.is_empty());

    assert_eq!(t.store.look_again(2).await.unwrap(), 2);
    assert_eq!(t.store.look_again(2).await.unwrap(), 1);
    assert_eq!(t.store.look_again(2).await.unwrap(), 0);

    let mut due = versions(&relay.waiting("").await);
    due.sort_unstable();
    assert_eq!(due, [1, 2, 3]);
    assert!(relay.waiting(QUEUE).await.is_empty());
}
