//! How to get to a Kafka: addresses, TLS, and who we are.
//!
//! # Promise
//! A mistake that can be seen without the network is found before anything is connected, and no
//! error shows a password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krafka::Kafka;
use krafka::auth::{AuthConfig, TlsConfig};

use crate::settings::SettingsError;

/// How a password is shown to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mechanism {
    /// As it is. Only over TLS, or in a network that you trust.
    #[default]
    Plain,
    /// SCRAM-SHA-256: the password itself does not travel.
    ScramSha256,
    /// SCRAM-SHA-512.
    ScramSha512,
}

/// What was given.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) url: String,
    pub(crate) password: Option<String>,
    pub(crate) mechanism: Mechanism,
    pub(crate) ca_file: Option<PathBuf>,
}

/// What was understood.
#[derive(Clone)]
pub(crate) struct Access {
    /// `host:port`, separated by commas: for the client, and for people.
    pub(crate) servers: String,
    security: Option<AuthConfig>,
}

impl Given {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password: None,
            mechanism: Mechanism::default(),
            ca_file: None,
        }
    }

    pub(crate) fn check(&self) -> Result<Access, SettingsError> {
        let url = Url::read(&self.url)?;
        if url.password.is_some() && self.password.is_some() {
            return Err(SettingsError::TwoPasswords);
        }
        let password = url.password.or_else(|| self.password.clone());
        let login = match (url.user, password) {
            (None, None) => None,
            (Some(_), None) => return Err(SettingsError::NoPassword),
            (None, Some(_)) => return Err(SettingsError::NoUser),
            (Some(_), Some(empty)) if empty.is_empty() => return Err(SettingsError::EmptyPassword),
            (Some(user), Some(password)) => Some((user, password)),
        };
        let tls = match (url.tls, &self.ca_file) {
            (false, None) => None,
            (false, Some(_)) => return Err(SettingsError::CaWithoutTls),
            (true, None) => Some(TlsConfig::new()),
            (true, Some(file)) => Some(TlsConfig::new().with_ca_cert_pem(read(file)?)),
        };
        Ok(Access {
            servers: url.servers,
            security: security(login, self.mechanism, tls),
        })
    }

    /// The servers for people, whatever is wrong with the rest.
    pub(crate) fn shown(&self) -> Option<String> {
        Url::read(&self.url).ok().map(|url| url.servers)
    }
}

fn security(
    login: Option<(String, String)>,
    mechanism: Mechanism,
    tls: Option<TlsConfig>,
) -> Option<AuthConfig> {
    let Some((user, password)) = login else {
        return tls.map(AuthConfig::ssl);
    };
    let sasl = match mechanism {
        Mechanism::Plain => AuthConfig::sasl_plain(user, password),
        Mechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(user, password),
        Mechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(user, password),
    };
    Some(match tls {
        Some(tls) => sasl.with_tls(tls),
        None => sasl,
    })
}

fn read(file: &Path) -> Result<Vec<u8>, SettingsError> {
    let pem = std::fs::read(file)
        .map_err(|error| SettingsError::CaFile(format!("{}: {error}", file.display())))?;
    let begins = b"-----BEGIN CERTIFICATE-----";
    match pem.windows(begins.len()).any(|part| part == begins) {
        true => Ok(pem),
        false => Err(SettingsError::CaFile(format!(
            "{} holds no certificate in PEM",
            file.display()
        ))),
    }
}

impl Access {
    /// Connects, and learns which servers there are.
    pub(crate) async fn connect(
        &self,
        connect_timeout: Duration,
        request_timeout: Duration,
    ) -> krafka::Result<Kafka> {
        let mut builder = Kafka::builder(&self.servers)
            .client_id("counterfoil")
            .connect_timeout(connect_timeout)
            .request_timeout(request_timeout.max(connect_timeout));
        if let Some(security) = &self.security {
            builder = builder.security(security.clone());
        }
        builder.connect().await
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("servers", &self.servers)
            .field("security", &self.security.is_some())
            .finish()
    }
}

struct Url {
    tls: bool,
    user: Option<String>,
    password: Option<String>,
    servers: String,
}

