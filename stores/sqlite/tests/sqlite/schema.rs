//! Tables, several processes that create them, and statements that find what they need by index.

use std::sync::Arc;

use counterfoil_core::message::Message;
use counterfoil_core::store::{Keyed, Store, StoreError};
use counterfoil_sqlite::{SqliteStore, print_migrations};
use counterfoil_testkit::fixture::{Fixture, QUEUE, messages};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

use super::harness::SqliteHarness;

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_create_the_tables_at_the_same_time() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("new.db");
    let start = Arc::new(tokio::sync::Barrier::new(8));

    let all: Vec<_> = (0..8)
        .map(|_| {
            let store = SqliteStore::connect(path.to_str().unwrap()).unwrap();
            let start = Arc::clone(&start);
            tokio::spawn(async move {
                start.wait().await;
                store.migrate().await?;
                store.check().await
            })
        })
        .collect();

    for one in all {
        one.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_printed_migrations_can_be_run_by_others_and_twice() {
    let home = tempfile::tempdir().unwrap();
    let store = SqliteStore::connect(home.path().join("app.db").to_str().unwrap()).unwrap();
    assert!(matches!(
        store.check().await,
        Err(StoreError::SchemaMissing)
    ));
    let options = SqliteConnectOptions::new().filename(store.path());
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();

    for _ in 0..2 {
        sqlx::raw_sql(AssertSqlSafe(print_migrations()))
            .execute(&pool)
            .await
            .unwrap();
    }

    store.check().await.unwrap();
    store.migrate().await.unwrap();
}

#[tokio::test]
async fn a_schema_for_newer_programs_is_refused() {
    let h = SqliteHarness::new().await;
    h.execute("INSERT INTO counterfoil_migrations (version, oldest_reader, name) VALUES (99, 98, 'future')").await;

    let (check, migrate) = (h.sqlite.check().await, h.sqlite.migrate().await);

    assert!(matches!(
        check,
        Err(StoreError::SchemaTooNew {
            found: 99,
            oldest_reader: 98,
            ..
        })
    ));
    assert!(matches!(migrate, Err(StoreError::SchemaTooNew { .. })));
}

#[tokio::test]
async fn tables_that_are_missing_are_named_as_such() {
    let h = SqliteHarness::new().await;
    h.execute("DROP VIEW counterfoil_pending").await;
    h.execute("DROP TABLE counterfoil_outbox").await;

    let read = h
        .sqlite
        .enqueue(&[messages("a", 1)[0].clone().into()])
        .await
        .unwrap_err();

    assert!(matches!(read, StoreError::SchemaMissing), "{read:?}");
}

#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("wide.db");
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true)
        .pragma("encoding", "'UTF-16'");
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    sqlx::raw_sql("CREATE TABLE t (x)")
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;

    let refused = SqliteStore::connect(path.to_str().unwrap())
        .unwrap()
        .migrate()
        .await
        .unwrap_err();

    assert!(
        refused
            .to_string()
            .contains("a database in UTF-8 is needed"),
        "{refused}"
    );
}

/// What the planner says about a statement, to a program that has just opened the file.
async fn plan(h: &SqliteHarness, sql: &str) -> String {
    let options = SqliteConnectOptions::new().filename(h.path());
    let mut connection = options.connect().await.unwrap();
    let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")))
        .fetch_all(&mut connection)
        .await
        .unwrap();
    rows.iter()
        .map(|row| row.get::<String, _>("detail") + "\n")
        .collect()
}

/// What the trigger of `counterfoil_gone` runs for each row.
const DELETE: &str = "DELETE FROM counterfoil_outbox WHERE seq = ?1";

