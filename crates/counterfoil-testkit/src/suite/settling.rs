//! What becomes of rows that a relay has something to say about, and who may say it.

use counterfoil_core::Code;
use counterfoil_core::message::{Message, MessageId};
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{Reroute, Settlement};

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, id, ids, ids_of, judge, keys, message, messages, park, retry,
    versions,
};
use crate::harness::Harness;

/// Settling is deleting.
pub async fn sent_rows_leave_the_outbox<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 3);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;

    relay.sent(QUEUE, &rows[..2]).await;

    assert_eq!(ids(&relay.read(QUEUE).await), [all[2].id]);
    assert!(t.desk.show(&all[0].id.to_string()).await.unwrap().is_none());
}

/// Nothing to say is no trouble.
pub async fn an_empty_settlement_changes_nothing<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;

    relay.settle(QUEUE, &Settlement::default()).await;

    assert_eq!(relay.read(QUEUE).await.len(), 2);
}

/// A settlement of thousands is one settlement.
pub async fn a_large_batch_is_settled_at_once<H: Harness>(t: Fixture<H>) {
    let all: Vec<Message> = (0..1_000).map(|n| message(n % 100, n)).collect();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    assert_eq!(rows.len(), 1_000);

    relay.sent(QUEUE, &rows).await;

    assert!(relay.read(QUEUE).await.is_empty());
    assert_eq!(t.desk.audit().await.unwrap().pending, 0);
}

/// A row that went meanwhile is passed over, and the rest of the settlement holds.
pub async fn rows_that_are_gone_are_passed_over<H: Harness>(t: Fixture<H>) {
    let all: Vec<Message> = (0..6).map(|n| message(n, 1)).collect();
    t.put(&all).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    for gone in &all[..4] {
        assert!(
            t.desk
                .cancel(&gone.id.to_string(), "duplicate order", "ann")
                .await
                .unwrap()
        );
    }

    let settlement = Settlement {
        sent: keys(&[rows[0].clone(), rows[4].clone()]),
        retry: vec![retry(&rows[1], LATER)],
        park: vec![park(&rows[2]), park(&rows[5])],
        hold: keys(&rows[3..4]),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &settlement).await;

    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked, audit.cancelled), (0, 1, 4));
    assert_eq!(audit.findings(true), Vec::<String>::new());
}

/// Everything that can be said, in one transaction.
pub async fn one_settlement_says_many_things<H: Harness>(t: Fixture<H>) {
    let mut all: Vec<Message> = (0..7).map(|n| message(n, 1)).collect();
    all[3].available_at = Some(chrono::Utc::now() + LATER);
    t.put(&all).await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    let rows = relay.read(QUEUE).await;

    let settlement = Settlement {
        sent: keys(&rows[..1]),
        retry: vec![retry(&rows[1], LATER)],
        hold: keys(&rows[2..3]),
        schedule: keys(&rows[3..4]),
        defer: vec![(rows[6].key(), LATER)],
        park: vec![park(&rows[4])],
        reroute: vec![copies(&rows[5], &[OTHER])],
        keep_sent: true,
        fresh: true,
    };
    relay.settle(QUEUE, &settlement).await;

    assert!(relay.read(QUEUE).await.is_empty());
    assert_eq!(relay.read(OTHER).await.len(), 1);
    let stats = t.stats().await;
    let queue = stats.iter().find(|s| s.queue == QUEUE).unwrap();
    assert_eq!(
        (queue.new, queue.retrying, queue.held, queue.scheduled),
        (0, 1, 1, 2)
    );
    assert_eq!((queue.parked, queue.kept), (1, 1));
}

fn copies(row: &RawRow, queues: &[&str]) -> Reroute {
    let copies = queues
        .iter()
        .map(|q| (id(row).derive(q), (*q).to_owned()))
        .collect();
    Reroute {
        row: row.key(),
        copies,
    }
}

