//! Errors as RFC 9457 problem documents with stable types.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// One kind of problem. Its type never changes: clients may rely on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    name: &'static str,
    title: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    original_status: Option<u16>,
    help: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_status: Option<u16>,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        name: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            name,
            title,
            detail: detail.into(),
            retry_after: None,
            original_status: None,
            help: None,
        }
    }

    pub(crate) fn key_missing(header: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "key-missing",
            "Idempotency key is missing",
            format!(
                "This operation requires the header {header} with a key that is unique to the request."
            ),
        )
    }

    pub(crate) fn key_malformed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "key-malformed",
            "Idempotency key cannot be used",
            detail,
        )
    }

    pub(crate) fn payload_malformed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "payload-malformed",
            "Request body cannot be read",
            detail,
        )
    }

    pub(crate) fn caller_unknown() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "caller-unknown",
            "Caller is not known",
            "An idempotency key belongs to a caller, and this request does not say whose it is.",
        )
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "payload-too-large",
            "Request body is too large",
            format!("Guarded requests may have at most {limit} bytes."),
        )
    }

    pub(crate) fn conflict() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "key-reused",
            "Idempotency key was used for another request",
            "The same key came with another method, path, query or body. Use a new key for a new request.",
        )
    }

    pub(crate) fn in_progress(after: Duration) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "in-progress",
            "A request with this key is in progress",
            "Send the same request again later: it will get the answer of the first one.",
        )
        .retry_after(after)
    }

    /// When to come again, if anything is done to find out.
    pub(crate) fn uncertain(after: Option<Duration>) -> Self {
        let detail = match after {
            Some(_) => {
                "It is being found out. Send the same request again later; do not use a new key."
            }
            None => {
                "An operator of the service has to find out. Until then the same request is told \
                 the same; do not use a new key."
            }
        };
        let mut problem = Self::new(
            StatusCode::CONFLICT,
            "outcome-uncertain",
            "It is not known whether the request took effect",
            detail,
        );
        problem.retry_after = after;
        problem
    }

    pub(crate) fn method_unknown(meant: &http::Method) -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            "method-unknown",
            "The method of the request is not known",
            format!("Methods are case-sensitive: {meant} is written in upper case."),
        )
    }

    pub(crate) fn later(after: Duration) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "retry-later",
            "The request cannot succeed yet",
            "Send the same request again after the time that Retry-After says.",
        )
        .retry_after(after)
    }

    pub(crate) fn not_kept(original_status: u16) -> Self {
        let mut problem = Self::new(
            StatusCode::GONE,
            "result-not-kept",
            "The request was completed, and its answer was not kept",
            "It took effect once. Its answer was too large, or streamed, and cannot be given again.",
        );
        problem.original_status = Some(original_status);
        problem
    }

    pub(crate) fn failure_not_kept(original_status: u16) -> Self {
        let mut problem = Self::not_kept(original_status);
        problem.title = "The request failed, and its answer was not kept";
        problem.detail =
            "It failed with the original status. Its answer was too large, or one of too \
                          many, and cannot be given again."
                .into();
        problem
    }

    pub(crate) fn unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "guard-unavailable",
            "The request could not be guarded",
            "Nothing is known to have happened. Send the same request again with the same key.",
        )
        .retry_after(Duration::from_secs(1))
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "The request failed",
            detail,
        )
    }

    pub(crate) fn timed_out() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "timed-out",
            "The request took too long",
            "Send the same request again with the same key.",
        )
        .retry_after(Duration::from_secs(1))
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "The request cannot be understood",
            detail,
        )
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn not_supported(status: StatusCode, detail: impl Into<String>) -> Self {
        Self::new(
            status,
            "not-supported",
            "The gateway does not do this",
            detail,
        )
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn no_route() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "no-route",
            "There is no service at this address",
            "No route of the gateway matches host and path.",
        )
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "This method is not for this path",
            "A route of the gateway matches host and path, but not the method.",
        )
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "Too many large requests or answers at once",
            "The service was not called. Send the same request again with the same key.",
        )
        .retry_after(Duration::from_secs(1))
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn too_many_requests() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-requests",
            "Too many requests of this peer are in progress",
            "Nothing has happened. Send the same request again later.",
        )
        .retry_after(Duration::from_secs(1))
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn upload_too_slow(limit: Duration) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "upload-too-slow",
            "The request took too long to arrive",
            format!(
                "Guarded requests arrive within {} s. Nothing has happened.",
                limit.as_secs()
            ),
        )
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn unreachable() -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "service-unreachable",
            "The service cannot be reached",
            "Nothing of the request has reached it. The same request may be sent again.",
        )
        .retry_after(Duration::from_secs(1))
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn unanswered(silent: bool) -> Self {
        let (status, title) = match silent {
            true => (
                StatusCode::GATEWAY_TIMEOUT,
                "The service has not answered in time",
            ),
            false => (StatusCode::BAD_GATEWAY, "The service has not answered"),
        };
        Self::new(
            status,
            "service-unanswered",
            title,
            "It is not known whether the request took effect.",
        )
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn not_now(after: Duration) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "service-resting",
            "The service gets a rest",
            "Nothing has happened. Send the same request again later.",
        )
        .retry_after(after)
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn request_unknown() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "request-unknown",
            "No request with this key is known",
            "It never came, or did not take effect, or is forgotten. It may be sent.",
        )
    }

    /// When to come again.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Where the reader finds more.
    #[must_use]
    pub fn help(mut self, url: impl Into<String>) -> Self {
        self.help = Some(url.into());
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable type.
    pub fn type_uri(&self) -> String {
        format!("urn:counterfoil:problem:{}", self.name)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = Document {
            r#type: self.type_uri(),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            original_status: self.original_status,
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            // A part of a second is a second: "come at once" is not what is meant.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(help) = self.help
            && let Ok(link) = HeaderValue::from_str(&format!("<{help}>; rel=\"describedby\""))
        {
            headers.insert(header::LINK, link);
        }
        response
    }
}
