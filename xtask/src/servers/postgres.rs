//! PostgreSQL, with logical decoding and the durability of a default installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::daemon::{Daemon, succeeds};
use super::{Server, Started, packages, port};
use crate::process::{Signal, find_together, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "postgres",
    title: "PostgreSQL",
    variable: "COUNTERFOIL_TEST_POSTGRES_URL",
    start,
};

/// The server's programs, all of one version: it reads only what the initdb of its own made.
pub(crate) struct Programs {
    pub(crate) initdb: PathBuf,
    pub(crate) postgres: PathBuf,
}

/// Starts the one that is installed.
pub(crate) fn start(directory: &Path) -> Result<Started, Stop> {
    let (programs, pg_isready) = packages::provide(&["postgresql"], locate)?;
    launch(&programs, directory, |port| {
        succeeds(
            // Through its own socket: another server's port cannot answer for it.
            Command::new(&pg_isready)
                .args(["-q", "-U", "postgres", "-p", &port.to_string(), "-h"])
                .arg(directory),
        )
    })
}

/// Makes a cluster in the directory and starts it; `is_ready` is given its port.
pub(crate) fn launch(
    programs: &Programs,
    directory: &Path,
    is_ready: impl Fn(u16) -> bool,
) -> Result<Started, Stop> {
    let account = Account::of("postgres")?;
    account.own(directory)?;
    let data = directory.join("data");
    quiet(
        account
            .command(&programs.initdb)
            .args(["-A", "trust", "-E", "UTF8", "--locale=C"])
            .args(["-U", "postgres", "--no-sync", "-D"])
            .arg(&data)
            .current_dir(directory),
    )?;

    let port = port::free()?;
    let mut command = account.daemon(&programs.postgres, Signal::Interrupt);
    command.arg("-D").arg(&data);
    for setting in settings(directory, port) {
        command.arg("-c").arg(setting);
    }
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Interrupt, directory, command)?;
    daemon.wait_until_ready(|| is_ready(port))?;
    Ok(Started {
        url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        version: version(&programs.postgres),
        daemons: vec![daemon],
    })
}

fn settings(directory: &Path, port: u16) -> [String; 5] {
    [
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
        format!("unix_socket_directories={}", directory.display()),
        "wal_level=logical".to_owned(),
        "max_connections=200".to_owned(),
    ]
}

fn version(postgres: &Path) -> String {
    let said = quiet(Command::new(postgres).arg("--version")).unwrap_or_default();
    said.trim().replace("postgres (PostgreSQL) ", "version ")
}

fn locate() -> Option<(Programs, PathBuf)> {
    // Debian keeps the server programs out of PATH, one directory for each version.
    let others = newest_first("/usr/lib/postgresql");
    let directory = find_together(&["initdb", "postgres", "pg_isready"], &others)?;
    let programs = Programs {
        initdb: directory.join("initdb"),
        postgres: directory.join("postgres"),
    };
    Some((programs, directory.join("pg_isready")))
}

fn newest_first(parent: &str) -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, path)| path).collect()
}
