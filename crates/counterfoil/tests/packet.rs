//! MySQL and MariaDB read statements up to a size, and hang up on what is larger.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a surprise ends the test"
)]

use std::sync::Arc;
use std::time::Duration;

use counterfoil::{
    Capabilities, Code, Counterfoil, Delivery, Destination, Message, Outcome, QueueSpec, Settings,
};
use counterfoil_testkit::server;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

const QUEUE: &str = "orders";
/// A longer one is cut.
const ERROR: usize = 3_900;

/// Fails with an error that takes six times its length as JSON.
struct Odd(usize);

#[async_trait::async_trait]
impl Destination for Odd {
    fn describe(&self) -> String {
        "odd".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: self.0,
            concurrency: 1,
            timeout: None,
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let failed = |_| Outcome::Retry {
            code: Code::TASK_FAILED,
            error: "\u{1}".repeat(ERROR),
            after: Some(Duration::from_secs(3_600)),
        };
        batch.iter().map(failed).collect()
    }
}

#[tokio::test]
async fn a_settlement_that_is_larger_than_the_server_reads_is_settled_in_parts() {
    let Some(server) = server::mysql() else {
        return;
    };
    let database = format!(
        "packet_{}",
        counterfoil::MessageId::new().as_uuid().simple()
    );
    let mut outside = MySqlConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {database}"));
    sqlx::raw_sql(create).execute(&mut outside).await.unwrap();
    let largest: u64 = sqlx::query_scalar("SELECT @@max_allowed_packet")
        .fetch_one(&mut outside)
        .await
        .unwrap();
    let rows = usize::try_from(largest).unwrap() / (6 * ERROR) + 100;
    let options: MySqlConnectOptions = server.parse().unwrap();
    let pool = MySqlPoolOptions::new().connect_lazy_with(options.database(&database));
    let cf = Counterfoil::mysql(pool.clone())
        .queue(QueueSpec::new(QUEUE, Arc::new(Odd(rows))))
        .settings(Settings {
            batch: rows,
            ..Settings::default()
        })
        .start()
        .await
        .unwrap();

    let all: Vec<Message> = (0..rows)
        .map(|n| {
            Message::json("order", n, "OrderPaid", &n)
                .unwrap()
                .queue(QUEUE)
        })
        .collect();
    let mut tx = pool.begin().await.unwrap();
    cf.enqueue_all(&mut tx, &all).await.unwrap();
    cf.commit(tx).await.unwrap();

    let stored = tokio::time::timeout(Duration::from_secs(90), async {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            let stats = cf.desk().stats().await.unwrap();
            if stats
                .iter()
                .any(|q| q.queue == QUEUE && q.retrying == rows as u64)
            {
                break;
            }
        }
    });
    assert!(stored.await.is_ok(), "waited in vain for {rows} retries");
    cf.stop().await;
    pool.close().await;
    let drop = AssertSqlSafe(format!("DROP DATABASE {database}"));
    sqlx::raw_sql(drop).execute(&mut outside).await.unwrap();
}
