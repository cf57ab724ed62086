//! Why has this message not arrived? The facts of each situation give the right sentence.

use chrono::Utc;
use counterfoil_core::explain::Facts;
use counterfoil_core::message::Message;
use counterfoil_core::row::RawRow;
use counterfoil_core::store::Settlement;

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, Relay, id, keyed, keys, message, messages, park, retry,
};
use crate::harness::Harness;

async fn sentence<H: Harness>(t: &Fixture<H>, message: &Message) -> String {
    t.desk
        .facts(&message.id.to_string())
        .await
        .unwrap()
        .sentence()
}

#[track_caller]
fn says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(
            sentence.contains(word),
            "{word:?} is missing in {sentence:?}"
        );
    }
}

async fn stuck(relay: &Relay, rows: &[RawRow], parked: bool) {
    let (retry, park) = if parked {
        (vec![], vec![park(&rows[0])])
    } else {
        (vec![retry(&rows[0], LATER)], vec![])
    };
    let hold = keys(&rows[1..]);
    relay
        .settle(
            QUEUE,
            &Settlement {
                retry,
                park,
                hold,
                ..Settlement::default()
            },
        )
        .await;
}

/// Nobody has ever heard of it.
pub async fn an_unknown_message_is_unknown<H: Harness>(t: Fixture<H>) {
    says(&sentence(&t, &message("a", 1)).await, &["Unknown"]);

    let odd = t.desk.facts("'; DROP TABLE orders; --").await.unwrap();
    assert_eq!(odd, Facts::Unknown { in_ledger: false });
}

/// Settled and not kept, but its key is still there.
pub async fn a_settled_message_is_known_by_its_key<H: Harness>(t: Fixture<H>) {
    let (with_key, without) = (message("a", 1), message("b", 1));
    t.put_keyed(&keyed(with_key.clone(), "task", "k")).await;
    t.put(std::slice::from_ref(&without)).await;
    let relay = t.relay(&[QUEUE]).await;

    relay.sent(QUEUE, &relay.read(QUEUE).await).await;

    says(&sentence(&t, &with_key).await, &["Settled", "ledger"]);
    says(&sentence(&t, &without).await, &["Unknown"]);
}

/// Sent, and kept in the history.
pub async fn a_sent_message_says_when<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);
    t.put(std::slice::from_ref(&one)).await;
    let relay = t.relay(&[QUEUE]).await;

    relay.sent_and_kept(QUEUE, &relay.read(QUEUE).await).await;

    says(&sentence(&t, &one).await, &["Sent at 2"]);
}

/// Cancelled, why and by whom.
pub async fn a_cancelled_message_says_why<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);
    t.put(std::slice::from_ref(&one)).await;

    t.desk
        .cancel(&one.id.to_string(), "duplicate order", "ann")
        .await
        .unwrap();

    says(
        &sentence(&t, &one).await,
        &["Cancelled at 2", "duplicate order", "ann"],
    );
}

/// Parked, and who waits for it.
pub async fn a_parked_message_says_who_waits_for_it<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 3);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    stuck(&relay, &relay.read(QUEUE).await, true).await;

    let head = sentence(&t, &all[0]).await;
    let behind = sentence(&t, &all[1]).await;

    says(
        &head,
        &[
            "Parked at 2",
            "UPSTREAM_4XX",
            "1 attempt",
            "2 later messages",
            "redrive",
        ],
    );
    says(
        &behind,
        &["Blocked", "parked version 1 of order/a", "UPSTREAM_4XX"],
    );
}

/// A redriven message is on its way, and when it has arrived it says so.
pub async fn a_redriven_message_says_where_it_is<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 2);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    stuck(&relay, &relay.read(QUEUE).await, true).await;
    let named = all[0].id.to_string();
    t.desk
        .redrive(std::slice::from_ref(&named), false, "ann")
        .await
        .unwrap();

    says(&sentence(&t, &all[0]).await, &["Due; claimed by"]);
    says(&sentence(&t, &all[1]).await, &["Blocked", "version 1"]);

    relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
    let Facts::Sent { at } = t.desk.facts(&named).await.unwrap() else {
        panic!("{}", sentence(&t, &all[0]).await);
    };
    let shown = t.desk.show(&named).await.unwrap().unwrap();
    let redriven = shown.events.iter().find(|e| e.kind == "redriven").unwrap();
    assert!(
        at >= redriven.at,
        "sent after it was redriven, not when it was parked"
    );
}

