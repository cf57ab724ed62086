//! Redis Streams: `[destination.NAME]` and `from` with `type = "redis"`.

use std::sync::Arc;

use counterfoil_core::message::MAX_PAYLOAD;
use counterfoil_core::source::Source;
use counterfoil_core::{Destination, envelope};

use super::super::at::At;
use super::super::file::destination;
use super::super::value::{Pointed, Size, Span};

destination!(
    /// `[destination.NAME]` with `type = "redis"`
    Redis, "redis", {
        /// Where Redis is.
        url: Option<Pointed> = None,
        /// To log in with, when it does not stand in the URL.
        password: Option<Pointed> = None,
        /// A file with the certificates to trust.
        ca_file: Option<String> = None,
        /// The name of the stream, perhaps with placeholders.
        stream: Option<String> = None,
        /// How many streams it is.
        partitions: Option<u16> = None,
        /// Where messages say that they come from.
        source: String = envelope::Source::default().to_string(),
        /// For a whole batch.
        timeout: Span = Span(std::time::Duration::from_secs(10)),
        /// For name, TCP and login; absent: 3 s, at most half of the timeout.
        connect_timeout: Option<Span> = None,
        /// Messages in one call.
        max_batch: usize = 500,
        /// Larger payloads are parked.
        max_payload: Size = Size(MAX_PAYLOAD),
    }
);

super::from!(
    /// `from` with `type = "redis"`
    "redis", {
        /// Where Redis is.
        url: Option<Pointed>,
        /// To log in with, when it does not stand in the URL.
        password: Option<Pointed>,
        /// A file with the certificates to trust.
        ca_file: Option<String>,
        /// The stream.
        stream: Option<String>,
        /// The group; absent: the name of the consumer.
        group: Option<String>,
        /// As many as the destination has.
        partitions: Option<u16>,
        /// A new group begins at the end.
        only_new: bool,
        /// After which a silent consumer loses what it has.
        missed_after: Option<Span>,
        /// Drop what every group has dealt with.
        trim: bool,
        /// For one answer.
        timeout: Option<Span>,
        /// For name, TCP, TLS and login.
        connect_timeout: Option<Span>,
    }
);

#[cfg(feature = "redis")]
mod built {
    use counterfoil_redis_streams::{
        RedisStreams, RedisStreamsSource, Settings, SettingsError, SourceSettings,
    };

    use super::super::given;
    use super::*;

    /// The keys that both directions have.
    macro_rules! access {
        ($settings:ident, $section:ident, $at:ident) => {
            if let Some(password) = $at.optional("password", $section.password.as_ref())? {
                $settings = $settings.password(password);
            }
            if let Some(file) = &$section.ca_file {
                let file = $at.file(file);
                match std::fs::read(&file) {
                    Ok(pem) => $settings = $settings.ca(pem),
                    Err(error) => {
                        let text = format!("{} cannot be read: {error}", file.display());
                        $at.wrong("ca-file", &text);
                        return None;
                    }
                }
            }
        };
    }

    pub(crate) fn destination(
        section: &Redis,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Destination>> {
        let url = at.needed("url", section.url.as_ref());
        let fine = at.look(&[("password", section.password.as_ref())]);
        if section.stream.is_none() {
            at.missing("stream");
        }
        let mut settings = Settings::new(url?, section.stream.as_ref()?)
            .source(&section.source)
            .timeout(section.timeout.0)
            .max_batch(section.max_batch)
            .max_payload(section.max_payload.0);
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [connect_timeout], values: [partitions]);
        match RedisStreams::new(settings) {
            Ok(destination) => Some(Arc::new(destination)),
            Err(error) => {
                at.wrong(key(&error), &error);
                None
            }
        }
    }

    pub(crate) fn source(
        section: &From,
        consumer: &str,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Source>> {
        let url = at.needed("url", section.url.as_ref());
        let fine = at.look(&[("password", section.password.as_ref())]);
        if section.stream.is_none() {
            at.missing("stream");
        }
        let group = section.group.as_deref().unwrap_or(consumer);
        let mut settings = SourceSettings::new(url?, section.stream.as_ref()?, group);
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [missed_after, timeout, connect_timeout],
            values: [partitions]);
        if section.only_new {
            settings = settings.only_new();
        }
        if section.trim {
            settings = settings.trim();
        }
        match RedisStreamsSource::new(settings) {
            Ok(source) => Some(Arc::new(source)),
            Err(error) => {
                at.wrong(key(&error), &error);
                None
            }
        }
    }

    /// The key that is to blame.
    fn key(error: &SettingsError) -> &'static str {
        match error {
            SettingsError::TwoPasswords | SettingsError::EmptyPassword => "password",
            SettingsError::Ca(_) => "ca-file",
            SettingsError::Stream(_) => "stream",
            SettingsError::Partitions(_) => "partitions",
            SettingsError::Group(_) => "group",
            SettingsError::MissedAfter(_) => "missed-after",
            SettingsError::Source(_) => "source",
            SettingsError::Timeout(_) => "timeout",
            SettingsError::ConnectTimeout(_) => "connect-timeout",
            SettingsError::MaxBatch(_) => "max-batch",
            SettingsError::MaxPayload(_) => "max-payload",
            _ => "url",
        }
    }
}

