//! Who may use the API: tokens, their names, and what each of them may do.
//!
//! # Promise
//! A token is found in the same time whichever it is, and however nearly it fits. No two tokens are the
//! same, so that every action has one name in the record.

use std::path::PathBuf;
use std::sync::Arc;

use counterfoil_core::message::check_name;
use serde::Deserialize;
use subtle::ConstantTimeEq as _;

use super::file::File;
use super::settings::Judge;
use super::value::Pointed;

/// A shorter token can be guessed.
const SHORTEST: usize = 16;
/// The name in the record of those that have none.
const NAMELESS: &str = "token";

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scope {
    /// Store messages.
    Producer,
    /// Look at messages, requests and policies.
    Reader,
    /// What a reader may, look messages up by their number, and set breakers.
    Operator,
    /// Read the figures.
    Metrics,
}

impl Scope {
    const ALL: [Scope; 4] = [
        Scope::Producer,
        Scope::Reader,
        Scope::Operator,
        Scope::Metrics,
    ];

    /// As it is written in the file.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Scope::Producer => "producer",
            Scope::Reader => "reader",
            Scope::Operator => "operator",
            Scope::Metrics => "metrics",
        }
    }
}

/// `[token.NAME]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Token {
    /// What is presented; a file may hold several, one a line.
    pub(crate) secret: Option<Pointed>,
    /// What it may be used for.
    pub(crate) scopes: Vec<Scope>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the token; none where nobody needs one.
    name: Option<Arc<str>>,
    scopes: Arc<[Scope]>,
}

impl Caller {
    /// A program on this machine, where nobody needs a token.
    pub(crate) fn local() -> Self {
        Self {
            name: None,
            scopes: Scope::ALL.into(),
        }
    }

    /// Whether the caller may do this. Operators may look at what they operate.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
            || (scope == Scope::Reader && self.scopes.contains(&Scope::Operator))
    }

    /// The name for the record. Only where nobody needs a token the caller says who it is.
    pub(crate) fn actor(&self, said: Option<&str>) -> String {
        match &self.name {
            Some(name) => name.to_string(),
            None => said.unwrap_or("api").to_owned(),
        }
    }
}

struct Granted {
    secret: String,
    caller: Caller,
}

/// The tokens that are accepted.
#[derive(Default)]
pub(crate) struct Tokens {
    all: Vec<Granted>,
    /// Where secrets were read from.
    files: Vec<PathBuf>,
}

impl Tokens {
    /// Whether everybody who reaches us is welcome.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The files that hold some of them.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Whose token this is.
    pub(crate) fn find(&self, presented: &[u8]) -> Option<&Caller> {
        let mut found = None;
        for token in &self.all {
            if token.secret.as_bytes().ct_eq(presented).into() {
                found = Some(&token.caller);
            }
        }
        found
    }

    fn add(&mut self, path: &str, text: &str, caller: &Caller, judge: &mut Judge<'_>) {
        let mut empty = true;
        for secret in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            empty = false;
            if secret.len() < SHORTEST || !secret.bytes().all(|b| b.is_ascii_graphic()) {
                judge.refuse(
                    path,
                    "a token has at least 16 characters, and only letters, digits and signs",
                );
            } else if self.all.iter().any(|token| token.secret == secret) {
                judge.refuse(path, "two tokens are the same: whose is it?");
            } else {
                self.all.push(Granted {
                    secret: secret.to_owned(),
                    caller: caller.clone(),
                });
            }
        }
        if empty {
            judge.refuse(path, "this token is empty");
        }
    }
}

/// Reads `tokens` in `[server]`, which may do everything, and `[token.NAME]`.
pub(super) fn tokens(file: &File, judge: &mut Judge<'_>) -> Tokens {
    let mut tokens = Tokens::default();
    let nameless = Caller {
        name: Some(NAMELESS.into()),
        scopes: Scope::ALL.into(),
    };
    for value in &file.server.tokens {
        tokens.files.extend(value.file(judge.beside));
        if let Some(text) = judge.resolve("server.tokens", "`tokens` in [server]", value) {
            tokens.add("server.tokens", &text, &nameless, judge);
        }
    }
    for (name, token) in &file.tokens {
        let path = format!("token.{name}");
        if let Err(error) = check_name("the name of a token", name) {
            judge.refuse(&path, error.to_string());
            continue;
        }
        if token.scopes.is_empty() {
            let known = Scope::ALL.map(Scope::as_str).join(", ");
            let text = format!("[{path}] needs `scopes`: some of {known}");
            judge.refuse(&format!("{path}.scopes"), text);
        }
        let Some(secret) = &token.secret else {
            judge.refuse(&path, format!("[{path}] needs a `secret`"));
            continue;
        };
        tokens.files.extend(secret.file(judge.beside));
        let shown = format!("`secret` in [{path}]");
        let path = format!("{path}.secret");
        if let Some(text) = judge.resolve(&path, &shown, secret) {
            let caller = Caller {
                name: Some(name.as_str().into()),
                scopes: token.scopes.as_slice().into(),
            };
            tokens.add(&path, &text, &caller, judge);
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read::read;
    use super::super::settings::validate;
    use super::*;

    fn checked(text: &str) -> Result<Tokens, Vec<String>> {
        let reading = read(text);
        assert_eq!(reading.problems, []);
        let settings = validate(&reading.file, &reading.lines, Path::new(""));
        settings
            .map(|settings| settings.tokens)
            .map_err(|all| all.into_iter().map(|p| p.text).collect())
    }

    #[test]
    fn a_token_is_found_and_its_neighbours_are_not() {
        let tokens = checked(
            "[server]\ntokens = [\"0123456789abcdef\"]\n\
             [token.shop]\nsecret = \"fedcba9876543210\"\nscopes = [\"producer\"]\n",
        );
        let tokens = tokens.ok().unwrap();

        let shop = tokens.find(b"fedcba9876543210").unwrap();
        assert_eq!(shop.actor(Some("eve")), "shop");
        assert!(shop.may(Scope::Producer) && !shop.may(Scope::Reader));
        let old = tokens.find(b"0123456789abcdef").unwrap();
        assert!(Scope::ALL.iter().all(|scope| old.may(*scope)));
        assert_eq!(old.actor(Some("eve")), NAMELESS);
        for wrong in ["fedcba987654321", "fedcba98765432100", ""] {
            assert_eq!(tokens.find(wrong.as_bytes()), None);
        }
    }

    #[test]
    fn tokens_that_cannot_be_are_refused() {
        let cases = [
            ("scopes = [\"reader\"]", "[token.a] needs a `secret`"),
            ("secret = \"0123456789abcdef\"", "[token.a] needs `scopes`"),
            (
                "secret = \"short\"\nscopes = [\"reader\"]",
                "a token has at least 16",
            ),
            (
                "secret = \" \"\nscopes = [\"reader\"]",
                "this token is empty",
            ),
        ];
        for (lines, expected) in cases {
            let found = checked(&format!("[token.a]\n{lines}\n")).err().unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(expected), "{found:?}");
        }
        let twice = "secret = \"0123456789abcdef\"\nscopes = [\"reader\"]\n";
        let found = checked(&format!("[token.a]\n{twice}[token.b]\n{twice}"));
        assert!(found.err().unwrap()[0].starts_with("two tokens are the same"));
        let reading = read("[token.a]\nscopes = [\"readr\"]\n");
        assert!(reading.problems[0].text.contains("unknown variant `readr`"));
    }
}
