//! The trace that a call belongs to goes along.

use std::future::Future;

use counterfoil_core::message::header::{TRACEPARENT, TRACESTATE};
use http::{HeaderMap, HeaderValue};

tokio::task_local! {
    static CURRENT: Option<Trace>;
}

/// The W3C trace context that the running code belongs to: `traceparent` and `tracestate`.
///
/// Handlers behind a guard layer have that of their request, and task handlers that of their
/// message. Elsewhere use [`Trace::scope`], or [`Request::trace`](super::Request::trace).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    parent: HeaderValue,
    state: Option<HeaderValue>,
}

impl Trace {
    /// The trace that a request came with.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let parent = headers.get(TRACEPARENT)?.clone();
        let mut state = headers.get_all(TRACESTATE).iter();
        let state = match (state.next(), state.next()) {
            (Some(only), None) => Some(only.clone()),
            // Several lines are one list.
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(state);
                let all: Vec<&[u8]> = all.map(HeaderValue::as_bytes).collect();
                HeaderValue::from_bytes(&all.join(&b","[..])).ok()
            }
            (None, _) => None,
        };
        Some(Self { parent, state })
    }

    /// The trace that the calling code belongs to.
    pub fn current() -> Option<Self> {
        let here = CURRENT.try_with(Clone::clone).ok().flatten();
        here.or_else(|| {
            let task = counterfoil::current()?;
            let value = |name| HeaderValue::from_str(task.headers.get(name)?).ok();
            Some(Self {
                parent: value(TRACEPARENT)?,
                state: value(TRACESTATE),
            })
        })
    }

    /// Runs something as part of this trace.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(Some(self), work).await
    }

    /// Runs something as part of the trace of this request, if it has one.
    pub(crate) async fn follow<F: Future>(trace: Option<Self>, work: F) -> F::Output {
        CURRENT.scope(trace, work).await
    }

    pub(super) fn write(self, headers: &mut HeaderMap) {
        // Who has set one has meant it.
        if headers.contains_key(TRACEPARENT) {
            return;
        }
        headers.insert(TRACEPARENT, self.parent);
        if let Some(state) = self.state {
            headers.insert(TRACESTATE, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_trace_goes_from_one_request_into_the_next() {
        let mut came = HeaderMap::new();
        came.insert(TRACEPARENT, HeaderValue::from_static("00-a-b-01"));
        came.append(TRACESTATE, HeaderValue::from_static("x=1"));
        came.append(TRACESTATE, HeaderValue::from_static("y=2"));
        let mut goes = HeaderMap::new();

        let trace = Trace::of(&came).unwrap();
        let here = trace.scope(async { Trace::current() }).await.unwrap();
        here.write(&mut goes);

        assert_eq!(goes[TRACEPARENT], "00-a-b-01");
        assert_eq!(goes[TRACESTATE], "x=1,y=2");
        assert_eq!(Trace::current(), None);
        assert_eq!(Trace::of(&HeaderMap::new()), None);
    }

    #[test]
    fn what_the_caller_has_set_stays() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static("mine"));
        let trace = Trace {
            parent: HeaderValue::from_static("other"),
            state: Some(HeaderValue::from_static("x=1")),
        };

        trace.write(&mut headers);

        assert_eq!(headers[TRACEPARENT], "mine");
        assert!(!headers.contains_key(TRACESTATE));
    }
}
