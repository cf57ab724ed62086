//! Rows that programs in other languages wrote: odd values never fail their writer, get the
//! documented default or a reason for being parked, and block nobody.

use counterfoil_core::desk::Filter;
use counterfoil_core::message::{MessageId, Payload};
use counterfoil_core::row::RawRow;
use counterfoil_core::store::Settlement;

use crate::fixture::{Fixture, QUEUE, Relay, id, ids, judge, message, park, versions};
use crate::harness::{ForeignRow, Harness};

/// A row in [`QUEUE`] with nothing else in it.
pub(super) fn row() -> ForeignRow {
    ForeignRow {
        queue: Some(QUEUE.into()),
        ..ForeignRow::default()
    }
}

/// A row of an aggregate in [`QUEUE`].
pub(super) fn of(aggregate: &str) -> ForeignRow {
    ForeignRow {
        aggregate_id: Some(aggregate.into()),
        ..row()
    }
}

/// Ten thousand characters that no compression makes shorter.
pub(super) fn endless() -> String {
    std::iter::repeat_with(fastrand::alphanumeric)
        .take(10_000)
        .collect()
}

/// The rows that no message of ours has written.
async fn odd_rows(relay: &Relay, queue: &str, ours: &[MessageId]) -> Vec<RawRow> {
    let all = relay.everything(queue).await;
    all.into_iter().filter(|r| !ours.contains(&id(r))).collect()
}

/// What is left out has a default.
pub async fn an_empty_row_gets_the_documented_defaults<H: Harness>(t: Fixture<H>) {
    t.foreign(&[ForeignRow::default()]).await;
    let relay = t.relay(&[""]).await;

    let rows = relay.read("").await;

    assert_eq!(
        rows.len(),
        1,
        "a row without a queue waits in the unrouted one"
    );
    assert!(!rows[0].early && !rows[0].behind);
    let delivery = judge(&rows[0]);
    assert_eq!(delivery.defect, None);
    assert_eq!((delivery.aggregate, delivery.version), (None, None));
    assert_eq!((delivery.attempt, delivery.event_type.as_str()), (1, ""));
    assert_eq!(delivery.payload, Payload::Json("null".into()));
    assert!(delivery.headers.is_empty());
}

/// NULL is what was left out, in every column; and the default id is the same at every look.
pub async fn a_row_of_nulls_gets_the_same_id_at_every_look<H: Harness>(t: Fixture<H>) {
    t.foreign(&[ForeignRow {
        nulls: true,
        ..ForeignRow::default()
    }])
    .await;
    let relay = t.relay(&[""]).await;

    let first = relay.read("").await;
    let second = relay.read("").await;
    relay
        .retry_in("", &first[0], std::time::Duration::ZERO)
        .await;
    let third = relay.waiting("").await;
    relay.park("", &first[0]).await;

    assert_eq!(judge(&first[0]).defect, None);
    assert_eq!(judge(&first[0]).attempt, 1);
    assert_eq!(ids(&second), ids(&first));
    assert_eq!(ids(&third), ids(&first));
    let parked = t.desk.parked(&Filter::default()).await.unwrap();
    assert_eq!(parked[0].id, id(&first[0]).to_string());
    let answer = t
        .desk
        .redrive(std::slice::from_ref(&parked[0].id), false, "ann")
        .await
        .unwrap();
    assert_eq!(answer.redriven.len(), 1);
    assert_eq!(
        ids(&relay.waiting("").await),
        ids(&first),
        "a redrive keeps it"
    );
}

