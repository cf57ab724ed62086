//! The order service: `POST /orders` writes the order and its message in one transaction, and the
//! relay brings the message to the broker.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use counterfoil::{Applied, Counterfoil, Message, QueueSpec, write};

use super::{Db, Pool, begin, connect, counterfoil_on};
use crate::{Any, Config, ORDER_PLACED, Order, broker, until_told_to_end};

/// Where messages wait for the broker.
const QUEUE: &str = "orders";

#[derive(Clone)]
struct App {
    pool: Pool,
    cf: Counterfoil<Db>,
}

/// Serves until told to end.
pub async fn serve(config: &Config) -> Result<(), Any> {
    let pool = connect(&config.database).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text NOT NULL, count bigint NOT NULL)",
    )
    .execute(&pool)
    .await?;
    let cf = counterfoil_on(&pool)
        .queue(QueueSpec::new(QUEUE, broker::destination(&config.broker)?))
        .start()
        .await?;
    let app = App {
        pool,
        cf: cf.clone(),
    };
    let listener = tokio::net::TcpListener::bind(&config.listen).await?;
    println!("orders: http://{}/orders", listener.local_addr()?);
    let routes = Router::new().route("/orders", post(place)).with_state(app);
    axum::serve(listener, routes)
        .with_graceful_shutdown(until_told_to_end())
        .await?;
    cf.stop().await;
    Ok(())
}

async fn place(
    State(app): State<App>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, &'static str), (StatusCode, String)> {
    if order.count < 1 {
        return Err((StatusCode::BAD_REQUEST, "count is 1 or more\n".into()));
    }
    match save(&app, &order).await {
        Ok(Applied::Now) => Ok((StatusCode::CREATED, "placed\n")),
        Ok(Applied::Already) => Ok((StatusCode::OK, "placed before\n")),
        Ok(Applied::Refused) => Err((
            StatusCode::CONFLICT,
            "another order has this id\n".to_owned(),
        )),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))),
    }
}

/// The order and its message commit together, or not at all.
async fn save(app: &App, order: &Order) -> Result<Applied, Any> {
    let mut tx = begin(&app.pool).await?;
    let insert = sqlx::query("INSERT INTO orders (id, item, count) VALUES ($1, $2, $3)")
        .bind(&order.id)
        .bind(&order.item)
        .bind(order.count);
    let same = sqlx::query("SELECT 1 FROM orders WHERE id = $1 AND item = $2 AND count = $3")
        .bind(&order.id)
        .bind(&order.item)
        .bind(order.count);
    let applied = write::insert_or_duplicate::<Db>(&mut tx, insert, same).await?;
    if applied == Applied::Now {
        let message = Message::json("order", &order.id, ORDER_PLACED, order)?;
        app.cf
            .enqueue(&mut tx, &message.queue(QUEUE).version(1))
            .await?;
    }
    app.cf.commit(tx).await?;
    Ok(applied)
}
