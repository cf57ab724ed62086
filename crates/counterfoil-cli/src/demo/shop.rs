//! The shop: orders, payments and stock, each change in one transaction with its messages.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::desk::Desk;
use counterfoil::webhook::{Secret, Settings as Hook, WebhookDestination};
use counterfoil::{
    Backoff, Counterfoil, Message, Nudge, Settings, Sqlite, Task, TaskError, TaskOptions,
};
use counterfoil_engine::pipeline::Registry;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

/// The key of the partner's signatures. A demo may print its secrets; nobody else should.
pub(super) const SECRET: &str = "whsec_ZGVtby1kZW1vLWRlbW8tZGVtby1kZW1vLWRlbW8=";

const TABLES: &str = "
CREATE TABLE orders (id TEXT PRIMARY KEY, sku TEXT NOT NULL, quantity INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE payments (order_id TEXT PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
INSERT INTO stock VALUES ('tea', 1000000), ('cups', 1000000), ('honey', 1000000);
";

/// One order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: String,
    pub(super) sku: String,
    pub(super) quantity: i64,
    pub(super) amount: i64,
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The shop.
#[derive(Clone)]
pub(super) struct Shop {
    pool: SqlitePool,
    cf: Counterfoil<Sqlite>,
}

impl Shop {
    pub(super) async fn open(file: &Path, partner: &str) -> Result<Self, String> {
        Self::try_open(file, partner)
            .await
            .map_err(|e| format!("the shop cannot open: {e}"))
    }

    async fn try_open(file: &Path, partner: &str) -> Result<Self, AnyError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePool::connect_with(options).await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        let brisk = Backoff::new(Duration::from_millis(300), Duration::from_secs(3), 4)?;
        let options = || TaskOptions {
            backoff: brisk,
            ..TaskOptions::default()
        };
        let secret = Secret::parse(SECRET)?;
        let hook = WebhookDestination::new(
            Hook::signed(partner, [secret])
                .allow_private(true)
                .timeout(Duration::from_secs(2)),
        )?;
        let (charges, reserves) = (pool.clone(), pool.clone());
        let cf = Counterfoil::sqlite(pool.clone())
            .settings(Settings {
                keep_sent: true,
                label: "demo".into(),
                ..Settings::default()
            })
            .task_with("charge-payment", options(), move |task| {
                charge(charges.clone(), task)
            })
            .task_with("reserve-stock", options(), move |task| {
                reserve(reserves.clone(), task)
            })
            .task_with("notify-fulfilment", options(), notify)
            .destination("partner", hook)
            .route("Order*", ["partner"])
            .start()
            .await?;
        Ok(Self { pool, cf })
    }

    /// Places an order. Answers false when it was placed before: a second click changes nothing.
    pub(super) async fn place(&self, order: &Order) -> Result<bool, AnyError> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        if !self
            .cf
            .once(&mut tx, "place-order", &order.id)
            .await?
            .is_first()
        {
            return Ok(false);
        }
        sqlx::query("INSERT INTO orders (id, sku, quantity, state) VALUES (?, ?, ?, 'placed')")
            .bind(&order.id)
            .bind(&order.sku)
            .bind(order.quantity)
            .execute(&mut *tx)
            .await?;
        for scene in ["charge-payment", "reserve-stock", "notify-fulfilment"] {
            self.cf
                .enqueue_task(&mut tx, scene, &order.id, order)
                .await?;
        }
        let event = Message::json("order", &order.id, "OrderPlaced", order)?.version(1);
        self.cf.enqueue(&mut tx, &event).await?;
        self.cf.commit(tx).await?;
        Ok(true)
    }

    pub(super) fn desk(&self) -> &Arc<dyn Desk> {
        self.cf.desk()
    }

    pub(super) fn nudge(&self) -> Nudge {
        self.cf.nudge_handle()
    }

    pub(super) fn registry(&self) -> Registry {
        self.cf.registry().clone()
    }

    pub(super) async fn stop(&self) {
        self.cf.stop().await;
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Takes the money once: the payment's row is keyed by the order.
async fn charge(pool: SqlitePool, task: Task<Order>) -> Result<(), TaskError> {
    if task.content.amount <= 0 {
        return Err(TaskError::Park(format!(
            "an amount of {} cannot be charged",
            task.content.amount
        )));
    }
    // The provider is moody: one in five first attempts fails.
    if task.attempt == 1 && fastrand::u8(0..5) == 0 {
        return Err(TaskError::failed("the payment provider asks to try again"));
    }
    sqlx::query("INSERT INTO payments (order_id, amount) VALUES (?, ?) ON CONFLICT DO NOTHING")
        .bind(&task.business_id)
        .bind(task.content.amount)
        .execute(&pool)
        .await?;
    Ok(())
}

/// Takes the goods from the shelf, and says so in the order, in one transaction.
async fn reserve(pool: SqlitePool, task: Task<Order>) -> Result<(), TaskError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let marked =
        sqlx::query("UPDATE orders SET state = 'reserved' WHERE id = ? AND state = 'placed'")
            .bind(&task.business_id)
            .execute(&mut *tx)
            .await?;
    if marked.rows_affected() == 0 {
        // An earlier attempt did it and died before it could say so.
        return Ok(());
    }
    let taken =
        sqlx::query("UPDATE stock SET quantity = quantity - ? WHERE sku = ? AND quantity >= ?")
            .bind(task.content.quantity)
            .bind(&task.content.sku)
            .bind(task.content.quantity)
            .execute(&mut *tx)
            .await?;
    if taken.rows_affected() == 0 {
        return Err(TaskError::failed(format!(
            "not enough {} on the shelf",
            task.content.sku
        )));
    }
    tx.commit().await?;
    Ok(())
}

async fn notify(task: Task<Order>) -> Result<(), TaskError> {
    match fastrand::u8(0..20) {
        0 => Err(std::io::Error::other("the fulfilment desk does not pick up").into()),
        1 if task.attempt == 1 => Err(TaskError::RetryAfter {
            reason: "the fulfilment desk is at lunch".into(),
            delay: Duration::from_millis(500),
        }),
        _ => Ok(()),
    }
}