impl Url {
    /// `kafka://user:password@one:9092,two:9092`. The usual crates know nothing of several hosts.
    fn read(url: &str) -> Result<Self, SettingsError> {
        let bad = |problem: &str| SettingsError::Url(problem.to_owned());
        let (scheme, rest) = url
            .trim()
            .split_once("://")
            .ok_or_else(|| bad("it has no scheme; write kafka://HOST:PORT"))?;
        let tls = match scheme {
            "kafka" => false,
            "kafkas" => true,
            other => return Err(SettingsError::Scheme(other.to_owned())),
        };
        let (login, servers) = match rest.rsplit_once('@') {
            Some((login, servers)) => (Some(login), servers),
            None => (None, rest),
        };
        let servers = servers.strip_suffix('/').unwrap_or(servers);
        if servers.contains(['/', '?', '#']) {
            return Err(bad(
                "it has a part behind the servers; inside a password `/`, `?` and `#` are %2F, \
                 %3F and %23",
            ));
        }
        let servers = servers.split(',').map(server).collect::<Option<Vec<_>>>();
        let servers =
            servers.ok_or_else(|| bad("each server is HOST or HOST:PORT, between commas"))?;
        let (user, password) =
            match login.map(|l| l.split_once(':').map_or((l, None), |(u, p)| (u, Some(p)))) {
                None => (None, None),
                Some(("", _)) => return Err(SettingsError::NoUser),
                Some((user, password)) => (Some(decode(user)?), password.map(decode).transpose()?),
            };
        Ok(Self {
            tls,
            user,
            password,
            servers: servers.join(","),
        })
    }
}

fn server(text: &str) -> Option<String> {
    let text = text.trim();
    let (host, port) = match text.rsplit_once(':') {
        // Colons inside brackets are those of an address.
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (text, "9092"),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    let named = !host.is_empty() && host.chars().all(fits);
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    named.then(|| format!("{host}:{port}"))
}

/// Without `%XX`.
fn decode(text: &str) -> Result<String, SettingsError> {
    let bad = || SettingsError::Url("its user or password has a `%` that means nothing".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2).ok_or_else(bad)?;
        let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(given: &Given) -> SettingsError {
        given.check().err().unwrap()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let url = Url::read("kafkas://relay:a%23%2fb@one,two:9093,[::1]:7000/").unwrap();

        assert!(url.tls);
        assert_eq!(url.user.as_deref(), Some("relay"));
        assert_eq!(url.password.as_deref(), Some("a#/b"));
        assert_eq!(url.servers, "one:9092,two:9093,[::1]:7000");
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused() {
        for wrong in [
            "",
            "h:9092",
            "kafka://",
            "kafka://h:0",
            "kafka://h:x",
            "kafka://h,",
            "kafka://a b",
            "kafka://h/orders",
            "kafka://h?x=1",
            "kafka://u:%zz@h",
            "kafka://u:%2@h",
            "kafka://u:%ff@h",
        ] {
            let error = refused(&Given::new(wrong));
            assert!(matches!(error, SettingsError::Url(_)), "{wrong}: {error:?}");
        }
        assert_eq!(
            refused(&Given::new("http://h")),
            SettingsError::Scheme("http".into())
        );
    }

    #[test]
    fn there_is_one_password_for_a_user_and_none_for_nobody() {
        let with = |url: &str, password: &str| Given {
            password: Some(password.into()),
            ..Given::new(url)
        };

        assert_eq!(
            refused(&with("kafka://u:p@h", "q")),
            SettingsError::TwoPasswords
        );
        assert_eq!(
            refused(&Given::new("kafka://u@h")),
            SettingsError::NoPassword
        );
        assert_eq!(refused(&with("kafka://h", "q")), SettingsError::NoUser);
        assert_eq!(refused(&Given::new("kafka://:p@h")), SettingsError::NoUser);
        assert_eq!(
            refused(&with("kafka://u@h", "")),
            SettingsError::EmptyPassword
        );
        assert!(with("kafka://u@h", "q").check().unwrap().security.is_some());
    }

    #[test]
    fn a_file_of_certificates_is_read_at_once_and_needs_tls() {
        let with = |url: &str, file: &Path| Given {
            ca_file: Some(file.to_owned()),
            ..Given::new(url)
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");

        assert_eq!(
            refused(&with("kafka://h", &file)),
            SettingsError::CaWithoutTls
        );
        for wrong in [&file, Path::new("/nowhere/ca.pem")] {
            let error = refused(&with("kafkas://h", wrong));
            assert!(matches!(error, SettingsError::CaFile(_)), "{error:?}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        for url in [
            "kafka://u:hunter2@h",
            "kafka://u:hunter2@h:0",
            "kafkas://u:hunter2@h/x",
        ] {
            let given = Given::new(url);
            match given.check() {
                Ok(access) => assert!(!format!("{access:?}").contains("hunter2")),
                Err(error) => assert!(!format!("{error:?} {error}").contains("hunter2")),
            }
            assert!(!given.shown().unwrap_or_default().contains("hunter2"));
        }
    }
}
