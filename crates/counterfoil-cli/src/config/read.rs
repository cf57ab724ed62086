//! From TOML text to [`File`], with every problem and its line.
//!
//! # Promise
//! One mistake does not hide the next: what is wrong is reported and left out, and reading goes on.
//! An unknown key is named together with the key that was probably meant.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::brokers::From;
use super::consumer::file::Consumer;
use super::file::{Destination, File};
use super::nearest::hint;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// The line in the file, counted from one; absent when it is not in the file.
    pub(crate) line: Option<usize>,
    /// What is wrong and what to do.
    pub(crate) text: String,
}

/// Where each key stands in the file.
#[derive(Debug, Default)]
pub(crate) struct Lines(BTreeMap<String, usize>);

impl Lines {
    /// Whether this very key stands in the file.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The line of a key such as `relay.lease`, or of the section around it.
    pub(crate) fn of(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            path = path.rsplit_once('.')?.0;
        }
    }
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// What could be understood.
    pub(crate) file: File,
    /// Where it stands.
    pub(crate) lines: Lines,
    /// What could not be understood.
    pub(crate) problems: Vec<Problem>,
}

/// Reads a file.
pub(crate) fn read(text: &str) -> Reading {
    let mut reader = Reader {
        text,
        out: Reading::default(),
    };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.problem(error.span(), error.message());
    }
    // After a syntax error the rest is guesswork: what follows from it would only confuse.
    if reader.out.problems.is_empty() {
        reader.file(document.into_inner());
    }
    reader.out.problems.sort();
    reader.out
}

struct Reader<'i> {
    text: &'i str,
    out: Reading,
}

const SECTIONS: [&str; 9] = [
    "database",
    "server",
    "token",
    "relay",
    "route",
    "destination",
    "consumer",
    "gateway",
    "upstream",
];

impl<'i> Reader<'i> {
    fn file(&mut self, document: DeTable<'i>) {
        for (key, value) in document {
            let name = key.get_ref().to_string();
            self.note(&name, key.span().start);
            match name.as_str() {
                "database" => self.out.file.database = self.section(&name, "[database]", value),
                "server" => self.out.file.server = self.section(&name, "[server]", value),
                "token" => self.tokens(value),
                "relay" => self.out.file.relay = self.section(&name, "[relay]", value),
                "route" => self.routes(value),
                "destination" => self.destinations(value),
                "consumer" => self.consumers(value),
                "gateway" => self.gateway(value),
                "upstream" => self.upstreams(value),
                _ => {
                    let hint = hint(&name, SECTIONS);
                    self.problem(Some(key.span()), &format!("unknown section `{name}`{hint}"));
                }
            }
        }
    }

    fn tokens(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Table(all) = value.into_inner() else {
            return self.problem(Some(span), "tokens are written as [token.NAME]");
        };
        for (key, value) in all {
            let name = key.get_ref().to_string();
            let path = format!("token.{name}");
            self.note(&path, key.span().start);
            let token = self.section(&path, &format!("[{path}]"), value);
            self.out.file.tokens.insert(name, token);
        }
    }

    fn routes(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Array(rules) = value.into_inner() else {
            return self.problem(Some(span), "routes are written as [[route]]");
        };
        for (i, rule) in rules.into_iter().enumerate() {
            let path = format!("route.{i}");
            self.note(&path, rule.span().start);
            let route = self.section(&path, "[[route]]", rule);
            self.out.file.routes.push(route);
        }
    }