#[cfg(not(feature = "redis"))]
mod built {
    use super::*;

    pub(crate) fn destination(_: &Redis, at: &mut At<'_, '_>) -> Option<Arc<dyn Destination>> {
        at.left_out("Redis", "redis");
        None
    }

    pub(crate) fn source(_: &From, _: &str, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        at.left_out("Redis", "redis");
        None
    }
}

pub(crate) use built::{destination, source};

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::super::read::read;
    use super::super::super::settings::validate;

    const BASE: &str = "[destination.a]\ntype = \"redis\"\n";
    const WHOLE: &str = "url = \"redis://relay@127.0.0.1/2\"\nstream = \"e:{event-type}\"\n";

    fn refused(lines: &str) -> Vec<String> {
        let reading = read(&format!("{BASE}{lines}"));
        assert_eq!(reading.problems, []);
        let problems = validate(&reading.file, &reading.lines, Path::new(""))
            .err()
            .unwrap_or_default();
        problems
            .iter()
            .map(|p| format!("{}: {}", p.line.unwrap_or(0), p.text))
            .collect()
    }

    #[test]
    fn what_is_configured_reaches_the_queue() {
        let text = format!(
            "{BASE}{WHOLE}password = \"pw\"\nmax-batch = 7\ntimeout = \"5s\"\nmax-attempts = 3\n\
             breaker-min-calls = 9\non-park = \"skip\"\n"
        );
        let reading = read(&text);
        assert_eq!(reading.problems, []);

        let settings = validate(&reading.file, &reading.lines, Path::new("")).ok();

        let queue = &settings.unwrap().queues[0];
        let caps = queue.destination.capabilities();
        assert_eq!(caps.max_batch, 7);
        assert_eq!(caps.timeout, Some(Duration::from_secs(6)));
        assert_eq!(queue.backoff.max_attempts(), 3);
        assert_eq!(queue.breaker.min_calls, 9);
        assert!(matches!(queue.on_park, counterfoil_engine::OnPark::Skip));
        let described = queue.destination.describe();
        assert_eq!(
            described,
            "redis stream e:{event-type} at redis://127.0.0.1:6379/2"
        );
    }

    #[test]
    fn the_defaults_of_the_file_are_those_of_the_driver() {
        use counterfoil_core::Destination as _;
        use counterfoil_redis_streams::{RedisStreams, Settings};

        let reading = read(&format!("{BASE}{WHOLE}password = \"p\"\n"));
        let ours = validate(&reading.file, &reading.lines, Path::new("")).ok();
        let theirs = RedisStreams::new(Settings::new("redis://h/", "s")).unwrap();

        let ours = ours.unwrap().queues[0].destination.capabilities();
        assert_eq!(ours, theirs.capabilities());
    }

    #[test]
    fn address_and_stream_are_both_needed() {
        let expected = [
            "1: [destination.a] needs a `url`",
            "1: [destination.a] needs a `stream`",
        ];
        assert_eq!(refused(""), expected);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        for (key, line) in [
            (
                "password",
                "password = \"env:COUNTERFOIL_TEST_NO_SUCH_VARIABLE\"",
            ),
            ("password", "password = \"\""),
            ("source", "password = \"p\"\nsource = \"a b\""),
            ("timeout", "password = \"p\"\ntimeout = \"0s\""),
            (
                "connect-timeout",
                "password = \"p\"\nconnect-timeout = \"10s\"",
            ),
            ("max-batch", "password = \"p\"\nmax-batch = 0"),
            ("max-payload", "password = \"p\"\nmax-payload = \"1 GB\""),
            ("backoff-cap", "password = \"p\"\nbackoff-cap = \"1ms\""),
            ("breaker-ratio", "password = \"p\"\nbreaker-ratio = 2.0"),
            ("retry-cap", "password = \"p\"\nretry-cap = 1"),
        ] {
            let line_number = 4 + line.lines().count();
            let found = refused(&format!("{WHOLE}{line}\n"));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            let expected = format!("{line_number}: `{key}` in [destination.a]: ");
            assert!(found[0].starts_with(&expected), "{line}: {found:?}");
        }
    }

    #[test]
    fn addresses_and_streams_that_cannot_be_are_refused() {
        let with =
            |url: &str, stream: &str| refused(&format!("stream = \"{stream}\"\nurl = \"{url}\"\n"));
        assert!(with("http://h/", "s")[0].contains("begins with redis://"));
        assert!(with("redis://u@h/", "s")[0].contains("there is no password"));
        let odd = with("redis://h/", "{queue}");
        assert!(odd[0].starts_with("3: `stream` in [destination.a]: "));
        assert!(odd[0].contains("{aggregate-type} and {event-type}"));
    }

    #[test]
    fn no_password_is_repeated() {
        let found =
            refused("url = \"redis://u:hunter2@h/\"\nstream = \"s\"\npassword = \"hunter2\"\n");

        assert!(found[0].contains("choose one"), "{found:?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
}
