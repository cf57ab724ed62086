//! What is put off, and how the relay finds it.

use std::time::Duration;

use counterfoil_core::desk::Filter;
use counterfoil_core::inbox::{Deferred, Mode, queue_of};
use counterfoil_core::message::{Message, Payload};
use counterfoil_core::row::RowState;
use counterfoil_core::store::StoreError;

use super::fixture::{CONSUMER, behind, failed};
use super::harness::InboxHarness;
use crate::fixture::{Fixture, LATER, id, judge, lane, versions};

/// Not before its time.
pub async fn what_failed_waits_in_the_outbox_with_its_reason<H: InboxHarness>(t: Fixture<H>) {
    let mut one = failed("a", 1, 7);
    one.attempts = 3;
    one.message = one.message.header("correlation-id", "c-1 ä\"\\");
    t.put_off(std::slice::from_ref(&one)).await;
    let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
    assert!(relay.everything(&queue).await.is_empty());

    let filter = Filter {
        queue: Some(queue.clone()),
        ..Filter::default()
    };
    let listed = t.desk.outbox(&filter).await.unwrap();
    assert_eq!(listed.len(), 1);
    let entry = &listed[0];
    assert_eq!(entry.state, "retrying");
    assert_eq!(entry.code.as_deref(), Some("TIMEOUT"));
    assert_eq!(entry.error.as_deref(), Some("no answer within 5s"));
    let waits = entry.available_at.unwrap() - entry.created_at;
    let waits = waits.to_std().unwrap();
    assert!(waits <= LATER * 2 && waits > LATER / 2, "{waits:?}");
    t.harness.make_due().await;
    let rows = relay.waiting(&queue).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].state.clone(), rows[0].attempts),
        (RowState::Retrying, 3)
    );
    let delivery = judge(&rows[0]);
    assert_eq!(delivery.defect, None);
    assert_eq!(delivery.id, one.message.id);
    assert_eq!(
        (delivery.version, delivery.aggregate),
        (Some(7), Some(lane(1)))
    );
    assert_eq!(delivery.event_type, one.message.event_type);
    assert_eq!(delivery.headers, one.message.headers);
    assert_eq!(delivery.payload, one.message.payload);
}

/// JSON is text, and anything else is bytes.
pub async fn content_of_both_kinds_comes_back_as_it_was<H: InboxHarness>(t: Fixture<H>) {
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let text = "{\"a\":  \"\\u0000 ä \u{1f4b6} '\\\\ \", \"n\": 1.50}".to_owned();
    let contents = [
        Payload::Opaque(bytes.into()),
        Payload::Opaque(Vec::new().into()),
        Payload::Json(text),
        Payload::Json("null".into()),
    ];
    let mut all = Vec::new();
    for (n, payload) in contents.into_iter().enumerate() {
        let mut one = failed(&format!("k{n}"), n, 1);
        one.message.payload = payload;
        all.push(one);
    }
    // Without an aggregate, and without a version.
    all[1].message.aggregate = None;
    all[1].message.version = None;

    t.put_off(&all).await;

    t.harness.make_due().await;
    let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
    let mut rows = relay.waiting(&queue).await;
    rows.sort_by_key(|row| row.seq);
    assert_eq!(rows.len(), all.len());
    for (row, one) in rows.iter().zip(&all) {
        let delivery = judge(row);
        assert_eq!(delivery.defect, None);
        assert_eq!(delivery.payload, one.message.payload);
        assert_eq!(delivery.aggregate, one.message.aggregate);
        assert_eq!(delivery.version, one.message.version);
    }
}

/// By the database's clock.
pub async fn what_is_put_off_for_no_time_is_due_at_once<H: InboxHarness>(t: Fixture<H>) {
    let mut now = failed("a", 1, 1);
    now.delay = Duration::ZERO;
    let mut never = failed("b", 2, 2);
    never.delay = Duration::MAX;
    t.put_off(&[now, never]).await;

    let relay = t.inbox_relay().await;

    assert_eq!(versions(&relay.waiting(&queue_of(CONSUMER)).await), [1]);
}

