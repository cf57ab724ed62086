//! MariaDB, with the durability of a default installation and an empty database.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::daemon::{Daemon, succeeds};
use super::{Server, Started, packages, port};
use crate::process::{Signal, find, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "mariadb",
    title: "MariaDB",
    variable: "COUNTERFOIL_TEST_MYSQL_URL",
    start,
};

const DATABASE: &str = "counterfoil_test";

struct Programs {
    install_db: PathBuf,
    mariadbd: PathBuf,
    admin: PathBuf,
}

fn start(directory: &Path) -> Result<Started, Stop> {
    let programs = packages::provide(&["mariadb-server"], locate)?;
    let account = Account::of("mysql")?;
    account.own(directory)?;
    let data = option("datadir", &directory.join("data"));
    // With --no-defaults the machine's own settings cannot change what tests see.
    quiet(
        account
            .command(&programs.install_db)
            .args(["--no-defaults", "--auth-root-authentication-method=normal"])
            .args(["--skip-test-db", &data])
            .current_dir(directory),
    )?;

    let port = port::free()?;
    let socket = option("socket", &directory.join("socket"));
    // Started as its user, not with --user: changing the user would lose the signal that it gets
    // when xtask dies.
    let mut command = account.daemon(&programs.mariadbd, Signal::Terminate);
    command
        .args(["--no-defaults", &data, &socket])
        .arg(option("pid-file", &directory.join("pid")))
        .arg(option("tmpdir", directory))
        .arg(format!("--port={port}"))
        .args(["--bind-address=127.0.0.1", "--skip-networking=0"])
        .args(["--skip-name-resolve", "--max-connections=200"])
        .arg("--character-set-server=utf8mb4");
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Terminate, directory, command)?;
    let admin = |words: &[&str]| {
        let mut command = Command::new(&programs.admin);
        command
            .args(["--no-defaults", &socket, "--user=root"])
            .args(words);
        command
    };
    daemon.wait_until_ready(|| succeeds(&mut admin(&["ping"])))?;
    quiet(&mut admin(&["create", DATABASE]))?;
    Ok(Started {
        url: format!("mysql://root@127.0.0.1:{port}/{DATABASE}"),
        version: version(&programs.mariadbd),
        daemons: vec![daemon],
    })
}

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// `mariadbd  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu …` without the words around.
fn version(mariadbd: &Path) -> String {
    let said = quiet(Command::new(mariadbd).args(["--no-defaults", "--version"]));
    let said = said.unwrap_or_default();
    let mut words = said.split_whitespace().skip_while(|word| *word != "Ver");
    format!("version {}", words.nth(1).unwrap_or("unknown"))
}

fn locate() -> Option<Programs> {
    // Debian's ordinary users do not have sbin in PATH.
    let others = [PathBuf::from("/usr/sbin")];
    Some(Programs {
        install_db: find("mariadb-install-db", &others)?,
        mariadbd: find("mariadbd", &others)?,
        admin: find("mariadb-admin", &others)?,
    })
}