/// What can never be delivered is read, has its reason, can be parked, and blocks nobody.
pub async fn odd_values_are_parked_with_a_reason_and_block_nobody<H: Harness>(t: Fixture<H>) {
    let odd = [
        (
            ForeignRow {
                payload: Some("{".into()),
                ..of("a")
            },
            "not valid JSON",
        ),
        (
            ForeignRow {
                payload: Some(String::new()),
                ..of("a")
            },
            "not valid JSON",
        ),
        (
            ForeignRow {
                headers: Some("[]".into()),
                ..of("a")
            },
            "headers",
        ),
        (
            ForeignRow {
                headers: Some("{".into()),
                ..of("a")
            },
            "headers",
        ),
        (
            ForeignRow {
                headers: Some(r#"{"a":{}}"#.into()),
                ..of("a")
            },
            "header",
        ),
        (
            ForeignRow {
                payload: Some("1".into()),
                payload_bin: Some(vec![1]),
                ..of("a")
            },
            "both payload",
        ),
        (
            ForeignRow {
                state: Some("SENT".into()),
                ..of("a")
            },
            "unknown state",
        ),
        (
            ForeignRow {
                state: Some(endless()),
                ..of("a")
            },
            "unknown state",
        ),
        (
            ForeignRow {
                id: Some("order-1".into()),
                ..of("a")
            },
            "not a UUID",
        ),
        (
            ForeignRow {
                id: Some(String::new()),
                ..of("a")
            },
            "not a UUID",
        ),
        (
            ForeignRow {
                id: Some(endless()),
                ..row()
            },
            "not a UUID",
        ),
        (of(&endless()), "over 255 bytes"),
        (
            ForeignRow {
                aggregate_type: Some(endless()),
                ..of("a")
            },
            "over 255 bytes",
        ),
        (of("bell\u{7}"), "aggregate's id holds a control character"),
        (
            ForeignRow {
                aggregate_type: Some("\u{1b}[2J".into()),
                ..of("b")
            },
            "aggregate's type holds a control character",
        ),
        (
            ForeignRow {
                event_type: Some("Paid\r\nx: y".into()),
                ..of("c")
            },
            "event type holds a control character",
        ),
        (
            ForeignRow {
                headers: Some(r#"{"x\u0000": "y"}"#.into()),
                ..of("d")
            },
            "name of a header holds a control character",
        ),
        (
            ForeignRow {
                headers: Some(r#"{"x": "y\u0000"}"#.into()),
                ..of("e")
            },
            "NUL",
        ),
    ];
    let relay = t.relay(&[QUEUE]).await;
    let mut neighbours = Vec::new();
    for (n, (foreign, _)) in odd.iter().enumerate() {
        let neighbour = message(format!("neighbour-{n}"), 1);
        neighbours.push(neighbour.id);
        t.foreign(std::slice::from_ref(foreign)).await;
        t.put(&[neighbour]).await;
    }

    let rows = odd_rows(&relay, QUEUE, &neighbours).await;
    let again = odd_rows(&relay, QUEUE, &neighbours).await;

    assert_eq!(rows.len(), odd.len(), "every one is read");
    assert_eq!(ids(&again), ids(&rows), "under the same id each time");
    for (row, (foreign, word)) in rows.iter().zip(&odd) {
        let reason = judge(row).defect.unwrap_or_default();
        assert!(reason.contains(word), "{reason:?} for {word:?}");
        assert!(reason.len() < 1_000, "endless values are not repeated");
        assert!(
            foreign.id.is_none() || row.id == foreign.id,
            "shown as written"
        );
    }
    for row in &rows {
        relay.park(QUEUE, row).await;
    }
    assert_eq!(
        ids(&relay.everything(QUEUE).await),
        neighbours,
        "the others go on"
    );
    assert!(relay.read(QUEUE).await.iter().all(|r| !r.behind));
    let parked = t.desk.parked(&Filter::default()).await.unwrap();
    assert_eq!(parked.len(), odd.len());
    for entry in parked {
        assert!(
            MessageId::parse(&entry.id).is_some(),
            "parked under an id that can be named"
        );
        assert!(
            t.desk
                .facts(&entry.id)
                .await
                .unwrap()
                .sentence()
                .contains("Parked")
        );
    }
}

/// Redriving what cannot be delivered brings it back to be parked again, and nothing breaks.
pub async fn odd_rows_can_be_redriven_and_parked_again<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let endless_lane = of(&endless());
    t.foreign(&[
        ForeignRow {
            payload: Some("{".into()),
            ..of("a")
        },
        endless_lane,
    ])
    .await;
    let rows = relay.read(QUEUE).await;
    let ids: Vec<String> = rows.iter().map(|r| id(r).to_string()).collect();
    let all = || Settlement {
        park: rows.iter().map(park).collect(),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &all()).await;

    let answer = t.desk.redrive(&ids, false, "ann").await.unwrap();
    let back = relay.waiting(QUEUE).await;
    relay.settle(QUEUE, &all()).await;

    assert_eq!((answer.redriven.len(), back.len()), (2, 2));
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked), (0, 2));
    assert_eq!(audit.findings(true), Vec::<String>::new());
}

