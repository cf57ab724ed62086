//! What can be configured about a webhook, and what is refused.
//!
//! # Promise
//! Every mistake that can be seen without the network is found when the destination is built, with
//! an error that says what to change. Neither the settings nor their errors show a secret.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::address::is_public;
use crate::endpoint::Endpoint;
use crate::request::ascii;
use crate::signature::Secret;

const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const CONCURRENCY: usize = 16;
const HIGHEST_CONCURRENCY: usize = 1024;
const MAX_RESPONSE: usize = 64 * 1024;

/// The settings of one webhook.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | `timeout` of a whole attempt, connecting included | 10 s | above 0, up to 10 min |
/// | `connect_timeout` for name, TCP and TLS | 3 s, or half of `timeout` if that is less | above 0, below `timeout` |
/// | `concurrency`, requests at one time | 16 | 1 to 1024 |
/// | `allow_private` | no | |
/// | `allow_plain` | no | |
/// | `max_response`, bytes of an answer that are read | 64 KiB | |
/// | `header`, sent with every request | none | not one that we set ourselves |
/// | `extra_ca`, trusted besides the public ones | none | PEM |
///
/// ```no_run
/// use std::time::Duration;
/// use counterfoil_webhook::{Secret, Settings, WebhookDestination};
///
/// let new = Secret::parse(&std::env::var("WEBHOOK_SECRET")?)?;
/// let old = Secret::parse(&std::env::var("WEBHOOK_SECRET_OLD")?)?;
/// let settings = Settings::signed("https://example.com/hook", [new, old])
///     .timeout(Duration::from_secs(5))
///     .header("authorization", "Bearer 123");
/// let destination = WebhookDestination::new(settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Settings {
    url: String,
    /// `None` only when somebody asked for it.
    secrets: Option<Vec<Secret>>,
    timeout: Duration,
    connect_timeout: Option<Duration>,
    concurrency: usize,
    allow_private: bool,
    allow_plain: bool,
    max_response: usize,
    headers: Vec<(String, String)>,
    extra_ca: Option<Vec<u8>>,
}

impl Settings {
    /// Signed with each of these secrets. During a rotation there are two, otherwise one.
    pub fn signed(url: impl Into<String>, secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self::with(url.into(), Some(secrets.into_iter().collect()))
    }

    /// Without a signature: receivers cannot tell our requests from anybody else's.
    pub fn unsigned(url: impl Into<String>) -> Self {
        Self::with(url.into(), None)
    }

    fn with(url: String, secrets: Option<Vec<Secret>>) -> Self {
        Self {
            url,
            secrets,
            timeout: TIMEOUT,
            connect_timeout: None,
            concurrency: CONCURRENCY,
            allow_private: false,
            allow_plain: false,
            max_response: MAX_RESPONSE,
            headers: Vec::new(),
            extra_ca: None,
        }
    }

    /// An attempt without a complete answer ends after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Finding the address, connecting and encrypting together end after this time.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The most requests at one time, and the most connections that are kept.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Lets requests go to private addresses. For URLs that an operator wrote, never for URLs that
    /// a customer may choose.
    pub fn allow_private(mut self, allow: bool) -> Self {
        self.allow_private = allow;
        self
    }

    /// Reads at most this many bytes of an answer's body; the rest is dropped.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Sends this header with every request. Values are not shown in logs.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Trusts these certificates, in PEM, besides the public authorities.
    pub fn extra_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.extra_ca = Some(pem.into());
        self
    }

    /// Lets requests go over plain `http://` to public addresses, where everybody on the way can read and
    /// change them.
    pub fn allow_plain(mut self, allow: bool) -> Self {
        self.allow_plain = allow;
        self
    }

    /// Checks everything at once.
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let endpoint = Endpoint::parse(&self.url, self.allow_private)?;
        // Without private addresses there are only public ones; names are looked up when connecting.
        let public = match endpoint.literal() {
            Some(address) => is_public(address),
            None => !self.allow_private,
        };
        if public && !endpoint.tls && !self.allow_plain {
            return Err(SettingsError::Plain);
        }
        let secrets = match self.secrets {
            Some(secrets) if secrets.is_empty() => return Err(SettingsError::NoSecret),
            Some(secrets) => secrets,
            None => Vec::new(),
        };
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(SettingsError::Timeout(self.timeout));
        }
        let connect_timeout = self
            .connect_timeout
            .unwrap_or_else(|| CONNECT_TIMEOUT.min(self.timeout / 2));
        if connect_timeout.is_zero() || connect_timeout >= self.timeout {
            return Err(SettingsError::ConnectTimeout(connect_timeout));
        }
        if !(1..=HIGHEST_CONCURRENCY).contains(&self.concurrency) {
            return Err(SettingsError::Concurrency(self.concurrency));
        }
        Ok(Checked {
            endpoint,
            secrets,
            timeout: self.timeout,
            connect_timeout,
            concurrency: self.concurrency,
            allow_private: self.allow_private,
            allow_plain: self.allow_plain,
            max_response: self.max_response,
            headers: check_headers(&self.headers)?,
            extra_ca: self.extra_ca,
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Settings")
            .field("url", &Endpoint::parse(&self.url, true).map(|e| e.shown))
            .field("secrets", &self.secrets)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("concurrency", &self.concurrency)
            .field("allow_private", &self.allow_private)
            .field("allow_plain", &self.allow_plain)
            .field("max_response", &self.max_response)
            .field("headers", &names)
            .field("extra_ca", &self.extra_ca.is_some())
            .finish()
    }
}

