//! The URL of a webhook, taken apart and checked.
//!
//! # Promise
//! An endpoint that exists can be dialled: it has a host and a port, carries no credentials, and is
//! no private address unless that is allowed. Its text for people leaves the query out, where
//! tokens tend to be.

use std::net::IpAddr;

use http::{HeaderValue, Uri};
use url::{Host, Position, Url};

use crate::address::is_public;
use crate::settings::SettingsError;

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// Whether the connection is encrypted.
    pub(crate) tls: bool,
    /// A name to resolve, or an address.
    pub(crate) host: Host<String>,
    /// The port, given or of the scheme.
    pub(crate) port: u16,
    /// The value of the header `host`.
    pub(crate) authority: HeaderValue,
    /// Path and query.
    pub(crate) target: Uri,
    /// For people.
    pub(crate) shown: String,
}

impl Endpoint {
    /// Reads and checks a URL.
    pub(crate) fn parse(text: &str, allow_private: bool) -> Result<Self, SettingsError> {
        let url = Url::parse(text.trim()).map_err(|e| bad_url(e.to_string()))?;
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(SettingsError::Scheme(other.to_owned())),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(SettingsError::CredentialsInUrl);
        }
        let host = url
            .host()
            .ok_or_else(|| bad_url("it has no host"))?
            .to_owned();
        if let Some(address) = literal(&host)
            && !allow_private
            && !is_public(address)
        {
            return Err(SettingsError::PrivateAddress(address));
        }
        let port = url
            .port_or_known_default()
            .ok_or_else(|| bad_url("it has no port"))?;
        if port == 0 {
            return Err(bad_url("port 0 cannot be connected to"));
        }
        let authority = &url[Position::BeforeHost..Position::AfterPort];
        let target = &url[Position::BeforePath..Position::AfterQuery];
        Ok(Self {
            tls,
            port,
            authority: HeaderValue::from_str(authority).map_err(|e| bad_url(e.to_string()))?,
            target: target
                .parse()
                .map_err(|e: http::uri::InvalidUri| bad_url(e.to_string()))?,
            shown: url[..Position::AfterPath].to_owned(),
            host,
        })
    }

    /// The address, if the URL names one instead of a host.
    pub(crate) fn literal(&self) -> Option<IpAddr> {
        literal(&self.host)
    }
}

fn literal(host: &Host<String>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(v4) => Some(IpAddr::V4(*v4)),
        Host::Ipv6(v6) => Some(IpAddr::V6(*v6)),
    }
}

fn bad_url(problem: impl Into<String>) -> SettingsError {
    SettingsError::Url(problem.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> SettingsError {
        Endpoint::parse(text, false).unwrap_err()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let e = Endpoint::parse("https://Example.com/a/b?token=x#part", false).unwrap();

        assert!(e.tls);
        assert_eq!(e.port, 443);
        assert_eq!(e.authority, "example.com");
        assert_eq!(e.target, "/a/b?token=x");
        assert_eq!(e.shown, "https://example.com/a/b");
    }

    #[test]
    fn an_unusual_port_and_an_ipv6_address_keep_their_form() {
        let e = Endpoint::parse("http://[2606:4700::1111]:8080", false).unwrap();

        assert_eq!(e.authority, "[2606:4700::1111]:8080");
        assert_eq!(e.target, "/");
        assert!(e.literal().is_some());
    }

    #[test]
    fn only_http_and_https_pass() {
        assert_eq!(
            refused("ftp://example.com/"),
            SettingsError::Scheme("ftp".into())
        );
        assert_eq!(
            refused("file:///etc/passwd"),
            SettingsError::Scheme("file".into())
        );
        assert!(matches!(refused("example.com/hook"), SettingsError::Url(_)));
        assert!(matches!(refused("http://"), SettingsError::Url(_)));
        assert!(matches!(
            refused("http://example.com:0/"),
            SettingsError::Url(_)
        ));
    }

    #[test]
    fn credentials_in_the_url_are_refused_and_not_repeated() {
        let error = refused("https://user:hunter2@example.com/");

        assert_eq!(error, SettingsError::CredentialsInUrl);
        assert!(!error.to_string().contains("hunter2"));
    }

    #[test]
    fn every_spelling_of_a_private_address_is_refused() {
        for text in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://[::1]:80/",
            "http://[::ffff:10.0.0.1]/",
            "https://169.254.169.254/latest/meta-data",
        ] {
            assert!(
                matches!(refused(text), SettingsError::PrivateAddress(_)),
                "{text}"
            );
            assert!(Endpoint::parse(text, true).is_ok(), "{text}");
        }
    }
}
