//! `/v1/consumers` and `/v1/relays`: who is there in all processes on this database.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::http::App;
use super::problem::Problem;

pub(super) async fn consumers(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let consumers = app.outbox.consumers().await?;
    Ok(Json(json!({ "consumers": consumers })))
}

pub(super) async fn relays(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let relays = app.outbox.relays().await?;
    Ok(Json(json!({ "relays": relays })))
}
