//! One message that locks, looks and begins: what it holds, and what it leaves behind.

use std::time::Duration;

use counterfoil_core::guard::{Expect, Records, Snapshot, State, Write};
use counterfoil_core::store::StoreError;
use counterfoil_postgres::PostgresGuard;
use counterfoil_testkit::guard::fixture::{GuardFixture, finished, key};
use counterfoil_testkit::guard::harness::TxHarness;
use counterfoil_testkit::guard::run;
use sqlx::{PgPool, Row};

use super::PostgresHarness;

type T = GuardFixture<PostgresHarness>;

/// The locks of this database that last as long as a transaction, and the session's name, as the
/// connection itself sees them.
async fn standing(connection: &mut sqlx::PgConnection) -> (i64, String, bool) {
    sqlx::query_as(
        "SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
                current_setting('application_name'),
                (SELECT xact_start <> query_start FROM pg_stat_activity WHERE pid = pg_backend_pid())",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

async fn is_clean(pool: &PgPool) {
    assert_is_clean(&mut pool.acquire().await.unwrap()).await;
}

/// Outside a transaction each statement has a transaction id of its own.
pub(crate) async fn assert_is_clean(connection: &mut sqlx::PgConnection) {
    let (locks, name, _) = standing(connection).await;
    assert_eq!(locks, 0);
    assert!(!name.starts_with("counterfoil:"), "{name}");
    let mut ids: Vec<i64> = Vec::new();
    for _ in 0..2 {
        ids.push(
            sqlx::query_scalar("SELECT txid_current()")
                .fetch_one(&mut *connection)
                .await
                .unwrap(),
        );
    }
    assert_ne!(ids[0], ids[1], "the connection is inside a transaction");
}

#[test]
fn the_lock_and_the_savepoint_last_as_long_as_the_transaction() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let pool = t.harness.pool(1, "");
        let guard = PostgresGuard::new(pool.clone());
        let mut tx = guard
            .begin(&key("k"), Expect::Absent)
            .await
            .unwrap()
            .unwrap();

        assert_eq!(standing(&mut tx).await, (1, "counterfoil:k".into(), true));
        t.harness.insert(&mut tx, 1).await.unwrap();
        t.harness.swallow(&mut tx).await;
        guard.undo(&mut tx).await.unwrap();
        let after = standing(&mut tx).await;
        assert_eq!(after, (1, "counterfoil:k".into(), true));
        guard.undo(&mut tx).await.unwrap();
        let write = finished("k", Expect::Absent);
        assert!(guard.commit(tx, &write).await.unwrap());

        is_clean(&pool).await;
        assert!(t.harness.rows().await.is_empty());
    });
}

#[test]
fn a_condition_that_is_not_met_leaves_the_connection_clean() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let pool = t.harness.pool(1, "");
        let guard = PostgresGuard::new(pool.clone());
        let holder = t.guard.begin(&key("k"), Expect::Absent).await.unwrap();

        for (name, expect) in [("k", Expect::Absent), ("other", Expect::Fence(7))] {
            for _ in 0..3 {
                assert!(guard.begin(&key(name), expect).await.unwrap().is_none());
                is_clean(&pool).await;
            }
        }
        drop(holder);
    });
}

#[test]
fn a_missing_table_is_told_and_leaves_the_connection_clean() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let pool = t.harness.pool(1, "");
        let guard = PostgresGuard::table(pool.clone(), "nobody_made_it").unwrap();

        let missing = guard.begin(&key("k"), Expect::Absent).await;

        assert!(matches!(missing, Err(StoreError::SchemaMissing)));
        is_clean(&pool).await;
    });
}

/// Their locks are told apart by the table, not by its name.
#[test]
fn the_same_key_in_another_schema_is_another_key() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let _here = t.guard.begin(&key("k"), Expect::Absent).await.unwrap();

        run_elsewhere().await;

        async fn run_elsewhere() {
            use counterfoil_testkit::guard::harness::GuardHarness;
            let there = PostgresHarness::fresh().await.unwrap();
            let tx = there
                .guard()
                .begin(&key("k"), Expect::Absent)
                .await
                .unwrap();
            let begun = tx.is_some();
            drop(tx);
            there.clean_up().await;
            assert!(begun);
        }
    });
}

/// The snapshot of such a transaction may be older than its lock: the end is refused then.
#[test]
fn one_has_run_whatever_the_isolation() {
    run::<PostgresHarness, _, _>(async |t: T| {
        for (n, level) in (0..).zip(["repeatable%20read", "serializable", "read%20committed"]) {
            let level = level.replace("%20", "%5C%20");
            let settings = format!("%20-c%20default_transaction_isolation%3D{level}");
            let guard = PostgresGuard::new(t.harness.pool(6, &settings));
            let name = format!("k{n}");
            let running: Vec<_> = (0..12)
                .map(|i| {
                    let (guard, harness, name) = (
                        guard.clone(),
                        std::sync::Arc::clone(&t.harness),
                        name.clone(),
                    );
                    tokio::spawn(async move {
                        let begun = guard.begin(&key(&name), Expect::Absent).await.unwrap();
                        let Some(mut tx) = begun else { return false };
                        harness.insert(&mut tx, n * 100 + i).await.unwrap();
                        let write = finished(&name, Expect::Absent);
                        match guard.commit(tx, &write).await {
                            Ok(true) => true,
                            Ok(false) | Err(StoreError::Busy(_)) => false,
                            Err(other) => panic!("{other:?}"),
                        }
                    })
                })
                .collect();
            let mut ran = 0;
            for one in running {
                ran += u32::from(one.await.unwrap());
            }

            assert_eq!(ran, 1, "{settings}");
            assert!(guard.look(&key(&name).digest()).await.unwrap().is_some());
        }
        assert_eq!(t.harness.rows().await.len(), 3);
    });
}

