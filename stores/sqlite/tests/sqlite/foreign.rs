//! Writers in other languages, and what SQLite lets them put into a column.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use counterfoil_core::desk::Filter;
use counterfoil_core::message::{Message, Payload};
use counterfoil_core::row::RawRow;
use counterfoil_core::store::Settlement;
use counterfoil_testkit::fixture::{Fixture, QUEUE, Relay, id, judge, park};
use counterfoil_testkit::server::{current_test, skipped};

use super::harness::SqliteHarness;

async fn fixture() -> Fixture<SqliteHarness> {
    Fixture::new(Arc::new(SqliteHarness::new().await))
}

/// Runs a program on the database file. Answers false when there is no Python.
fn python(path: &std::path::Path, program: &str) -> bool {
    let started = Command::new("python3")
        .arg("-")
        .arg(path)
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        skipped(&current_test(), "there is no python3");
        return false;
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(program.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    true
}

/// The INSERT of docs/book/sql-contract.md, in the writer's own transaction.
const DOCUMENTED: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")
insert = """INSERT INTO counterfoil_outbox
    (queue, aggregate_type, aggregate_id, version, event_type, payload, headers, available_at)
    VALUES ('billing', 'order', ?, ?, 'OrderPaid', ?, '{"traceparent": "00-1"}', ?)"""
with db:
    db.execute("INSERT INTO orders VALUES (42, 7)")
    db.execute(insert, ("42", 1, '{"total": 7}', None))
    db.execute(insert, ("43", 1, '{"total": 8}', "2099-12-31T08:00:00+01:00"))
try:
    with db:
        db.execute("INSERT INTO orders VALUES (44, 7)")
        db.execute(insert, ("44", 1, '{"total": 7}', None))
        raise RuntimeError
except RuntimeError:
    pass
"#;

#[tokio::test]
async fn a_program_in_python_enqueues_in_its_own_transaction() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    if !python(&t.harness.path(), DOCUMENTED) {
        return;
    }

    let rows = relay.read(QUEUE).await;

    let [paid, later] = &rows[..] else {
        panic!("{rows:?}")
    };
    let delivery = judge(paid);
    assert_eq!(delivery.defect, None);
    assert_eq!(delivery.payload, Payload::Json(r#"{"total": 7}"#.into()));
    assert_eq!(delivery.headers.get("traceparent"), Some("00-1"));
    assert_eq!(delivery.version, Some(1));
    assert!(paid.id.is_some() && !paid.early && later.early);
    let age = chrono::Utc::now() - delivery.created_at;
    assert!((0..600).contains(&age.num_seconds()), "{age}");
}

/// Each row has one value in a column where it does not belong, and the word that names it.
const ODD: &[(&str, &str)] = &[
    ("id = x'c3'", "id is not UTF-8"),
    (
        "aggregate_type = x'c3', aggregate_id = '1'",
        "aggregate_type is not UTF-8",
    ),
    (
        "aggregate_id = CAST(x'c3' AS TEXT)",
        "aggregate_id is not UTF-8",
    ),
    (
        "event_type = CAST(x'ff00' AS TEXT)",
        "event_type is not UTF-8",
    ),
    ("payload = CAST(x'22ff22' AS TEXT)", "payload is not UTF-8"),
    ("payload = x'ff'", "payload is not UTF-8"),
    ("headers = x'ff'", "headers is not UTF-8"),
    ("version = 'seven'", "version is not a whole number"),
    ("version = 7.5", "version is not a whole number"),
    ("version = x'07'", "version is not a whole number"),
    ("attempts = 'many'", "attempts is not a whole number"),
    ("state = x'68656c64'", "unknown state"),
    ("state = CAST(x'ff' AS TEXT)", "state is not UTF-8"),
    ("created_at = 'yesterday'", "created_at is neither"),
    (
        "created_at = 'yesterday', id = NULL",
        "created_at is neither",
    ),
    ("created_at = x'ff'", "created_at is neither"),
    ("available_at = 'tomorrow'", "available_at is neither"),
    (
        "available_at = '2027-13-01 00:00:00'",
        "available_at is neither",
    ),
    (
        "state = 'scheduled', available_at = 'tomorrow'",
        "available_at is neither",
    ),
    (
        "state = 'retrying', available_at = x'ff'",
        "available_at is neither",
    ),
];

#[tokio::test]
async fn a_value_of_the_wrong_kind_is_read_and_named_and_can_be_parked() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    for (odd, word) in ODD {
        t.harness
            .execute(format!(
                "INSERT INTO counterfoil_outbox (queue, payload) VALUES ('{QUEUE}', '1')"
            ))
            .await;
        t.harness
            .execute(format!("UPDATE counterfoil_outbox SET {odd}"))
            .await;

        let rows = relay.everything(QUEUE).await;

        let [row] = &rows[..] else {
            panic!("{odd}: {rows:?}")
        };
        let defect = judge(row).defect.unwrap_or_default();
        assert!(defect.contains(word), "{odd}: {defect:?}");
        assert_eq!(
            id(row),
            id(&relay.everything(QUEUE).await[0]),
            "{odd}: the id is stable"
        );
        see_everything(&t, row).await;
        relay.park(QUEUE, row).await;
        see_everything(&t, row).await;
    }
    assert_eq!(t.desk.audit().await.unwrap().parked, ODD.len() as u64);
    assert_eq!(
        t.desk.parked(&Filter::default()).await.unwrap().len(),
        ODD.len()
    );
}

/// No look of an operator may fail.
async fn see_everything(t: &Fixture<SqliteHarness>, row: &RawRow) {
    let id = id(row).to_string();
    t.desk.outbox(&Filter::default()).await.unwrap();
    t.desk.parked(&Filter::default()).await.unwrap();
    t.desk.stats().await.unwrap();
    t.desk.show(&id).await.unwrap();
    t.desk.facts(&id).await.unwrap();
    t.desk.audit().await.unwrap();
}

#[tokio::test]
async fn odd_rows_can_be_settled_in_every_other_way() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    for (odd, _) in ODD {
        t.harness
            .execute(format!(
                "INSERT INTO counterfoil_outbox (queue, payload) VALUES ('{QUEUE}', '1')"
            ))
            .await;
        t.harness
            .execute(format!("UPDATE counterfoil_outbox SET {odd}"))
            .await;
        let row = relay.everything(QUEUE).await.remove(0);

        relay.retry_in(QUEUE, &row, std::time::Duration::ZERO).await;
        relay.schedule(QUEUE, std::slice::from_ref(&row)).await;
        relay
            .store
            .suspect(&relay.fence(QUEUE), &row.key())
            .await
            .unwrap()
            .unwrap();
        relay.sent_and_kept(QUEUE, std::slice::from_ref(&row)).await;

        see_everything(&t, &row).await;
    }
    assert_eq!(t.desk.audit().await.unwrap().sent_kept, ODD.len() as u64);
}

