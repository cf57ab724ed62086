//! Settings that can work: the second stage.
//!
//! # Promise
//! What comes out of [`validate`] starts. What cannot work is refused with a sentence that says
//! what to change, and all of it at once.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use counterfoil_core::inbox::QUEUE_PREFIX;
use counterfoil_core::message::check_name;
use counterfoil_core::route::Routes;
use counterfoil_core::store::Retention;
use counterfoil_engine::pipeline::reserved;
use counterfoil_engine::{QueueSpec, Settings as Engine};

use super::at::At;
use super::brokers::{self, kafka, nats, rabbitmq, redis, sqs};
use super::consumer::{self, Consumer};
use super::file::{Destination, File, Relay};
use super::gateway::{self, Gateway};
use super::nearest::hint;
use super::read::{Lines, Problem};
use super::tokens::{self, Tokens};
use super::value::{Pointed, shown};
use super::webhook;

/// More rows than this in one read is a slip of the fingers.
const LARGEST_BATCH: usize = 100_000;

/// Everything that `serve` needs.
pub(crate) struct Settings {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// Who may use the API.
    pub(crate) tokens: Tokens,
    /// What the API shows to callers; absent: it speaks plain HTTP.
    pub(crate) certificate: Option<Certificate>,
    /// How the relay works.
    pub(crate) engine: Engine,
    /// What is served.
    pub(crate) queues: Vec<QueueSpec>,
    /// Which events go where.
    pub(crate) routes: Routes,
    /// What is consumed.
    pub(crate) consumers: Vec<Consumer>,
    /// The gateway, where there is one.
    pub(crate) gateway: Option<Gateway>,
}

/// The files of the certificate that the API shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// The certificate and those that vouch for it.
    pub(crate) certificate: PathBuf,
    /// Its key.
    pub(crate) key: PathBuf,
}

/// Collects what is wrong, with its place.
pub(super) struct Judge<'a> {
    lines: &'a Lines,
    /// `file:` paths are relative to this directory.
    pub(super) beside: &'a Path,
    problems: Vec<Problem>,
}

impl Judge<'_> {
    /// Something is wrong with the key at this path.
    pub(super) fn refuse(&mut self, path: &str, text: impl Into<String>) {
        self.problems.push(Problem {
            line: self.lines.of(path),
            text: text.into(),
        });
    }

    /// The line of a key.
    pub(super) fn line(&self, path: &str) -> Option<usize> {
        self.lines.of(path)
    }

    /// Whether this very key stands in the file.
    pub(super) fn has(&self, path: &str) -> bool {
        self.lines.has(path)
    }

    /// The text that a value stands for or points at.
    pub(super) fn resolve(&mut self, path: &str, shown: &str, value: &Pointed) -> Option<String> {
        value
            .resolve(self.beside)
            .map_err(|text| self.refuse(path, format!("{shown}: {text}")))
            .ok()
    }
}

/// Checks everything.
pub(super) fn validate(
    file: &File,
    lines: &Lines,
    beside: &Path,
) -> Result<Settings, Vec<Problem>> {
    let mut judge = Judge {
        lines,
        beside,
        problems: Vec::new(),
    };
    database(file, &mut judge);
    let tokens = tokens::tokens(file, &mut judge);
    let certificate = certificate(file, &mut judge);
    let listen = listen(file, &tokens, &mut judge);
    let engine = engine(file, &mut judge);
    let queues = queues(file, engine.lease, &mut judge);
    let routes = routes(file, &mut judge);
    let consumers = consumer::consumers(file, &mut judge);
    let gateway = gateway::gateway(file, &mut judge);
    match judge.problems.is_empty() {
        true => Ok(Settings {
            listen,
            tokens,
            certificate,
            engine,
            queues,
            routes,
            consumers,
            gateway,
        }),
        false => Err(judge.problems),
    }
}

