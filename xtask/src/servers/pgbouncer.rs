//! PgBouncer in transaction mode, before a PostgreSQL of its own.
//!
//! # What it takes
//! One that knows prepared statements, which is 1.21 or later. Debian's may be older, so the packages
//! of the unstable suite, 63 of 32 MB, are unpacked into the cache directory of the user.
//!
//! Any name of a database is passed on to the server, so a test can make one of its own. The name
//! `single` stands for the first database over one connection: all its clients share it.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;

use super::account::{Account, is_root};
use super::daemon::Daemon;
use super::unstable::{self, Tree};
use super::{Server, Started, cache, port, postgres};
use crate::process::{Signal, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "pgbouncer",
    title: "PgBouncer",
    variable: "COUNTERFOIL_TEST_PGBOUNCER_URL",
    start,
};

const PACKAGE: &str = "pgbouncer";
const PROGRAM: &str = "usr/sbin/pgbouncer";

fn start(directory: &Path) -> Result<Started, Stop> {
    let tree = Tree::at(&cache::provide("pgbouncer-unstable", |parts| {
        unstable::unpack(PACKAGE, parts)
    })?)?;
    // PostgreSQL has to reach its own directory in it.
    Account::of("postgres")?.own(directory)?;
    let behind = directory.join("postgres");
    fs::create_dir(&behind)
        .map_err(|error| Stop::failed(format!("cannot make {}: {error}", behind.display())))?;
    let server = postgres::start(&behind)?;
    let address = server.url.rsplit('@').next().unwrap_or_default();
    let server_port = address.rsplit(':').next().and_then(|a| a.split('/').next());
    let port = port::free()?;
    let config = directory.join("pgbouncer.ini");
    let settings = settings(port, server_port.unwrap_or_default());
    fs::write(&config, settings)
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", config.display())))?;

    let mut command = Account::ours().daemon(tree.loader(), Signal::Kill);
    tree.run(&mut command, PROGRAM);
    if is_root() {
        // It refuses root, and becomes this one when it has read its libraries.
        command.args(["--user", "postgres"]);
    }
    command.arg(&config);
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Kill, directory, command)?;
    daemon.wait_until_ready(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
    let mut daemons = vec![daemon];
    daemons.extend(server.daemons);
    Ok(Started {
        url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        version: format!("{}, before PostgreSQL {}", version(&tree), server.version),
        daemons,
    })
}

fn settings(port: u16, server: &str) -> String {
    format!(
        "[databases]\n\
         single = host=127.0.0.1 port={server} user=postgres dbname=postgres pool_size=1\n\
         * = host=127.0.0.1 port={server} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         max_client_conn = 1000\n\
         max_prepared_statements = 200\n\
         ignore_startup_parameters = extra_float_digits\n\
         server_idle_timeout = 5\n"
    )
}

/// `PgBouncer 1.26.1` and more lines.
fn version(tree: &Tree) -> String {
    let mut command = Command::new(tree.loader());
    tree.run(&mut command, PROGRAM);
    let said = quiet(command.arg("--version")).unwrap_or_default();
    let first = said.lines().next().unwrap_or_default();
    first.replace("PgBouncer ", "version ")
}
