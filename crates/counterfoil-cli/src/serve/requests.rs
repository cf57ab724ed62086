//! `/v1/requests/{business_type}/{key}`: how a guarded request stands.
//!
//! The caller is named by `?caller=NAME`; without it, the request of the only caller is meant.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use counterfoil_core::guard::Key;
use counterfoil_http::gateway::status;
use serde::Deserialize;

use super::http::App;
use super::problem::Problem;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whose {
    #[serde(default)]
    caller: String,
}

/// Answers how a request stands.
pub(super) async fn get(
    State(app): State<App>,
    path: Result<Path<(String, String)>, PathRejection>,
    whose: Result<Query<Whose>, QueryRejection>,
) -> Result<Response, Problem> {
    let unknown = || Problem::not_found("no request with this key is known");
    let Path((business_type, key)) = path.map_err(|_| unknown())?;
    let Query(whose) = whose.map_err(|_| unknown())?;
    let key = Key::new(whose.caller, business_type, key).map_err(|_| unknown())?;
    Ok(status(&*app.records, &key).await)
}