/// A retry says when, after what, and that its successors wait for it.
pub async fn a_retry_says_when_it_comes<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 2);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    stuck(&relay, &relay.read(QUEUE).await, false).await;

    says(
        &sentence(&t, &all[0]).await,
        &["Next try at 2", "TIMEOUT", "attempt 1"],
    );
    says(
        &sentence(&t, &all[1]).await,
        &["Waits behind version 1 of order/a", "TIMEOUT"],
    );
    t.harness.make_due().await;
    says(&sentence(&t, &all[0]).await, &["Due; claimed by"]);
}

/// A scheduled message says for when, looked at or not.
pub async fn a_scheduled_message_says_for_when<H: Harness>(t: Fixture<H>) {
    let later = message("a", 1).not_before(Utc::now() + LATER);
    t.put(std::slice::from_ref(&later)).await;
    let relay = t.relay(&[QUEUE]).await;

    says(&sentence(&t, &later).await, &["Scheduled for 2"]);
    relay.schedule(QUEUE, &relay.read(QUEUE).await).await;
    says(&sentence(&t, &later).await, &["Scheduled for 2"]);
}

/// A paused queue says why and by whom.
pub async fn a_message_in_a_paused_queue_says_why<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);
    t.put(std::slice::from_ref(&one)).await;
    let _relay = t.relay(&[QUEUE]).await;

    t.desk
        .pause_queue(QUEUE, "stock-taking", "ann")
        .await
        .unwrap();

    says(
        &sentence(&t, &one).await,
        &["paused", "stock-taking", "ann"],
    );
}

/// Nobody serves its queue, or no route has taken it.
pub async fn a_message_that_nobody_serves_says_so<H: Harness>(t: Fixture<H>) {
    let (lonely, mut unrouted) = (message("a", 1).queue(OTHER), message("a", 1));
    unrouted.queue = None;
    t.put(&[lonely.clone(), unrouted.clone()]).await;
    let _relay = t.relay(&[QUEUE]).await;

    says(
        &sentence(&t, &lonely).await,
        &["No live relay serves the queue", OTHER],
    );
    says(&sentence(&t, &unrouted).await, &["No route has taken it"]);
}

/// No route matches: it says so, and when it is looked at again; the figures count it.
pub async fn a_message_without_a_route_says_so<H: Harness>(t: Fixture<H>) {
    let (mut unrouted, mut later) = (message("a", 1), message("b", 1));
    later = later.not_before(Utc::now() + LATER);
    unrouted.queue = None;
    later.queue = None;
    t.put(&[unrouted.clone(), later.clone()]).await;
    let relay = t.relay(&[""]).await;
    let rows = relay.read("").await;
    let settlement = Settlement {
        defer: vec![(rows[0].key(), LATER)],
        schedule: keys(&rows[1..]),
        ..Settlement::default()
    };

    relay.settle("", &settlement).await;

    says(
        &sentence(&t, &unrouted).await,
        &[
            "No route matches its event type \"OrderPaid\"",
            "looked at again at 2",
        ],
    );
    says(&sentence(&t, &later).await, &["Scheduled for 2"]);
    let stats = t.stats().await;
    assert_eq!((stats[0].queue.as_str(), stats[0].no_route), ("", 1));
    assert_eq!((stats[0].scheduled, stats[0].pending()), (2, 2));
    let shown = t.desk.show(&unrouted.id.to_string()).await.unwrap();
    assert_eq!(shown.unwrap().entry.code.as_deref(), Some("NO_ROUTE"));
    t.harness.make_due().await;
    says(&sentence(&t, &unrouted).await, &["looked at again now"]);
}

/// Nobody answers at its destination.
pub async fn a_message_to_an_unavailable_destination_says_since_when<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);
    t.put(std::slice::from_ref(&one)).await;
    let _relay = t.relay(&[QUEUE]).await;

    t.store.note_unavailable(QUEUE, true).await.unwrap();

    says(
        &sentence(&t, &one).await,
        &["Nobody answers at its destination since 2"],
    );
}

/// Due, and somebody has it in hand, or nobody yet.
pub async fn a_due_message_says_who_has_it<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);
    t.put(std::slice::from_ref(&one)).await;
    let mut relay = t.other_relay(&[QUEUE]).await;

    says(
        &sentence(&t, &one).await,
        &["Due; no relay has claimed its shard yet"],
    );
    relay.take_all().await;

    says(
        &sentence(&t, &one).await,
        &["Due; claimed by", relay.id.as_str()],
    );
    let row = relay.read(QUEUE).await.remove(0);
    assert_eq!(id(&row), one.id);
}