/// Settings in which nothing is wrong.
pub(crate) struct Checked {
    pub(crate) endpoint: Endpoint,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) concurrency: usize,
    pub(crate) allow_private: bool,
    pub(crate) allow_plain: bool,
    pub(crate) max_response: usize,
    pub(crate) headers: HeaderMap,
    pub(crate) extra_ca: Option<Vec<u8>>,
}

/// Why a webhook cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The URL cannot be read.
    #[error("the webhook URL is not usable: {0}")]
    Url(String),
    /// The URL is of another kind.
    #[error("a webhook URL begins with http:// or https://, not {0}:")]
    Scheme(String),
    /// The URL holds a user name or a password.
    #[error(
        "the webhook URL holds a user name or password; set the header `authorization` instead"
    )]
    CredentialsInUrl,
    /// The URL names a private address and that is not allowed.
    #[error("the webhook address {0} is private; set allow_private if that is meant")]
    PrivateAddress(IpAddr),
    /// The URL is not encrypted and leads to public addresses, and that is not allowed.
    #[error(
        "the webhook URL begins with http://, and everybody on the way could read and change what is sent: \
             use https://, or set allow_plain if that is meant"
    )]
    Plain,
    /// The list of secrets is empty.
    #[error("a signed webhook needs a secret; ask for an unsigned one if that is meant")]
    NoSecret,
    /// The timeout is out of bounds.
    #[error("the webhook timeout is above 0 and up to 10 minutes, not {0:?}")]
    Timeout(Duration),
    /// The connect timeout is out of bounds.
    #[error("the webhook connect timeout is above 0 and below the timeout, not {0:?}")]
    ConnectTimeout(Duration),
    /// The concurrency is out of bounds.
    #[error("the webhook concurrency is 1 to 1024, not {0}")]
    Concurrency(usize),
    /// An extra header cannot be sent.
    #[error("the webhook header {name:?} {problem}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The extra certificates cannot be used.
    #[error("the extra certificate authority {0}")]
    ExtraCa(String),
}

fn check_headers(headers: &[(String, String)]) -> Result<HeaderMap, SettingsError> {
    let mut checked = HeaderMap::new();
    for (name, value) in headers {
        let bad = |problem| SettingsError::Header {
            name: name.clone(),
            problem,
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("is no header name"))?;
        if is_reserved(key.as_str()) {
            return Err(bad("is set by us"));
        }
        let mut value = ascii(value).ok_or_else(|| bad("has a value that cannot be sent"))?;
        value.set_sensitive(true);
        if checked.insert(key, value).is_some() {
            return Err(bad("is given twice"));
        }
    }
    Ok(checked)
}

/// Headers with a meaning for the connection, for the signature or for us.
fn is_reserved(name: &str) -> bool {
    name.starts_with("webhook-")
        || name.starts_with("counterfoil-")
        || name.starts_with("proxy-")
        || matches!(
            name,
            "host"
                | "connection"
                | "keep-alive"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "expect"
                | "content-length"
                | "content-type"
                | "idempotency-key"
                | "correlation-id"
                | "causation-id"
                | "traceparent"
                | "tracestate"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Settings {
        Settings::unsigned("https://example.com/hook?token=hunter2")
    }

    fn refused(settings: Settings) -> SettingsError {
        settings.check().err().unwrap()
    }

    #[test]
    fn defaults_are_as_documented() {
        let checked = plain().check().unwrap();

        assert_eq!(checked.timeout, Duration::from_secs(10));
        assert_eq!(checked.connect_timeout, Duration::from_secs(3));
        assert_eq!(checked.concurrency, 16);
        assert_eq!(checked.max_response, 65_536);
        assert!(!checked.allow_private);
    }

    #[test]
    fn a_short_timeout_shortens_the_connect_timeout() {
        let checked = plain().timeout(Duration::from_secs(2)).check().unwrap();

        assert_eq!(checked.connect_timeout, Duration::from_secs(1));
    }

    #[test]
    fn unsigned_is_never_an_accident() {
        let error = refused(Settings::signed("https://example.com/", []));

        assert_eq!(error, SettingsError::NoSecret);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let s = Duration::from_secs;
        assert_eq!(refused(plain().timeout(s(0))), SettingsError::Timeout(s(0)));
        assert_eq!(
            refused(plain().timeout(Duration::MAX)),
            SettingsError::Timeout(Duration::MAX)
        );
        assert_eq!(
            refused(plain().connect_timeout(s(10))),
            SettingsError::ConnectTimeout(s(10))
        );
        assert_eq!(
            refused(plain().connect_timeout(s(0))),
            SettingsError::ConnectTimeout(s(0))
        );
        assert_eq!(
            refused(plain().concurrency(0)),
            SettingsError::Concurrency(0)
        );
    }

    #[test]
    fn headers_that_we_set_or_that_cannot_be_sent_are_refused() {
        for (name, value) in [
            ("Host", "x"),
            ("webhook-signature", "x"),
            ("counterfoil-epoch", "x"),
            ("content-length", "1"),
            ("a b", "x"),
            ("x", "a\r\nb: c"),
            ("x", "é"),
        ] {
            let error = refused(plain().header(name, value));
            assert!(
                matches!(error, SettingsError::Header { .. }),
                "{name}: {error}"
            );
        }
        assert!(plain().header("authorization", "Bearer 1").check().is_ok());
    }

    #[test]
    fn debug_shows_neither_secrets_nor_tokens() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let settings = Settings::signed("https://example.com/hook?token=hunter2", [secret])
            .header("authorization", "Bearer hunter2");

        let shown = format!("{settings:?}");

        assert!(shown.contains("https://example.com/hook") && shown.contains("authorization"));
        assert!(
            !shown.contains("hunter2") && !shown.contains("MfKQ"),
            "{shown}"
        );
    }
}
