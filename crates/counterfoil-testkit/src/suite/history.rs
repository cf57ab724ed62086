//! What is over: kept for a while, then swept in small batches.

use std::time::Duration;

use counterfoil_core::desk::Filter;
use counterfoil_core::store::Retention;

use crate::fixture::{Fixture, QUEUE, id, keyed, message, messages};
use crate::harness::Harness;

const DAY: Duration = Duration::from_secs(86_400);

/// Parked messages go after the usual 30 days.
fn keep(history: Duration, ledger: Duration) -> Retention {
    Retention {
        history,
        ledger,
        ..Retention::default()
    }
}

async fn sweep_all<H: Harness>(t: &Fixture<H>, retention: &Retention) {
    for _ in 0..100 {
        if t.store.sweep(retention).await.unwrap() == 0 {
            return;
        }
    }
    panic!("there is always more to sweep");
}

/// A sent message that is kept can be looked at.
pub async fn a_sent_message_can_be_kept<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 2);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.retry_in(QUEUE, &rows[1], Duration::ZERO).await;

    relay.sent_and_kept(QUEUE, &rows).await;

    assert!(relay.everything(QUEUE).await.is_empty());
    for (n, message) in all.iter().enumerate() {
        let shown = t.desk.show(&message.id.to_string()).await.unwrap().unwrap();
        assert_eq!(
            (shown.place, shown.entry.state.as_str()),
            ("history", "sent")
        );
        assert_eq!(
            (shown.entry.seq, shown.entry.version),
            (rows[n].seq, message.version)
        );
        assert_eq!(shown.entry.queue, QUEUE);
        assert_eq!(shown.payload.as_deref(), rows[n].payload.as_deref());
        assert_eq!(shown.entry.created_at, rows[n].created_at);
        assert!(shown.entry.ended_at.unwrap() >= shown.entry.created_at);
    }
    let stats = t.stats().await;
    assert_eq!((stats[0].kept, stats[0].pending()), (2, 0));
}

/// Only what is old enough goes, and only so much at a time.
pub async fn old_history_is_swept_in_batches<H: Harness>(t: Fixture<H>) {
    t.put(&messages("old", 5)).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.sent_and_kept(QUEUE, &relay.read(QUEUE).await).await;
    t.harness.age_history(DAY * 8).await;
    t.put(&messages("young", 2)).await;
    relay.sent_and_kept(QUEUE, &relay.read(QUEUE).await).await;
    let retention = Retention {
        batch: 2,
        ..keep(DAY * 7, DAY * 30)
    };
    let mut removed = Vec::new();

    for _ in 0..4 {
        removed.push(t.store.sweep(&retention).await.unwrap());
    }

    assert_eq!(removed, [2, 2, 1, 0]);
    let audit = t.desk.audit().await.unwrap();
    assert_eq!(audit.sent_kept, 2, "the young ones stay");
}

/// Cancelled messages are part of the history.
pub async fn cancelled_messages_are_swept_too<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);
    t.put(std::slice::from_ref(&one)).await;
    assert!(
        t.desk
            .cancel(&one.id.to_string(), "duplicate order", "ann")
            .await
            .unwrap()
    );
    t.harness.age_history(DAY * 60).await;

    sweep_all(&t, &keep(DAY * 7, DAY * 30)).await;

    assert_eq!(t.desk.audit().await.unwrap().cancelled, 0);
    assert!(t.desk.show(&one.id.to_string()).await.unwrap().is_none());
}

/// Keys live as long as their own retention says.
pub async fn keys_have_a_retention_of_their_own<H: Harness>(t: Fixture<H>) {
    t.put_keyed(&keyed(message("a", 1), "task", "k")).await;
    let relay = t.relay(&[QUEUE]).await;
    relay.sent_and_kept(QUEUE, &relay.read(QUEUE).await).await;
    t.harness.age_history(DAY * 8).await;

    t.store.sweep(&keep(DAY * 7, DAY * 30)).await.unwrap();
    let repeat = t.put_keyed(&keyed(message("a", 2), "task", "k")).await;
    t.store.sweep(&keep(DAY * 7, DAY * 7)).await.unwrap();
    let later = t.put_keyed(&keyed(message("a", 3), "task", "k")).await;

    assert!(!repeat.is_first(), "its message is swept, its key is not");
    assert!(later.is_first());
}

