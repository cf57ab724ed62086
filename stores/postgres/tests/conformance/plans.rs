//! The server keeps plans that it made while the tables were new. They must still be good when the
//! inbox has millions of rows.

use counterfoil_core::inbox::Mode;
use counterfoil_core::store::StoreError;
use counterfoil_postgres::inbox;
use counterfoil_testkit::fixture::{Fixture, lane};
use counterfoil_testkit::inbox::fixture::CONSUMER;
use counterfoil_testkit::inbox::run;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::PostgresHarness;

type T = Fixture<PostgresHarness>;

/// Prepares a statement and tells how it would be run, for any values.
async fn plan(connection: &mut PgConnection, statement: &str, values: &str) -> String {
    let explain = format!(
        "SET plan_cache_mode = force_generic_plan; DEALLOCATE ALL;
         PREPARE step AS {statement}; EXPLAIN EXECUTE step ({values})"
    );
    let lines = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_all(connection)
        .await
        .unwrap();
    let lines: Vec<String> = lines.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

/// Every look at a table of ours goes by one of these indexes.
fn goes_by(plan: &str, indexes: &[&str]) {
    for line in plan
        .lines()
        .filter(|l| l.contains("Scan") && l.contains("counterfoil_"))
    {
        let by = |index: &&str| line.contains(&format!("Index Scan using {index} "));
        assert!(indexes.iter().any(by), "{plan}");
    }
}

#[test]
fn steps_that_were_planned_on_new_tables_go_by_the_key() {
    run::<PostgresHarness, _, _>(async |t: T| {
        let mut connection = t.harness.pool.acquire().await.unwrap();
        connection.close_on_drop();
        for (statement, values, indexes) in [
            (
                include_str!("../../sql/inbox/arrive.sql"),
                "'c', '{}'",
                &[][..],
            ),
            (include_str!("../../sql/inbox/retry.sql"), "'c', '{}'", &[]),
            (
                include_str!("../../sql/inbox/add_lanes.sql"),
                "'c', '{}', '{}'",
                &[],
            ),
            (
                include_str!("../../sql/inbox/lock_lanes.sql"),
                "'c', '{}', '{}'",
                &["counterfoil_inbox_lanes_pkey"],
            ),
            (
                include_str!("../../sql/inbox/taken_lanes.sql"),
                "'inbox:c', '{}', '{}'",
                &["counterfoil_outbox_lane", "counterfoil_parked_block"],
            ),
            (
                include_str!("../../sql/inbox/defer.sql"),
                "'c', '{}', '{}', 'inbox:c', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'",
                &[],
            ),
            (
                include_str!("../../sql/inbox/finish.sql"),
                "'c', '{}', '{}', '{}'",
                &[],
            ),
            (
                include_str!("../../sql/inbox/redriven.sql"),
                "1",
                &["counterfoil_parked_pkey"],
            ),
        ] {
            let plan = plan(&mut connection, statement, values).await;

            goes_by(&plan, indexes);
            assert!(!plan.contains("hashed SubPlan"), "{plan}");
        }
    });
}

/// The oldest are at the beginning of the index: nothing else is looked at.
#[test]
fn a_purge_does_not_look_at_the_whole_table() {
    run::<PostgresHarness, _, _>(async |t: T| {
        t.harness
            .run(
                "INSERT INTO counterfoil_inbox (consumer, key)
                 SELECT 'stock', 'k' || n FROM generate_series(1, 20000) n;
                 INSERT INTO counterfoil_inbox_lanes (consumer, kind, id)
                 SELECT 'stock', 'k', n::text FROM generate_series(1, 20000) n",
            )
            .await;
        let mut connection = t.harness.pool.acquire().await.unwrap();
        connection.close_on_drop();

        let statement = include_str!("../../sql/inbox/purge.sql");
        let plan = plan(&mut connection, statement, "'stock', 86400, 1000, 86400").await;

        assert!(!plan.contains("Seq Scan"), "{plan}");
        assert!(
            plan.contains("Index Scan using counterfoil_inbox_processed "),
            "{plan}"
        );
        assert!(
            plan.contains("Index Scan using counterfoil_inbox_lanes_touched "),
            "{plan}"
        );
    });
}

/// Its snapshot may be older than what others have put off.
#[test]
fn a_transaction_that_does_not_see_others_is_refused() {
    run::<PostgresHarness, _, _>(async |t: T| {
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
            let mut tx = t.harness.pool.begin_with(begin).await.unwrap();

            let lanes = [&lane(1)];
            let admitted = inbox::admit(&mut tx, CONSUMER, Mode::Arrival, &["a"], &lanes).await;

            assert!(
                matches!(admitted, Err(StoreError::Doomed(_))),
                "{admitted:?}"
            );
        }
        // What the database's settings say does not matter to those who begin with us.
        t.harness
            .run("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            .await;
        for _ in 0..8 {
            assert!(!t.lane(&lane(1)).await.taken);
        }
    });
}
