//! How to reach a server and who we are there, the same for both directions.
//!
//! # Promise
//! Every mistake that can be seen without the network and without files is found when the settings
//! are checked. No secret is shown.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};

use crate::percent;
use crate::settings::SettingsError;

/// What was given.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(crate) url: String,
    pub(crate) password: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) nkey: Option<String>,
    pub(crate) credentials_file: Option<PathBuf>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) tls: bool,
}

/// Access in which nothing is wrong.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) servers: Vec<ServerAddr>,
    /// The addresses for people.
    pub(crate) shown: String,
    login: Login,
    ca_file: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
    tls: bool,
}

/// Who we are.
#[derive(Clone)]
enum Login {
    Nobody,
    User(String, String),
    Token(String),
    Nkey(String),
    File(PathBuf),
}

impl Given {
    /// Where, and nothing else.
    pub(crate) fn shown(&self) -> String {
        match servers(&self.url) {
            Ok((servers, _)) => show(&servers),
            Err(_) => "unusable".to_owned(),
        }
    }

    /// Checks everything.
    pub(crate) fn check(self) -> Result<Access, SettingsError> {
        let (servers, user) = servers(&self.url)?;
        let shown = show(&servers);
        Ok(Access {
            servers,
            shown,
            login: self.login(user)?,
            ca_file: self.ca_file,
            client_certificate: self.client_certificate,
            tls: self.tls,
        })
    }

    fn login(&self, in_url: Option<(String, Option<String>)>) -> Result<Login, SettingsError> {
        let secrets = [&self.password, &self.token, &self.nkey];
        if secrets
            .iter()
            .any(|s| s.as_deref().is_some_and(str::is_empty))
        {
            return Err(SettingsError::EmptySecret);
        }
        let user = match (in_url, self.password.clone()) {
            (Some((_, Some(_))), Some(_)) => return Err(SettingsError::TwoCredentials),
            (Some((user, Some(password))), None) | (Some((user, None)), Some(password)) => {
                Some(Login::User(user, password))
            }
            (Some((_, None)), None) => return Err(SettingsError::NoPassword),
            (None, Some(_)) => return Err(SettingsError::NoUser),
            (None, None) => None,
        };
        let file = self.credentials_file.clone().map(Login::File);
        let mut all = [
            user,
            self.token.clone().map(Login::Token),
            self.nkey.clone().map(Login::Nkey),
            file,
        ]
        .into_iter()
        .flatten();
        match (all.next(), all.next()) {
            (None, _) => Ok(Login::Nobody),
            (Some(login), None) => Ok(login),
            (Some(_), Some(_)) => Err(SettingsError::TwoCredentials),
        }
    }
}

impl Access {
    /// The options of a new connection. Files are read now, so that new ones are used.
    pub(crate) async fn options(&self, timeout: Duration) -> std::io::Result<ConnectOptions> {
        let mut options = ConnectOptions::new()
            .name("counterfoil")
            .connection_timeout(timeout)
            // Whoever names an authority wants it to be asked.
            .require_tls(self.tls || self.ca_file.is_some());
        options = match &self.login {
            Login::Nobody => options,
            Login::User(user, password) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Login::Token(token) => options.token(token.clone()),
            Login::Nkey(seed) => options.nkey(seed.clone()),
            Login::File(path) => options.credentials_file(path).await?,
        };
        if let Some(path) = &self.ca_file {
            options = options.add_root_certificates(path.clone());
        }
        if let Some((certificate, key)) = &self.client_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        Ok(options)
    }
}

/// A user and perhaps a password.
type User = (String, Option<String>);

/// The servers, without credentials, and the credentials.
fn servers(list: &str) -> Result<(Vec<ServerAddr>, Option<User>), SettingsError> {
    let mut servers = Vec::new();
    let mut user = None;
    for text in list.split(',').map(str::trim) {
        let (server, found) = server(text)?;
        if let Some(found) = found {
            if user.as_ref().is_some_and(|user| *user != found) {
                return Err(SettingsError::TwoCredentials);
            }
            user = Some(found);
        }
        servers.push(server);
    }
    Ok((servers, user))
}

fn server(text: &str) -> Result<(ServerAddr, Option<User>), SettingsError> {
    match text.split_once("://").map(|(scheme, _)| scheme) {
        Some("nats" | "tls") => {}
        Some(other) => return Err(SettingsError::Scheme(other.to_owned())),
        None => return Err(bad_url("it has no scheme; write nats://HOST:PORT")),
    }
    if text.contains(['?', '#']) {
        return Err(bad_url(
            "it has a part behind `?` or `#`; inside a password these are %3F and %23",
        ));
    }
    let address: ServerAddr = text.parse().map_err(|_| bad_url("it is no URL"))?;
    if address.host().is_empty() || address.port() == 0 {
        return Err(bad_url(
            "it has no host, or a port that nobody can listen on",
        ));
    }
    if !matches!(address.clone().into_inner().path(), "" | "/") {
        return Err(bad_url("it has a path, and NATS has none"));
    }
    let plain = |text: &str| String::from_utf8_lossy(&percent::decode(text)).into_owned();
    let user = address
        .username()
        .filter(|user| !user.is_empty())
        .map(plain);
    let password = address.password().map(plain);
    let user = match (user, password) {
        (None, Some(_)) => return Err(SettingsError::NoUser),
        (user, password) => user.map(|user| (user, password)),
    };
    let mut bare = address.into_inner();
    // Fails only for addresses that have no host.
    let _ = bare.set_username("");
    let _ = bare.set_password(None);
    let bare = ServerAddr::from_url(bare).map_err(|_| bad_url("it is no URL"))?;
    Ok((bare, user))
}