#[tokio::test]
async fn a_name_written_as_a_blob_counts_by_its_bytes() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    for aggregate in ["'7'", "x'37'", "7"] {
        t.harness
            .execute(format!(
                "INSERT INTO counterfoil_outbox (queue, aggregate_type, aggregate_id, payload)
                 VALUES (CAST('{QUEUE}' AS BLOB), x'6f', {aggregate}, '1')"
            ))
            .await;
    }

    let rows = relay.read(QUEUE).await;
    assert!(
        rows.iter().all(|r| judge(r).defect.is_none() && !r.behind),
        "{rows:?}"
    );
    relay.retry(QUEUE, &rows[0]).await;

    let rows = relay.read(QUEUE).await;
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter().all(|r| r.behind),
        "one lane, whatever the type of its name"
    );
}

#[tokio::test]
async fn a_time_written_as_a_text_is_understood() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    let times = [
        ("'2020-01-31 08:00:00'", false),
        ("'2020-01-31T08:00:00.123Z'", false),
        ("'2020-01-31'", false),
        ("'now'", false),
        ("NULL", false),
        ("1.5", false),
        ("'2099-01-31T08:00:00+02:00'", true),
        ("x'323039392d30312d3331'", true),
        ("9e300", true),
        ("9e999", true),
    ];
    for (time, _) in times {
        t.harness
            .execute(format!(
                "INSERT INTO counterfoil_outbox (queue, payload, created_at, available_at) VALUES
                 ('{QUEUE}', '1', '2020-01-31 08:00:00', {time})"
            ))
            .await;
    }

    let rows = relay.read(QUEUE).await;

    for (row, (time, early)) in rows.iter().zip(times) {
        assert_eq!(
            (row.early, row.unreadable.as_deref()),
            (early, None),
            "{time}"
        );
        assert_eq!(row.created_at.to_rfc3339(), "2020-01-31T08:00:00+00:00");
    }
    relay.schedule(QUEUE, &rows).await;
    assert_eq!(
        relay.waiting(QUEUE).await.len(),
        6,
        "what is due comes, whatever it was written as"
    );
    let waits: Vec<RawRow> = rows.into_iter().filter(|r| r.early).collect();
    t.harness
        .execute("UPDATE counterfoil_outbox SET available_at = 1 WHERE available_at > 2")
        .await;
    assert_eq!(relay.waiting(QUEUE).await.len(), 6 + waits.len());
}

