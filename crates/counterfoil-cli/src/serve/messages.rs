//! `/v1/messages`: for callers without a database of their own.
//!
//! # Promise
//! All messages of a request are stored, or none. A message whose id was stored before is
//! recognised and not stored again, so a caller who got no answer sends the same request again.

use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use counterfoil_core::desk::number;
use counterfoil_core::explain::Facts;
use counterfoil_core::store::{Enqueued, Keyed};
use serde_json::json;

use super::body;
use super::http::App;
use super::incoming::{self, Parsed};
use super::problem::Problem;
use crate::config::{Caller, Scope};

/// The scope in the ledger of ids that were posted; `counterfoil enqueue` uses it too.
const SCOPE: &str = "message";
/// The database has answered by then.
const PATIENCE: Duration = Duration::from_secs(20);

/// Stores messages.
pub(super) async fn post(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    if !is_json(request.headers()) {
        return Err(Problem::not_json());
    }
    let (bytes, _room) = body::read(request, &app.room).await?;
    let Parsed { messages, single } = incoming::parse(&bytes)?;
    drop(bytes);
    let keyed: Vec<Keyed> = messages
        .into_iter()
        .map(|message| Keyed {
            key: Some((SCOPE.to_owned(), message.id.to_string())),
            message,
        })
        .collect();
    let stored = tokio::time::timeout(PATIENCE, app.outbox.enqueue(&keyed)).await;
    let answers = stored.map_err(|_| {
        Problem::unavailable("the database did not answer in time; the same ids may be sent again")
    })??;
    app.nudge.nudge();
    Ok(stored_answer(&answers, single))
}

fn stored_answer(answers: &[Enqueued], single: bool) -> Response {
    let first = answers.iter().filter(|answer| answer.is_first()).count();
    metrics::counter!("counterfoil_accepted_total").increment(first as u64);
    let status = if first > 0 {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let list: Vec<_> = answers
        .iter()
        .map(|answer| json!({ "id": answer.id(), "duplicate": !answer.is_first() }))
        .collect();
    let mut response = (status, axum::Json(json!({ "messages": list }))).into_response();
    if let (true, [answer]) = (single, answers)
        && let Ok(place) = format!("/v1/messages/{}", answer.id()).parse()
    {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

/// Tells everything about one message.
pub(super) async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|_| Problem::not_found("the id in the path is not UTF-8 text"))?;
    // Ids cannot be guessed; numbers can be counted through.
    if number(&id).is_some() && !caller.may(Scope::Operator) {
        return Err(Problem::forbidden(Scope::Operator.as_str()));
    }
    let facts = app.outbox.facts(&id).await?;
    if let Facts::Unknown { in_ledger: false } = facts {
        return Err(Problem::not_found(facts.sentence()));
    }
    // It may be gone since: then the facts are what is left to tell.
    let message = app.outbox.show(&id).await?;
    let body = json!({ "explain": facts.sentence(), "facts": facts, "message": message });
    Ok(axum::Json(body).into_response())
}

fn is_json(headers: &HeaderMap) -> bool {
    let named = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = named
        .and_then(|named| named.split(';').next())
        .unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}
