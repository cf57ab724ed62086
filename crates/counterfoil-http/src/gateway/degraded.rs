//! "Accepted, ask later": an answer for those who must not wait.
//!
//! # Promise
//! Where it is configured, a guarded request whose outcome is uncertain is answered by 202 with the
//! place where its state can be asked for: there is a record, and the place shows it. What is
//! recorded is not changed by it. A request of which nothing was recorded is never accepted: nobody
//! would ever make it.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use counterfoil_core::guard::Key;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::status;
use crate::Recording;

/// The answer, or the one for those who must not wait.
pub(super) fn instead(response: Response, after: Duration, probed: bool) -> Response {
    let extensions = response.extensions();
    let uncertain = extensions.get::<Recording>() == Some(&Recording::Uncertain);
    match extensions.get::<Key>().filter(|_| uncertain) {
        Some(key) => accepted(key, after, probed),
        None => response,
    }
}

fn accepted(key: &Key, after: Duration, probed: bool) -> Response {
    let place = status::place(key);
    let detail = match probed {
        true => {
            "It is being found out whether the request took effect. Ask for its state, or send the \
             same request with the same key again."
        }
        false => {
            "An operator has to find out whether the request took effect. Ask for its state; do not \
             use a new key."
        }
    };
    let body = json!({
        "state": "uncertain", "key": key.key(), "business_type": key.business_type(),
        "status": place,
        "detail": detail,
    });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::RETRY_AFTER, after.as_secs().max(1).into());
    if let Ok(place) = HeaderValue::from_str(&place) {
        headers.insert(header::LOCATION, place);
    }
    response
}
