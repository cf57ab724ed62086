//! Configuration in two stages: the file as it stands, then settings that can work.
//!
//! # Promise
//! Everything that is wrong is said at once, each in one line with its place in the file. The
//! commented default file is the defaults: a test holds the two together.

mod at;
mod brokers;
mod consumer;
mod figures;
mod file;
mod gateway;
mod nearest;
mod owner;
mod queue;
mod read;
mod settings;
mod tokens;
mod value;
mod webhook;

use std::path::{Path, PathBuf};

use counterfoil_core::inbox::queue_of;

pub(crate) use consumer::{Consumer, Effect};
pub(crate) use gateway::Gateway;
pub(crate) use nearest::hint;
pub(crate) use settings::{Certificate, Settings};
pub(crate) use tokens::{Caller, Scope, Tokens};
pub(crate) use value::shown;

use crate::failure::{Failure, Result};
use file::File;
use read::{Lines, Problem};
use value::Pointed;

/// The default file, as `counterfoil config default` prints it.
pub(crate) const DEFAULT_FILE: &str = include_str!("../../counterfoil.default.toml");
/// Read when it is there and no other file is named.
const USUAL_NAME: &str = "counterfoil.toml";

/// What the command line says instead of the file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    /// The address of the API.
    pub(crate) listen: Option<String>,
    /// Whether it names the database: then nobody needs the file's.
    pub(crate) database: bool,
}

/// A configuration file that was read and understood, or the defaults.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    path: Option<PathBuf>,
    file: File,
    lines: Lines,
}

