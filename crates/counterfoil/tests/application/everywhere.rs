//! What an application can rely on, on every database.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use counterfoil::guard::Begun;
use counterfoil::{
    Builder, Counterfoil, Database, Enqueued, Key, Message, Rules, Task, TaskError, header,
};
use sqlx::{Pool, Transaction};

use super::{LIMIT, Log, empty, eventually};

struct Scratch<D: Database> {
    pool: Pool<D::Sqlx>,
    _folder: Option<tempfile::TempDir>,
}

trait Shop: Database + Sized {
    fn scratch() -> impl Future<Output = Option<Scratch<Self>>>;
    fn counterfoil(pool: &Pool<Self::Sqlx>) -> Builder<Self>;
    /// Adds an order.
    fn order(tx: &mut Transaction<'static, Self::Sqlx>, id: i64)
    -> impl Future<Output = ()> + Send;
    /// How many orders another connection sees.
    fn orders(pool: &Pool<Self::Sqlx>) -> impl Future<Output = i64> + Send;
}

macro_rules! shop {
    ($database:ident, $module:ident, $insert:literal, $begin:ident, $open:expr) => {
        impl Shop for counterfoil::$database {
            async fn scratch() -> Option<Scratch<Self>> {
                let (pool, folder): (Pool<Self::Sqlx>, _) = ($open)().await?;
                sqlx::raw_sql("CREATE TABLE orders (id bigint PRIMARY KEY)")
                    .execute(&pool)
                    .await
                    .unwrap();
                Some(Scratch {
                    pool,
                    _folder: folder,
                })
            }

            fn counterfoil(pool: &Pool<Self::Sqlx>) -> Builder<Self> {
                Counterfoil::$begin(pool.clone())
            }

            async fn order(tx: &mut Transaction<'static, Self::Sqlx>, id: i64) {
                let insert = sqlx::query($insert).bind(id);
                insert.execute(&mut **tx).await.unwrap();
            }

            async fn orders(pool: &Pool<Self::Sqlx>) -> i64 {
                let count = sqlx::query_scalar("SELECT count(*) FROM orders");
                count.fetch_one(pool).await.unwrap()
            }
        }

        mod $module {
            macro_rules! test {
                ($name:ident) => {
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        if let Some(scratch) =
                            <counterfoil::$database as super::Shop>::scratch().await
                        {
                            let run = super::$name(scratch);
                            tokio::time::timeout(super::LIMIT, run).await.unwrap();
                        }
                    }
                };
            }
            test!(rows_and_tasks_commit_together_and_a_rollback_runs_nothing);
            test!(a_task_outside_any_transaction_starts_at_once);
            test!(a_fan_out_makes_one_message_for_each_destination_under_derived_ids);
            test!(what_a_handler_enqueues_carries_the_trace_and_names_its_cause);
            test!(what_a_guarded_request_enqueues_carries_its_key_and_goes_out_after_the_commit);
            test!(an_after_commit_callback_runs_only_after_the_commit);
        }
    };
}

#[cfg(feature = "sqlite")]
shop!(
    Sqlite,
    sqlite_,
    "INSERT INTO orders (id) VALUES (?)",
    sqlite,
    async || {
        let (pool, folder) = super::sqlite_file().await;
        Some((pool, Some(folder)))
    }
);

#[cfg(feature = "postgres")]
shop!(
    Postgres,
    postgres_,
    "INSERT INTO orders (id) VALUES ($1)",
    postgres,
    async || {
        let server = counterfoil_testkit::server::postgres()?;
        let schema = format!("application_{:x}", fastrand::u64(..));
        let admin = sqlx::PgPool::connect(&server).await.unwrap();
        let create = sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}"));
        sqlx::query(create).execute(&admin).await.unwrap();
        admin.close().await;
        let joint = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{joint}options=-c%20search_path%3D{schema}");
        Some((sqlx::PgPool::connect(&url).await.unwrap(), None))
    }
);