/// An error in words may hold anything that a destination answered.
pub async fn odd_error_texts_are_stored<H: Harness>(t: Fixture<H>) {
    let texts = [
        "tab\tnul\0bell\u{7} line\nbreak".to_owned(),
        "gr\u{fc}\u{df} \u{1F980} \u{202e}".to_owned(),
        "x".repeat(100_000),
        String::new(),
    ];
    for (n, text) in texts.iter().enumerate() {
        t.put(&[message(n, 1), message(format!("parked-{n}"), 1)])
            .await;
        let relay = t.relay(&[QUEUE]).await;
        let rows = relay.read(QUEUE).await;
        let mut again = retry(&rows[0], LATER);
        let mut parked = park(&rows[1]);
        (again.error, parked.error) = (text.clone(), text.clone());
        again.code = Code::custom("card declined");

        let both = Settlement {
            retry: vec![again],
            park: vec![parked],
            ..Settlement::default()
        };
        relay.settle(QUEUE, &both).await;

        for row in &rows {
            let shown = t.desk.show(&id(row).to_string()).await.unwrap().unwrap();
            let start: String = text.chars().take(3).collect();
            assert!(shown.entry.error.unwrap_or_default().starts_with(&start));
        }
        relay.store.leave(&relay.id).await.unwrap();
    }
}

/// A route that fans out replaces the row by one for each destination.
pub async fn a_rerouted_row_is_replaced_by_its_copies<H: Harness>(t: Fixture<H>) {
    let queues = ["mail", OTHER];
    let mut originals: Vec<Message> = messages("a", 3);
    originals.iter_mut().for_each(|m| m.queue = None);
    originals[1] = originals[1].clone().header("note", "x");
    t.put(&originals).await;
    let relay = t.relay(&["", "mail", OTHER]).await;
    let rows = relay.read("").await;

    let reroute = rows.iter().map(|row| copies(row, &queues)).collect();
    relay
        .settle(
            "",
            &Settlement {
                reroute,
                ..Settlement::default()
            },
        )
        .await;

    assert!(relay.read("").await.is_empty());
    for queue in queues {
        let found = relay.read(queue).await;
        let expected: Vec<MessageId> = originals.iter().map(|m| m.id.derive(queue)).collect();
        assert_eq!(ids(&found), expected, "in order, in {queue}");
        assert_eq!(versions(&found), [1, 2, 3]);
        for ((copy, row), message) in found.iter().zip(&rows).zip(&originals) {
            let copy = judge(copy);
            assert_eq!(copy.aggregate, message.aggregate);
            assert_eq!(copy.payload, message.payload);
            assert_eq!(copy.headers, message.headers);
            assert_eq!(copy.event_type, message.event_type);
            assert_eq!(
                copy.created_at, row.created_at,
                "its age is that of the original"
            );
        }
    }
}

/// A copy waits for the time that its original waited for.
pub async fn a_rerouted_row_keeps_its_due_time<H: Harness>(t: Fixture<H>) {
    let mut later = message("a", 1).not_before(chrono::Utc::now() + LATER);
    later.queue = None;
    t.put(&[later]).await;
    let relay = t.relay(&["", OTHER]).await;
    let rows = relay.read("").await;

    let reroute = vec![copies(&rows[0], &[OTHER])];
    relay
        .settle(
            "",
            &Settlement {
                reroute,
                ..Settlement::default()
            },
        )
        .await;

    let found = relay.read(OTHER).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].early);
}

/// What a relay enqueues for callers without a database is there at once.
pub async fn the_store_enqueues_in_a_transaction_of_its_own<H: Harness>(t: Fixture<H>) {
    let all = messages("a", 3);
    let keyed: Vec<_> = all.iter().cloned().map(Into::into).collect();

    let answers = t.store.enqueue(&keyed).await.unwrap();

    assert!(answers.iter().all(|a| a.is_first()));
    let relay = t.relay(&[QUEUE]).await;
    assert_eq!(ids(&relay.read(QUEUE).await), ids_of(&all));
}