/// Whether what the section points at can be read.
fn database(file: &File, judge: &mut Judge<'_>) {
    let database = &file.database;
    for (key, value) in [("url", &database.url), ("listen-url", &database.listen_url)] {
        if let Some(value) = value {
            let shown = format!("`{key}` in [database]");
            judge.resolve(&format!("database.{key}"), &shown, value);
        }
    }
}

/// Reads an address to listen on.
pub(super) fn address(path: &str, text: &str, judge: &mut Judge<'_>) -> Option<SocketAddr> {
    let text = text.trim();
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    let address = numeric.parse::<SocketAddr>().ok();
    if address.is_none() {
        let text = format!("cannot listen on `{text}`: write an address such as 127.0.0.1:7070");
        judge.refuse(path, text);
    }
    address
}

fn listen(file: &File, tokens: &Tokens, judge: &mut Judge<'_>) -> SocketAddr {
    let Some(address) = address("server.listen", &file.server.listen, judge) else {
        return SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    };
    let none = file.server.tokens.is_empty() && file.tokens.is_empty();
    if !address.ip().is_loopback() && tokens.is_empty() && none {
        let text = format!(
            "{address} can be reached from other machines and no tokens are set: add a [token.NAME], or \
             listen on 127.0.0.1"
        );
        judge.refuse("server.listen", text);
    }
    address
}

fn certificate(file: &File, judge: &mut Judge<'_>) -> Option<Certificate> {
    let server = &file.server;
    match (&server.certificate_file, &server.key_file) {
        (Some(certificate), Some(key)) => Some(Certificate {
            certificate: judge.beside.join(certificate),
            key: judge.beside.join(key),
        }),
        (None, None) => None,
        _ => {
            let text = "`certificate-file` and `key-file` in [server] go together";
            judge.refuse("server.certificate-file", text);
            None
        }
    }
}

fn engine(file: &File, judge: &mut Judge<'_>) -> Engine {
    let relay = &file.relay;
    check_bounds(relay, judge);
    Engine {
        lease: relay.lease.0,
        poll: relay.poll.0,
        batch: relay.batch,
        queue_memory: relay.queue_memory.0,
        memory: relay.memory.0,
        lane: relay.lane,
        rescan: relay.rescan.0,
        handover: relay.handover.0,
        drain: relay.drain.0,
        sweep: relay.sweep.0,
        retention: Retention {
            history: relay.keep_sent.0.unwrap_or(relay.keep_cancelled.0),
            ledger: relay.keep_keys.0,
            parked: relay.keep_parked.0,
            batch: relay.sweep_batch,
        },
        keep_sent: relay.keep_sent.0.is_some(),
        patience: relay.patience.0,
        label: label(relay.name.as_deref()),
    }
}

fn check_bounds(relay: &Relay, judge: &mut Judge<'_>) {
    let spans = [
        ("lease", relay.lease),
        ("poll", relay.poll),
        ("rescan", relay.rescan),
        ("sweep", relay.sweep),
    ];
    for (key, span) in spans {
        if span.0.is_zero() {
            judge.refuse(
                &format!("relay.{key}"),
                format!("`{key}` in [relay] must not be zero"),
            );
        }
    }
    for (key, count) in [("batch", relay.batch), ("lane", relay.lane)] {
        if !(1..=LARGEST_BATCH).contains(&count) {
            let text = format!("`{key}` in [relay] is 1 to {LARGEST_BATCH}, not {count}");
            judge.refuse(&format!("relay.{key}"), text);
        }
    }
    for (key, size) in [
        ("queue-memory", relay.queue_memory),
        ("memory", relay.memory),
    ] {
        if size.0 == 0 {
            let text = format!("`{key}` in [relay] must not be zero");
            judge.refuse(&format!("relay.{key}"), text);
        }
    }
    if relay.sweep_batch == 0 {
        judge.refuse(
            "relay.sweep-batch",
            "`sweep-batch` in [relay] must not be zero",
        );
    }
}

/// A name for people and a few letters that only this process has, by which it finds itself again.
fn label(name: Option<&str>) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name
        .map(ToOwned::to_owned)
        .or_else(host)
        .unwrap_or_else(|| "relay".into());
    let short: String = name.trim().chars().take(40).collect();
    format!("{short}-{:06x}", fastrand::u32(..0x0100_0000))
}

