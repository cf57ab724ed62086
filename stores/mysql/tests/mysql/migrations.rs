//! Creating the tables: by the program, by a person, by several, and half.

use std::sync::Arc;

use counterfoil_core::store::{Disposition, Store, StoreError};
use counterfoil_mysql::{MIGRATIONS, MysqlStore, print_migrations};
use counterfoil_testkit::fixture::{Fixture, QUEUE, message};
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
