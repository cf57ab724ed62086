//! Both services, as the README starts them, with each broker: one line is different.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a surprise ends the test"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// Brokers miss a dead consumer only after half a minute; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// A service that runs; dropped, it is killed.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(program: &str, broker: &str, folder: &Path) -> Self {
        let mut child = Command::new(program)
            .env("BROKER_URL", broker)
            .env("LISTEN", "127.0.0.1:0")
            .env_remove("DATABASE_URL")
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The log is there, too.
        let address = lines
            .find_map(|line| {
                let line = line.unwrap();
                let (_, rest) = line.split_once(": http://127.0.0.1:")?;
                let (port, _) = rest.split_once('/')?;
                Some(format!("127.0.0.1:{port}"))
            })
            .expect("it says where it listens");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    /// The status and the body of the answer.
    fn ask(&self, request: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = "host: shop\r\nconnection: close\r\ncontent-type: application/json";
        write!(
            stream,
            "{request} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer[9..12].parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, body.to_owned())
    }

    fn order(&self, id: u32, item: &str, count: u32) -> u16 {
        let order = format!(r#"{{"id": "{id}", "item": "{item}", "count": {count}}}"#);
        self.ask("POST /orders", &order).0
    }

    fn until_stock_is(&self, expected: &str) {
        let begun = Instant::now();
        loop {
            let (_, stock) = self.ask("GET /stock", "");
            if stock == expected {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{stock} and not {expected}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Orders arrive once, also those that are placed while nobody is there to take the goods.
fn shop(broker: &str) {
    let folder = tempfile::tempdir().unwrap();
    let start = |program| Service::start(program, broker, folder.path());
    let stock = start(env!("CARGO_BIN_EXE_stock-service"));
    let orders = start(env!("CARGO_BIN_EXE_order-service"));

    assert_eq!(orders.order(1, "chair", 3), 201);
    assert_eq!(orders.order(1, "chair", 3), 200);
    assert_eq!(orders.order(1, "chair", 4), 409);
    stock.until_stock_is(r#"{"chair":7,"table":2}"#);

    drop(stock);
    assert_eq!(orders.order(2, "table", 5), 201);
    assert_eq!(orders.order(3, "chair", 2), 201);
    drop(orders);
    let _orders = start(env!("CARGO_BIN_EXE_order-service"));
    let stock = start(env!("CARGO_BIN_EXE_stock-service"));
    // There are not so many tables: that order is parked, and the next one is not held up.
    stock.until_stock_is(r#"{"chair":5,"table":2}"#);
}

/// It outlives the server that is started on it.
fn runtime() -> Runtime {
    Runtime::new().unwrap()
}

#[cfg(feature = "redis")]
#[test]
fn through_redis_streams() {
    use counterfoil_testkit::server::PrivateRedis;
    let runtime = runtime();
    let Some(redis) = runtime.block_on(PrivateRedis::start()) else {
        return;
    };
    shop(&redis.url());
}

#[cfg(feature = "nats")]
#[test]
fn through_nats() {
    use counterfoil_testkit::server::PrivateNats;
    let runtime = runtime();
    let Some(nats) = runtime.block_on(PrivateNats::start()) else {
        return;
    };
    shop(&nats.url());
}

#[cfg(feature = "rabbitmq")]
#[test]
fn through_rabbitmq() {
    use counterfoil_testkit::server::PrivateRabbitMq;
    let runtime = runtime();
    let Some(rabbitmq) = runtime.block_on(PrivateRabbitMq::start()) else {
        return;
    };
    shop(&rabbitmq.url());
}

#[cfg(feature = "kafka")]
#[test]
fn through_kafka() {
    use counterfoil_testkit::server::PrivateKafka;
    use krafka::admin::{CreateTopicsOptions, NewTopic};
    let runtime = runtime();
    let Some(kafka) = runtime.block_on(PrivateKafka::start()) else {
        return;
    };
    let made = runtime.block_on(async {
        let client = krafka::Kafka::builder(kafka.address()).connect().await;
        let admin = client.unwrap().admin();
        let topic = NewTopic::new("shop-orders", 4, 1).unwrap();
        let made = admin.create_topics([topic], CreateTopicsOptions::default());
        made.await.unwrap()
    });
    for (_, made) in made {
        made.unwrap();
    }
    shop(&kafka.url());
}

#[cfg(feature = "sqs")]
#[test]
fn through_sqs() {
    use counterfoil_testkit::server::PrivateSqs;
    let runtime = runtime();
    let Some(sqs) = runtime.block_on(PrivateSqs::start()) else {
        return;
    };
    let address = sqs.url().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    let query = "Action=CreateQueue&QueueName=shop-orders.fifo&Attribute.1.Name=FifoQueue&Attribute.1.Value=true";
    write!(
        stream,
        "GET /?{query} HTTP/1.1\r\nhost: sqs\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut made = String::new();
    stream.read_to_string(&mut made).unwrap();
    assert!(made.starts_with("HTTP/1.1 200"), "{made}");
    shop(&format!("sqs://key:secret@{address}/shop-orders.fifo"));
}
