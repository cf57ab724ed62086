//! A Kafka of a test's own, to freeze, kill and start again.
//!
//! # Promise
//! It listens on free ports of 127.0.0.1 and does not outlive its handle. A kill is a real SIGKILL
//! and a pause a real SIGSTOP. What it has stored is there after a restart, and its address is the
//! same.
//!
//! It takes seconds to start: a test that does not disturb its server uses the common one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::redis::free_port;
use super::{current_test, skipped};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);
/// What Kafka says when it can be asked.
const READY: &str = "Kafka Server started";
/// Where `cargo xtask` keeps the library of the server, in the cache directory of the user.
const LIBRARY: &str = "counterfoil/kafka-4.1.0";
/// Any will do, as long as it has this form.
const CLUSTER: &str = "Q291bnRlcmZvaWwtdGVzdA";
const LOGGING: &str = "\
rootLogger.level = error
rootLogger.appenderRef.stdout.ref = STDOUT
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
";

/// A Kafka that belongs to one test.
#[derive(Debug)]
pub struct PrivateKafka {
    ports: Ports,
    child: Child,
    library: PathBuf,
    directory: TempDir,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    open: u16,
    controller: u16,
    password: u16,
    tls: u16,
}

/// The certificate with which a Kafka shows who it is, and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub chain: String,
    /// Its key, in PKCS#8.
    pub key: String,
}

impl PrivateKafka {
    /// The user that is let in at the addresses that ask for a password.
    pub const USER: &str = "relay";
    /// Its password.
    pub const PASSWORD: &str = "open sesame";

    /// Starts one. Absent when there is no Java, or `cargo xtask` has never fetched Kafka: skip the
    /// test.
    ///
    /// # Panics
    /// When it cannot be had and `CI` is `true`, or when it does not start.
    pub async fn start() -> Option<Self> {
        Self::start_with(None).await
    }

    /// Starts one that also has an address with a password, and one with a password and TLS. It
    /// forms groups in the older way only, as every Kafka before 4.0 does.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn start_closed(certificate: &Certificate) -> Option<Self> {
        Self::start_with(Some(certificate)).await
    }

    async fn start_with(certificate: Option<&Certificate>) -> Option<Self> {
        let Some(library) = library() else {
            let reason = "Kafka is not in the cache directory: cargo xtask servers --with kafka";
            skipped(&current_test(), reason);
            return None;
        };
        let directory = tempfile::tempdir().expect("no temporary directory");
        for _ in 0..20 {
            let ports = Ports {
                open: free_port(),
                controller: free_port(),
                password: free_port(),
                tls: free_port(),
            };
            match begin(&library, &directory, ports, certificate).await {
                Ok(Some(child)) => {
                    return Some(Self {
                        ports,
                        child,
                        library,
                        directory,
                    });
                }
                // Somebody else was faster at one of the ports.
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    skipped(&current_test(), "java is not in PATH");
                    return None;
                }
                Err(error) => panic!("Kafka cannot be started: {error}"),
            }
        }
        panic!("Kafka does not start on any port");
    }

    /// Its address for everybody.
    pub fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    /// The same without a scheme.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.open)
    }

    /// Its address with a password, if it was started closed.
    pub fn address_with_password(&self) -> String {
        format!("127.0.0.1:{}", self.ports.password)
    }

    /// Its address with a password and TLS, if it was started closed. Its name is `localhost`.
    pub fn address_with_tls(&self) -> String {
        format!("localhost:{}", self.ports.tls)
    }

    /// Ends it without warning.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("Kafka cannot be killed");
    }

    /// Starts it again, with everything that it had stored, at the same address.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.child = launch(&self.library, self.directory.path())
            .await
            .expect("Kafka cannot be started")
            .expect("Kafka does not start again");
    }

    /// Freezes it: the system still accepts connections in its name, and nobody answers.
    ///
    /// # Panics
    /// When it does not stand still.
    pub async fn pause(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).expect("Kafka cannot be frozen");
        let still = tokio::task::spawn_blocking(move || {
            waitid(
                WaitId::Pid(pid),
                WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
            )
        });
        timeout(PATIENCE, still)
            .await
            .expect("Kafka does not stand still")
            .expect("the wait ended badly")
            .expect("Kafka cannot be waited for");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("Kafka cannot be resumed");
    }

    fn pid(&self) -> Pid {
        let id = self.child.id().expect("Kafka was killed");
        Pid::from_raw(id.cast_signed()).expect("a process has a number")
    }
}

