//! Errors of the API: RFC 9457 problem details.
//!
//! Each cause has a type that never changes, `urn:counterfoil:problem:<word>`, so that callers can
//! tell them apart without reading sentences.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use counterfoil_core::message::MessageError;
use counterfoil_core::store::{Disposition, StoreError};
use serde_json::json;

/// An answer that says what is wrong.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    word: &'static str,
    title: &'static str,
    detail: String,
    /// Seconds after which to try again.
    retry_after: Option<u32>,
}

impl Problem {
    const fn new(status: StatusCode, word: &'static str, title: &'static str) -> Self {
        Self {
            status,
            word,
            title,
            detail: String::new(),
            retry_after: None,
        }
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    pub(super) fn invalid_json(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid-json",
            "The body is not what it should be",
        )
        .detail(detail)
    }

    pub(super) fn invalid_message(detail: impl Into<String>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(status, "invalid-message", "The message cannot be stored").detail(detail)
    }

    pub(super) fn too_many(limit: usize) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(status, "too-many-messages", "Too many messages at once")
            .detail(format!("at most {limit} messages in one request"))
    }

    pub(super) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "Too large").detail(detail)
    }

    pub(super) fn too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "too-slow",
            "The body did not arrive in time",
        )
    }

    pub(super) fn not_json() -> Self {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "unsupported-media-type", "Send JSON")
            .detail("set the header `content-type: application/json`")
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "A token is needed",
        )
        .detail("send the header `authorization: Bearer TOKEN` with one of the server's tokens")
    }

    pub(super) fn forbidden(scope: &str) -> Self {
        let status = StatusCode::FORBIDDEN;
        Self::new(status, "forbidden", "This token is not for that")
            .detail(format!("it needs the scope `{scope}`"))
    }

    pub(super) fn foreign_host() -> Self {
        Self::new(StatusCode::FORBIDDEN, "foreign-host", "Not under this name").detail(
            "without tokens the API answers only as localhost, 127.0.0.1 or [::1]: add a \
             [token.NAME] to use another name",
        )
    }

    pub(super) fn foreign_origin() -> Self {
        let status = StatusCode::FORBIDDEN;
        Self::new(status, "foreign-origin", "Not for this web page")
            .detail("without tokens the API serves no web page from elsewhere: add a [token.NAME]")
    }

    pub(super) fn forwarded(header: &str) -> Self {
        let status = StatusCode::FORBIDDEN;
        Self::new(status, "forwarded", "Not through a proxy").detail(format!(
            "the header `{header}` says that a proxy asks for somebody else, and without tokens the API \
             serves this machine only: add a [token.NAME]"
        ))
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found").detail(detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(
            status,
            "method-not-allowed",
            "This method is not for this path",
        )
    }

    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let problem = Self::new(status, "unavailable", "Not now: try again").detail(detail);
        Self {
            retry_after: Some(1),
            ..problem
        }
    }

    /// The same, about one message of several.
    pub(super) fn at(mut self, index: Option<usize>) -> Self {
        if let Some(index) = index {
            self.detail = format!("messages[{index}]: {}", self.detail);
        }
        self
    }
}

impl From<MessageError> for Problem {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::TooLarge { .. } => Self::too_large(error.to_string()),
            other => Self::invalid_message(other.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // The database's own words may say more than a caller should know. What passes by itself
        // the relay logs too, once and not for every request.
        if error.disposition() == Disposition::Retry {
            tracing::debug!(error = error.one_line(), "a request could not be served");
        } else {
            tracing::warn!(error = error.one_line(), "a request could not be served");
        }
        match error {
            StoreError::Message(error) => error.into(),
            StoreError::NotFound(what) => Self::not_found(what),
            StoreError::SchemaMissing
            | StoreError::SchemaTooOld { .. }
            | StoreError::SchemaTooNew { .. }
            | StoreError::Unsupported { .. } => Self::unavailable("the database needs an operator"),
            other if other.disposition() == Disposition::Retry => {
                Self::unavailable(format!("{other}; the same id may be sent again"))
            }
            _ => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, "internal", "The database answered with an error").detail(
                    "the log of the server says more; until that is mended it will not pass",
                )
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": format!("urn:counterfoil:problem:{}", self.word),
            "title": self.title,
            "status": self.status.as_u16(),
        });
        if !self.detail.is_empty() {
            body["detail"] = self.detail.into();
        }
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
