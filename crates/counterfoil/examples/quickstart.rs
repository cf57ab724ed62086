//! An axum handler that writes an order and its message in one transaction, and a task that runs
//! after the commit.
//!
//! ```text
//! cargo run -p counterfoil --example quickstart
//! curl -X POST 127.0.0.1:8080/orders -H 'content-type: application/json' -d '{"id": 7, "total": 1250}'
//! ```

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use counterfoil::{Counterfoil, Sqlite, Task, TaskError};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
    total: i64,
}

#[derive(Clone)]
struct App {
    pool: SqlitePool,
    cf: Counterfoil<Sqlite>,
}

/// The order and its task commit together, or not at all.
async fn create(
    State(app): State<App>,
    Json(order): Json<Order>,
) -> Result<StatusCode, (StatusCode, String)> {
    save(&app, &order)
        .await
        .map_err(|e| (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(StatusCode::CREATED)
}

async fn save(app: &App, order: &Order) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut tx = app.pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES (?, ?)")
        .bind(order.id)
        .bind(order.total)
        .execute(&mut *tx)
        .await?;
    app.cf
        .enqueue_task(&mut tx, "notify-fulfilment", &order.id.to_string(), order)
        .await?;
    app.cf.commit(tx).await?; // checks, commits, nudges
    Ok(())
}

/// Runs after the commit; tried again with backoff until it succeeds, or parked with its reason.
async fn notify(task: Task<Order>) -> Result<(), TaskError> {
    println!(
        "fulfilment is told about order {} over {}",
        task.business_id, task.content.total
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file =
        std::env::temp_dir().join(format!("counterfoil-quickstart-{}.db", std::process::id()));
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)",
    )
    .execute(&pool)
    .await?;

    let cf = Counterfoil::sqlite(pool.clone())
        .task("notify-fulfilment", notify)
        .start()
        .await?;

    let app = Router::new()
        .route("/orders", post(create))
        .with_state(App {
            pool,
            cf: cf.clone(),
        });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    cf.stop().await;
    Ok(())
}