/// The statements of a relay, and how each has to find its rows.
#[rustfmt::skip]
const PLANS: &[(&str, &str)] = &[
    (include_str!("../../sql/read.sql"), "counterfoil_outbox_new (<expr>=? AND rowid>?)"),
    (include_str!("../../sql/read_packed.sql"), "counterfoil_outbox_new (<expr>=? AND rowid>?)"),
    (include_str!("../../sql/read_waiting.sql"), "counterfoil_outbox_due (<expr>=? AND available_at<?)"),
    (include_str!("../../sql/read_lanes.sql"), "counterfoil_outbox_lane (<expr>=? AND <expr>=? AND <expr>=?)"),
    (include_str!("../../sql/contents.sql"), "o USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/runnable_lanes.sql"), "counterfoil_outbox_lane (<expr>=? AND <expr>>?)"),
    (DELETE, "counterfoil_outbox USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/delete_sent.sql"), "o USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/missing.sql"), "o USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/close_redriven.sql"), "ROWID SEARCH ON TABLE counterfoil_outbox"),
    (include_str!("../../sql/keep_sent.sql"), "counterfoil_outbox USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/note_delivered.sql"), "o USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/note_failed.sql"), "ROWID SEARCH ON TABLE counterfoil_outbox"),
    (include_str!("../../sql/retry.sql"), "ROWID SEARCH ON TABLE counterfoil_outbox"),
    (include_str!("../../sql/defer.sql"), "ROWID SEARCH ON TABLE counterfoil_outbox"),
    (include_str!("../../sql/look_again.sql"), "counterfoil_outbox_due (<expr>=? AND available_at>?)"),
    (include_str!("../../sql/hold.sql"), "ROWID SEARCH ON TABLE counterfoil_outbox"),
    (include_str!("../../sql/cancel.sql"), "counterfoil_outbox USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/schedule.sql"), "counterfoil_outbox USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/park.sql"), "counterfoil_outbox USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/reroute.sql"), "o USING INTEGER PRIMARY KEY (rowid=?)"),
    (include_str!("../../sql/sweep_history.sql"), "counterfoil_history_ended (ended_at<?)"),
    (include_str!("../../sql/sweep_ledger.sql"), "counterfoil_ledger_created (created_at<?)"),
    (include_str!("../../sql/sweep_parked.sql"), "counterfoil_parked_over (updated_at<?)"),
    (include_str!("../../sql/sweep_story.sql"), "counterfoil_events_seq (seq=?)"),
    (include_str!("../../sql/sweep_events.sql"), "counterfoil_events_at (at<?)"),
    (include_str!("../../sql/show.sql"), "counterfoil_outbox_id (id=?)"),
    (include_str!("../../sql/show_number.sql"), "counterfoil_outbox USING INTEGER PRIMARY KEY (rowid=?)"),
];

async fn no_scans(h: &SqliteHarness, when: &str) {
    for (sql, wanted) in PLANS {
        let plan = plan(h, sql).await;

        assert!(plan.contains(wanted), "{when}: {sql}\n{plan}");
        let scan = plan.lines().find(|line| scans_a_table(line));
        assert_eq!(scan, None, "{when}: {sql}\n{plan}");
    }
}

/// What a partial index holds is little, and a look whether it is empty is one step. The others are
/// lists that the statement itself has made or been given.
fn scans_a_table(line: &str) -> bool {
    const LISTS: &[&str] = &[
        "json_each",
        "held",
        "r",
        "c",
        "n",
        "due",
        "head",
        "old",
        "now",
        "counterfoil_now",
        "CONSTANT",
    ];
    let Some(what) = line.strip_prefix("SCAN ") else {
        return false;
    };
    let name = what.split(' ').next().unwrap_or_default();
    let small =
        line.contains("counterfoil_outbox_lane") || line.contains("counterfoil_parked_block");
    !small && !name.starts_with('(') && !LISTS.contains(&name)
}

#[tokio::test]
async fn no_statement_of_a_relay_scans_a_table_whatever_statistics_say() {
    let t = Fixture::new(Arc::new(SqliteHarness::new().await));
    let h = &t.harness;
    no_scans(h, "new").await;
    for rows in [0, 1, 2, 10, 1_000] {
        t.put(&messages("a", rows)).await;
        t.store.enqueue(&keyed(rows)).await.unwrap();
        let relay = t.relay(&[QUEUE]).await;
        let all = relay.read(QUEUE).await;
        if let [sent, parked, held, retried, ..] = &all[..] {
            relay.sent_and_kept(QUEUE, std::slice::from_ref(sent)).await;
            relay.park(QUEUE, parked).await;
            relay.hold(QUEUE, std::slice::from_ref(held)).await;
            relay.retry(QUEUE, retried).await;
        }
        t.store.leave(&relay.id).await.unwrap();
        h.execute("ANALYZE").await;
        no_scans(h, &format!("analysed with {rows} more rows")).await;
    }
    h.execute("DELETE FROM counterfoil_outbox").await;
    h.execute("PRAGMA optimize = 0x10002").await;
    no_scans(h, "emptied").await;
}

fn keyed(n: i64) -> Vec<Keyed> {
    let key = |m: Message| {
        let key = Some(("test".to_owned(), m.id.to_string()));
        Keyed { message: m, key }
    };
    messages("keyed", n).into_iter().map(key).collect()
}
