//! A server that speaks SQS: ElasticMQ, which keeps everything in memory.
//!
//! # What it takes
//! Java 17. Maven copies the server with everything that it needs, 39 files of 37 MB, into the cache
//! directory of the user. That takes half a minute, once. It starts in 2 s and takes 200 MB.
//!
//! It has FIFO queues with groups and deduplication, redrive policies and the move of messages. It
//! asks for no credentials, and does not say how long it keeps a message.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::account::Account;
use super::daemon::Daemon;
use super::{Server, Started, cache, packages, port};
use crate::process::{Signal, find, quiet};
use crate::stop::Stop;

/// How to have one.
pub(crate) const SERVER: Server = Server {
    name: "sqs",
    title: "SQS (ElasticMQ)",
    variable: "COUNTERFOIL_TEST_SQS_URL",
    start,
};

const VERSION: &str = "1.7.1";
/// The tests that need a server of their own look for the library there too.
const DIRECTORY: &str = "elasticmq-1.7.1";
/// A server that does not answer is not ready.
const ANSWER: Duration = Duration::from_secs(2);

fn start(directory: &Path) -> Result<Started, Stop> {
    let java = packages::provide(&["default-jre-headless"], || find("java", &[]))?;
    let library = library()?;
    let port = port::free()?;
    let settings = directory.join("elasticmq.conf");
    write(&settings, &configuration(port))?;
    let mut command = Account::ours().daemon(&java, Signal::Terminate);
    command
        // Nobody here runs long enough to have use of the compiler's second level.
        .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"])
        .arg(format!("-Dconfig.file={}", settings.display()))
        .arg("-cp")
        .arg(library.join("*"))
        .arg("org.elasticmq.server.Main");
    let mut daemon = Daemon::spawn(SERVER.title, Signal::Terminate, directory, command)?;
    daemon.wait_until_ready(|| answers(port).unwrap_or(false))?;
    Ok(Started {
        url: format!("http://127.0.0.1:{port}"),
        version: format!("version {VERSION}"),
        daemons: vec![daemon],
    })
}

fn configuration(port: u16) -> String {
    format!(
        "include classpath(\"application.conf\")\n\
         node-address {{ protocol = http, host = \"127.0.0.1\", port = {port}, context-path = \"\" }}\n\
         rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = \"127.0.0.1\", sqs-limits = strict }}\n\
         rest-stats.enabled = false\n\
         # It cannot read the signatures of requests, and would say so at each of them.\n\
         pekko.loglevel = ERROR\n"
    )
}

/// Whether it gives a list of its queues.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(
        b"GET /?Action=ListQueues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200") && answer.contains("ListQueuesResponse"))
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
    format!(
        "<project><modelVersion>4.0.0</modelVersion><groupId>counterfoil</groupId>\
         <artifactId>sqs</artifactId><version>1</version><dependencies><dependency>\
         <groupId>org.elasticmq</groupId><artifactId>elasticmq-server_2.13</artifactId>\
         <version>{VERSION}</version></dependency></dependencies></project>\n"
    )
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    fs::write(path, text)
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", path.display())))
}
