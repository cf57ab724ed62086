//! What every guarded request passes first, and what those are told who do not run.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use counterfoil::guard::{End, Entered, Found, State};
use counterfoil_core::StoreError;
use counterfoil_core::guard::{Fingerprint, Key, Snapshot};
use http::request::Parts;

use super::answer::{self, Recording};
use super::body;
use super::header_key::{self, HeaderKey};
use super::policy::Policy;
use super::quota::Quota;
use crate::Problem;

/// Tells whose request it is: a stable name, never a credential.
pub(super) type CallerFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// When somebody should come again whose request is uncertain.
const FIND_OUT: Duration = Duration::from_secs(10);

/// The policy at work.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) policy: Policy,
    pub(super) caller: Arc<CallerFn>,
    pub(super) quota: Arc<Quota>,
}

/// A request that may go on to its record.
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    pub(super) request: Request,
}

/// What a request is, as its head shows.
pub(super) enum Sort {
    /// Its method has no effect that is guarded here.
    Passes(Request),
    /// It has no key, and needs none.
    Unguarded(Request),
    /// It can be looked for.
    Guarded(Box<Asked>),
    /// It is refused.
    Refused(Response),
}

impl Front {
    /// Looks at a request, and reads its body when it is to be guarded.
    pub(super) async fn sort(&self, request: Request) -> Sort {
        let policy = &self.policy;
        if !policy.methods.contains(request.method()) {
            // Many a service takes `patch` for PATCH, and would do it again and again.
            return match policy.meant(request.method()) {
                Some(meant) => Sort::Refused(self.refuse(Problem::method_unknown(meant))),
                None => Sort::Passes(request),
            };
        }
        let key = match header_key::read(request.headers(), &policy.header, policy.strict_syntax) {
            Ok(HeaderKey::Given(key)) => key,
            Ok(HeaderKey::Absent) if policy.required => {
                return Sort::Refused(self.refuse(Problem::key_missing(policy.header.as_str())));
            }
            Ok(HeaderKey::Absent) => return Sort::Unguarded(request),
            Err(problem) => return Sort::Refused(self.refuse(problem)),
        };
        match self.ask(key, request).await {
            Ok(asked) => Sort::Guarded(Box::new(asked)),
            Err(problem) => Sort::Refused(self.refuse(problem)),
        }
    }

    async fn ask(&self, key: String, request: Request) -> Result<Asked, Problem> {
        let policy = &self.policy;
        let (parts, body) = request.into_parts();
        let scope = (self.caller)(&parts).ok_or_else(Problem::caller_unknown)?;
        let key = Key::new(scope, &*policy.business_type, key)
            .map_err(|e| Problem::key_malformed(format!("{e}.")))?;
        let (bytes, trailers) = body::read(&parts.headers, body, policy.max_body).await?;
        let fingerprint = body::fingerprint(&parts, &bytes, policy).await?;
        let body = body::whole(bytes, trailers);
        let mut request = Request::from_parts(parts, body);
        request.extensions_mut().insert(key.clone());
        Ok(Asked {
            key,
            fingerprint,
            request,
        })
    }

    /// How an answer of this caller is recorded; nothing when it is not.
    pub(super) fn end(
        &self,
        recording: Recording,
        snapshot: Snapshot,
        caller: &str,
    ) -> Option<End> {
        let snapshot = answer::kept(recording, snapshot, (&self.policy, &self.quota), caller);
        answer::end(recording, snapshot)
    }

    pub(super) fn refuse(&self, problem: Problem) -> Response {
        problem.help(&self.policy.help).into_response()
    }

    /// What somebody is told who does not run.
    pub(super) fn instead<T>(&self, entered: Entered<T>) -> Response {
        match entered {
            Entered::Fresh(_) => Problem::internal("This cannot happen.").into_response(),
            Entered::Replay(found) => self.replay(&found),
            Entered::InProgress(after) => self.refuse(Problem::in_progress(after)),
            Entered::Conflict => self.refuse(Problem::conflict()),
            Entered::Uncertain(_) => self.uncertain(),
            Entered::Later(after) => self.refuse(Problem::later(after)),
        }
    }

    fn uncertain(&self) -> Response {
        let after = self.policy.reconciled.then_some(FIND_OUT);
        let mut response = self.refuse(Problem::uncertain(after));
        response.extensions_mut().insert(Recording::Uncertain);
        response
    }

    fn replay(&self, found: &Found) -> Response {
        if self.policy.plain_duplicate {
            return self.refuse(Problem::new(
                http::StatusCode::CONFLICT,
                "duplicate",
                "The request is a duplicate",
                "A request with this key was completed before.",
            ));
        }
        answer::replay(found)
    }

    /// What is there in the place of a claim that was lost.
    pub(super) fn lost(&self, there: Option<&Found>) -> Response {
        match there.map(|f| (f, f.state())) {
            Some((found, State::Succeeded | State::Failed | State::Retryable)) => {
                self.replay(found)
            }
            Some((_, State::Uncertain)) => self.uncertain(),
            _ => self.refuse(Problem::in_progress(Duration::from_secs(1))),
        }
    }

    /// The records cannot be read or written: nothing runs.
    pub(super) fn unavailable(&self, error: &str) -> Response {
        tracing::error!(error, "the guard's records cannot be read or written");
        self.refuse(Problem::unavailable())
    }

    /// The answer, whether the record could be changed or not: its lease runs out by itself.
    pub(super) fn settled(settled: Result<bool, StoreError>, response: Response) -> Response {
        if let Err(error) = settled {
            tracing::error!(
                error = error.one_line(),
                "cannot settle a record of the guard"
            );
        }
        response
    }
}
