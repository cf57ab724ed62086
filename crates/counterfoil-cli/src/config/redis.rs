//! `[destination.NAME]` with `type = "redis"`: from the file to a queue that can be served.

use std::sync::Arc;

use counterfoil_core::Destination;
use counterfoil_engine::QueueSpec;

use super::file;
use super::queue::wrong;
use super::settings::Judge;

/// The queue of this destination, unless something is wrong with it.
pub(super) fn queue(name: &str, section: &file::Redis, judge: &mut Judge<'_>) -> Option<QueueSpec> {
    // Both are asked, so that what is wrong with one does not hide the other.
    let policies = section.keys().judge(name, judge);
    let destination = destination(name, section, judge);
    Some(policies?.queue(name, destination?))
}

#[cfg(feature = "redis")]
fn destination(
    name: &str,
    section: &file::Redis,
    judge: &mut Judge<'_>,
) -> Option<Arc<dyn Destination>> {
    use counterfoil_redis_streams::{RedisStreams, Settings, SettingsError};

    let path = |key: &str| format!("destination.{name}.{key}");
    let shown = |key: &str| format!("`{key}` in [destination.{name}]");
    let mut missing = |key: &str| {
        judge.refuse(&path(key), format!("[destination.{name}] needs a `{key}`"));
    };
    // Both are asked.
    if section.url.is_none() {
        missing("url");
    }
    if section.stream.is_none() {
        missing("stream");
    }
    let (url, stream) = (section.url.as_ref()?, section.stream.as_ref()?);
    let url = judge.resolve(&path("url"), &shown("url"), url)?;
    let mut settings = Settings::new(url, stream)
        .source(&section.source)
        .timeout(section.timeout.0)
        .max_batch(section.max_batch)
        .max_payload(section.max_payload.0);
    if let Some(password) = &section.password {
        let password = judge.resolve(&path("password"), &shown("password"), password)?;
        settings = settings.password(password);
    }
    if let Some(connect) = section.connect_timeout {
        settings = settings.connect_timeout(connect.0);
    }
    let error = match RedisStreams::new(settings) {
        Ok(destination) => return Some(Arc::new(destination)),
        Err(error) => error,
    };
    let key = match error {
        SettingsError::TwoPasswords | SettingsError::EmptyPassword => "password",
        SettingsError::Stream(_) => "stream",
        SettingsError::Source(_) => "source",
        SettingsError::Timeout(_) => "timeout",
        SettingsError::ConnectTimeout(_) => "connect-timeout",
        SettingsError::MaxBatch(_) => "max-batch",
        SettingsError::MaxPayload(_) => "max-payload",
        _ => "url",
    };
    wrong(name, key, &error, judge);
    None
}

#[cfg(not(feature = "redis"))]
fn destination(name: &str, _: &file::Redis, judge: &mut Judge<'_>) -> Option<Arc<dyn Destination>> {
    let text =
        "this program was built without Redis: leave it out, or build it with the feature `redis`";
    wrong(name, "type", &text, judge);
    None
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::read::read;
    use super::super::settings::validate;

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
        let tls = with("rediss://h/", "s");
        assert!(tls[0].starts_with("4: `url` in [destination.a]: this program was built without"));
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
