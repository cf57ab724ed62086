//! What may change while the server runs: tokens, the certificate, and the routes of the gateway.
//!
//! # Promise
//! The configuration is read again on SIGHUP and when its file changes, or one of the files that hold
//! tokens or the certificate. A file with a mistake is refused with the reason in the log, and what
//! held before stays; requests under way are not disturbed either way. What else stands in the file
//! holds from the next start on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::access::Access;
use super::gateway;
use super::tls::Identity;
use crate::config::{Loaded, Overrides, Settings, Tokens};
use crate::failure::{Failure, Result};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What tells one state of the files from the next.
type Stamps = Vec<Option<(SystemTime, u64)>>;

/// Where the configuration is read from.
pub(super) struct Source {
    path: PathBuf,
    overrides: Overrides,
    seen: Stamps,
}

impl Source {
    /// The file of settings that were read just now: what changes from here on is noticed, however long
    /// the start takes.
    pub(super) fn new(
        path: &Path,
        overrides: Overrides,
        tokens: &Tokens,
        identity: Option<&Arc<Identity>>,
    ) -> Self {
        Self {
            path: path.to_owned(),
            overrides,
            seen: stamps(path, tokens, identity),
        }
    }
}

/// What can change.
pub(super) struct Parts {
    /// Who may use the API.
    pub(super) access: Arc<Access>,
    /// Whether other machines reach the API: then it keeps its tokens.
    pub(super) exposed: bool,
    /// What the API shows to callers, where it encrypts.
    pub(super) identity: Option<Arc<Identity>>,
    /// The gateway, where there is one.
    pub(super) gateway: Option<gateway::Live>,
}

/// Reads the file again when it is asked to, and when it has changed.
pub(super) async fn watch(mut source: Source, mut parts: Parts, mut hangups: Hangups) {
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        let asked = tokio::select! {
            () = hangups.next() => true,
            _ = ticks.tick() => false,
        };
        let now = parts.stamps(&source);
        if !asked && now == source.seen {
            continue;
        }
        let result = match parts.read(&source) {
            Ok(done) => {
                tracing::info!("{done}");
                "applied"
            }
            Err(problems) => {
                for problem in problems {
                    tracing::error!(
                        problem,
                        "the changed configuration is refused: what held before stays"
                    );
                }
                "refused"
            }
        };
        // The files of tokens may be others now. Of the rest, what changed meanwhile is read again.
        let mut after = parts.stamps(&source);
        if after.len() == now.len() {
            after = now;
        }
        source.seen = after;
        metrics::counter!("counterfoil_reloads_total", "result" => result).increment(1);
    }
}

impl Parts {
    fn read(&mut self, source: &Source) -> std::result::Result<String, Vec<String>> {
        let settings = read(source)?;
        if self.exposed && settings.tokens.is_empty() {
            let why = "other machines can reach the API, and the file has no tokens any more";
            return Err(vec![why.into()]);
        }
        match (&self.gateway, &settings.gateway) {
            (Some(live), Some(gateway)) => live.check(gateway).map_err(|why| vec![why])?,
            (Some(_), None) => return Err(vec!["the file has no [gateway] any more".into()]),
            (None, _) => {}
        }
        if let Some(identity) = &self.identity {
            identity.read_again().map_err(|why| vec![why])?;
        }
        let tokens = settings.tokens.len();
        self.access.replace(settings.tokens);
        let mut done = format!("the configuration was read again: tokens: {tokens}");
        if let (Some(live), Some(gateway)) = (&mut self.gateway, settings.gateway) {
            done.push_str(&format!(
                ", routes of the gateway: {}",
                gateway.routes.len()
            ));
            live.apply(gateway);
        }
        Ok(done)
    }

    fn stamps(&self, source: &Source) -> Stamps {
        stamps(&source.path, &self.access.tokens(), self.identity.as_ref())
    }
}

fn stamps(path: &Path, tokens: &Tokens, identity: Option<&Arc<Identity>>) -> Stamps {
    let mut files = vec![path.to_owned()];
    files.extend_from_slice(tokens.files());
    files.extend(identity.into_iter().flat_map(|identity| identity.files()));
    let stamp = |path: PathBuf| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    files.into_iter().map(stamp).collect()
}

fn read(source: &Source) -> std::result::Result<Settings, Vec<String>> {
    match Loaded::check(Some(&source.path), &source.overrides) {
        Ok((_, settings)) => Ok(settings),
        Err(Failure::Config(problems)) => Err(problems),
        Err(Failure::Failed(why)) => Err(vec![why]),
        Err(other) => Err(vec![format!("{other:?}")]),
    }
}

/// SIGHUP, where there is such a thing.
pub(super) struct Hangups {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

/// From now on SIGHUP does not end the process.
pub(super) fn hangups() -> Result<Hangups> {
    Ok(Hangups {
        #[cfg(unix)]
        signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
    })
}

impl Hangups {
    async fn next(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        std::future::pending::<()>().await;
    }
}
