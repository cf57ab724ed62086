//! RabbitMQ, one node with an Erlang port mapper of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::daemon::Daemon;
use super::{Server, Started, packages, port};
use crate::process::{Signal, find, find_together, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "rabbitmq",
    title: "RabbitMQ",
    variable: "COUNTERFOIL_TEST_RABBITMQ_URL",
    start,
};

/// What it says when clients can come.
const READY: &str = "Server startup complete";

struct Programs {
    server: PathBuf,
    epmd: PathBuf,
}

fn start(directory: &Path) -> Result<Started, Stop> {
    let programs = packages::provide(&["rabbitmq-server"], locate)?;
    // The program behind Debian's wrapper does not mind root.
    let account = Account::ours();
    let (amqp, mapper, nodes) = (port::free()?, port::free()?, port::free()?);
    write(directory, "rabbitmq.conf", &settings(amqp))?;
    // Empty: the machine's own files cannot change what tests see.
    write(directory, "rabbitmq-env.conf", "")?;
    write(directory, "enabled_plugins", "[].\n")?;

    // Ours, and not one that the node starts: that one would outlive it.
    let mapper_home = directory.join("epmd");
    fs::create_dir(&mapper_home).map_err(|error| failed(&mapper_home, &error))?;
    let mut command = account.daemon(&programs.epmd, Signal::Terminate);
    command.args(["-port", &mapper.to_string(), "-address", "127.0.0.1"]);
    let epmd = Daemon::spawn(
        "the port mapper of RabbitMQ",
        Signal::Terminate,
        &mapper_home,
        command,
    )?;

    let mut command = account.daemon(&programs.server, Signal::Terminate);
    command
        .env("HOME", directory)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", mapper.to_string())
        // The script becomes the server, which then gets our signals itself.
        .env("detached", "true")
        .env("RABBITMQ_NODENAME", "counterfoil@localhost")
        .env("RABBITMQ_DIST_PORT", nodes.to_string())
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}",
        )
        .env("RABBITMQ_CONFIG_FILE", directory.join("rabbitmq.conf"))
        .env(
            "RABBITMQ_CONF_ENV_FILE",
            directory.join("rabbitmq-env.conf"),
        )
        .env(
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            directory.join("enabled_plugins"),
        )
        .env("RABBITMQ_MNESIA_BASE", directory.join("data"))
        .env("RABBITMQ_LOG_BASE", directory.join("log"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_GENERATED_CONFIG_DIR", directory.join("config"))
        .env("RABBITMQ_PID_FILE", directory.join("pid"));
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Terminate, directory, command)?;
    let log = directory.join("server.log");
    // Its own word: another server's port cannot answer for it.
    daemon.wait_until_ready(|| fs::read_to_string(&log).is_ok_and(|said| said.contains(READY)))?;
    Ok(Started {
        url: format!("amqp://guest:guest@127.0.0.1:{amqp}/%2f"),
        version: version(&programs.server),
        daemons: vec![daemon, epmd],
    })
}

fn settings(amqp: u16) -> String {
    format!(
        "listeners.tcp.1 = 127.0.0.1:{amqp}\n\
         loopback_users = none\n\
         raft.wal_max_size_bytes = 16000000\n"
    )
}

fn write(directory: &Path, name: &str, content: &str) -> Result<(), Stop> {
    let path = directory.join(name);
    fs::write(&path, content).map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Stop {
    Stop::failed(format!("cannot write {}: {error}", path.display()))
}

/// Asks the package, because asking the server takes seconds.
fn version(server: &Path) -> String {
    let said = quiet(
        Command::new("dpkg-query")
            .args(["--show", "--showformat=${Version}"])
            .arg("rabbitmq-server"),
    );
    match said {
        Ok(version) => format!("version {version}"),
        Err(_) => format!("from {}", server.display()),
    }
}

fn locate() -> Option<Programs> {
    // What Debian has in PATH changes the user and hides the output.
    let behind = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
    let server = match behind.is_file() {
        true => behind,
        false => find_together(&["rabbitmq-server", "rabbitmq-env"], &[])?.join("rabbitmq-server"),
    };
    Some(Programs {
        server,
        epmd: find("epmd", &[])?,
    })
}
