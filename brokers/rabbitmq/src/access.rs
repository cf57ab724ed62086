//! The address and the login, which both directions have.
//!
//! # Promise
//! A URL means what RabbitMQ's own clients take it for, or is refused with a reason. No error shows
//! a password.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use url::{Host, Url};

use crate::link::Dial;
use crate::settings::SettingsError;

const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Seconds. A server that is silent for twice as long is taken for gone.
const HEARTBEAT: u16 = 10;

/// Where, as whom, and for how long.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) url: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Option<Duration>,
}

impl Access {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            user: None,
            password: None,
            ca_file: None,
            timeout: TIMEOUT,
            connect_timeout: None,
        }
    }

    /// Checks everything, and says how to connect.
    pub(crate) fn check(&self, name: String) -> Result<Dial, SettingsError> {
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(SettingsError::Timeout(self.timeout));
        }
        let connect_timeout = self
            .connect_timeout
            .unwrap_or_else(|| CONNECT_TIMEOUT.min(self.timeout / 2));
        if connect_timeout.is_zero() || connect_timeout >= self.timeout {
            return Err(SettingsError::ConnectTimeout(connect_timeout));
        }
        let mut uri = address(&self.url)?;
        uri.authority.userinfo = self.login()?;
        let host = &uri.authority.host;
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.clone(),
        };
        let shown = format!(
            "{}://{host}:{}/{}",
            uri.scheme, uri.authority.port, uri.vhost
        );
        Ok(Dial {
            tls: OwnedTLSConfig {
                identity: None,
                cert_chain: self.authorities(&uri.scheme)?,
            },
            uri,
            shown,
            name,
            connect_timeout,
            timeout: self.timeout,
        })
    }

    /// The certificates of the file.
    fn authorities(&self, scheme: &AMQPScheme) -> Result<Option<String>, SettingsError> {
        let Some(path) = &self.ca_file else {
            return Ok(None);
        };
        let bad = |problem: String| SettingsError::CaFile(path.clone(), problem);
        if *scheme == AMQPScheme::AMQP {
            return Err(bad(
                "the URL begins with amqp://, which is not encrypted".into()
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        match text.contains("-----BEGIN CERTIFICATE-----") {
            true => Ok(Some(text)),
            false => Err(bad("there is no certificate in it (PEM)".into())),
        }
    }

    fn login(&self) -> Result<AMQPUserInfo, SettingsError> {
        let url = parse(&self.url)?;
        let in_url = match url.username() {
            "" => None,
            user => Some(decoded(user)?),
        };
        let secret = url.password().map(decoded).transpose()?;
        if in_url.is_some() && self.user.is_some() {
            return Err(SettingsError::TwoUsers);
        }
        if secret.is_some() && self.password.is_some() {
            return Err(SettingsError::TwoPasswords);
        }
        let user = in_url.or_else(|| self.user.clone());
        let password = secret.or_else(|| self.password.clone());
        match (user, password) {
            (_, Some(password)) if password.is_empty() => Err(SettingsError::EmptyPassword),
            (Some(username), Some(password)) => Ok(AMQPUserInfo { username, password }),
            // What every client does, and what works from the same machine only.
            (None, None) => Ok(AMQPUserInfo {
                username: "guest".into(),
                password: "guest".into(),
            }),
            (Some(_), None) => Err(SettingsError::NoPassword),
            (None, Some(_)) => Err(SettingsError::NoUser),
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = address(&self.url).map(|uri| (uri.authority.host, uri.authority.port));
        f.debug_struct("Access")
            .field("server", &server)
            .field("user", &self.user)
            .field("password", &self.password.is_some())
            .field("ca_file", &self.ca_file)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

fn parse(url: &str) -> Result<Url, SettingsError> {
    // The error of the parser is about the syntax and shows nothing of the text.
    Url::parse(url.trim()).map_err(|e| bad_url(&e.to_string()))
}

/// The address without the login. Not by the driver: it takes `[::1]` for localhost, and a `/` at
/// the end for a virtual host without a name.
fn address(url: &str) -> Result<AMQPUri, SettingsError> {
    let url = parse(url)?;
    let (scheme, usual) = match url.scheme() {
        "amqp" => (AMQPScheme::AMQP, 5672),
        "amqps" => (AMQPScheme::AMQPS, 5671),
        other => return Err(SettingsError::Scheme(other.into())),
    };
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => decoded(name)?,
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        _ => return Err(bad_url("it names no host; write amqp://HOST:PORT/VHOST")),
    };
    let port = url.port().unwrap_or(usual);
    if port == 0 {
        return Err(bad_url("port 0 cannot be connected to"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        let text = "it has a part behind `?` or `#`; inside a password these are %3F and %23";
        return Err(bad_url(text));
    }
    let vhost = match url.path().trim_start_matches('/') {
        "" => "/".to_owned(),
        name if name.contains('/') => {
            return Err(bad_url("a `/` in the name of the virtual host is %2F"));
        }
        name => decoded(name)?,
    };
    Ok(AMQPUri {
        scheme,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: String::new(),
                password: String::new(),
            },
            host,
            port,
        },
        vhost,
        query: AMQPQueryString {
            heartbeat: Some(HEARTBEAT),
            ..AMQPQueryString::default()
        },
    })
}

/// Takes `%2F` and the like away.
fn decoded(text: &str) -> Result<String, SettingsError> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |b: u8| {
            char::from(b)
                .to_digit(16)
                .and_then(|d| u8::try_from(d).ok())
        };
        let pair = match bytes.get(at..at + 3) {
            Some([b'%', high, low]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match pair {
            Some((high, low)) => {
                out.push(high * 16 + low);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).map_err(|_| bad_url("what stands behind `%` is no text"))
}

fn bad_url(problem: &str) -> SettingsError {
    SettingsError::Url(problem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(url: &str) -> Dial {
        Access::new(url.into()).check("n".into()).unwrap()
    }

    fn refused(url: &str) -> SettingsError {
        let checked = Access::new(url.into()).check("n".into());
        checked.err().unwrap()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let found = dial("amqps://relay:a%23b%2F@[::1]:7000/my%2Fhost").uri;

        assert_eq!(found.scheme, AMQPScheme::AMQPS);
        assert_eq!(found.authority.host, "::1");
        assert_eq!(found.authority.port, 7000);
        assert_eq!(found.vhost, "my/host");
        assert_eq!(found.authority.userinfo.username, "relay");
        assert_eq!(found.authority.userinfo.password, "a#b/");
    }

    #[test]
    fn what_a_url_leaves_out_is_as_usual() {
        for url in ["amqp://h", "amqp://h/", "amqp://h:5672/%2f"] {
            let found = dial(url);
            assert_eq!(found.uri.vhost, "/", "{url}");
            assert_eq!(found.uri.authority.port, 5672);
            assert_eq!(found.uri.authority.userinfo.username, "guest");
            assert_eq!(found.shown, "amqp://h:5672//");
            assert_eq!(found.connect_timeout, Duration::from_secs(3));
        }
        assert_eq!(dial("amqps://h").uri.authority.port, 5671);
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused() {
        for wrong in [
            "",
            "127.0.0.1:5672",
            "amqp://",
            "amqp:///x",
            "amqp://[::1/",
            "amqp://h:0/",
            "amqp://h/a/b",
            "amqp://h/?heartbeat=1",
            "amqp://u:a#b@h/",
            "amqp://u:%ff@h/",
        ] {
            let error = refused(wrong);
            let known = matches!(error, SettingsError::Url(_) | SettingsError::Scheme(_));
            assert!(known, "{wrong}: {error:?}");
        }
        assert_eq!(refused("http://h/"), SettingsError::Scheme("http".into()));
    }

    #[test]
    fn there_is_one_login_and_it_is_whole() {
        let with = |url: &str, user: Option<&str>, password: Option<&str>| {
            let access = Access {
                user: user.map(Into::into),
                password: password.map(Into::into),
                ..Access::new(url.into())
            };
            access
                .check("n".into())
                .map(|dial| dial.uri.authority.userinfo)
        };

        let found = with("amqp://relay@h", None, Some("p")).unwrap();
        assert_eq!((&*found.username, &*found.password), ("relay", "p"));
        let found = with("amqp://h", Some("relay"), Some("p")).unwrap();
        assert_eq!((&*found.username, &*found.password), ("relay", "p"));
        let error = |url, user, password| with(url, user, password).unwrap_err();
        assert_eq!(
            error("amqp://a@h", Some("b"), None),
            SettingsError::TwoUsers
        );
        assert_eq!(
            error("amqp://a:b@h", None, Some("c")),
            SettingsError::TwoPasswords
        );
        assert_eq!(error("amqp://a@h", None, None), SettingsError::NoPassword);
        assert_eq!(
            error("amqp://a@h", None, Some("")),
            SettingsError::EmptyPassword
        );
        assert_eq!(error("amqp://h", None, Some("p")), SettingsError::NoUser);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let s = Duration::from_secs;
        let with = |timeout, connect_timeout| {
            let access = Access {
                timeout,
                connect_timeout,
                ..Access::new("amqp://h".into())
            };
            access.check("n".into()).err()
        };
        assert_eq!(with(s(0), None), Some(SettingsError::Timeout(s(0))));
        assert_eq!(with(s(601), None), Some(SettingsError::Timeout(s(601))));
        for odd in [s(0), s(5)] {
            let error = Some(SettingsError::ConnectTimeout(odd));
            assert_eq!(with(s(5), Some(odd)), error);
        }
    }

    #[test]
    fn authorities_are_for_encrypted_connections_and_must_be_there() {
        let with = |url: &str, path: &str| {
            let access = Access {
                ca_file: Some(path.into()),
                ..Access::new(url.into())
            };
            access.check("n".into()).err()
        };
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for (url, path) in [
            ("amqp://h", manifest),
            ("amqps://h", "/nowhere/ca.pem"),
            ("amqps://h", manifest),
        ] {
            let error = with(url, path);
            assert!(
                matches!(error, Some(SettingsError::CaFile(..))),
                "{error:?}"
            );
        }
    }

    #[test]
    fn no_password_is_shown() {
        for url in [
            "amqp://u:hunter2@h",
            "amqp://u:hunter2@h:0",
            "http://u:hunter2@h",
        ] {
            let access = Access::new(url.into());
            let shown = format!("{access:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            match access.check("n".into()) {
                Ok(dial) => assert!(!dial.shown.contains("hunter2")),
                Err(error) => assert!(!format!("{error:?} {error}").contains("hunter2")),
            }
        }
        let beside = Access {
            password: Some("hunter2".into()),
            ..Access::new("amqp://u@h".into())
        };
        assert!(!format!("{beside:?}").contains("hunter2"));
    }
}