#[cfg(feature = "mysql")]
shop!(
    MySql,
    mysql_,
    "INSERT INTO orders (id) VALUES (?)",
    mysql,
    async || {
        let server = counterfoil_testkit::server::mysql()?;
        let schema = format!("application_{:x}", fastrand::u64(..));
        let admin = sqlx::MySqlPool::connect(&server).await.unwrap();
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {schema}"));
        sqlx::query(create).execute(&admin).await.unwrap();
        let options = admin.connect_options().as_ref().clone().database(&schema);
        admin.close().await;
        Some((sqlx::MySqlPool::connect_with(options).await.unwrap(), None))
    }
);

async fn rows_and_tasks_commit_together_and_a_rollback_runs_nothing<D: Shop>(shop: Scratch<D>) {
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&ran);
    let cf = D::counterfoil(&shop.pool)
        .task("notify", move |task: Task<u32>| {
            log.lock().unwrap().push(task.business_id);
            async { Ok(()) }
        })
        .start()
        .await
        .unwrap();

    let mut tx = D::begin(&shop.pool).await.unwrap();
    D::order(&mut tx, 1).await;
    cf.enqueue_task(&mut tx, "notify", "gone", &1)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let mut tx = D::begin(&shop.pool).await.unwrap();
    D::order(&mut tx, 2).await;
    let first = cf.enqueue_task(&mut tx, "notify", "kept", &1).await;
    let again = cf.enqueue_task(&mut tx, "notify", "kept", &1).await;
    cf.commit(tx).await.unwrap();

    eventually("the task has run", async || {
        !ran.lock().unwrap().is_empty() && empty(&cf).await
    })
    .await;
    assert_eq!(*ran.lock().unwrap(), ["kept"]);
    assert_eq!(D::orders(&shop.pool).await, 1);
    let first = first.unwrap();
    assert!(first.is_first());
    assert_eq!(again.unwrap(), Enqueued::Duplicate(first.id()));
    cf.stop().await;
}

async fn a_task_outside_any_transaction_starts_at_once<D: Shop>(shop: Scratch<D>) {
    let runs: Arc<Mutex<Vec<u32>>> = Arc::default();
    let log = Arc::clone(&runs);
    let cf = D::counterfoil(&shop.pool)
        .task("t", move |task: Task<u32>| {
            log.lock().unwrap().push(task.content);
            async { Ok(()) }
        })
        .start()
        .await
        .unwrap();

    assert!(cf.start_task("t", "1", &7).await.unwrap().is_first());

    eventually("it has run", async || empty(&cf).await).await;
    assert!(
        !cf.start_task("t", "1", &8).await.unwrap().is_first(),
        "never again"
    );
    assert!(empty(&cf).await);
    assert_eq!(*runs.lock().unwrap(), [7]);
    cf.stop().await;
}

async fn a_fan_out_makes_one_message_for_each_destination_under_derived_ids<D: Shop>(
    shop: Scratch<D>,
) {
    let (billing, search) = (Log::default(), Log::default());
    let cf = D::counterfoil(&shop.pool)
        .destination("billing", billing.clone())
        .destination("search", search.clone())
        .route("Order*", ["billing", "search"])
        .start()
        .await
        .unwrap();
    let message = Message::json("order", 1, "OrderPaid", &1).unwrap();
    let message = message.version(1);

    let mut tx = D::begin(&shop.pool).await.unwrap();
    cf.enqueue(&mut tx, &message).await.unwrap();
    cf.commit(tx).await.unwrap();

    eventually("both have it", async || empty(&cf).await).await;
    assert_eq!(billing.ids(), [message.id.derive("billing")]);
    assert_eq!(search.ids(), [message.id.derive("search")]);
    cf.stop().await;
}

