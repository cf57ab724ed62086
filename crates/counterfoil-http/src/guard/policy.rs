//! What is guarded, and how, on one route or many.
//!
//! | setting | default | what it is |
//! |---|---|---|
//! | `business_type` | `http` | the kind of business: retention and statistics go by it |
//! | `required` | yes | whether a request without a key is refused |
//! | `methods` | POST, PATCH | other methods pass unguarded; the same in lower case are refused |
//! | `header` | `idempotency-key` | where the key is |
//! | `strict_syntax` | no | whether the key must be a quoted string |
//! | `max_body` | 1 MiB | larger requests are refused |
//! | `max_answer` | 1 MiB | larger answers are given, and not kept |
//! | `max_failure` | 16 KiB | larger answers that failed are given, and not kept |
//! | `failure_quota` | 4 MiB | of a caller's failed answers so many bytes are kept in an hour, by each process |
//! | `keep_chunked` | no | whether answers of unknown length are kept too, within the limit |
//! | `not_recorded` | 401, 413, 415, 425, 429; in transactional mode 400, 403, 408 and 422 too | refusals: the key stays free |
//! | `harmless` | none | leased mode: errors after which nothing has happened |
//! | `final_errors` | none | 5xx that are recorded and replayed |
//! | `canonical_json` | no | whether order of fields and white space matter |
//! | `ignored_fields` | none | top-level JSON fields that do not belong to the request |
//! | `reconciled` | no | whether a check settles what is uncertain, so that a repeat may come again |
//! | `plain_duplicate` | no | whether a repeat gets a plain 409 "duplicate" instead of the answer |
//! | `help` | the IETF draft | where the documentation is |

use http::{HeaderName, Method, StatusCode};

/// What is guarded, and how.
#[derive(Debug, Clone)]
pub struct Policy {
    pub(crate) business_type: String,
    pub(crate) required: bool,
    pub(crate) methods: Vec<Method>,
    pub(crate) header: HeaderName,
    pub(crate) strict_syntax: bool,
    pub(crate) max_body: usize,
    pub(crate) max_answer: usize,
    pub(crate) max_failure: usize,
    pub(crate) failure_quota: usize,
    pub(crate) keep_chunked: bool,
    pub(crate) not_recorded: Option<Vec<StatusCode>>,
    pub(crate) harmless: Vec<StatusCode>,
    pub(crate) final_errors: Vec<StatusCode>,
    pub(crate) canonical_json: bool,
    pub(crate) ignored_fields: Vec<String>,
    pub(crate) reconciled: bool,
    pub(crate) plain_duplicate: bool,
    pub(crate) help: String,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            business_type: "http".into(),
            required: true,
            methods: vec![Method::POST, Method::PATCH],
            header: HeaderName::from_static("idempotency-key"),
            strict_syntax: false,
            max_body: 1 << 20,
            max_answer: 1 << 20,
            max_failure: 16 << 10,
            failure_quota: 4 << 20,
            keep_chunked: false,
            not_recorded: None,
            harmless: Vec::new(),
            final_errors: Vec::new(),
            canonical_json: false,
            ignored_fields: Vec::new(),
            reconciled: false,
            plain_duplicate: false,
            help: "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
                .into(),
        }
    }
}

/// A policy that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A header name that HTTP does not allow.
    #[error("{0:?} cannot be the name of a header")]
    Header(String),
    /// A method that is safe by definition.
    #[error("{0} has no effect by definition: it is never guarded")]
    SafeMethod(Method),
    /// Nothing would be guarded.
    #[error("at least one method must be guarded")]
    NoMethod,
    /// A limit of zero.
    #[error("{0} must be greater than zero")]
    Zero(&'static str),
    /// A business type that cannot be used.
    #[error("the business type cannot be used: {0}")]
    BusinessType(String),
}

/// By what they mean, the request was not processed.
const REFUSED: [StatusCode; 5] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::TOO_EARLY,
    StatusCode::TOO_MANY_REQUESTS,
];
/// A check of the request says so, and so may a handler that has begun: they are refusals where
/// whatever it did is taken back.
const REFUSED_OR_BEGUN: [StatusCode; 4] = [
    StatusCode::BAD_REQUEST,
    StatusCode::FORBIDDEN,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::UNPROCESSABLE_ENTITY,
];

impl Policy {
    /// Whether the key stays free after this status.
    pub(crate) fn is_refusal(&self, status: StatusCode, taken_back: bool) -> bool {
        match &self.not_recorded {
            Some(statuses) => statuses.contains(&status),
            None => REFUSED.contains(&status) || taken_back && REFUSED_OR_BEGUN.contains(&status),
        }
    }

