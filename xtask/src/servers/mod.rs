//! The servers that tests and benches need.
//!
//! # Promise
//! Each one listens on 127.0.0.1 only, keeps its files in a private temporary directory, and is
//! stopped by its own process id when the [`Fleet`] is dropped. An address given in the environment
//! is used as it is, and nothing is started for it.
//!
//! # To add one
//! One file here with a `SERVER` constant, one line in [`ALL`], one line in `help.txt`.

mod account;
pub(crate) mod cache;
mod daemon;
mod embedded;
mod kafka;
mod mariadb;
mod mysql;
mod nats;
pub(crate) mod nginx;
mod packages;
mod pgbouncer;
mod port;
mod postgres;
mod rabbitmq;
mod redis;
mod sqs;
pub(crate) mod unstable;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::interrupt;
use crate::scratch::Scratch;
use crate::stop::Stop;
use daemon::Daemon;

/// Every server there is, in the order in which they start.
pub(crate) const ALL: &[Server] = &[
    postgres::SERVER,
    pgbouncer::SERVER,
    mariadb::SERVER,
    mysql::SERVER,
    redis::SERVER,
    rabbitmq::SERVER,
    kafka::SERVER,
    nats::SERVER,
    sqs::SERVER,
];

/// Other versions of them, for `cargo xtask test --matrix` only.
pub(crate) const OTHER_VERSIONS: &[Server] = &[embedded::POSTGRES_17, embedded::POSTGRES_18];

/// One kind of server.
#[derive(Debug)]
pub(crate) struct Server {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The name for people.
    pub(crate) title: &'static str,
    /// The environment variable with its address.
    pub(crate) variable: &'static str,
    /// Starts it with all its files in the given directory, and returns when it answers.
    start: fn(&Path) -> Result<Started, Stop>,
}

/// A server that answers.
#[derive(Debug)]
struct Started {
    url: String,
    version: String,
    daemons: Vec<Daemon>,
}

/// How a server came to be there, or why it did not.
#[derive(Debug, Clone)]
pub(crate) enum Presence {
    /// Its address was given.
    FromEnvironment,
    /// It was started for this run.
    StartedHere {
        /// What it says about itself.
        version: String,
        /// From the first step to the first answer.
        took: Duration,
    },
    /// It cannot be had, for this reason.
    Missing(String),
    /// Nobody asked for it.
    NotWanted,
}

/// The servers of one run; dropping it stops those that were started.
#[derive(Debug)]
pub(crate) struct Fleet {
    presence: Vec<(&'static Server, Presence)>,
    urls: Vec<(&'static str, String)>,
    // Servers go before their files: fields are dropped in this order.
    daemons: Vec<Daemon>,
    scratch: Scratch,
}

/// The server with this name on the command line.
pub(crate) fn named(name: &str) -> Option<&'static Server> {
    let mut every = ALL.iter().chain(OTHER_VERSIONS);
    every.find(|server| server.name == name)
}

impl Fleet {
    /// Provides the wanted servers. One that cannot be had is noted and is no error here.
    pub(crate) fn start(wanted: &[&'static Server]) -> Result<Self, Stop> {
        let mut fleet = Self {
            presence: Vec::new(),
            urls: Vec::new(),
            daemons: Vec::new(),
            scratch: Scratch::new()?,
        };
        let is_wanted = |server: &Server| wanted.iter().any(|wanted| wanted.name == server.name);
        let others = OTHER_VERSIONS.iter().filter(|server| is_wanted(server));
        for server in ALL.iter().chain(others) {
            let presence = if given(server) {
                Presence::FromEnvironment
            } else if is_wanted(server) {
                fleet.add(server)?
            } else {
                Presence::NotWanted
            };
            announce(server, &presence);
            fleet.presence.push((server, presence));
        }
        Ok(fleet)
    }

    /// A path in the temporary directory of this run.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// How each server came to be there.
    pub(crate) fn presence(&self) -> &[(&'static Server, Presence)] {
        &self.presence
    }

    /// The variables that have to be set for the servers started here.
    pub(crate) fn urls(&self) -> &[(&'static str, String)] {
        &self.urls
    }

    /// The address of a server of this run. Absent when it is not there.
    pub(crate) fn url(&self, server: &Server) -> Option<String> {
        let started = self.urls.iter().find(|(name, _)| *name == server.variable);
        started
            .map(|(_, url)| url.clone())
            .or_else(|| std::env::var(server.variable).ok())
            .filter(|url| !url.is_empty())
    }

    /// Lets a command find the servers.
    pub(crate) fn equip(&self, command: &mut Command) {
        command.envs(self.urls.iter().map(|(name, url)| (name, url)));
    }

    /// An error that names what is missing.
    pub(crate) fn require_all(&self) -> Result<(), Stop> {
        let missing: Vec<_> = self
            .presence
            .iter()
            .filter(|(_, presence)| matches!(presence, Presence::Missing(_)))
            .map(|(server, _)| server.title)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Stop::failed(format!("missing: {}", missing.join(", "))))
    }

    fn add(&mut self, server: &'static Server) -> Result<Presence, Stop> {
        eprintln!("xtask: starting {}", server.title);
        let begin = Instant::now();
        let directory = self.scratch.directory(server.name)?;
        match (server.start)(&directory) {
            Ok(started) => {
                self.urls.push((server.variable, started.url));
                self.daemons.extend(started.daemons);
                Ok(Presence::StartedHere {
                    version: started.version,
                    took: begin.elapsed(),
                })
            }
            Err(Stop::Failed(reason)) => {
                // A helper program that Ctrl-C ended looks like a failure of the server.
                interrupt::check()?;
                Ok(Presence::Missing(reason))
            }
            Err(other) => Err(other),
        }
    }
}

/// Whether a missing server is a failure.
pub(crate) fn are_mandatory() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

fn given(server: &Server) -> bool {
    std::env::var_os(server.variable).is_some_and(|value| !value.is_empty())
}

fn announce(server: &Server, presence: &Presence) {
    match presence {
        Presence::Missing(reason) => {
            eprintln!("xtask: !!! {} IS MISSING: {reason}", server.title);
            eprintln!(
                "xtask: !!! give its address in {}, or tests that need it will not run",
                server.variable
            );
        }
        Presence::NotWanted => {}
        there => eprintln!("xtask: {}: {there}", server.title),
    }
}

impl std::fmt::Display for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FromEnvironment => f.write_str("from the environment"),
            Self::StartedHere { version, took } => {
                let seconds = took.as_secs_f64();
                write!(f, "started here, {version}, ready in {seconds:.1} s")
            }
            Self::Missing(reason) => write!(f, "missing: {reason}"),
            Self::NotWanted => f.write_str("not started, not asked for"),
        }
    }
}
