//! Kafka: broker and controller in one Java process, without ZooKeeper and without replicas.
//!
//! # What it takes
//! Java 17. There is no package of Kafka in Debian, and none that could be unpacked elsewhere, so
//! Maven copies the server's own library (`kafka_2.13`) with everything that it needs, 46 files of
//! 43 MB, into the cache directory of the user. That takes a quarter of a minute, once. The way of
//! its loggers to log4j (`log4j-slf4j-impl`) is no dependency of the library; without it the server
//! says nothing at all, not even why it cannot start.
//!
//! A directory must be formatted with an id of a cluster before a server can use it. A port that
//! can be connected to is not yet a broker that may make topics: the line in the log is. Together
//! it is about 4 s, and 370 MB of memory. The compiler stays at its first level, because nobody
//! here runs long enough to have use of the second.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::daemon::Daemon;
use super::{Server, Started, cache, packages, port};
use crate::process::{Signal, find, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "kafka",
    title: "Kafka",
    variable: "COUNTERFOIL_TEST_KAFKA_URL",
    start,
};

const VERSION: &str = "4.1.0";
const LOG4J_VERSION: &str = "2.24.3";
/// The tests that need a Kafka of their own look for the library there too.
const DIRECTORY: &str = "kafka-4.1.0";
/// Any will do, as long as it has this form.
const CLUSTER: &str = "Q291bnRlcmZvaWwtdGVzdA";
const READY: &str = "Kafka Server started";

const LOGGING: &str = "\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = STDOUT
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
";

fn start(directory: &Path) -> Result<Started, Stop> {
    let java = packages::provide(&["default-jre-headless"], || find("java", &[]))?;
    let library = library()?;
    let port = port::free()?;
    let settings = directory.join("server.properties");
    write(&settings, &properties(directory, port, port::free()?))?;
    let logging = directory.join("log4j2.properties");
    write(&logging, LOGGING)?;

    let equip = |command: &mut Command| {
        command
            .args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg(format!("-Dlog4j2.configurationFile={}", logging.display()))
            .arg("-cp")
            .arg(library.join("*"));
    };
    let mut format = Command::new(&java);
    equip(&mut format);
    format
        .args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"])
        .arg(&settings);
    quiet(format.current_dir(directory))?;

    // Nothing of it is needed afterwards, and a stop in good order takes seconds.
    let mut command = Account::ours().daemon(&java, Signal::Kill);
    equip(&mut command);
    command.arg("kafka.Kafka").arg(&settings);
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Kill, directory, command)?;
    let log = directory.join("server.log");
    daemon.wait_until_ready(|| fs::read_to_string(&log).is_ok_and(|said| said.contains(READY)))?;
    Ok(Started {
        url: format!("kafka://127.0.0.1:{port}"),
        version: format!("version {VERSION}"),
        daemons: vec![daemon],
    })
}

fn properties(directory: &Path, port: u16, controller: u16) -> String {
    let data = directory.join("data");
    format!(
        "process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
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
    )
}

/// The directory with the server's library, which is fetched if it is not there.
fn library() -> Result<PathBuf, Stop> {
    cache::provide(DIRECTORY, |jars| {
        let mvn = packages::provide(&["maven"], || find("mvn", &[]))?;
        let pom = jars.join("pom.xml");
        write(&pom, &project())?;
        quiet(
            Command::new(&mvn)
                .args(["-q", "-B", "-f"])
                .arg(&pom)
                .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
                .arg(format!("-DoutputDirectory={}", jars.display())),
        )?;
        Ok(())
    })
}

fn project() -> String {
    let dependency = |group: &str, name: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>\
             <version>{version}</version></dependency>"
        )
    };
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>counterfoil</groupId><artifactId>kafka</artifactId><version>1</version>\
         <dependencies>{}{}</dependencies></project>\n",
        dependency("org.apache.kafka", "kafka_2.13", VERSION),
        dependency(
            "org.apache.logging.log4j",
            "log4j-slf4j-impl",
            LOG4J_VERSION
        ),
    )
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    fs::write(path, text)
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", path.display())))
}
