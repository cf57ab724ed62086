//! Numbers that come back: when a replica that lacks the last transactions becomes the primary, it
//! gives their numbers to other messages, while a relay still holds the old ones.

use std::time::Duration;

use counterfoil_core::message::MessageId;
use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{Park, Settlement};

use super::fencing::each_kind;
use super::foreign::{of, row as foreign_row};
use crate::fixture::{Fixture, LATER, OTHER, QUEUE, id, ids, keys, message, messages, park, retry};
use crate::harness::{Fault, ForeignRow, Harness};

/// Another message stands under the number of this row.
async fn comes_back<H: Harness>(t: &Fixture<H>, row: &RawRow) -> MessageId {
    let id = MessageId::new();
    let fault = Fault::NumberComesBack {
        seq: row.seq,
        id: id.to_string(),
    };
    assert!(t.harness.corrupt(&fault).await);
    id
}

/// Whatever is said about the old message says nothing about the new one.
pub async fn a_number_that_came_back_is_not_settled_as_the_old_message<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE, OTHER]).await;
    for kind in 0.. {
        t.put(&[message(kind, 1)]).await;
        let old = relay.read(QUEUE).await.remove(0);
        let mut settlements = each_kind(&old);
        if kind >= settlements.len() {
            break;
        }
        let settlement = settlements.swap_remove(kind);
        let new = comes_back(&t, &old).await;

        relay.settle(QUEUE, &settlement).await;
        let suspected = relay.store.suspect(&relay.fence(QUEUE), &old.key()).await;

        assert_eq!(suspected.unwrap(), None, "after {settlement:?}");
        let found = relay.read(QUEUE).await;
        assert_eq!(ids(&found), [new], "after {settlement:?}");
        assert_eq!((&found[0].state, found[0].attempts), (&RowState::New, 0));
        assert!(relay.read(OTHER).await.is_empty(), "after {settlement:?}");
        let shown = t.desk.show(&new.to_string()).await.unwrap().unwrap();
        assert!(shown.events.is_empty(), "after {settlement:?}");
        relay.sent(QUEUE, &found).await;
    }
    let audit = t.desk.audit().await.unwrap();
    assert_eq!(audit.findings(true), Vec::<String>::new());
    assert_eq!((audit.parked, audit.sent_kept), (0, 0));
}

/// The rest of a settlement holds.
pub async fn the_other_rows_of_a_settlement_are_settled<H: Harness>(t: Fixture<H>) {
    t.put(&(0..10).map(|n| message(n, 1)).collect::<Vec<_>>())
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let mut survivors = Vec::new();
    for old in rows.iter().step_by(2) {
        survivors.push(comes_back(&t, old).await);
    }

    relay.sent(QUEUE, &rows[..4]).await;
    let mixed = Settlement {
        sent: keys(&rows[4..6]),
        retry: vec![retry(&rows[6], LATER), retry(&rows[7], LATER)],
        park: vec![park(&rows[8]), park(&rows[9])],
        ..Settlement::default()
    };
    relay.settle(QUEUE, &mixed).await;

    assert_eq!(ids(&relay.read(QUEUE).await), survivors);
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked), (6, 1));
}

/// Both messages of a number can stand in one settlement: the one that is there is settled.
pub async fn of_two_messages_under_one_number_the_right_one_is_settled<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    for swap in [false, true] {
        for keep_sent in [false, true] {
            t.put(&messages("a", 1)).await;
            let old = relay.read(QUEUE).await;
            comes_back(&t, &old[0]).await;
            let new = relay.read(QUEUE).await;
            let mut sent = [keys(&old), keys(&new)].concat();
            if swap {
                sent.reverse();
            }

            let settlement = Settlement {
                sent,
                keep_sent,
                fresh: true,
                ..Settlement::default()
            };
            relay.settle(QUEUE, &settlement).await;

            assert!(relay.everything(QUEUE).await.is_empty());
        }
    }
    t.put(&messages("a", 1)).await;
    let old = relay.read(QUEUE).await;
    comes_back(&t, &old[0]).await;
    let new = relay.read(QUEUE).await;
    let both = Settlement {
        retry: vec![retry(&old[0], Duration::ZERO)],
        park: vec![park(&new[0])],
        ..Settlement::default()
    };
    relay.settle(QUEUE, &both).await;
    assert_eq!(t.desk.audit().await.unwrap().parked, 1);
    assert!(relay.everything(QUEUE).await.is_empty());
}