/// What is merely unusual is delivered.
pub async fn unusual_values_are_delivered<H: Harness>(t: Fixture<H>) {
    let known = MessageId::new();
    let unusual = [
        ForeignRow {
            id: Some(known.to_string().to_uppercase()),
            ..row()
        },
        ForeignRow {
            id: Some(known.as_uuid().simple().to_string()),
            ..row()
        },
        ForeignRow {
            id: Some(known.to_string()),
            ..row()
        },
        ForeignRow {
            attempts: Some(-5),
            ..row()
        },
        ForeignRow {
            attempts: Some(i32::MIN),
            ..row()
        },
        ForeignRow {
            version: Some(i64::MIN),
            ..of("a")
        },
        ForeignRow {
            version: Some(i64::MAX),
            ..of("a")
        },
        ForeignRow {
            headers: Some(r#"{"N":1,"gone":null}"#.into()),
            ..row()
        },
        ForeignRow {
            headers: Some(String::new()),
            ..row()
        },
        ForeignRow {
            payload_bin: Some(vec![0, 255]),
            ..row()
        },
        ForeignRow {
            state: Some(String::new()),
            ..row()
        },
        ForeignRow {
            state: Some("new".into()),
            ..row()
        },
        ForeignRow {
            event_type: Some(endless()),
            ..row()
        },
        ForeignRow {
            aggregate_type: Some("order".into()),
            ..row()
        },
        ForeignRow {
            aggregate_type: Some(String::new()),
            ..of("")
        },
    ];
    t.foreign(&unusual).await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(rows.len(), unusual.len());
    for (row, written) in rows.iter().zip(&unusual) {
        let delivery = judge(row);
        assert_eq!(delivery.defect, None, "{written:?}");
        assert_eq!(delivery.attempt, 1, "{written:?}");
    }
    assert_eq!(
        ids(&rows[..3]),
        [known; 3],
        "an id is the same in every spelling"
    );
    assert_eq!(
        (rows[5].version, rows[6].version),
        (Some(i64::MIN), Some(i64::MAX))
    );
    relay.sent_and_kept(QUEUE, &rows).await;
    assert_eq!(
        t.desk.audit().await.unwrap().sent_kept,
        unusual.len() as u64
    );
}

/// Two rows may say the same version: they go in the order in which they were written.
pub async fn a_version_may_come_twice<H: Harness>(t: Fixture<H>) {
    let twice = ForeignRow {
        version: Some(1),
        ..of("a")
    };
    t.foreign(&[
        twice.clone(),
        twice.clone(),
        ForeignRow {
            version: Some(2),
            ..of("a")
        },
    ])
    .await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(versions(&rows), [1, 1, 2]);
    assert!(rows.iter().all(|r| judge(r).defect.is_none()));
    assert_ne!(id(&rows[0]), id(&rows[1]));
}

/// Two rows may even say the same id: both are delivered, and operators find one of them.
pub async fn an_id_may_come_twice<H: Harness>(t: Fixture<H>) {
    let known = MessageId::new();
    let twice = ForeignRow {
        id: Some(known.to_string()),
        ..of("a")
    };
    t.foreign(&[twice.clone(), twice]).await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    assert_eq!(ids(&rows), [known, known]);
    assert!(t.desk.show(&known.to_string()).await.unwrap().is_some());
    relay.park(QUEUE, &rows[0]).await;
    relay.sent_and_kept(QUEUE, &rows[1..]).await;
    assert_eq!(
        t.desk.audit().await.unwrap().findings(true),
        Vec::<String>::new()
    );
}

/// An operator finds a message by the id that its destination saw.
pub async fn a_message_is_found_by_any_spelling_of_its_id<H: Harness>(t: Fixture<H>) {
    let known = MessageId::new();
    t.foreign(&[ForeignRow {
        id: Some(known.to_string().to_uppercase()),
        ..of("a")
    }])
    .await;
    let spellings = [
        known.to_string(),
        known.to_string().to_uppercase(),
        format!(" {known} "),
    ];

    for id in &spellings {
        assert!(t.desk.show(id).await.unwrap().is_some(), "{id:?}");
    }

    assert!(
        t.desk
            .cancel(&spellings[0], "never meant", "ann")
            .await
            .unwrap()
    );
}

/// A foreign writer's savepoint takes back its row as it does ours.
pub async fn a_foreign_row_that_is_taken_back_is_never_read<H: Harness>(t: Fixture<H>) {
    let mut tx = t.harness.begin().await;
    t.harness.savepoint(&mut tx).await;
    t.harness.foreign(&mut tx, &of("a")).await.unwrap();
    t.harness.rollback_to(&mut tx).await;
    t.harness.foreign(&mut tx, &of("b")).await.unwrap();
    t.harness.commit(tx).await.unwrap();
    let mut tx = t.harness.begin().await;
    t.harness.foreign(&mut tx, &of("c")).await.unwrap();
    t.harness.rollback(tx).await;

    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;

    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].aggregate_id.as_deref(), Some("b"));
}