/// Parked messages that are delivered or ignored go after their own time, in batches, with their
/// story; what waits for a decision or is on its way back stays.
pub async fn parked_messages_that_are_over_are_swept<H: Harness>(t: Fixture<H>) {
    t.put(&(0..6).map(|n| message(n, n)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    for row in &rows {
        relay.park(QUEUE, row).await;
    }
    let named: Vec<String> = rows.iter().map(|r| id(r).to_string()).collect();
    t.desk.ignore(&named[..2], "no", "ann").await.unwrap();
    t.desk.redrive(&named[2..3], false, "ann").await.unwrap();
    relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
    t.desk.redrive(&named[3..4], false, "ann").await.unwrap();
    t.harness.age_history(DAY * 20).await;
    t.desk.ignore(&named[4..5], "no", "ann").await.unwrap();
    let retention = |days: u32| Retention {
        parked: DAY * days,
        batch: 2,
        ..keep(DAY * 100, DAY * 100)
    };

    let mut removed = Vec::new();
    for days in [30, 10, 10, 10] {
        removed.push(t.store.sweep(&retention(days)).await.unwrap());
    }

    assert_eq!(removed, [0, 2, 1, 0]);
    for gone in &named[..3] {
        assert!(t.desk.show(gone).await.unwrap().is_none());
    }
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked, audit.ignored), (1, 1, 1));
    for (one, last) in [(3, "redriven"), (4, "ignored"), (5, "parked")] {
        let shown = t.desk.show(&named[one]).await.unwrap().unwrap();
        assert_eq!(shown.events.last().unwrap().kind, last);
    }
    // The events went with the records: nothing is left for the sweep of events.
    let old_events = Retention {
        parked: DAY * 100,
        ..keep(DAY, DAY)
    };
    t.harness.age_history(DAY * 10).await;
    assert_eq!(t.store.sweep(&old_events).await.unwrap(), 0);
}

/// A parked message that is kept in the history keeps its story when its record goes.
pub async fn a_kept_message_keeps_its_story<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    relay.park(QUEUE, &row).await;
    let named = [id(&row).to_string()];
    t.desk.redrive(&named, false, "ann").await.unwrap();
    let back = relay.waiting(QUEUE).await;
    relay.sent_and_kept(QUEUE, &back).await;
    t.harness.age_history(DAY * 60).await;

    sweep_all(&t, &keep(DAY * 100, DAY * 100)).await;

    let shown = t.desk.show(&named[0]).await.unwrap().unwrap();
    assert_eq!((shown.place, shown.events.len()), ("history", 3));
    let lot = Filter {
        state: Some("all".into()),
        ..Filter::default()
    };
    assert!(t.desk.parked(&lot).await.unwrap().is_empty());
}

/// Retention never takes what waits or what others wait for.
pub async fn nothing_that_is_not_over_is_ever_swept<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 4)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.retry(QUEUE, &rows[1]).await;
    relay.park(QUEUE, &rows[0]).await;
    relay.hold(QUEUE, &rows[2..3]).await;
    t.harness.age_history(DAY * 10_000).await;

    let nothing = Retention {
        parked: Duration::ZERO,
        ..keep(Duration::ZERO, Duration::ZERO)
    };
    sweep_all(&t, &nothing).await;

    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked), (3, 1));
    assert_eq!(t.desk.parked(&Filter::default()).await.unwrap().len(), 1);
    for (row, kind) in [(&rows[0], "parked"), (&rows[1], "retry")] {
        let shown = t.desk.show(&id(row).to_string()).await.unwrap().unwrap();
        assert_eq!(
            shown.events[0].kind, kind,
            "its story stays as long as it does"
        );
    }
}
