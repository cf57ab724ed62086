//! An application on the facade. What holds on every database is in `everywhere`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a surprise ends the test"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use counterfoil::desk::Filter;
use counterfoil::{
    Counterfoil, Database, Delivery, Destination, Error, Message, MessageId, Once, Outcome,
    Settings, Sqlite, StoreError, Task, TaskError, insert_once,
};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

mod everywhere;

const LIMIT: Duration = Duration::from_secs(60);

struct Shop {
    pool: SqlitePool,
    _folder: tempfile::TempDir,
}

impl Shop {
    async fn open() -> Self {
        let (pool, folder) = sqlite_file().await;
        sqlx::raw_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, owner TEXT UNIQUE)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            pool,
            _folder: folder,
        }
    }
}

async fn sqlite_file() -> (SqlitePool, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    (pool, folder)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Delivery>>>);

impl Log {
    fn ids(&self) -> Vec<MessageId> {
        self.0.lock().unwrap().iter().map(|d| d.id).collect()
    }
}

#[async_trait::async_trait]
impl Destination for Log {
    fn describe(&self) -> String {
        "log".into()
    }

    fn capabilities(&self) -> counterfoil::Capabilities {
        counterfoil::Capabilities::single(2, Some(Duration::from_secs(5)))
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        self.0.lock().unwrap().extend_from_slice(batch);
        vec![Outcome::Stored; batch.len()]
    }
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let found = tokio::time::timeout(LIMIT, async {
        while !condition().await {
            ticks.tick().await;
        }
    });
    assert!(found.await.is_ok(), "waited in vain: {what}");
}

async fn empty<D: Database>(cf: &Counterfoil<D>) -> bool {
    cf.desk()
        .outbox(&Filter::default())
        .await
        .unwrap()
        .is_empty()
}

#[tokio::test]
async fn a_unique_key_says_first_or_duplicate_and_leaves_the_transaction_usable() {
    let shop = Shop::open().await;
    let cf = Counterfoil::sqlite(shop.pool.clone())
        .start()
        .await
        .unwrap();
    let insert = |id: i64| sqlx::query("INSERT INTO orders (id, owner) VALUES (?, 'ann')").bind(id);

    let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let first = insert_once::<Sqlite>(&mut tx, insert(1)).await.unwrap();
    let second = insert_once::<Sqlite>(&mut tx, insert(2)).await.unwrap();
    let key = cf.once(&mut tx, "coupon", "ann:7").await.unwrap();
    let again = cf.once(&mut tx, "coupon", "ann:7").await.unwrap();
    cf.commit(tx).await.unwrap();

    assert_eq!((first, second), (Once::First, Once::Duplicate));
    assert_eq!((key, again), (Once::First, Once::Duplicate));
    let (n,): (i64,) = sqlx::query_as("SELECT count(*) FROM orders")
        .fetch_one(&shop.pool)
        .await
        .unwrap();
    assert_eq!(n, 1);
    cf.stop().await;
}

#[counterfoil::task(
    scene = "discovered",
    description = "found by itself",
    max_attempts = 2
)]
async fn discovered(task: Task<u32>) -> Result<(), TaskError> {
    if task.content == 0 {
        return Err(TaskError::failed("nought"));
    }
    Ok(())
}

#[tokio::test]
async fn a_handler_with_the_attribute_is_discovered() {
    let shop = Shop::open().await;
    let cf = Counterfoil::sqlite(shop.pool.clone())
        .discover_tasks()
        .start()
        .await
        .unwrap();

    cf.start_task("discovered", "1", &1).await.unwrap();

    eventually("it has run", async || empty(&cf).await).await;
    assert_eq!(counterfoil::discovery::all()[0].scene, "discovered");
    cf.stop().await;
}

