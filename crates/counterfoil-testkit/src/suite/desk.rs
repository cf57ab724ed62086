//! What operators see and do.

use chrono::{TimeDelta, Utc};
use counterfoil_core::desk::Filter;
use counterfoil_core::message::Message;
use counterfoil_core::store::Settlement;

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, id, ids, keys, lane, message, messages, retry, versions,
};
use crate::harness::Harness;

fn queue(name: &str) -> Filter {
    Filter {
        queue: Some(name.into()),
        ..Filter::default()
    }
}

/// Every message is counted once, under its queue and its state.
pub async fn stats_count_every_message_under_its_state<H: Harness>(t: Fixture<H>) {
    let later = message("d", 1).not_before(Utc::now() + LATER);
    t.put(
        &[
            messages("a", 2),
            messages("b", 1),
            messages("c", 1),
            vec![later],
        ]
        .concat(),
    )
    .await;
    t.put(&[message("x", 1).queue(OTHER), message("y", 1).queue(OTHER)])
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let settlement = Settlement {
        retry: vec![retry(&rows[0], LATER)],
        hold: keys(&rows[1..2]),
        sent: keys(&rows[2..3]),
        keep_sent: true,
        schedule: keys(&rows[4..]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &settlement).await;
    relay.park(QUEUE, &rows[3]).await;
    t.put(&[message("e", 1)]).await;

    let stats = t.stats().await;

    assert_eq!(
        stats.iter().map(|s| s.queue.as_str()).collect::<Vec<_>>(),
        [QUEUE, OTHER]
    );
    let served = &stats[0];
    assert_eq!(
        (served.new, served.retrying, served.held, served.scheduled),
        (1, 1, 1, 1)
    );
    assert_eq!((served.parked, served.kept, served.pending()), (1, 1, 4));
    assert!(
        served
            .oldest_seconds
            .is_some_and(|s| (0.0..300.0).contains(&s))
    );
    assert_eq!((served.relays, served.unserved()), (1, false));
    assert_eq!((stats[1].new, stats[1].relays), (2, 0));
    assert!(stats[1].unserved(), "rows that nobody serves are reported");
}

/// A queue is served as long as a living relay says so.
pub async fn stats_show_who_serves_a_queue<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let other = t.other_relay(&[QUEUE, OTHER]).await;
    let relays = async || {
        let stats = t.stats().await;
        stats
            .iter()
            .map(|s| (s.queue.clone(), s.relays))
            .collect::<Vec<_>>()
    };

    assert_eq!(
        relays().await,
        [(QUEUE.to_owned(), 2), (OTHER.to_owned(), 1)]
    );
    other.store.leave(&other.id).await.unwrap();
    assert_eq!(relays().await, [(QUEUE.to_owned(), 1)]);

    if t.harness.leases() {
        t.harness.expire_lease(&relay.id).await;
        assert_eq!(relays().await, []);
    }
}

/// A redriven message is counted where it is: in the outbox.
pub async fn a_redriven_message_is_counted_once<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    relay.park(QUEUE, &row).await;

    t.desk
        .redrive(&[id(&row).to_string()], false, "ann")
        .await
        .unwrap();

    let stats = t.stats().await;
    assert_eq!((stats[0].retrying, stats[0].parked), (1, 0));
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked), (1, 0));
    assert_eq!(audit.findings(true), Vec::<String>::new());
}

/// Lists come by number, page by page, and by what was asked for.
pub async fn lists_are_filtered_and_paged<H: Harness>(t: Fixture<H>) {
    let all: Vec<Message> = (0..10)
        .map(|n| message(n % 3, n).queue(if n % 2 == 0 { QUEUE } else { OTHER }))
        .collect();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.retry(QUEUE, &relay.read(QUEUE).await[0]).await;
    let list = async |filter: Filter| {
        let entries = t.desk.outbox(&filter).await.unwrap();
        entries
            .iter()
            .map(|e| e.version.unwrap())
            .collect::<Vec<_>>()
    };

    assert_eq!(list(Filter::default()).await, (0..10).collect::<Vec<_>>());
    assert_eq!(list(queue(QUEUE)).await, [0, 2, 4, 6, 8]);
    assert_eq!(
        list(Filter {
            state: Some("retrying".into()),
            ..queue(QUEUE)
        })
        .await,
        [0]
    );
    assert_eq!(
        list(Filter {
            state: Some("new".into()),
            ..queue(QUEUE)
        })
        .await,
        [2, 4, 6, 8]
    );
    assert_eq!(
        list(Filter {
            code: Some("TIMEOUT".into()),
            ..Filter::default()
        })
        .await,
        [0]
    );
    let of_one = Filter {
        aggregate_id: Some("1".into()),
        ..Filter::default()
    };
    assert_eq!(list(of_one).await, [1, 4, 7]);
    assert_eq!(list(queue("nobody")).await, Vec::<i64>::new());
    let mut paged = Vec::new();
    let mut page = Filter {
        limit: 4,
        ..Filter::default()
    };
    for _ in 0..all.len() {
        let entries = t.desk.outbox(&page).await.unwrap();
        assert!(entries.len() <= 4);
        let Some(last) = entries.last() else { break };
        page.after = last.seq;
        paged.extend(entries.iter().map(|e| e.version.unwrap()));
    }
    assert_eq!(paged, (0..10).collect::<Vec<_>>());
}

