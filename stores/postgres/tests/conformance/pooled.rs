//! Behind PgBouncer in transaction mode: everything works, and nothing of ours stays on a connection
//! that somebody else gets next.

use std::sync::Arc;

use counterfoil_core::store::{Store as _, StoreError};
use counterfoil_postgres::PostgresStore;
use counterfoil_testkit::fixture::{QUEUE, message};
use counterfoil_testkit::relay::Relay;
use counterfoil_testkit::server;
use sqlx::{Connection as _, PgConnection};

use super::SuiteHarness;
use super::place::other_database;

counterfoil_testkit::store_suite!(SuiteHarness<true>);

mod consumers {
    use super::SuiteHarness;

    counterfoil_testkit::inbox_suite!(SuiteHarness<true>);
}

/// The URL of a database without the pooler before it.
pub(super) async fn direct(pooler: &str, database: &str) -> String {
    let mut connection = PgConnection::connect(pooler).await.unwrap();
    let port: i32 = sqlx::query_scalar("SELECT inet_server_port()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    format!("postgres://postgres@127.0.0.1:{port}/{database}")
}

/// What a session can have that another one would get with its connection.
async fn settings(url: &str) -> Vec<(String, String)> {
    let mut other = PgConnection::connect(url).await.unwrap();
    let found = sqlx::query_as(
        "SELECT name, setting FROM pg_settings WHERE source = 'session' \
             AND name NOT IN ('client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', \
                 'application_name', 'IntervalStyle', 'extra_float_digits', 'search_path') \
         UNION ALL SELECT 'lock', objid::text FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() \
         UNION ALL SELECT 'listen', channel FROM pg_listening_channels() AS channel \
         ORDER BY 1",
    )
    .fetch_all(&mut other)
    .await
    .unwrap();
    other.close().await.unwrap();
    found
}

#[tokio::test]
async fn settings_of_ours_do_not_stay_on_a_connection_that_others_get() {
    let Some(server) = server::pgbouncer() else {
        return;
    };
    let single = other_database(&server, "single");
    let store = PostgresStore::connect(&single).unwrap();

    store.migrate().await.unwrap();
    store.check().await.unwrap();
    store.enqueue(&[message("a", 1).into()]).await.unwrap();
    let mut relay = Relay::join(Arc::new(store.clone()), &[QUEUE]).await;
    relay.take_all().await;
    let rows = relay.read(QUEUE).await;
    relay.sent(QUEUE, &rows).await;

    assert_eq!(settings(&single).await, []);
    store.close().await;
}

#[tokio::test]
async fn a_relay_says_that_it_hears_nothing_and_hears_at_a_direct_address() {
    let Some(server) = server::pgbouncer() else {
        return;
    };
    let single = other_database(&server, "single");
    let store = PostgresStore::connect(&single).unwrap();
    let deaf = store.listen().await;
    assert!(matches!(deaf, Err(StoreError::Unsupported { .. })));
    assert_eq!(settings(&single).await, []);

    store.listen_at(&direct(&server, "postgres").await).unwrap();
    let mut wake = store.listen().await.unwrap().unwrap();
    store.announce().await.unwrap();

    wake.wait().await.unwrap();
    store.close().await;
}
