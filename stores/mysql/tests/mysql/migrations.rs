//! Creating the tables: by the program, by a person, by several, and half.

use std::sync::Arc;

use counterfoil_core::message::Aggregate;
use counterfoil_core::schema::{Applied, judge};
use counterfoil_core::store::{Disposition, Store, StoreError};
use counterfoil_mysql::{MIGRATIONS, MysqlStore, print_migrations};
use counterfoil_testkit::fixture::{Fixture, QUEUE, message, versions};
use counterfoil_testkit::harness::Harness;
use counterfoil_testkit::suite::run;
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;

use super::client::Client;
use super::harness::{MysqlHarness, on_server};

async fn enqueue_and_read(t: &Fixture<MysqlHarness>) {
    t.put(&[message("a", 1)]).await;
    assert_eq!(t.relay(&[QUEUE]).await.read(QUEUE).await.len(), 1);
}

/// Runs a case in a database without any table.
fn in_empty<F: Future<Output = ()> + Send + 'static>(
    case: impl FnOnce(Fixture<MysqlHarness>) -> F,
) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let Some(harness) = MysqlHarness::empty().await else {
            return;
        };
        let harness = Arc::new(harness);
        let outcome = tokio::spawn(case(Fixture::new(Arc::clone(&harness)))).await;
        harness.clean_up().await;
        outcome.unwrap();
    });
}

#[test]
fn the_printed_steps_can_be_run_twice_by_the_client() {
    in_empty(async |t| {
        let Some(client) = Client::find(&t.harness) else {
            return;
        };
        assert!(matches!(
            t.store.check().await,
            Err(StoreError::SchemaMissing)
        ));

        client.run("utf8mb4", print_migrations());
        client.run("latin1", print_migrations());

        t.store.check().await.unwrap();
        t.store.migrate().await.unwrap();
        enqueue_and_read(&t).await;
    });
}

#[test]
fn a_migration_that_was_killed_in_the_middle_is_finished_by_the_next() {
    in_empty(async |t| {
        let (first, _) = MIGRATIONS[0]
            .sql
            .split_once("-- Messages that are over")
            .unwrap();
        t.harness.run(first).await;
        assert!(matches!(
            t.store.check().await,
            Err(StoreError::SchemaMissing)
        ));

        t.store.migrate().await.unwrap();

        t.store.check().await.unwrap();
        enqueue_and_read(&t).await;
    });
}

/// The first steps as an earlier build made them, on a server that has MD5.
async fn by_an_earlier_build(t: &Fixture<MysqlHarness>) {
    let outbox = MIGRATIONS[0]
        .sql
        .replace(
            "UNHEX(LEFT(CONVERT(SHA2(CONCAT(",
            "UNHEX((CONVERT(MD5((CONCAT(",
        )
        .replace(", 256) USING ascii), 32)", ")) USING ascii))")
        .replace(", 256) USING ascii), 2)", ")) USING ascii))")
        .replace("counterfoil_outbox_blocks", "counterfoil_outbox_lane");
    assert!(outbox.contains("MD5(") && !outbox.contains("SHA2("));
    t.harness.run(outbox).await;
    for step in &MIGRATIONS[1..5] {
        t.harness.run(step.sql).await;
    }
    t.harness
        .run(
            "CREATE TABLE counterfoil_migrations (version BIGINT NOT NULL PRIMARY KEY, \
                 oldest_reader BIGINT NOT NULL, name VARCHAR(255) NOT NULL, \
                 applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))); \
             INSERT INTO counterfoil_migrations (version, oldest_reader, name) VALUES \
                 (1, 1, 'outbox'), (2, 1, 'guard'), (3, 1, 'once'), (4, 1, 'breakers'), (5, 1, 'inbox')",
        )
        .await;
}

/// Whether the server can have tables of an earlier build: MySQL has no MD5 from 9.6 on.
async fn has_md5(t: &Fixture<MysqlHarness>) -> bool {
    sqlx::query("SELECT MD5('a')")
        .execute(&t.harness.pool)
        .await
        .is_ok()
}

