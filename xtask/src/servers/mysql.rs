//! MySQL, beside MariaDB: the same store, another server.
//!
//! # What it takes
//! Debian's stable suites have no MySQL, its unstable one has. Its packages, 57 of 60 MB, are unpacked
//! into the cache directory of the user (330 MB); nothing is installed. That takes a quarter of a
//! minute, once. It starts in 4 s and takes 300 MB.
//!
//! It is never killed in its work, so it need not wait for its disk: tests are quicker.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::account::Account;
use super::daemon::Daemon;
use super::unstable::{self, Tree};
use super::{Server, Started, cache, port};
use crate::process::{Signal, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "mysql",
    title: "MySQL",
    variable: "COUNTERFOIL_TEST_MYSQL9_URL",
    start,
};

const PACKAGE: &str = "mysql-server-core";
const DATABASE: &str = "counterfoil_test";
const PROGRAM: &str = "usr/sbin/mysqld";
const READY: &str = "ready for connections";

fn start(directory: &Path) -> Result<Started, Stop> {
    let tree = Tree::at(&cache::provide("mysql-unstable", |parts| {
        unstable::unpack(PACKAGE, parts)
    })?)?;
    // There is no client in the package that could do this.
    let first = directory.join("first.sql");
    fs::write(&first, first_statements())
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", first.display())))?;

    let mut initialize = Command::new(tree.loader());
    equip(&mut initialize, &tree, directory);
    quiet(
        initialize
            .arg("--initialize-insecure")
            .current_dir(directory),
    )?;

    let port = port::free()?;
    // Nothing of it is needed afterwards, and a stop in good order takes seconds.
    let mut command = Account::ours().daemon(tree.loader(), Signal::Kill);
    equip(&mut command, &tree, directory);
    command
        .arg(option("socket", &directory.join("socket")))
        .arg(option("pid-file", &directory.join("pid")))
        .arg(option("init-file", &first))
        .arg(format!("--port={port}"))
        .args(["--bind-address=127.0.0.1", "--mysqlx=OFF"])
        .args(["--skip-name-resolve", "--max-connections=200"]);
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Kill, directory, command)?;
    let log = directory.join("server.log");
    daemon.wait_until_ready(|| fs::read_to_string(&log).is_ok_and(|said| said.contains(READY)))?;
    Ok(Started {
        url: format!("mysql://root@127.0.0.1:{port}/{DATABASE}"),
        version: version(&tree),
        daemons: vec![daemon],
    })
}

/// What both have to know: making the files, and serving them.
fn equip(command: &mut Command, tree: &Tree, directory: &Path) {
    tree.run(command, PROGRAM);
    command
        .arg("--no-defaults")
        .arg(option("basedir", &tree.file("usr")))
        .arg(option("lc-messages-dir", &tree.file("usr/share/mysql")))
        .arg(option("plugin-dir", &tree.file("usr/lib/mysql/plugin")))
        .arg(option("datadir", &directory.join("data")))
        .arg(option("tmpdir", directory))
        // It refuses root unless it is told, and the cache of root is open to nobody else. So that
        // who connects gets no more than the tables, it may neither read nor write files.
        .args(["--user=root", "--secure-file-priv=NULL"])
        .args(["--character-set-server=utf8mb4", "--performance-schema=OFF"])
        .args(["--innodb-flush-method=nosync", "--innodb-doublewrite=OFF"])
        .arg("--disable-log-bin");
}

/// Without names of hosts, 127.0.0.1 is not localhost to it. Each statement is one line.
fn first_statements() -> String {
    format!(
        "CREATE DATABASE {DATABASE};\n\
         CREATE USER root@'127.0.0.1';\n\
         GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
    )
}

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// `/path/mysqld  Ver 9.7.4-2 for Linux on x86_64 (Debian)` without the words around.
fn version(tree: &Tree) -> String {
    let mut command = Command::new(tree.loader());
    tree.run(&mut command, PROGRAM);
    let said = quiet(command.args(["--no-defaults", "--version"])).unwrap_or_default();
    let mut words = said.split_whitespace().skip_while(|word| *word != "Ver");
    format!("version {}", words.nth(1).unwrap_or("unknown"))
}