fn queues(file: &File, lease: Duration, judge: &mut Judge<'_>) -> Vec<QueueSpec> {
    let mut queues = Vec::new();
    for (name, destination) in &file.destinations {
        let path = format!("destination.{name}");
        if let Err(error) = check_name("the name of a destination", name) {
            judge.refuse(&path, error.to_string());
            continue;
        }
        let inbox = name
            .starts_with(QUEUE_PREFIX)
            .then_some("those that begin with `inbox:` are where the messages of consumers wait");
        if let Some(why) = reserved(name).or(inbox) {
            let text = format!("[destination.\"{name}\"] needs another name: {why}");
            judge.refuse(&path, text);
            continue;
        }
        let queue = match destination {
            Destination::Webhook(section) => webhook::queue(name, section, judge),
            Destination::Kafka(section) => brokers::queue(name, &section.keys(), judge, |at| {
                kafka::destination(section, at)
            }),
            Destination::RabbitMq(section) => {
                let make = |at: &mut At<'_, '_>| rabbitmq::destination(section, at);
                brokers::queue(name, &section.keys(), judge, make)
            }
            Destination::Nats(section) => brokers::queue(name, &section.keys(), judge, |at| {
                nats::destination(section, at)
            }),
            Destination::Redis(section) => brokers::queue(name, &section.keys(), judge, |at| {
                redis::destination(section, at)
            }),
            Destination::Sqs(section) => brokers::queue(name, &section.keys(), judge, |at| {
                sqs::destination(section, at)
            }),
        };
        let Some(queue) = queue else { continue };
        let attempt = queue.destination.capabilities().timeout;
        if let Some(attempt) = attempt.filter(|attempt| *attempt >= lease) {
            let text = format!(
                "the lease ({}) is too short for the destination `{name}`, where one attempt may \
                 take {}: raise `lease` in [relay] or lower the destination's `timeout`",
                shown(lease),
                shown(attempt),
            );
            judge.refuse(&format!("{path}.timeout"), text);
        }
        queues.push(queue);
    }
    queues
}

