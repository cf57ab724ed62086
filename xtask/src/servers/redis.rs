//! Redis, which keeps nothing on disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::daemon::{Daemon, succeeds};
use super::{Server, Started, packages, port};
use crate::process::{Signal, find, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "redis",
    title: "Redis",
    variable: "COUNTERFOIL_TEST_REDIS_URL",
    start,
};

struct Programs {
    server: PathBuf,
    cli: PathBuf,
}

fn start(directory: &Path) -> Result<Started, Stop> {
    let programs = packages::provide(&["redis-server"], locate)?;
    // It does not mind root, and a Redis that is not from a package has no user of its own.
    let account = Account::ours();
    let port = port::free()?;
    let socket = directory.join("socket");
    let mut command = account.daemon(&programs.server, Signal::Terminate);
    // No file of settings: the machine's own cannot change what tests see.
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--daemonize", "no", "--appendonly", "no", "--save", ""])
        .arg("--unixsocket")
        .arg(&socket)
        .arg("--dir")
        .arg(directory);
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Terminate, directory, command)?;
    daemon.wait_until_ready(|| {
        succeeds(
            // Through its own socket: another server's port cannot answer for it. With `-e` an
            // error is no answer.
            Command::new(&programs.cli)
                .args(["-e", "-s"])
                .arg(&socket)
                .arg("ping"),
        )
    })?;
    Ok(Started {
        url: format!("redis://127.0.0.1:{port}/"),
        version: version(&programs.server),
        daemons: vec![daemon],
    })
}

/// `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 …` without the words around.
fn version(server: &Path) -> String {
    let said = quiet(Command::new(server).arg("--version")).unwrap_or_default();
    let number = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="));
    format!("version {}", number.unwrap_or("unknown"))
}

fn locate() -> Option<Programs> {
    Some(Programs {
        server: find("redis-server", &[])?,
        cli: find("redis-cli", &[])?,
    })
}