async fn what_a_handler_enqueues_carries_the_trace_and_names_its_cause<D: Shop>(shop: Scratch<D>) {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let out = Log::default();
    let slot: Arc<Mutex<Option<Counterfoil<D>>>> = Arc::default();
    let (inner, pool) = (Arc::clone(&slot), shop.pool.clone());
    let cf = D::counterfoil(&shop.pool)
        .task("first", move |_: Task<u32>| {
            let (cf, pool) = (inner.lock().unwrap().clone(), pool.clone());
            async move {
                let cf = cf.ok_or("not ready")?;
                let mut tx = D::begin(&pool).await?;
                let message = Message::json("a", 1, "Caused", &1)?.queue("out");
                let enqueued = cf.enqueue(&mut tx, &message).await;
                enqueued.map_err(|e| TaskError::failed(e.to_string()))?;
                let committed = cf.commit(tx).await;
                committed.map_err(|e| TaskError::failed(e.to_string()))
            }
        })
        .destination("out", out.clone())
        .start()
        .await
        .unwrap();
    *slot.lock().unwrap() = Some(cf.clone());
    let given = [
        (header::TRACEPARENT, TRACE),
        (header::TRACESTATE, "vendor=7"),
        (header::CORRELATION_ID, "checkout-9"),
        (header::IDEMPOTENCY_KEY, "req-001"),
    ];
    let mut task = Message::json("first", 1, "task", &1).unwrap();
    task = task.queue("task:first");
    for (name, value) in given {
        task.headers.set(name, value);
    }

    let mut tx = D::begin(&shop.pool).await.unwrap();
    cf.enqueue(&mut tx, &task).await.unwrap();
    cf.commit(tx).await.unwrap();

    eventually("the caused message arrives", async || {
        !out.ids().is_empty() && empty(&cf).await
    })
    .await;
    let headers = out.0.lock().unwrap()[0].headers.clone();
    for (name, value) in given {
        assert_eq!(headers.get(name), Some(value), "{name}");
    }
    assert_eq!(
        headers.get(header::CAUSATION_ID),
        Some(task.id.to_string().as_str())
    );

    let alone = cf.start_task("first", "2", &1).await.unwrap().id();
    eventually("the next one arrives", async || out.ids().len() == 2).await;
    let headers = out.0.lock().unwrap()[1].headers.clone();
    assert_eq!(headers.get(header::TRACEPARENT), None, "another's trace");
    assert_eq!(
        headers.get(header::CORRELATION_ID),
        Some(alone.to_string().as_str()),
        "the first of a chain names it"
    );
    cf.stop().await;
}

async fn what_a_guarded_request_enqueues_carries_its_key_and_goes_out_after_the_commit<D: Shop>(
    shop: Scratch<D>,
) {
    let log = Log::default();
    let cf = D::counterfoil(&shop.pool)
        .destination("log", log.clone())
        .start()
        .await
        .unwrap();
    let guard = cf.guard(Rules::payments()).unwrap();
    let key = Key::new("alice", "pay", "req-001").unwrap();
    let Begun::Fresh(mut run) = guard.begin::<u32, u32>(&key, &7).await.unwrap() else {
        panic!("not fresh")
    };
    let message = Message::json("order", 1, "OrderPaid", &7).unwrap();

    let context = run.context();
    let message = message.queue("log");
    context.scope(cf.enqueue(run.tx(), &message)).await.unwrap();
    assert!(empty(&cf).await, "nothing is there before the commit");
    run.finish(Ok(1)).await.unwrap();

    eventually("the message arrives", async || !log.ids().is_empty()).await;
    let delivered = log.0.lock().unwrap()[0].clone();
    assert_eq!(
        delivered.headers.get(header::IDEMPOTENCY_KEY),
        Some("req-001")
    );
    cf.stop().await;
}

async fn an_after_commit_callback_runs_only_after_the_commit<D: Shop>(shop: Scratch<D>) {
    let cf = D::counterfoil(&shop.pool).start().await.unwrap();
    let mut tx = D::begin(&shop.pool).await.unwrap();
    D::order(&mut tx, 1).await;
    let begun = Arc::new(AtomicBool::new(false));
    let seen = {
        let (pool, begun) = (shop.pool.clone(), Arc::clone(&begun));
        async move {
            begun.store(true, Ordering::SeqCst);
            D::orders(&pool).await
        }
    };
    assert!(!begun.load(Ordering::SeqCst));

    let answer = cf.commit_then(tx, seen).await.unwrap();

    assert_eq!(answer, 1, "another connection sees the order");
    cf.stop().await;
}