fn routes(file: &File, judge: &mut Judge<'_>) -> Routes {
    let mut routes = Routes::default();
    for (i, route) in file.routes.iter().enumerate() {
        let path = format!("route.{i}");
        let Some(events) = route.events.as_deref().filter(|events| !events.is_empty()) else {
            judge.refuse(
                &path,
                "[[route]] needs `events`, such as events = \"Order*\"",
            );
            continue;
        };
        if route.to.is_empty() {
            let text = "[[route]] needs `to`, such as to = [\"billing\"]";
            judge.refuse(&format!("{path}.to"), text);
        }
        for (n, name) in route.to.iter().enumerate() {
            if route.to[..n].contains(name) {
                judge.refuse(
                    &format!("{path}.to"),
                    format!("the route names `{name}` twice"),
                );
            }
            if !file.destinations.contains_key(name) {
                let hint = hint(name, file.destinations.keys().map(String::as_str));
                let text = format!("the route to `{name}` leads to no destination{hint}");
                judge.refuse(&format!("{path}.to"), text);
            }
        }
        routes.add(events, route.to.clone());
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::super::read::read;
    use super::*;

    fn refused(text: &str) -> Vec<String> {
        let reading = read(text);
        assert_eq!(reading.problems, []);
        let problems = validate(&reading.file, &reading.lines, Path::new(""))
            .err()
            .unwrap();
        problems
            .iter()
            .map(|p| format!("{}: {}", p.line.unwrap_or(0), p.text))
            .collect()
    }

    const HOOK: &str = "type = \"webhook\"\nurl = \"https://example.com/\"\nunsigned = true\n";

    #[test]
    fn the_defaults_can_work() {
        let settings = validate(&File::default(), &Lines::default(), Path::new(""))
            .ok()
            .unwrap();

        assert!(settings.engine.validate(&settings.queues).is_ok());
        assert!(settings.listen.ip().is_loopback());
    }

    #[test]
    fn an_address_for_everybody_needs_a_token() {
        let found = refused("[server]\nlisten = \"0.0.0.0:7070\"\n");

        assert!(
            found[0].starts_with("2: 0.0.0.0:7070 can be reached"),
            "{found:?}"
        );
        assert!(refused("[server]\nlisten = \"here\"\n")[0].contains("write an address"));
        assert!(refused("[server]\ntokens = [\"short\"]\n")[0].contains("at least 16"));
    }

    #[test]
    fn a_lease_shorter_than_an_attempt_is_refused() {
        let found = refused(&format!("[relay]\nlease = \"5s\"\n[destination.a]\n{HOOK}"));

        assert!(found[0].contains("the lease (5s) is too short for the destination `a`"));
    }

    #[test]
    fn a_route_to_nowhere_names_the_nearest_destination() {
        let text = format!(
            "[destination.billing]\n{HOOK}[[route]]\nevents = \"*\"\nto = [\"biling\"]\n[[route]]\n"
        );

        let found = refused(&text);

        assert_eq!(
            found,
            [
                "7: the route to `biling` leads to no destination; did you mean `billing`?",
                "8: [[route]] needs `events`, such as events = \"Order*\"",
            ]
        );
    }

    #[test]
    fn a_destination_cannot_have_the_name_of_a_service_behind_the_gateway() {
        let found = refused(&format!("[destination.\"upstream:shop\"]\n{HOOK}"));

        assert!(
            found[0].starts_with("1: [destination.\"upstream:shop\"] needs another name"),
            "{found:?}"
        );
    }

    #[test]
    fn webhooks_are_tried_for_a_day_unless_told_otherwise() {
        let backoff = |more: &str| {
            let text = format!("[destination.a]\n{HOOK}{more}");
            let reading = read(&text);
            let settings = validate(&reading.file, &reading.lines, Path::new(""));
            settings.ok().unwrap().queues[0].backoff
        };
        let seconds = std::time::Duration::from_secs;

        assert_eq!(backoff(""), counterfoil_core::policy::Backoff::WEBHOOK);
        assert_eq!(backoff("max-attempts = 3\n").cap(), seconds(300));
        assert_eq!(backoff("max-attempts = 3\n").max_attempts(), 3);
        let own = backoff("retry-waits = [\"1s\", \"1h\"]\n");
        assert_eq!((own.max_attempts(), own.cap()), (3, seconds(3_600)));
        for wrong in ["[\"1h\", \"1s\"]\n", "[\"1s\"]\nmax-attempts = 3\n"] {
            let text = format!("[destination.a]\n{HOOK}retry-waits = {wrong}");
            let problems = refused(&text);
            assert!(problems[0].contains("`retry-waits`"), "{problems:?}");
        }
    }

    #[test]
    fn backoff_secrets_and_addresses_are_checked() {
        let found = refused(
            "[destination.a]\ntype = \"webhook\"\nurl = \"http://10.0.0.1/\"\nunsigned = true\n\
             backoff-base = \"9s\"\nbackoff-cap = \"3s\"\n\
             [destination.b]\ntype = \"webhook\"\nurl = \"https://example.com/\"\n\
             [destination.c]\ntype = \"webhook\"\nurl = \"https://example.com/\"\n\
             secrets = [\"env:COUNTERFOIL_TEST_NO_SUCH_VARIABLE\"]\n\
             [destination.d]\ntype = \"webhook\"\nunsigned = true\n",
        );

        let expected = [
            "6: `backoff-cap`",
            "3: the address 10.0.0.1 of the destination `a` is private",
            "7: the destination `b` has no secrets",
            "13: `secrets` in [destination.c]: the environment variable COUNTERFOIL_TEST",
            "14: [destination.d] needs a `url`",
        ];
        for expected in expected {
            assert!(
                found.iter().any(|f| f.starts_with(expected)),
                "{expected}: {found:#?}"
            );
        }
    }
}