fn library() -> Option<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = given("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(cache.join(LIBRARY)).filter(|library| library.is_dir())
}

/// Formats the directory and starts a Kafka there.
async fn begin(
    library: &Path,
    directory: &TempDir,
    ports: Ports,
    certificate: Option<&Certificate>,
) -> std::io::Result<Option<Child>> {
    let directory = directory.path();
    tokio::fs::write(directory.join("log4j2.properties"), LOGGING).await?;
    let settings = properties(directory, ports, certificate);
    tokio::fs::write(directory.join("server.properties"), settings).await?;
    let mut format = java(library, directory);
    format.args(["kafka.tools.StorageTool", "format", "--ignore-formatted"]);
    format.args(["-t", CLUSTER, "-c", "server.properties"]);
    if certificate.is_some() {
        for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            let (name, password) = (PrivateKafka::USER, PrivateKafka::PASSWORD);
            let scram = format!("{mechanism}=[name=\"{name}\",password=\"{password}\"]");
            format.args(["--add-scram", &scram]);
        }
    }
    let said = format.output().await?;
    assert!(said.status.success(), "the directory is not good: {said:?}");
    launch(library, directory).await
}

fn properties(directory: &Path, ports: Ports, certificate: Option<&Certificate>) -> String {
    let Ports {
        open,
        controller,
        password,
        tls,
    } = ports;
    let mut listeners = format!("OPEN://127.0.0.1:{open}");
    if certificate.is_some() {
        listeners += &format!(",PASSWORD://127.0.0.1:{password},TLS://localhost:{tls}");
    }
    let data = directory.join("data");
    let mut all = format!(
        "process.roles=broker,controller
node.id=1
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=OPEN:PLAINTEXT,CONTROLLER:PLAINTEXT,PASSWORD:SASL_PLAINTEXT,TLS:SASL_SSL
inter.broker.listener.name=OPEN
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=3000
group.consumer.min.session.timeout.ms=1000
group.consumer.heartbeat.interval.ms=500
group.consumer.min.heartbeat.interval.ms=100
num.network.threads=2
num.io.threads=2
",
        data = data.display()
    );
    if let Some(certificate) = certificate {
        let (name, word) = (PrivateKafka::USER, PrivateKafka::PASSWORD);
        let one_line = |pem: &str| pem.trim().replace('\n', "\\n");
        all += "group.coordinator.rebalance.protocols=classic\n";
        all += "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n";
        for listener in ["password", "tls"] {
            let at = format!("listener.name.{listener}");
            let module = "org.apache.kafka.common.security";
            all += &format!(
                "{at}.plain.sasl.jaas.config={module}.plain.PlainLoginModule required \
                 user_{name}=\"{word}\";\n"
            );
            for scram in ["scram-sha-256", "scram-sha-512"] {
                all += &format!(
                    "{at}.{scram}.sasl.jaas.config={module}.scram.ScramLoginModule required;\n"
                );
            }
        }
        all += &format!(
            "ssl.keystore.type=PEM\nssl.keystore.certificate.chain={}\nssl.keystore.key={}\n",
            one_line(&certificate.chain),
            one_line(&certificate.key)
        );
    }
    all
}

fn java(library: &Path, directory: &Path) -> Command {
    let mut command = Command::new("java");
    command
        .args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg("-Dlog4j2.configurationFile=log4j2.properties")
        .arg("-cp")
        .arg(library.join("*"))
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}

/// A Kafka that answers, or nothing when it ended at once.
async fn launch(library: &Path, directory: &Path) -> std::io::Result<Option<Child>> {
    let mut child = java(library, directory)
        .args(["kafka.Kafka", "server.properties"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let ready = async {
        while let Some(line) = said.next_line().await? {
            if line.contains(READY) {
                return Ok(true);
            }
        }
        std::io::Result::Ok(false)
    };
    let ready = timeout(PATIENCE, ready)
        .await
        .expect("Kafka does not get ready")?;
    // Nobody may stop listening to it: it would wait when the pipe is full.
    tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
    Ok(ready.then_some(child))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn it_is_there_again_at_its_address_after_a_pause_and_a_restart() {
        let Some(mut kafka) = PrivateKafka::start().await else {
            return;
        };
        let address = kafka.address();

        kafka.pause().await;
        kafka.resume();
        kafka.kill().await;
        assert!(TcpStream::connect(&address).await.is_err());
        kafka.restart().await;

        assert_eq!(kafka.address(), address);
        assert!(TcpStream::connect(&address).await.is_ok());
    }
}
