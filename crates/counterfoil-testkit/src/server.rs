//! Where the servers are that tests need.
//!
//! # Promise
//! A test never passes by not running: without its server it fails in CI, and elsewhere it says
//! loudly that it was skipped and leaves a line in the list of skips.

mod kafka;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;
mod sqs;

use std::fs::OpenOptions;
use std::io::Write as _;

pub use kafka::{Certificate, PrivateKafka};
pub use nats::PrivateNats;
pub use postgres::PrivatePostgres;
pub use rabbitmq::PrivateRabbitMq;
pub use redis::PrivateRedis;
pub use sqs::PrivateSqs;

/// The variable that names a PostgreSQL server.
pub const POSTGRES: &str = "COUNTERFOIL_TEST_POSTGRES_URL";
/// The variable that names a PgBouncer that pools transactions.
pub const PGBOUNCER: &str = "COUNTERFOIL_TEST_PGBOUNCER_URL";
/// The variable that names a MySQL or MariaDB server.
pub const MYSQL: &str = "COUNTERFOIL_TEST_MYSQL_URL";
/// The variable that names a Redis server.
pub const REDIS: &str = "COUNTERFOIL_TEST_REDIS_URL";
/// The variable that names a Kafka server.
pub const KAFKA: &str = "COUNTERFOIL_TEST_KAFKA_URL";
/// The variable that names a NATS server.
pub const NATS: &str = "COUNTERFOIL_TEST_NATS_URL";
/// The variable that names a server that speaks SQS.
pub const SQS: &str = "COUNTERFOIL_TEST_SQS_URL";
/// The variable that names a RabbitMQ server.
pub const RABBITMQ: &str = "COUNTERFOIL_TEST_RABBITMQ_URL";
/// The variable that names the file to which skipped tests are appended.
pub const SKIPS: &str = "COUNTERFOIL_TEST_SKIPS";

/// The URL of the PostgreSQL server for tests. Absent: skip the test.
///
/// Others use it too. A test that ends its server, or needs a replica, starts a [`PrivatePostgres`].
pub fn postgres() -> Option<String> {
    address(POSTGRES, "PostgreSQL")
}

/// The URL of the PgBouncer for tests, in transaction mode. Absent: skip the test.
///
/// It knows every database of its server. Under the name `single` all clients share one connection to
/// the first one.
pub fn pgbouncer() -> Option<String> {
    address(PGBOUNCER, "PgBouncer")
}

/// The URL of the MySQL or MariaDB server for tests. Absent: skip the test.
pub fn mysql() -> Option<String> {
    address(MYSQL, "MySQL or MariaDB")
}

/// The URL of the Redis server for tests. Absent: skip the test.
///
/// Others use it too: take names of your own, and leave theirs alone. A test that stops, kills or
/// empties its Redis starts a [`PrivateRedis`].
pub fn redis() -> Option<String> {
    address(REDIS, "Redis")
}

/// The URL of the Kafka server for tests. Absent: skip the test.
///
/// Others use it too: take topics and groups of your own. A test that stops or kills its Kafka
/// starts a [`PrivateKafka`].
pub fn kafka() -> Option<String> {
    address(KAFKA, "Kafka")
}

/// The URL of the NATS server for tests. Absent: skip the test.
///
/// Others use it too: take names of your own, and leave theirs alone. A test that stops or kills its
/// NATS starts a [`PrivateNats`].
pub fn nats() -> Option<String> {
    address(NATS, "NATS")
}

/// The URL of the server for tests that speaks SQS. Absent: skip the test.
///
/// Others use it too. A test that stops or kills its server starts a [`PrivateSqs`].
pub fn sqs() -> Option<String> {
    address(SQS, "SQS")
}

/// The URL of the RabbitMQ server for tests. Absent: skip the test.
///
/// Others use it too: take queues and exchanges of your own. A test that stops or kills its
/// RabbitMQ starts a [`PrivateRabbitMq`].
pub fn rabbitmq() -> Option<String> {
    address(RABBITMQ, "RabbitMQ")
}

/// The address of a server, from an environment variable. Absent: skip the test.
///
/// # Panics
/// When the variable is not set and `CI` is `true`.
pub fn address(variable: &str, product: &str) -> Option<String> {
    match std::env::var(variable) {
        Ok(url) if !url.trim().is_empty() => Some(url),
        _ => {
            skipped(
                &current_test(),
                &format!("{variable} names no {product} server"),
            );
            None
        }
    }
}

/// Notes that a test does not run, and why.
///
/// # Panics
/// When `CI` is `true`: there, a test that cannot run has failed.
pub fn skipped(test: &str, reason: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{test} cannot run: {reason}. In CI that is a failure."
    );
    eprintln!("\n##### SKIPPED {test}: {reason} #####\n");
    if let Ok(path) = std::env::var(SKIPS) {
        append(&path, &format!("{test}\t{reason}\n"));
    }
}

/// The name of the running test: the test runner names each test's thread after it.
pub fn current_test() -> String {
    std::thread::current()
        .name()
        .unwrap_or("unnamed test")
        .to_owned()
}

fn append(path: &str, line: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap_or_else(|e| panic!("the list of skipped tests {path} cannot be opened: {e}"));
    file.write_all(line.as_bytes())
        .expect("the list of skipped tests cannot be written");
}