/// Ids that are none count byte by byte, and so does their absence.
pub async fn an_odd_id_is_known_again_exactly<H: Harness>(t: Fixture<H>) {
    let uuid = MessageId::new().to_string();
    let odd = [
        None,
        Some(String::new()),
        Some("order-1".into()),
        Some("ORDER-1".into()),
        Some("x6f".into()),
        Some("o".into()),
        Some(uuid.to_uppercase()),
        Some(uuid.replace('-', "")),
        Some(format!("{uuid} ")),
        Some("gr\u{fc}\u{df} \u{1F980} \"quoted\" \\ 'so'".into()),
        Some("z".repeat(10_000)),
    ];
    let relay = t.relay(&[QUEUE]).await;
    for written in &odd {
        let foreign = ForeignRow {
            id: written.clone(),
            nulls: written.is_none(),
            ..of("a")
        };
        for kind in 0..4 {
            t.foreign(std::slice::from_ref(&foreign)).await;
            let row = relay.read(QUEUE).await.remove(0);
            let one = || keys(std::slice::from_ref(&row));
            let settlement = match kind {
                0 => Settlement {
                    sent: one(),
                    fresh: true,
                    ..Settlement::default()
                },
                1 => Settlement {
                    sent: one(),
                    keep_sent: true,
                    ..Settlement::default()
                },
                _ => Settlement {
                    park: vec![park(&row)],
                    ..Settlement::default()
                },
            };
            if kind == 3 {
                comes_back(&t, &row).await;
            }
            let fence = relay.fence(QUEUE);
            let suspected = relay.store.suspect(&fence, &row.key()).await.unwrap();
            relay.settle(QUEUE, &settlement).await;

            let left = relay.everything(QUEUE).await;
            let came_back = kind == 3;
            assert_eq!(suspected.is_none(), came_back, "{written:?} as {kind}");
            assert_eq!(left.len(), usize::from(came_back), "{written:?} as {kind}");
            relay.sent(QUEUE, &left).await;
        }
    }
    let parked = t.desk.audit().await.unwrap().parked;
    assert_eq!(parked, odd.len() as u64);
}

/// What was cancelled during its last attempt, or is another message by now, is not given up: nothing
/// is to be made good.
pub async fn a_message_that_is_not_parked_is_not_compensated<H: Harness>(t: Fixture<H>) {
    t.put(&(0..3).map(|n| message(n, 1)).collect::<Vec<_>>())
        .await;
    t.foreign(&[foreign_row()]).await;
    let relay = t.relay(&[QUEUE, OTHER]).await;
    let rows = relay.read(QUEUE).await;
    let cancelled = id(&rows[0]).to_string();
    assert!(
        t.desk
            .cancel(&cancelled, "ordered twice", "ann")
            .await
            .unwrap()
    );
    comes_back(&t, &rows[1]).await;
    let refunds: Vec<_> = rows
        .iter()
        .map(|row| message(row.seq, 1).queue(OTHER))
        .collect();

    let with_refund = |(row, refund): (&RawRow, &counterfoil_core::Message)| Park {
        follow_up: Some(refund.clone()),
        ..park(row)
    };
    let settlement = Settlement {
        park: rows.iter().zip(&refunds).map(with_refund).collect(),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &settlement).await;

    assert_eq!(
        ids(&relay.read(OTHER).await),
        [refunds[2].id, refunds[3].id]
    );
    assert_eq!(t.desk.audit().await.unwrap().parked, 2);
}
