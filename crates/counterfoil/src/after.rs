//! What a message inherits from the task in whose handler it is enqueued.

use counterfoil_core::message::{Message, header};

pub use counterfoil_engine::Current;

/// The task in whose handler the caller runs.
pub fn current() -> Option<Current> {
    Current::get()
}

/// Trace context and keys go along; the running task becomes the cause. Inside a guarded request
/// the message carries the request's key.
pub(crate) fn inherit(mut message: Message) -> Message {
    if let Some(request) = crate::guard::Context::current()
        && message.headers.get(header::IDEMPOTENCY_KEY).is_none()
    {
        message
            .headers
            .set(header::IDEMPOTENCY_KEY, request.key().key());
    }
    let Some(current) = current() else {
        return message;
    };
    let own = current.id.to_string();
    let correlation = current
        .headers
        .get(header::CORRELATION_ID)
        .unwrap_or(&own)
        .to_owned();
    let mut give = |name: &str, value: Option<&str>| {
        if let (None, Some(value)) = (message.headers.get(name), value) {
            message.headers.set(name, value);
        }
    };
    give(
        header::TRACEPARENT,
        current.headers.get(header::TRACEPARENT),
    );
    give(header::TRACESTATE, current.headers.get(header::TRACESTATE));
    give(
        header::IDEMPOTENCY_KEY,
        current.headers.get(header::IDEMPOTENCY_KEY),
    );
    give(header::CORRELATION_ID, Some(&correlation));
    give(header::CAUSATION_ID, Some(&own));
    message
}