    fn gateway(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Table(table) = value.into_inner() else {
            return self.problem(Some(span), "[gateway] is a section, not a value");
        };
        let mut rest = DeTable::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "route" => self.gateway_routes(value),
                _ => {
                    rest.insert(key, value);
                }
            }
        }
        let rest = Spanned::new(span, DeValue::Table(rest));
        self.out.file.gateway = Some(self.section("gateway", "[gateway]", rest));
    }

    fn gateway_routes(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Array(routes) = value.into_inner() else {
            let text = "routes of the gateway are written as [[gateway.route]]";
            return self.problem(Some(span), text);
        };
        for (i, route) in routes.into_iter().enumerate() {
            let path = format!("gateway.route.{i}");
            self.note(&path, route.span().start);
            let route = self.section(&path, "[[gateway.route]]", route);
            self.out.file.gateway_routes.push(route);
        }
    }

    fn upstreams(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Table(all) = value.into_inner() else {
            return self.problem(Some(span), "upstreams are written as [upstream.NAME]");
        };
        for (key, value) in all {
            let name = key.get_ref().to_string();
            let path = format!("upstream.{name}");
            self.note(&path, key.span().start);
            let upstream = self.section(&path, &format!("[{path}]"), value);
            self.out.file.upstreams.insert(name, upstream);
        }
    }

    fn destinations(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Table(all) = value.into_inner() else {
            return self.problem(Some(span), "destinations are written as [destination.NAME]");
        };
        for (key, value) in all {
            let name = key.get_ref().to_string();
            let path = format!("destination.{name}");
            self.note(&path, key.span().start);
            let shown = format!("[destination.{name}]");
            let kind = value
                .get_ref()
                .get("type")
                .and_then(|kind| kind.get_ref().as_str());
            let destination = match kind {
                Some("webhook") => Destination::Webhook(self.section(&path, &shown, value)),
                Some("kafka") => Destination::Kafka(self.section(&path, &shown, value)),
                Some("rabbitmq") => Destination::RabbitMq(self.section(&path, &shown, value)),
                Some("nats") => Destination::Nats(self.section(&path, &shown, value)),
                Some("redis") => Destination::Redis(self.section(&path, &shown, value)),
                Some("sqs") => Destination::Sqs(self.section(&path, &shown, value)),
                Some(other) => {
                    let hint = hint(other, Destination::TYPES);
                    let known = Destination::TYPES.join(", ");
                    let text = format!("unknown type `{other}` in {shown}{hint} (known: {known})");
                    self.problem(Some(value.span()), &text);
                    continue;
                }
                None => {
                    let text = format!("{shown} needs a type, such as type = \"webhook\"");
                    self.problem(Some(key.span()), &text);
                    continue;
                }
            };
            self.out.file.destinations.insert(name, destination);
        }
    }

    fn consumers(&mut self, value: Spanned<DeValue<'i>>) {
        let span = value.span();
        let DeValue::Array(all) = value.into_inner() else {
            return self.problem(Some(span), "consumers are written as [[consumer]]");
        };
        for (i, value) in all.into_iter().enumerate() {
            let (span, path) = (value.span(), format!("consumer.{i}"));
            self.note(&path, span.start);
            let DeValue::Table(table) = value.into_inner() else {
                self.problem(Some(span), "[[consumer]] is a section, not a value");
                continue;
            };
            let (mut from, mut dead_letters, mut to) = (None, None, None);
            let mut rest = DeTable::default();
            for (key, value) in table {
                let (part, at) = (format!("{path}.{}", key.get_ref()), key.span().start);
                match key.get_ref().as_ref() {
                    "from" => {
                        self.note(&part, at);
                        from = self.from(&part, "`from` of [[consumer]]", value);
                    }
                    "dead-letters" => {
                        self.note(&part, at);
                        dead_letters = self.from(&part, "`dead-letters` of [[consumer]]", value);
                    }
                    "to" => {
                        self.note(&part, at);
                        to = Some(self.section(&part, "`to` of [[consumer]]", value));
                    }
                    _ => {
                        rest.insert(key, value);
                    }
                }
            }
            let rest = Spanned::new(span, DeValue::Table(rest));
            let read: Consumer = self.section(&path, "[[consumer]]", rest);
            self.out.file.consumers.push(Consumer {
                from,
                dead_letters,
                to,
                ..read
            });
        }
    }

    /// Where a consumer's messages come from.
    fn from(&mut self, path: &str, shown: &str, value: Spanned<DeValue<'i>>) -> Option<From> {
        let kind = value
            .get_ref()
            .get("type")
            .and_then(|kind| kind.get_ref().as_str());
        Some(match kind {
            Some("kafka") => From::Kafka(self.section(path, shown, value)),
            Some("rabbitmq") => From::RabbitMq(self.section(path, shown, value)),
            Some("nats") => From::Nats(self.section(path, shown, value)),
            Some("redis") => From::Redis(self.section(path, shown, value)),
            Some("sqs") => From::Sqs(self.section(path, shown, value)),
            Some(other) => {
                let (hint, known) = (hint(other, From::TYPES), From::TYPES.join(", "));
                let text = format!("unknown type `{other}` in {shown}{hint} (known: {known})");
                self.problem(Some(value.span()), &text);
                return None;
            }
            None => {
                let text = format!("{shown} needs a type, such as type = \"kafka\"");
                self.problem(Some(value.span()), &text);
                return None;
            }
        })
    }

    /// Reads one section: what is wrong in it is reported, taken out, and the rest read again.
    fn section<T: DeserializeOwned + Default>(
        &mut self,
        path: &str,
        shown: &str,
        value: Spanned<DeValue<'i>>,
    ) -> T {
        let span = value.span();
        let DeValue::Table(mut table) = value.into_inner() else {
            self.problem(Some(span), &format!("{shown} is a section, not a value"));
            return T::default();
        };
        let known = fields_of::<T>();
        for (key, value) in &table {
            let path = format!("{path}.{}", key.get_ref());
            self.note(&path, key.span().start);
            for (key, _) in value.get_ref().as_table().into_iter().flatten() {
                self.note(&format!("{path}.{}", key.get_ref()), key.span().start);
            }
        }
        table = table
            .into_iter()
            .filter(|(key, _)| self.is_known(key, shown, known))
            .collect();
        loop {
            let source = Spanned::new(span.clone(), table.clone());
            let error = match T::deserialize(toml::de::Deserializer::from(source)) {
                Ok(section) => return section,
                Err(error) => error,
            };
            let culprit = error.span().and_then(|at| culprit(&table, &at));
            let prefix = culprit.as_ref().map(|key| format!("`{key}` in {shown}: "));
            let text = format!("{}{}", prefix.unwrap_or_default(), error.message());
            self.problem(error.span().or(Some(span.clone())), &text);
            match culprit {
                Some(name) => {
                    table = table
                        .into_iter()
                        .filter(|(key, _)| *key.get_ref() != name)
                        .collect();
                }
                None => return T::default(),
            }
        }
    }

    fn is_known(&mut self, key: &Spanned<DeString<'i>>, shown: &str, known: &[&str]) -> bool {
        let name = key.get_ref().as_ref();
        if known.contains(&name) {
            return true;
        }
        let hint = hint(name, known.iter().copied());
        self.problem(
            Some(key.span()),
            &format!("unknown key `{name}` in {shown}{hint}"),
        );
        false
    }

    fn note(&mut self, path: &str, at: usize) {
        let line = self.line(at);
        self.out.lines.0.insert(path.to_owned(), line);
    }

    fn problem(&mut self, span: Option<Range<usize>>, text: &str) {
        let line = span.map(|span| self.line(span.start));
        self.out.problems.push(Problem {
            line,
            text: text.replace('\n', " "),
        });
    }

    fn line(&self, at: usize) -> usize {
        1 + self
            .text
            .bytes()
            .take(at)
            .filter(|byte| *byte == b'\n')
            .count()
    }
}