#[tokio::test]
async fn plain_opaque_large_and_odd_rows_come_in_the_order_of_their_numbers() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    let json = |text: String| Message::new("Event", Payload::Json(text)).queue(QUEUE);
    let opaque = |bytes: Vec<u8>| Message::new("Event", Payload::Opaque(bytes.into())).queue(QUEUE);
    let large = format!("\"{}\"", "é\\n".repeat(40_000));
    let contents = [
        json("1".into()).header("a", "ü\n"),
        opaque(vec![0, 255, 10]),
        json("{\"a\":\n[\"\\u0000 ✓\"]}".into()),
        json(large),
        opaque(vec![]),
        opaque(vec![7; 200_000]),
        json("null".into()),
    ];
    t.put(&contents).await;

    for with_an_odd_one in [false, true] {
        if with_an_odd_one {
            let odd =
                "INSERT INTO counterfoil_outbox (queue, event_type) VALUES ('billing', x'ff')";
            t.harness.execute(odd).await;
        }
        let mut rows = relay.read(QUEUE).await;

        assert_eq!(rows.len(), contents.len() + usize::from(with_an_odd_one));
        rows.truncate(contents.len());
        for (row, message) in rows.iter().zip(&contents) {
            let delivery = judge(row);
            assert_eq!(
                (delivery.id, delivery.payload),
                (message.id, message.payload.clone())
            );
            assert_eq!(delivery.headers, message.headers);
        }
    }
}

#[tokio::test]
async fn rows_without_id_and_time_have_ids_that_stay_and_that_no_other_database_has() {
    let bare =
        "INSERT INTO counterfoil_outbox (queue, id, created_at) VALUES ('billing', NULL, NULL)";
    let (t, u) = (fixture().await, fixture().await);
    let (relay, other) = (t.relay(&[QUEUE]).await, u.relay(&[QUEUE]).await);
    t.harness.execute(bare).await;
    u.harness.execute(bare).await;
    u.harness
        .execute("UPDATE counterfoil_migrations SET applied_at = applied_at - 1")
        .await;

    let first = relay.read(QUEUE).await.remove(0);
    relay
        .retry_in(QUEUE, &first, std::time::Duration::ZERO)
        .await;
    let again = relay.waiting(QUEUE).await.remove(0);

    assert_eq!(id(&first), id(&again));
    let elsewhere = other.read(QUEUE).await.remove(0);
    assert_eq!(elsewhere.seq, first.seq);
    assert_ne!(id(&elsewhere), id(&first));
}

#[tokio::test]
async fn a_number_that_was_visible_never_comes_back() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    let one = || Message::new("Event", Payload::Json("1".into())).queue(QUEUE);
    t.put(&[one(), one()]).await;
    let rows = relay.read(QUEUE).await;
    relay.sent(QUEUE, &rows).await;

    let mut rolled_back = t.harness.pool.begin().await.unwrap();
    counterfoil_sqlite::enqueue(&mut rolled_back, &[one(), one()])
        .await
        .unwrap();
    rolled_back.rollback().await.unwrap();
    t.put(&[one()]).await;

    let next = relay.read(QUEUE).await;
    assert_eq!(next.len(), 1);
    assert!(next[0].seq > rows[1].seq);
}

#[tokio::test]
async fn an_unreadable_row_waits_for_nobody() {
    let t = fixture().await;
    let relay: Relay = t.relay(&[QUEUE]).await;
    for _ in 0..2 {
        t.harness
            .execute(
                "INSERT INTO counterfoil_outbox (queue, aggregate_id) VALUES ('billing', x'ff')",
            )
            .await;
    }
    let rows = relay.read(QUEUE).await;
    let settlement = Settlement {
        park: vec![park(&rows[0])],
        ..Settlement::default()
    };
    relay.settle(QUEUE, &settlement).await;

    let rest = relay.read(QUEUE).await;

    assert!(
        !rest[0].behind && rest[0].aggregate_id.is_none(),
        "it can be parked at once"
    );
}