/// A constraint that is checked at the end makes the commit itself fail.
#[tokio::test]
async fn a_commit_that_fails_runs_no_callback() {
    let shop = Shop::open().await;
    sqlx::raw_sql(
        "CREATE TABLE lines (order_id INTEGER NOT NULL REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    .execute(&shop.pool)
    .await
    .unwrap();
    let cf = Counterfoil::sqlite(shop.pool.clone())
        .start()
        .await
        .unwrap();
    let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO lines (order_id) VALUES (404)")
        .execute(&mut *tx)
        .await
        .unwrap();
    let ran = AtomicBool::new(false);

    let answer = cf
        .commit_then(tx, async { ran.store(true, Ordering::SeqCst) })
        .await;

    assert!(answer.is_err());
    assert!(!ran.load(Ordering::SeqCst));
    cf.stop().await;
}

#[tokio::test]
async fn wrong_wiring_is_refused_at_the_start() {
    let shop = Shop::open().await;
    let twice = Counterfoil::sqlite(shop.pool.clone())
        .task("t", |_: Task<u32>| async { Ok(()) })
        .task("t", |_: Task<u32>| async { Ok(()) })
        .start()
        .await;
    let bare = Counterfoil::sqlite(shop.pool.clone())
        .migrate(false)
        .start()
        .await;
    let short = Settings {
        lease: Duration::from_secs(1),
        ..Settings::default()
    };
    let lease = Counterfoil::sqlite(shop.pool)
        .settings(short)
        .destination("q", Log::default())
        .start()
        .await;

    assert!(matches!(twice, Err(Error::Settings(_))));
    assert!(matches!(bare, Err(Error::Store(StoreError::SchemaMissing))));
    assert!(matches!(lease, Err(Error::Settings(_))));
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_swallowed_error_does_not_become_a_lost_commit() {
    let Some(url) = counterfoil_testkit::server::postgres() else {
        return;
    };
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let cf = Counterfoil::postgres(pool.clone()).start().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let swallowed = sqlx::query("SELECT 1 / 0").execute(&mut *tx).await;
    assert!(swallowed.is_err());

    let committed = cf.commit(tx).await;

    assert!(matches!(
        committed,
        Err(Error::Store(StoreError::Doomed(_)))
    ));
    cf.stop().await;
}

#[test]
fn the_quick_start_of_the_readme_is_the_compiled_example() {
    let example = include_str!("../../examples/quickstart.rs");
    let code = &example[example.find("use axum").unwrap()..];
    let readme = include_str!("../../../../README.md");

    assert!(
        readme.contains(code),
        "copy examples/quickstart.rs into README.md"
    );
}

#[tokio::test]
async fn a_destination_that_is_held_back_by_hand_stays_so_through_a_restart() {
    use counterfoil::resilience::{Forced, Limits};
    let shop = Shop::open().await;
    let log = Log::default();
    let start = async || {
        let cf = Counterfoil::sqlite(shop.pool.clone()).destination("billing", log.clone());
        cf.start().await.unwrap()
    };
    let cf = start().await;
    let stock = cf.registry().dependency("stock", Limits::default());
    stock.unwrap().force(Some(Forced::Closed), "anna");
    let billing = cf.registry().get("billing").unwrap();
    billing.force(Some(Forced::Open), "anna");
    let kept = async || {
        let rows = sqlx::query("SELECT 1 FROM counterfoil_breakers WHERE forced IS NOT NULL");
        rows.fetch_all(&shop.pool).await.unwrap().len() == 2
    };
    eventually("both are kept", kept).await;
    let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let message = Message::json("order", 1, "OrderPaid", &1).unwrap();
    cf.enqueue(&mut tx, &message.queue("billing"))
        .await
        .unwrap();
    cf.commit(tx).await.unwrap();
    cf.stop().await;

    let cf = start().await;
    let billing = cf.registry().get("billing").unwrap();
    assert_eq!(billing.status().forced, Some(Forced::Open));
    assert!(log.0.lock().unwrap().is_empty());

    billing.force(None, "anna");
    eventually("it is delivered", async || empty(&cf).await).await;
    cf.stop().await;
}