/// The entry of a table in which a place of the text lies.
fn culprit(table: &DeTable<'_>, at: &Range<usize>) -> Option<String> {
    let found = table
        .iter()
        .find(|(key, value)| key.span() == *at || covers(value, at));
    found.map(|(key, _)| key.get_ref().to_string())
}

fn covers(value: &Spanned<DeValue<'_>>, at: &Range<usize>) -> bool {
    let span = value.span();
    let itself = span.start <= at.start && at.end <= span.end;
    itself
        || match value.get_ref() {
            DeValue::Table(table) => culprit(table, at).is_some(),
            DeValue::Array(array) => array.iter().any(|value| covers(value, at)),
            _ => false,
        }
}

/// The keys of a section: what its struct asks serde for.
pub(super) fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The question is asked and never answered.
    let _ = T::deserialize(Asked(&mut fields));
    fields
}

struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only structs are asked"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let problems = read(text).problems;
        problems
            .iter()
            .map(|p| format!("{}: {}", p.line.unwrap_or(0), p.text))
            .collect()
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let found = problems(
            r#"
[relay]
leese = "5s"
poll = 5
batch = "many"

[destination.billing]
type = "webhook"
url = "https://example.com"
timout = "3s"
on-park = "wait"

[destination.billing.headers]
x-team = 7

[servr]
"#,
        );

        let expected = [
            "3: unknown key `leese` in [relay]; did you mean `lease`?",
            "4: `poll` in [relay]: ",
            "5: `batch` in [relay]: ",
            "10: unknown key `timout` in [destination.billing]; did you mean `timeout`?",
            "11: `on-park` in [destination.billing]: ",
            "14: `headers` in [destination.billing]: ",
            "16: unknown section `servr`; did you mean `server`?",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} should be {expected}");
        }
    }

    #[test]
    fn mistakes_in_a_stream_are_reported_with_their_lines() {
        let found = problems(
            "[destination.a]\ntype = \"redis\"\nstraem = \"s\"\nmax-payload = \"1 mile\"\n\
             max-batch = -1\nsecrets = []\n[destination.b]\ntype = \"reddis\"\n",
        );

        let expected = [
            "3: unknown key `straem` in [destination.a]; did you mean `stream`?",
            "4: `max-payload` in [destination.a]: ",
            "5: `max-batch` in [destination.a]: ",
            "6: unknown key `secrets` in [destination.a]",
            "7: unknown type `reddis` in [destination.b]; did you mean `redis`?",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} should be {expected}");
        }
    }

    #[test]
    fn what_is_right_beside_a_mistake_is_still_read() {
        let reading = read("[relay]\npoll = 5\nbatch = 7\n");

        assert_eq!(reading.file.relay.batch, 7);
        assert_eq!(reading.problems.len(), 1);
    }

    #[test]
    fn broken_toml_is_named_by_its_line() {
        assert!(problems("[relay]\nbatch = \n")[0].starts_with("2: "));
        assert!(problems("[destination.a]\n[destination.a]\n")[0].starts_with("2: "));
        assert_eq!(
            problems("relay = 3"),
            ["1: [relay] is a section, not a value"]
        );
        assert_eq!(
            problems("[route]\n"),
            ["1: routes are written as [[route]]"]
        );
        assert!(problems("[destination.x]\n")[0].contains("needs a type"));
    }

    #[test]
    fn a_key_has_the_line_of_itself_or_of_its_section() {
        let lines = read("[relay]\nbatch = 7\n").lines;

        assert_eq!(lines.of("relay.batch"), Some(2));
        assert_eq!(lines.of("relay.lease"), Some(1));
        assert_eq!(lines.of("server.listen"), None);
    }
}