/// Backslashes in texts mean something else in old applications.
#[test]
fn old_settings_of_the_session_do_not_matter() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let settings = "%20-c%20standard_conforming_strings%3Doff%20-c%20bytea_output%3Descape\
                        %20-c%20timezone%3DAsia/Kathmandu%20-c%20datestyle%3DGerman";
        let guard = PostgresGuard::new(t.harness.pool(1, settings));
        let tx = guard
            .begin(&key("k"), Expect::Absent)
            .await
            .unwrap()
            .unwrap();
        let write = finished("k", Expect::Absent);
        assert!(guard.commit(tx, &write).await.unwrap());

        assert!(
            guard
                .begin(&key("k"), Expect::Absent)
                .await
                .unwrap()
                .is_none()
        );
        let (here, there) = (
            t.find("k").await.record,
            guard.look(&key("k").digest()).await,
        );
        assert_eq!(there.unwrap().unwrap().record, here);
        let again = Expect::Fence(here.fence);
        assert!(guard.begin(&key("k"), again).await.unwrap().is_some());
    });
}

/// As text in the message of the commit, and as parameters when it is large: it comes back as it was.
#[test]
fn answers_of_every_kind_come_back_as_they_were() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let every_byte: Vec<u8> = (0..=255).collect();
        let bodies = [0, 1, 8_150, 8_192, 8_193, 300_000]
            .map(|size| every_byte.iter().copied().cycle().take(size).collect());
        let texts = [
            "$c",
            "$c$",
            "$$ $cc$c",
            "'; SELECT 1 /*",
            "\\x00 \\'",
            "ä{values}{key}",
        ];
        for (n, body) in (0..).zip(
            bodies
                .into_iter()
                .chain(texts.map(|x| x.as_bytes().to_vec())),
        ) {
            let name = format!("{}{n}", texts[n % texts.len()]);
            let header = (name.clone(), every_byte[1..].to_vec());
            let snapshot = Snapshot {
                status: 201,
                headers: vec![header, ("x".into(), Vec::new())],
                body: Some(Vec::into(body)),
            };
            let write = Write {
                snapshot: Some(snapshot),
                retry_in: (n % 2 == 0).then_some(Duration::from_secs(7)),
                ..finished(&name, Expect::Absent)
            };
            let begun = t.guard.begin(&write.key, Expect::Absent).await.unwrap();

            assert!(t.guard.commit(begun.unwrap(), &write).await.unwrap());

            let record = t.find(&name).await.record;
            assert_eq!((&record.key, record.snapshot), (&write.key, write.snapshot));
            assert_eq!((record.state, record.attempts), (write.state, 1));
            assert_eq!(record.retry_at.is_some(), write.retry_in.is_some());
            assert_eq!(record.fingerprint, write.fingerprint);
        }
    });
}

/// The record of somebody who did not ask for the lock, an old version perhaps, stands in the way.
#[test]
fn nothing_commits_when_another_record_is_there() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let pool = t.harness.pool(1, "");
        let guard = PostgresGuard::new(pool.clone());
        for size in [10, 100_000] {
            let name = format!("k{size}");
            let begun = guard.begin(&key(&name), Expect::Absent).await.unwrap();
            let mut tx = begun.unwrap();
            t.harness.insert(&mut tx, 1).await.unwrap();
            t.claim(&name).await;
            let snapshot = Snapshot {
                status: 200,
                headers: Vec::new(),
                body: Some(vec![7; size].into()),
            };
            let write = Write {
                snapshot: Some(snapshot),
                ..finished(&name, Expect::Absent)
            };

            assert!(!guard.commit(tx, &write).await.unwrap());

            is_clean(&pool).await;
            assert!(t.harness.rows().await.is_empty());
            assert_eq!(t.find(&name).await.record.state, State::Processing);
        }
    });
}

async fn plan(pool: &PgPool, statement: &str, values: &str) -> String {
    let explain =
        format!("DEALLOCATE ALL; PREPARE change AS {statement}; EXPLAIN EXECUTE change({values})");
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(explain)).fetch_all(pool);
    let lines = rows.await.unwrap();
    let lines: Vec<String> = lines.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

/// The index of open records is nearly empty when the tables are new, and full of dead entries soon.
/// A plan that was made in time would go through all of them for every change.
#[test]
fn changes_go_by_the_key_whatever_the_server_believes_of_the_table() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let pool = t.harness.pool(
            1,
            "%20-c%20plan_cache_mode%3Dforce_generic_plan%20-c%20enable_seqscan%3Doff\
             %20-c%20enable_hashjoin%3Doff%20-c%20enable_mergejoin%3Doff",
        );
        let over = plan(&pool, include_str!("../../sql/guard/purge.sql"), "10").await;
        assert!(
            over.contains("Index Scan using counterfoil_guard_past"),
            "{over}"
        );
        assert!(!over.contains("Sort"), "{over}");
        for (statement, values) in [
            (
                include_str!("../../sql/guard/end_all.sql"),
                "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'",
            ),
            (
                include_str!("../../sql/guard/heartbeat.sql"),
                "'', 0, 0, NULL",
            ),
            (include_str!("../../sql/guard/doubt.sql"), "'', 0, NULL"),
            (include_str!("../../sql/guard/release.sql"), "'', 0, NULL"),
        ] {
            let plan = plan(&pool, statement, values).await;

            assert!(
                plan.contains("Index Scan using counterfoil_guard_pkey"),
                "{plan}"
            );
            assert!(!plan.contains("counterfoil_guard_open"), "{plan}");
        }
    });
}
