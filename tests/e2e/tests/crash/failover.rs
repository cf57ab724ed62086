//! The primary dies, and a replica that lacks its last transactions takes its place: their numbers come
//! back under other messages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::store::Store;
use counterfoil_core::{Capabilities, Delivery, Destination, Message, MessageId, Outcome};
use counterfoil_e2e::wait::PATIENCE;
use counterfoil_engine::{EngineBuilder, QueueSpec, Settings};
use counterfoil_postgres::PostgresStore;
use counterfoil_testkit::server::PrivatePostgres;
use sqlx::{Connection as _, PgConnection};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const QUEUE: &str = "orders";

/// PostgreSQL logs a sequence 32 numbers ahead, so the promoted replica leaves some of them out. So
/// many messages are lost that numbers of the rest come back all the same.
const LOST: i64 = 100;

/// Leads to a server, and later to another one.
struct Switch {
    port: u16,
    server: watch::Sender<u16>,
    _tasks: JoinSet<()>,
}

impl Switch {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let server = watch::Sender::new(port);
        let mut tasks = JoinSet::new();
        tasks.spawn(carry_all(listener, server.subscribe()));
        Self {
            port: own,
            server,
            _tasks: tasks,
        }
    }
}

async fn carry_all(listener: TcpListener, server: watch::Receiver<u16>) {
    let mut lines = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let mut server = server.clone();
        let port = *server.borrow_and_update();
        lines.spawn(async move {
            let Ok(mut upstream) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                // Whoever spoke with the former server is cut off.
                _ = server.changed() => {}
            }
        });
    }
}

/// Keeps its answer to everything until it is opened.
struct Gate {
    open: watch::Sender<bool>,
    seen: watch::Sender<BTreeSet<MessageId>>,
}

impl Gate {
    async fn until_seen(&self, wanted: &[MessageId]) {
        let mut seen = self.seen.subscribe();
        let all = seen.wait_for(|seen| wanted.iter().all(|id| seen.contains(id)));
        let found = tokio::time::timeout(PATIENCE, all).await;
        assert!(found.is_ok(), "not everything was offered");
    }
}

#[async_trait]
impl Destination for Gate {
    fn describe(&self) -> String {
        "gate".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 1,
            concurrency: 500,
            timeout: None,
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        self.seen
            .send_modify(|seen| seen.extend(batch.iter().map(|delivery| delivery.id)));
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        batch.iter().map(|_| Outcome::Stored).collect()
    }
}

async fn put(url: &str, name: &str, count: i64) -> Vec<MessageId> {
    let message = |n: i64| {
        let aggregate = format!("{name}-{n}");
        let message = Message::json("order", aggregate, "OrderPaid", &n).unwrap();
        message.queue(QUEUE)
    };
    let messages: Vec<Message> = (0..count).map(message).collect();
    let mut connection = PgConnection::connect(url).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    counterfoil_postgres::enqueue(&mut tx, &messages)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    connection.close().await.unwrap();
    messages.iter().map(|message| message.id).collect()
}

async fn until(url: &str, what: &str, sql: &'static str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let reached = async {
        while !sqlx::query_scalar::<_, bool>(sql)
            .fetch_one(&mut connection)
            .await
            .unwrap()
        {
            tokio::task::yield_now().await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, reached).await;
    assert!(done.is_ok(), "waited in vain: {what}");
}

async fn numbers(url: &str) -> BTreeSet<i64> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let all = sqlx::query_scalar("SELECT seq FROM counterfoil_outbox");
    let all: Vec<i64> = all.fetch_all(&mut connection).await.unwrap();
    all.into_iter().collect()
}

/// The replica gets nothing more.
async fn cut_off(replica: &PrivatePostgres) {
    let mut connection = PgConnection::connect(&replica.url()).await.unwrap();
    for sql in [
        "ALTER SYSTEM SET primary_conninfo = ''",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    let gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)";
    until(&replica.url(), "nothing is received", gone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_the_new_primary_has_is_lost() {
    let Some(mut primary) = PrivatePostgres::start().await else {
        return;
    };
    let store = PostgresStore::connect(&primary.url()).unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let replica = primary.replica().await;
    let switch = Switch::to(primary.port()).await;
    let gate = Arc::new(Gate {
        open: watch::Sender::new(false),
        seen: watch::Sender::default(),
    });
    let address = format!("postgres://postgres@127.0.0.1:{}/postgres", switch.port);
    let store = Arc::new(PostgresStore::connect(&address).unwrap());
    let settings = Settings {
        poll: Duration::from_millis(50),
        lease: Duration::from_secs(6),
        ..Settings::default()
    };
    let spec = QueueSpec::new(QUEUE, Arc::clone(&gate) as Arc<dyn Destination>);
    let builder = EngineBuilder::new(Arc::clone(&store) as Arc<dyn Store>).settings(settings);
    let engine = builder.queue(spec).start().await.unwrap();
    // The replica has these: their numbers are the highest that it knows of.
    let kept = put(&primary.url(), "kept", 5).await;
    let there = "SELECT count(*) = 5 FROM counterfoil_outbox";
    until(&replica.url(), "the replica follows", there).await;
    gate.until_seen(&kept).await;

    cut_off(&replica).await;
    let lost = put(&primary.url(), "lost", LOST).await;
    gate.until_seen(&lost).await;
    let held = numbers(&primary.url()).await;
    primary.crash().await;
    replica.promote().await;
    let new = put(&replica.url(), "new", 2 * LOST).await;
    let again = numbers(&replica.url()).await;
    let back = held.intersection(&again).count();
    assert!(back > 5, "no number came back: {held:?} {again:?}");
    switch.server.send_replace(replica.port());
    gate.open.send_replace(true);

    gate.until_seen(&new).await;
    let empty = "SELECT NOT EXISTS (SELECT FROM counterfoil_outbox)";
    until(&replica.url(), "everything is settled", empty).await;
    engine.stop().await;
    store.close().await;
}
