//! Functions that take effect once for their key, by an attribute.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a surprise ends the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use counterfoil::guard::{Claimed, Context, Failure, Outcome};
use counterfoil::{Guard, Key, Rules, Sqlite, guarded};
use counterfoil_core::store::Store as _;
use serde::{Deserialize, Serialize};
use sqlx::{SqlitePool, Transaction};

struct App {
    guard: Guard<Sqlite>,
    pool: SqlitePool,
    runs: AtomicU32,
    _folder: tempfile::TempDir,
}

impl App {
    async fn new(rules: Rules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.path().join("shop.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let store = counterfoil_sqlite::SqliteStore::from_pool(&pool).unwrap();
        store.migrate().await.unwrap();
        sqlx::raw_sql("CREATE TABLE payments (amount bigint NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            guard: Guard::new(&pool, rules).unwrap(),
            pool,
            runs: AtomicU32::new(0),
            _folder: folder,
        }
    }

    async fn paid(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM payments")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

#[derive(Debug, Clone, Serialize)]
struct Order {
    key: String,
    amount: i64,
}

fn order(key: &str, amount: i64) -> Order {
    Order {
        key: key.into(),
        amount,
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refused(String);

/// Takes money, once.
#[guarded(guard = app.guard, key = Key::new("alice", "pay", &order.key)?, payload = order)]
async fn pay(
    tx: &mut Transaction<'static, sqlx::Sqlite>,
    app: &App,
    mut order: Order,
) -> Result<u32, Failure<Refused>> {
    assert_eq!(Context::current().unwrap().key().key(), order.key);
    order.amount += 0;
    let insert = sqlx::query("INSERT INTO payments (amount) VALUES (?)").bind(order.amount);
    insert.execute(&mut **tx).await.map_err(Failure::system)?;
    if order.amount < 0 {
        return Err(Failure::Business(Refused("no money".into())));
    }
    if order.amount == 0 {
        std::future::pending::<()>().await;
    }
    Ok(app.runs.fetch_add(1, Ordering::SeqCst) + 1)
}

/// Generic, leased, and with names that the attribute could use itself.
#[guarded(leased, guard = guard, key = Key::new("alice", "charge", key)?, payload = (asked, &run))]
async fn charge<R>(
    claim: Claimed,
    guard: &Guard<Sqlite>,
    key: &str,
    asked: u32,
    run: R,
) -> Result<R, Failure<Refused>>
where
    R: Serialize + serde::de::DeserializeOwned + Sync,
{
    assert!(claim.fence() > 0 && claim.key().key() == key);
    match asked {
        0 => std::future::pending().await,
        _ => Ok(run),
    }
}

#[tokio::test]
async fn a_guarded_function_takes_effect_once_and_answers_every_repeat() {
    let app = App::new(Rules::payments()).await;

    let first = pay(&app, order("k", 7)).await.unwrap();
    let again = pay(&app, order("k", 7)).await.unwrap();
    let other = pay(&app, order("k", 8)).await.unwrap();
    let refused = pay(&app, order("poor", -1)).await.unwrap();
    let refused_again = pay(&app, order("poor", -1)).await.unwrap();

    assert_eq!(first, Outcome::Executed(Ok(1)));
    assert_eq!(again, Outcome::Replayed(Ok(1)));
    assert_eq!(other, Outcome::Conflict);
    let why = || Err(Refused("no money".into()));
    assert_eq!(refused, Outcome::Executed(why()));
    assert_eq!(refused_again, Outcome::Replayed(why()));
    assert_eq!(app.paid().await, 1);
    assert!(pay(&app, order("", 1)).await.is_err(), "no key, no run");
}

#[tokio::test]
async fn a_guarded_function_in_leased_mode_runs_once() {
    let app = App::new(Rules::payments()).await;

    let first = charge(&app.guard, "k", 1, "receipt".to_owned()).await;
    let again = charge(&app.guard, "k", 1, "receipt".to_owned()).await;
    let other = charge(&app.guard, "k", 1, "another".to_owned()).await;

    assert_eq!(first.unwrap(), Outcome::Executed(Ok("receipt".into())));
    assert_eq!(again.unwrap(), Outcome::Replayed(Ok("receipt".into())));
    assert_eq!(other.unwrap(), Outcome::Conflict);
}

#[tokio::test]
async fn a_business_that_takes_too_long_is_rolled_back_or_uncertain() {
    let rules = Rules {
        timeout: Some(Duration::from_millis(50)),
        ..Rules::payments()
    };
    let app = App::new(rules).await;

    let slow = pay(&app, order("k", 0)).await.unwrap();
    let unknown = charge(&app.guard, "k", 0, 1).await.unwrap();

    assert!(matches!(slow, Outcome::Released(why) if why.contains("50ms")));
    assert_eq!(unknown, Outcome::Uncertain);
    assert_eq!(app.paid().await, 0);
    assert_eq!(
        charge(&app.guard, "k", 0, 1).await.unwrap(),
        Outcome::Uncertain
    );
}

/// Callers spawn it, as they do with any other function.
#[tokio::test]
async fn what_a_guarded_function_returns_can_be_sent() {
    let app = std::sync::Arc::new(App::new(Rules::payments()).await);
    let spawned = std::sync::Arc::clone(&app);

    let paid = tokio::spawn(async move { pay(&spawned, order("k", 7)).await });

    assert_eq!(paid.await.unwrap().unwrap(), Outcome::Executed(Ok(1)));
}