/// The parking lot is listed in the same way.
pub async fn the_parking_lot_is_filtered_and_paged<H: Harness>(t: Fixture<H>) {
    t.put(&(0..5).map(|n| message(n, n)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    for row in relay.read(QUEUE).await {
        relay.park(QUEUE, &row).await;
    }
    let list = async |filter: Filter| {
        let entries = t.desk.parked(&filter).await.unwrap();
        entries
            .iter()
            .map(|e| (e.seq, e.version.unwrap()))
            .collect::<Vec<_>>()
    };

    let first = list(Filter {
        limit: 3,
        ..queue(QUEUE)
    })
    .await;
    let rest = list(Filter {
        after: first[2].0,
        ..Filter::default()
    })
    .await;
    let none = list(Filter {
        code: Some("TIMEOUT".into()),
        ..Filter::default()
    })
    .await;
    let one = list(Filter {
        aggregate_id: Some("3".into()),
        ..Filter::default()
    })
    .await;

    let versions = |list: &[(i64, i64)]| list.iter().map(|e| e.1).collect::<Vec<_>>();
    assert_eq!(
        (versions(&first), versions(&rest)),
        (vec![0, 1, 2], vec![3, 4])
    );
    assert_eq!((versions(&none), versions(&one)), (vec![], vec![3]));
}

/// One message, with everything that is known about it.
pub async fn a_message_is_shown_with_its_content<H: Harness>(t: Fixture<H>) {
    let at = Utc::now() + TimeDelta::hours(1);
    let text = message("a", 7).header("note", "x").not_before(at);
    let opaque = Message::opaque("file", 1, "Stored", "image/png", vec![1, 2, 3]).queue(QUEUE);
    t.put(&[text.clone(), opaque.clone()]).await;

    let one = t.desk.show(&text.id.to_string()).await.unwrap().unwrap();
    let two = t.desk.show(&opaque.id.to_string()).await.unwrap().unwrap();
    let none = t.desk.show("no such thing").await.unwrap();

    assert_eq!((one.place, one.entry.state.as_str()), ("outbox", "new"));
    assert_eq!(one.entry.id, text.id.to_string());
    assert_eq!(
        (one.entry.version, one.entry.aggregate),
        (Some(7), Some(lane("a")))
    );
    assert!((one.entry.available_at.unwrap() - at).abs() < TimeDelta::milliseconds(1));
    assert_eq!(one.payload.as_deref(), Some(r#"{"version":7}"#));
    assert_eq!(one.headers, text.headers.to_json());
    assert_eq!(
        (one.payload_bin_bytes, two.payload_bin_bytes),
        (None, Some(3))
    );
    assert_eq!(two.payload, None);
    assert!(one.events.is_empty() && none.is_none());
}

/// A cancelled message is taken out, kept in the history, and says who and why.
pub async fn a_cancelled_message_is_never_delivered<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 2);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let named = all[0].id.to_string();

    let first = t
        .desk
        .cancel(&named, "duplicate order", "ann")
        .await
        .unwrap();
    let second = t
        .desk
        .cancel(&named, "duplicate order", "ann")
        .await
        .unwrap();
    let never = t.desk.cancel("no such thing", "?", "ann").await.unwrap();

    assert!(first && !second && !never);
    assert_eq!(ids(&relay.everything(QUEUE).await), [all[1].id]);
    let shown = t.desk.show(&named).await.unwrap().unwrap();
    assert_eq!(
        (shown.place, shown.entry.state.as_str()),
        ("history", "cancelled")
    );
    assert_eq!(shown.events.len(), 1);
    assert_eq!(
        (
            shown.events[0].kind.as_str(),
            shown.events[0].actor.as_deref()
        ),
        ("cancelled", Some("ann"))
    );
    assert_eq!(shown.events[0].detail.as_deref(), Some("duplicate order"));
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.cancelled, audit.sent_kept), (1, 1, 0));
}

/// Cancelling the head of a lane lets the rest go on.
pub async fn cancelling_the_head_of_a_lane_lets_it_go_on<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 3)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let stuck = Settlement {
        retry: vec![retry(&rows[0], LATER)],
        hold: keys(&rows[1..]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &stuck).await;

    assert!(
        t.desk
            .cancel(&id(&rows[0]).to_string(), "never meant", "ann")
            .await
            .unwrap()
    );

    assert_eq!(relay.runnable(QUEUE).await, [lane("a")]);
    assert_eq!(versions(&relay.lane(QUEUE, &lane("a")).await), [2, 3]);
}

/// Cancelling takes from the outbox only: what is parked or over stays as it is.
pub async fn only_pending_messages_can_be_cancelled<H: Harness>(t: Fixture<H>) {
    let all = [message("a", 1), message("b", 1)];
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.park(QUEUE, &rows[0]).await;
    relay.sent_and_kept(QUEUE, &rows[1..]).await;

    for message in &all {
        assert!(
            !t.desk
                .cancel(&message.id.to_string(), "too late", "ann")
                .await
                .unwrap()
        );
    }

    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.parked, audit.sent_kept, audit.cancelled), (1, 1, 0));
}

/// Where nothing waits, nothing is old: not in a queue that is paused, nor in one with parked
/// messages or with messages for later.
pub async fn an_empty_queue_has_no_oldest_message<H: Harness>(t: Fixture<H>) {
    let later = message("b", 1).not_before(chrono::Utc::now() + LATER);
    t.put(&[message("a", 1), later]).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.schedule(QUEUE, &rows[1..]).await;
    let oldest = async || {
        let stats = t.stats().await;
        stats
            .into_iter()
            .map(|s| (s.queue, s.oldest_seconds.is_some()))
            .collect::<Vec<_>>()
    };
    assert_eq!(oldest().await, [(QUEUE.to_owned(), true)]);

    relay.park(QUEUE, &rows[0]).await;
    t.desk
        .pause_queue(OTHER, "for a test", "ann")
        .await
        .unwrap();

    assert_eq!(
        oldest().await,
        [(QUEUE.to_owned(), false), (OTHER.to_owned(), false)]
    );
}