#[test]
fn tables_of_an_earlier_build_keep_their_lanes_and_are_closed_to_it() {
    in_empty(async |t| {
        if !has_md5(&t).await {
            return;
        }
        by_an_earlier_build(&t).await;
        t.harness
            .run(
                "INSERT INTO counterfoil_outbox
                     (id, queue, aggregate_type, aggregate_id, version, event_type, payload, state, available_at)
                 VALUES (UUID(), 'billing', 'order', 'a', 1, 'x', '{}', 'retrying', UTC_TIMESTAMP(6)),
                        (UUID(), 'billing', 'order', 'a', 2, 'x', '{}', 'held', NULL),
                        (UUID(), 'billing', 'order', 'b', 2, 'x', '{}', NULL, NULL);
                 INSERT INTO counterfoil_parked
                     (seq, id, queue, queue_key, shard, lane, aggregate_type, aggregate_id, attempts, code, hold, confirm)
                 SELECT 1000, 'p', 'billing', 'billing', shard, lane, 'order', 'b', 1, 'x', 1, 0
                 FROM counterfoil_outbox WHERE aggregate_id = 'b'",
            )
            .await;
        assert!(matches!(
            t.store.check().await,
            Err(StoreError::SchemaTooOld { .. })
        ));

        t.store.migrate().await.unwrap();

        let (outbox, parked): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT COUNT(*) FROM counterfoil_outbox
                     WHERE lane = UNHEX(LEFT(SHA2(CONCAT('order', 0x1f, aggregate_id), 256), 32))
                       AND (waiting = 0 OR blocks = lane)),
                    (SELECT COUNT(*) FROM counterfoil_parked p JOIN counterfoil_outbox o
                     ON o.lane = p.blocks AND o.shard = p.shard)",
        )
        .fetch_one(&t.harness.pool)
        .await
        .unwrap();
        assert_eq!((outbox, parked), (3, 1));
        let relay = t.relay(&[QUEUE]).await;
        let read = relay.read(QUEUE).await;
        assert_eq!(versions(&read), [2], "behind what is parked");
        assert!(read[0].behind);
        let due = relay.waiting(QUEUE).await;
        assert_eq!(versions(&due), [1]);
        relay.sent(QUEUE, &due).await;
        let held = relay.lane(QUEUE, &Aggregate::new("order", "a")).await;
        assert_eq!(versions(&held), [2]);

        // What relays of the earlier build read with.
        let old = sqlx::query(
            "SELECT seq FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_lane) LIMIT 1",
        )
        .execute(&t.harness.pool)
        .await;
        assert!(old.is_err(), "an earlier build must not find empty lanes");
        let (version, oldest_reader) =
            sqlx::query_as("SELECT MAX(version), MAX(oldest_reader) FROM counterfoil_migrations")
                .fetch_one(&t.harness.pool)
                .await
                .unwrap();
        let applied = Applied {
            version,
            oldest_reader,
        };
        assert!(matches!(
            judge(&MIGRATIONS[..5], Some(applied)),
            Err(StoreError::SchemaTooNew { .. })
        ));
    });
}

/// A user who may do this and nothing else, and a store under its name.
async fn as_user(t: &Fixture<MysqlHarness>, rights: &str) -> MysqlStore {
    let (server, database) = (&t.harness.server, &t.harness.database);
    let name = user(t);
    // Both: a server may have a nameless user at localhost, who would come first.
    for host in ["%", "localhost"] {
        on_server(
            server,
            format!("CREATE USER '{name}'@'{host}' IDENTIFIED BY 'x'"),
        )
        .await;
        on_server(
            server,
            format!("GRANT {rights} ON {database}.* TO '{name}'@'{host}'"),
        )
        .await;
    }
    let options: MySqlConnectOptions = t.harness.url().parse().unwrap();
    MysqlStore::connect(
        options
            .username(&name)
            .password("x")
            .to_url_lossy()
            .as_str(),
    )
    .unwrap()
}

async fn forget_user(t: &Fixture<MysqlHarness>) {
    let name = user(t);
    on_server(
        &t.harness.server,
        format!("DROP USER '{name}'@'%', '{name}'@'localhost'"),
    )
    .await;
}

fn user(t: &Fixture<MysqlHarness>) -> String {
    let database = &t.harness.database;
    format!("cf_{}", &database[database.len() - 12..])
}

#[test]
fn tables_that_are_there_need_no_right_to_create_any() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let store = as_user(&t, "SELECT, INSERT, UPDATE, DELETE").await;

        store.migrate().await.unwrap();
        store.check().await.unwrap();
        store.enqueue(&[message("a", 1).into()]).await.unwrap();

        store.close().await;
        forget_user(&t).await;
    });
}

#[test]
fn a_missing_right_to_create_is_not_something_to_wait_for() {
    in_empty(async |t| {
        let store = as_user(&t, "SELECT").await;

        let refused = store.migrate().await.unwrap_err();

        assert_eq!(refused.disposition(), Disposition::Fail);
        assert!(
            refused.one_line().contains("denied"),
            "{}",
            refused.one_line()
        );
        store.close().await;
        forget_user(&t).await;
    });
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let options: MySqlConnectOptions = t.harness.url().parse().unwrap();
        let wrong = [
            options.clone().database("there_is_none"),
            options.username("nobody").password("x"),
        ];
        for options in wrong {
            let store = MysqlStore::connect(options.to_url_lossy().as_str()).unwrap();
            let answer = store.check().await;
            assert!(
                matches!(answer, Err(StoreError::Unreachable(_))),
                "{answer:?}"
            );
        }
        assert!(
            t.store.describe().contains(&t.harness.database),
            "{}",
            t.store.describe()
        );
    });
}
