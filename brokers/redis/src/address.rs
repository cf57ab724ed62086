//! Where Redis is, and how to log in.
//!
//! # Promise
//! A URL that cannot be used is refused with an error that says what to change. What is shown to
//! people has no password.

use counterfoil_core::{Code, Outcome};
use redis::io::tcp::TcpSettings;
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Pipeline, RedisConnectionInfo, Value,
    cmd, pipe,
};

use crate::classify::{refusal, why};
use crate::settings::SettingsError;

/// One Redis.
pub(crate) struct Address {
    /// Where, and nothing about how to log in: we do that ourselves, to see every answer.
    pub(crate) server: ConnectionInfo,
    pub(crate) login: Login,
    /// The certificates to trust (PEM). Absent: those of the system.
    pub(crate) ca: Option<Vec<u8>>,
    /// The address for people.
    pub(crate) shown: String,
}

/// What a new connection says first.
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

impl Address {
    /// Reads a URL, with the password in it or beside it.
    pub(crate) fn parse(
        url: &str,
        password: Option<String>,
        ca: Option<Vec<u8>>,
    ) -> Result<Self, SettingsError> {
        let url = url.trim();
        let scheme = scheme(url)?;
        if ca.is_some() && scheme != "rediss" {
            let problem = "are of no use without rediss:// in the URL";
            return Err(SettingsError::Ca(problem.into()));
        }
        let read = read(url)?;
        let given = read.redis_settings();
        let in_url = given.password().map(ToOwned::to_owned);
        if in_url.is_some() && password.is_some() {
            return Err(SettingsError::TwoPasswords);
        }
        let login = Login {
            user: given.username().map(ToOwned::to_owned),
            password: in_url.or(password),
            database: given.db(),
        };
        if login.password.as_deref() == Some("") {
            return Err(SettingsError::EmptyPassword);
        }
        if login.user.is_some() && login.password.is_none() {
            return Err(SettingsError::NoPassword);
        }
        let shown = format!("{scheme}://{}/{}", read.addr(), login.database);
        // Nothing is said by the driver itself when it connects.
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let server = read
            .set_redis_settings(silent)
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        Ok(Self {
            server,
            login,
            ca,
            shown,
        })
    }

    /// The server of a URL, for people, as far as it can be told.
    pub(crate) fn shown_of(url: &str) -> String {
        match read(url.trim()) {
            Ok(read) => read.addr().to_string(),
            Err(error) => error.to_string(),
        }
    }
}

fn scheme(url: &str) -> Result<&'static str, SettingsError> {
    match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("redis") => Ok("redis"),
        Some("rediss") => Ok("rediss"),
        Some(other) => Err(SettingsError::Scheme(other.into())),
        None => Err(bad_url("it has no scheme; write redis://HOST:PORT/")),
    }
}

fn read(url: &str) -> Result<ConnectionInfo, SettingsError> {
    scheme(url)?;
    if url.contains(['?', '#']) {
        let text = "it has a part behind `?` or `#`; inside a password these are %3F and %23";
        return Err(bad_url(text));
    }
    let read = url.into_connection_info().map_err(|e| bad_url(&why(&e)))?;
    let port = match read.addr() {
        ConnectionAddr::Tcp(_, port) | ConnectionAddr::TcpTls { port, .. } => *port,
        _ => 0,
    };
    if port == 0 {
        return Err(bad_url("port 0 cannot be connected to"));
    }
    if read.redis_settings().db() < 0 {
        return Err(bad_url("a database has a number from 0"));
    }
    Ok(read)
}

fn bad_url(problem: &str) -> SettingsError {
    SettingsError::Url(problem.to_owned())
}

impl Login {
    /// What a new connection says. The last question shows that Redis answers at all: a system
    /// accepts connections in the name of a process that hangs.
    pub(crate) fn hello(&self) -> Pipeline {
        let mut hello = pipe();
        hello.ignore_errors();
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &self.user {
                auth.arg(user);
            }
            auth.arg(password);
            hello.add_command(auth);
        }
        if self.database != 0 {
            hello.cmd("SELECT").arg(self.database);
        }
        hello.cmd("PING");
        hello
    }

    /// Why we are not let in. Nothing was sent: what is not refused for good is only unavailable.
    pub(crate) fn refused(&self, answers: &[Value]) -> Option<Outcome> {
        let last = answers.len().saturating_sub(1);
        let first = answers.iter().enumerate().find_map(|(i, answer)| {
            let Value::ServerError(error) = answer else {
                return None;
            };
            Some((i, error))
        });
        let (i, error) = first?;
        let wrong_settings = i < last && error.code() == "ERR";
        Some(match refusal(error) {
            refused @ Outcome::DestinationRefused { .. } => refused,
            Outcome::Retry { error, .. } | Outcome::Refused { error, .. } if wrong_settings => {
                // No password is wanted, or there is no such database.
                Outcome::DestinationRefused {
                    code: Code::DESTINATION_REFUSED,
                    error,
                }
            }
            Outcome::Retry { error, .. } | Outcome::Refused { error, .. } => {
                Outcome::Unavailable { error }
            }
            other => other,
        })
    }
}
