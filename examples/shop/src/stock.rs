//! The stock service: a consumer that takes goods from the stock, in the transaction that notes the
//! message as processed.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use counterfoil::inbox::{Event, HandleError};
use counterfoil::{Applied, Tx, write};

use super::{Db, Pool, connect, counterfoil_on};
use crate::{Any, Config, ORDER_PLACED, Order, broker, until_told_to_end};

/// What is processed is remembered under this name. Services with the same name share the work.
const NAME: &str = "stock";
/// What is there when the service starts for the first time.
const FIRST_STOCK: [(&str, i64); 2] = [("chair", 10), ("table", 2)];

/// Serves until told to end.
pub async fn serve(config: &Config) -> Result<(), Any> {
    let pool = connect(&config.database).await?;
    found(&pool).await?;
    let cf = counterfoil_on(&pool).start().await?;
    let consumer = cf
        .consumer_of(NAME, broker::source(&config.broker, NAME)?)
        .on(ORDER_PLACED, on_order_placed)
        .start()
        .await?;
    let listener = tokio::net::TcpListener::bind(&config.listen).await?;
    println!("stock: http://{}/stock", listener.local_addr()?);
    let routes = Router::new().route("/stock", get(list)).with_state(pool);
    axum::serve(listener, routes)
        .with_graceful_shutdown(until_told_to_end())
        .await?;
    consumer.stop().await;
    cf.stop().await;
    Ok(())
}

async fn found(pool: &Pool) -> sqlx::Result<()> {
    for table in [
        "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, on_hand bigint NOT NULL)",
        "CREATE TABLE IF NOT EXISTS deductions (order_id text PRIMARY KEY, item text NOT NULL, count bigint NOT NULL)",
    ] {
        sqlx::query(table).execute(pool).await?;
    }
    for (item, count) in FIRST_STOCK {
        sqlx::query(
            "INSERT INTO stock (item, on_hand) VALUES ($1, $2) ON CONFLICT (item) DO NOTHING",
        )
        .bind(item)
        .bind(count)
        .execute(pool)
        .await?;
    }
    Ok(())
}

/// Takes the goods. What it writes commits together with the note that the message is processed.
async fn on_order_placed(mut tx: Tx<Db>, placed: Event<Order>) -> Result<(), HandleError> {
    let order = placed.content;
    let take =
        sqlx::query("UPDATE stock SET on_hand = on_hand - $1 WHERE item = $2 AND on_hand >= $1")
            .bind(order.count)
            .bind(&order.item);
    let taken = sqlx::query("SELECT 1 FROM deductions WHERE order_id = $1").bind(&order.id);
    match write::update_if::<Db>(&mut tx, take, taken).await? {
        Applied::Now => {}
        Applied::Already => return Ok(()),
        // Trying again would not help: a person decides.
        Applied::Refused => {
            let why = format!("there are not {} of {:?}", order.count, order.item);
            return Err(HandleError::Park(why));
        }
    }
    sqlx::query("INSERT INTO deductions (order_id, item, count) VALUES ($1, $2, $3)")
        .bind(&order.id)
        .bind(&order.item)
        .bind(order.count)
        .execute(&mut **tx)
        .await?;
    tracing::info!(
        order = order.id,
        item = order.item,
        count = order.count,
        "taken"
    );
    Ok(())
}

/// What is on hand, by item.
async fn list(State(pool): State<Pool>) -> Result<Json<BTreeMap<String, i64>>, String> {
    let lines: Vec<(String, i64)> = sqlx::query_as("SELECT item, on_hand FROM stock")
        .fetch_all(&pool)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Json(lines.into_iter().collect()))
}
