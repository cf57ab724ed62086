//! `/v1/policies`: the breakers and budgets of this process, and an operator's word about one.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use counterfoil_core::policy::breaker::Forced;
use counterfoil_core::store::Remember;
use counterfoil_engine::pipeline::Status;
use serde::Deserialize;
use serde_json::json;

use super::http::App;
use super::problem::Problem;
use crate::config::Caller;

/// What an operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Open,
    Closed,
    Auto,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    breaker: Word,
    /// Who asks, where nobody needs a token. A token has a name.
    by: Option<String>,
}

/// Every destination.
pub(super) async fn list(State(app): State<App>) -> Response {
    Json(json!({ "policies": app.registry.list() })).into_response()
}

/// Sets a breaker by hand. It is remembered before it is answered.
pub(super) async fn set(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(destination): Path<String>,
    wanted: Result<Json<Wanted>, JsonRejection>,
) -> Result<Json<Status>, Problem> {
    let Json(wanted) = wanted.map_err(|e| Problem::invalid_json(e.body_text()))?;
    let Some(dependency) = app.registry.get(&destination) else {
        return Err(Problem::not_found("no destination has this name here"));
    };
    let forced = match wanted.breaker {
        Word::Open => Some(Forced::Open),
        Word::Closed => Some(Forced::Closed),
        Word::Auto => None,
    };
    let by = caller.actor(wanted.by.as_deref());
    let by: String = by.chars().filter(|c| !c.is_control()).take(200).collect();
    let word = Remember::Forced {
        forced,
        by: by.clone(),
    };
    app.outbox.remember_breaker(&destination, &word).await?;
    dependency.force(forced, &by);
    Ok(Json(dependency.status()))
}