    /// The guarded method that somebody means who does not write it in upper case.
    pub(crate) fn meant(&self, method: &Method) -> Option<&Method> {
        let same = |known: &&Method| known.as_str().eq_ignore_ascii_case(method.as_str());
        self.methods.iter().find(same)
    }

    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The kind of business.
    pub fn business_type(mut self, name: impl Into<String>) -> Result<Self, PolicyError> {
        self.business_type = name.into();
        counterfoil_core::guard::Key::new("", &*self.business_type, "k")
            .map_err(|e| PolicyError::BusinessType(e.to_string()))?;
        Ok(self)
    }

    /// A request without a key passes unguarded.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Which methods are guarded.
    pub fn methods(
        mut self,
        methods: impl IntoIterator<Item = Method>,
    ) -> Result<Self, PolicyError> {
        self.methods = methods.into_iter().collect();
        if self.methods.is_empty() {
            return Err(PolicyError::NoMethod);
        }
        match self.methods.iter().find(|m| m.is_safe()) {
            Some(safe) => Err(PolicyError::SafeMethod(safe.clone())),
            None => Ok(self),
        }
    }

    /// Where the key is.
    pub fn header(mut self, name: &str) -> Result<Self, PolicyError> {
        self.header = name
            .parse()
            .map_err(|_| PolicyError::Header(name.to_owned()))?;
        Ok(self)
    }

    /// The key must be a quoted string, as the draft says. Otherwise a bare token is the same key.
    #[must_use]
    pub fn strict_syntax(mut self) -> Self {
        self.strict_syntax = true;
        self
    }

    /// The largest request, in bytes.
    pub fn max_body(mut self, bytes: usize) -> Result<Self, PolicyError> {
        self.max_body = bytes;
        if bytes == 0 {
            return Err(PolicyError::Zero("max_body"));
        }
        Ok(self)
    }

    /// The largest answer that is kept, in bytes.
    #[must_use]
    pub fn max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// The largest answer of a failure that is kept, in bytes, with its headers. Of a larger one it is
    /// only remembered that it failed.
    #[must_use]
    pub fn max_failure(mut self, bytes: usize) -> Self {
        self.max_failure = bytes;
        self
    }

    /// How many bytes of one caller's failures are kept in an hour. Of further ones it is only
    /// remembered that they failed.
    #[must_use]
    pub fn failure_quota(mut self, bytes: usize) -> Self {
        self.failure_quota = bytes;
        self
    }

    /// Answers whose length is not known beforehand are read and kept too, if they end within 2 s
    /// and the limit. Otherwise they are streams: given as they come, and not kept. Event streams
    /// always are.
    #[must_use]
    pub fn keep_chunked(mut self) -> Self {
        self.keep_chunked = true;
        self
    }

    /// Refusals: after these statuses the key stays free. In leased mode name only those after which
    /// nothing has happened. A handler may say otherwise for one answer: see [`crate::Recording`].
    #[must_use]
    pub fn not_recorded(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.not_recorded = Some(statuses.into_iter().collect());
        self
    }

    /// Leased mode: errors after which nothing has happened. The key stays free.
    #[must_use]
    pub fn harmless(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.harmless = statuses.into_iter().collect();
        self
    }

    /// Server errors that are recorded and replayed.
    #[must_use]
    pub fn final_errors(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.final_errors = statuses.into_iter().collect();
        self
    }

    /// JSON bodies are the same request whatever the order of their fields and their white space.
    #[must_use]
    pub fn canonical_json(mut self) -> Self {
        self.canonical_json = true;
        self
    }

    /// Top-level JSON fields that change from try to try (a time stamp). Implies
    /// [`Policy::canonical_json`].
    #[must_use]
    pub fn ignored_fields<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.ignored_fields = names.into_iter().map(Into::into).collect();
        self.canonical_json = true;
        self
    }

    /// Leased mode: a check settles requests that are uncertain ([`Reconciler`]), here or in another
    /// process. Their repeats are told to come again; otherwise that an operator has to find out.
    ///
    /// [`Reconciler`]: counterfoil::guard::Reconciler
    #[must_use]
    pub fn reconciled(mut self) -> Self {
        self.reconciled = true;
        self
    }

    /// A repeat gets a plain 409 "duplicate", not the first one's answer.
    #[must_use]
    pub fn plain_duplicate(mut self) -> Self {
        self.plain_duplicate = true;
        self
    }

    /// Where the documentation of your API says more about its keys.
    #[must_use]
    pub fn help(mut self, url: impl Into<String>) -> Self {
        self.help = url.into();
        self
    }
}