/// One after the other, whenever they were stored.
pub async fn what_stands_behind_is_handed_out_after_its_head_and_in_order<H: InboxHarness>(
    t: Fixture<H>,
) {
    t.put_off(&[failed("a", 1, 1), behind("b", 1, 2)]).await;
    t.put_off(&[behind("c", 1, 3), failed("d", 2, 9)]).await;
    t.harness.make_due().await;
    let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
    let mut heads = relay.waiting(&queue).await;
    heads.sort_by_key(|row| row.seq);
    assert_eq!(versions(&heads), [1, 9]);
    assert!(relay.runnable(&queue).await.is_empty());
    assert!(relay.lane(&queue, &lane(1)).await.is_empty());

    relay.sent(&queue, &heads[..1]).await;

    assert_eq!(relay.runnable(&queue).await, [lane(1)]);
    let held = relay.lane(&queue, &lane(1)).await;
    assert_eq!(versions(&held), [2, 3]);
    assert!(
        held.iter()
            .all(|row| row.state == RowState::Held && row.attempts == 0)
    );
}

/// Neither the row nor the note.
pub async fn a_rollback_puts_nothing_off<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    t.put_off_in(&mut tx, CONSUMER, &[failed("a", 1, 1)]).await;
    t.harness.rollback(tx).await;

    t.harness.make_due().await;
    let relay = t.inbox_relay().await;
    assert!(relay.everything(&queue_of(CONSUMER)).await.is_empty());
    assert!(!t.lane(&lane(1)).await.taken);
    assert_eq!(t.arrive(&["a"]).await, ["a"]);
}

/// Its row in the ledger is missing: nobody would know of it.
pub async fn a_key_that_was_not_admitted_cannot_be_put_off<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a"], &[&lane(1)]).await;

    let both = [failed("a", 1, 1), behind("b", 1, 2)];
    let put_off = t.harness.defer(&mut tx, CONSUMER, &both).await;

    assert!(matches!(put_off, Err(StoreError::Doomed(_))), "{put_off:?}");
    t.harness.rollback(tx).await;
}

/// The transaction goes on.
pub async fn a_bad_message_is_refused_before_anything_is_written<H: InboxHarness>(t: Fixture<H>) {
    let mut bad = failed("b", 1, 2);
    bad.message.event_type = "two\nlines".into();
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a", "b"], &[&lane(1)]).await;

    let both = [failed("a", 1, 1), bad];
    let refused = t.harness.defer(&mut tx, CONSUMER, &both).await;

    assert!(
        matches!(refused, Err(StoreError::Message(_))),
        "{refused:?}"
    );
    t.end(tx, &[(&lane(1), 2)]).await;
    assert!(!t.lane(&lane(1)).await.taken);
}

/// It comes from a handler, or from a driver that it uses.
pub async fn an_error_may_hold_anything<H: InboxHarness>(t: Fixture<H>) {
    let mut one = failed("a", 1, 1);
    one.error = Some(format!("a\0b\n\u{1f4b6}'\"\\ {}", "x".repeat(100_000)));
    one.attempts = u32::MAX;
    t.put_off(&[one]).await;

    t.harness.make_due().await;
    let relay = t.inbox_relay().await;
    assert_eq!(versions(&relay.waiting(&queue_of(CONSUMER)).await), [1]);
}

/// More than fit into one statement.
pub async fn many_at_once_keep_their_order<H: InboxHarness>(t: Fixture<H>) {
    let mut all: Vec<Deferred> = vec![failed("0000", 1, 0)];
    all.extend((1..300).map(|n| behind(&format!("{n:04}"), 1, n)));
    let large = Message::opaque("order", 1, "Paid", "text/plain", vec![b'x'; 700_000]);
    for one in &mut all[100..104] {
        one.message.payload = large.payload.clone();
    }
    t.put_off(&all).await;

    t.harness.make_due().await;
    let (relay, queue) = (t.inbox_relay().await, queue_of(CONSUMER));
    let head = relay.waiting(&queue).await;
    relay.sent(&queue, &head).await;
    let held = relay.lane(&queue, &lane(1)).await;
    assert_eq!(versions(&held), (1..300).collect::<Vec<_>>());
    let ids: Vec<_> = held.iter().map(id).collect();
    let given: Vec<_> = all[1..].iter().map(|d| d.message.id).collect();
    assert_eq!(ids, given);
}

/// And does no harm.
pub async fn nothing_to_put_off_is_nothing<H: InboxHarness>(t: Fixture<H>) {
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["a"], &[&lane(1)]).await;
    t.harness.defer(&mut tx, CONSUMER, &[]).await.unwrap();
    t.end(tx, &[]).await;

    assert!(!t.lane(&lane(1)).await.taken);
    assert!(t.process(CONSUMER, Mode::Retry, &["a"]).await.is_empty());
}