impl Loaded {
    /// Reads the named file, or the usual one if it is there.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self> {
        let (loaded, problems) = Self::read(named)?;
        match problems.is_empty() {
            true => Ok(loaded),
            false => Err(loaded.refuse(&problems)),
        }
    }

    /// Reads a file and says everything that is wrong with it, in both stages.
    pub(crate) fn check(named: Option<&Path>, over: &Overrides) -> Result<(Self, Settings)> {
        let (mut loaded, mut problems) = Self::read(named)?;
        if let Some(listen) = &over.listen {
            loaded.file.server.listen.clone_from(listen);
        }
        if over.database {
            loaded.file.database.url = None;
        }
        match settings::validate(&loaded.file, &loaded.lines, &loaded.directory()) {
            Ok(settings) if problems.is_empty() => return Ok((loaded, settings)),
            Ok(_) => {}
            Err(more) => problems.extend(more),
        }
        problems.sort();
        problems.dedup();
        Err(loaded.refuse(&problems))
    }

    fn read(named: Option<&Path>) -> Result<(Self, Vec<Problem>)> {
        let path = match named {
            Some(path) => Some(path.to_owned()),
            None => Some(PathBuf::from(USUAL_NAME)).filter(|path| path.is_file()),
        };
        let Some(path) = path else {
            return Ok((Self::default(), Vec::new()));
        };
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Failure::config(format!("{} cannot be read: {e}", path.display())))?;
        let reading = read::read(&text);
        let loaded = Self {
            path: Some(path),
            file: reading.file,
            lines: reading.lines,
        };
        Ok((loaded, reading.problems))
    }

    /// The file that was read.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The queues that the file names: those of destinations and those of consumers.
    pub(crate) fn queues(&self) -> Vec<String> {
        let consumers = self.file.consumers.iter();
        let inboxes = consumers.filter_map(|consumer| Some(queue_of(consumer.name.as_ref()?)));
        self.file
            .destinations
            .keys()
            .cloned()
            .chain(inboxes)
            .collect()
    }

    /// The database that the file names.
    pub(crate) fn database_url(&self) -> Result<Option<String>> {
        self.database_key("url", self.file.database.url.as_ref())
    }

    /// Where a program on this machine reaches the server.
    pub(crate) fn reachable(&self) -> String {
        let listen = &self.file.server.listen;
        match listen.parse::<std::net::SocketAddr>() {
            Ok(mut address) if address.ip().is_unspecified() => {
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
                address.to_string()
            }
            _ => listen.clone(),
        }
    }

    /// Whether the server speaks TLS.
    pub(crate) fn encrypted(&self) -> bool {
        self.file.server.certificate_file.is_some()
    }

    /// A token that the server accepts for this. A file that somebody else can write could name any
    /// secret of ours, and the server to send it to: such a one is not sent.
    pub(crate) fn token_for(&self, scope: Scope) -> Result<Option<String>> {
        let fits = |token: &&tokens::Token| {
            let operator = scope == Scope::Reader && token.scopes.contains(&Scope::Operator);
            operator || token.scopes.contains(&scope)
        };
        let named = || self.file.tokens.values().find(fits)?.secret.as_ref();
        let Some(token) = self.file.server.tokens.first().or_else(named) else {
            return Ok(None);
        };
        if let Some(path) = &self.path
            && !owner::is_trusted(path)?
        {
            return Err(Failure::config(format!(
                "{} belongs to somebody else, or everybody can write it: its token is not sent. Say --token or \
                 COUNTERFOIL_TOKEN",
                path.display()
            )));
        }
        let resolved = token.resolve(&self.directory());
        let text =
            resolved.map_err(|e| Failure::config(format!("the token of the server: {e}")))?;
        // A file may hold several.
        Ok(text.lines().next().map(|line| line.trim().to_owned()))
    }

    /// Where the file says to listen for other processes' commits.
    pub(crate) fn listen_url(&self) -> Result<Option<String>> {
        self.database_key("listen-url", self.file.database.listen_url.as_ref())
    }

    fn database_key(&self, key: &str, value: Option<&Pointed>) -> Result<Option<String>> {
        let Some(url) = value else {
            return Ok(None);
        };
        let resolved = url.resolve(&self.directory()).map_err(|text| {
            let line = self.lines.of(&format!("database.{key}"));
            self.refuse(&[Problem {
                line,
                text: format!("`{key}` in [database]: {text}"),
            }])
        });
        resolved.map(Some)
    }

    fn directory(&self) -> PathBuf {
        self.path
            .as_deref()
            .and_then(Path::parent)
            .map(Path::to_owned)
            .unwrap_or_default()
    }

    fn refuse(&self, problems: &[Problem]) -> Failure {
        let place = |line: Option<usize>| match (&self.path, line) {
            (Some(path), Some(line)) => format!("{}:{line}: ", path.display()),
            _ => String::new(),
        };
        Failure::Config(
            problems
                .iter()
                .map(|p| format!("{}{}", place(p.line), p.text))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brokers::redis::Redis;
    use consumer::file::Consumer;
    use counterfoil_core::policy::Backoff;
    use file::{Destination, Webhook};
    use gateway::file::{Gateway, GatewayRoute, Upstream};

    #[test]
    fn the_default_file_is_the_defaults() {
        let reading = read::read(DEFAULT_FILE);

        assert_eq!(reading.problems, []);
        assert_eq!(reading.file, File::default());
    }

    /// In the default file, `#key = …` is an example that can be uncommented and `# …` is prose.
    #[test]
    fn the_examples_in_the_default_file_are_valid_and_show_the_defaults() {
        let uncommented: Vec<&str> = DEFAULT_FILE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
                _ => line,
            })
            .collect();

        let reading = read::read(&uncommented.join("\n"));

        assert_eq!(reading.problems, []);
        let Destination::Webhook(shown) = &reading.file.destinations["billing"] else {
            panic!("billing is a webhook");
        };
        let defaults = Webhook {
            url: shown.url.clone(),
            secrets: shown.secrets.clone(),
            connect_timeout: shown.connect_timeout,
            extra_ca: shown.extra_ca.clone(),
            headers: shown.headers.clone(),
            retry_waits: (1..Backoff::WEBHOOK.max_attempts())
                .map(|failed| value::Span(Backoff::WEBHOOK.ceiling(failed)))
                .collect(),
            ..Webhook::default()
        };
        assert_eq!(*shown, defaults);
        let Destination::Redis(shown) = &reading.file.destinations["search"] else {
            panic!("search is a stream");
        };
        let defaults = Redis {
            url: shown.url.clone(),
            password: shown.password.clone(),
            ca_file: shown.ca_file.clone(),
            stream: shown.stream.clone(),
            partitions: shown.partitions,
            connect_timeout: shown.connect_timeout,
            max_attempts: Some(Backoff::DEFAULT.max_attempts()),
            backoff_base: Some(value::Span(Backoff::DEFAULT.ceiling(1))),
            backoff_cap: Some(value::Span(Backoff::DEFAULT.cap())),
            ..Redis::default()
        };
        assert_eq!(*shown, defaults);
        let shown = &reading.file.consumers[0];
        let defaults = Consumer {
            name: shown.name.clone(),
            from: shown.from.clone(),
            dead_letters: shown.dead_letters.clone(),
            to: shown.to.clone(),
            id: shown.id.clone(),
            aggregate_type: shown.aggregate_type.clone(),
            aggregate_id: shown.aggregate_id.clone(),
            version: shown.version.clone(),
            event_type: shown.event_type.clone(),
            gate: shown.gate.clone(),
            gate_ca_file: shown.gate_ca_file.clone(),
            ..Consumer::default()
        };
        assert_eq!(*shown, defaults);
        assert_eq!(reading.file.routes.len(), 1);
        let gateway = reading.file.gateway.as_ref().unwrap();
        let defaults = Gateway {
            replay_cache: gateway.replay_cache,
            gate: gateway.gate.clone(),
            gate_ca_file: gateway.gate_ca_file.clone(),
            ..Gateway::default()
        };
        assert_eq!(*gateway, defaults);
        let route = &reading.file.gateway_routes[0];
        let defaults = GatewayRoute {
            host: route.host.clone(),
            upstream: route.upstream.clone(),
            caller: route.caller.clone(),
            business_type: route.business_type.clone(),
            help: route.help.clone(),
            probe: route.probe.clone(),
            probe_host: route.probe_host.clone(),
            probe_headers: route.probe_headers.clone(),
            ..GatewayRoute::default()
        };
        assert_eq!(*route, defaults);
        let upstream = &reading.file.upstreams["shop"];
        let defaults = Upstream {
            url: upstream.url.clone(),
            attempt_timeout: upstream.attempt_timeout,
            breaker_slow_after: upstream.breaker_slow_after,
            ..Upstream::default()
        };
        assert_eq!(*upstream, defaults);
    }

    #[test]
    fn every_key_of_a_gateway_a_broker_or_a_consumer_is_shown_in_the_default_file() {
        // An alternative that cannot stand beside another one is shown as prose.
        let shown = |key: &str| {
            let forms = [format!("\n#{key} = "), format!("\n# {key} = ")];
            forms.iter().any(|form| DEFAULT_FILE.contains(form))
        };
        for keys in [
            read::fields_of::<tokens::Token>(),
            read::fields_of::<brokers::kafka::Kafka>(),
            read::fields_of::<brokers::rabbitmq::RabbitMq>(),
            read::fields_of::<brokers::nats::Nats>(),
            read::fields_of::<brokers::sqs::Sqs>(),
            read::fields_of::<brokers::redis::From>(),
            read::fields_of::<Consumer>(),
            read::fields_of::<consumer::file::To>(),
            read::fields_of::<Redis>(),
            read::fields_of::<Gateway>(),
            read::fields_of::<GatewayRoute>(),
            read::fields_of::<Upstream>(),
        ] {
            for key in keys {
                assert!(shown(key), "{key}");
            }
        }
    }
}