fn show(servers: &[ServerAddr]) -> String {
    let one =
        |server: &ServerAddr| format!("{}://{}:{}", server.scheme(), server.host(), server.port());
    servers.iter().map(one).collect::<Vec<_>>().join(",")
}

fn bad_url(problem: &str) -> SettingsError {
    SettingsError::Url(problem.to_owned())
}

/// The builder methods that both directions have.
macro_rules! access_settings {
    () => {
        /// Logs in with this password, as the user of the URL.
        pub fn password(mut self, password: impl Into<String>) -> Self {
            self.access.password = Some(password.into());
            self
        }

        /// Logs in with this token.
        pub fn token(mut self, token: impl Into<String>) -> Self {
            self.access.token = Some(token.into());
            self
        }

        /// Logs in with the key of this seed (`SU…`).
        pub fn nkey(mut self, seed: impl Into<String>) -> Self {
            self.access.nkey = Some(seed.into());
            self
        }

        /// Logs in with what stands in this file of credentials (`.creds`), read for each connection.
        pub fn credentials_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
            self.access.credentials_file = Some(path.into());
            self
        }

        /// Trusts the authorities in this file (PEM), instead of those of the system.
        pub fn ca_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
            self.access.ca_file = Some(path.into());
            self
        }

        /// Shows this certificate, with this key (PEM).
        pub fn client_certificate(
            mut self,
            certificate: impl Into<std::path::PathBuf>,
            key: impl Into<std::path::PathBuf>,
        ) -> Self {
            self.access.client_certificate = Some((certificate.into(), key.into()));
            self
        }

        /// Talks only over TLS, as `tls://` in the URL does.
        pub fn require_tls(mut self) -> Self {
            self.access.tls = true;
            self
        }
    };
}
pub(crate) use access_settings;

#[cfg(test)]
mod tests {
    use super::*;

    fn given(url: &str) -> Given {
        Given {
            url: url.into(),
            ..Given::default()
        }
    }

    fn refused(given: Given) -> SettingsError {
        given.check().err().unwrap()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let access = given("nats://relay:a%23b@[::1]:7000").check().unwrap();

        let Login::User(user, password) = &access.login else {
            panic!("no user");
        };
        assert_eq!((user.as_str(), password.as_str()), ("relay", "a#b"));
        assert_eq!(access.shown, "nats://::1:7000");
        assert!(!format!("{:?}", access.servers).contains("a%23b"));
        let several = given("nats://a,tls://b:5").check().unwrap();
        assert_eq!(several.shown, "nats://a:4222,tls://b:5");
        let beside = Given {
            password: Some("p".into()),
            ..given("nats://relay@h")
        };
        assert!(matches!(beside.check().unwrap().login, Login::User(_, p) if p == "p"));
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused() {
        for wrong in [
            "",
            "127.0.0.1:4222",
            "nats://",
            "nats://h:0",
            "nats://h/x",
            "nats://h?tls",
            "nats://h,",
        ] {
            let error = refused(given(wrong));
            assert!(matches!(error, SettingsError::Url(_)), "{wrong}: {error}");
        }
        let error = refused(given("http://h"));
        assert_eq!(error, SettingsError::Scheme("http".into()));
    }

    #[test]
    fn there_is_one_way_to_log_in() {
        let token = Some("t".to_owned());
        let two = Given {
            token: token.clone(),
            ..given("nats://u:hunter2@h")
        };
        assert_eq!(refused(two), SettingsError::TwoCredentials);
        let two = Given {
            token,
            nkey: Some("SU".into()),
            ..given("nats://h")
        };
        assert_eq!(refused(two), SettingsError::TwoCredentials);
        assert_eq!(refused(given("nats://u@h")), SettingsError::NoPassword);
        let nobody = Given {
            password: Some("p".into()),
            ..given("nats://h")
        };
        assert_eq!(refused(nobody), SettingsError::NoUser);
        let empty = Given {
            token: Some(String::new()),
            ..given("nats://h")
        };
        assert_eq!(refused(empty), SettingsError::EmptySecret);
        let differing = given("nats://a:b@h,nats://a:c@h");
        assert_eq!(refused(differing), SettingsError::TwoCredentials);
    }
}
