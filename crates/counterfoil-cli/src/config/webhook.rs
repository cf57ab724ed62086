//! `[destination.NAME]` with `type = "webhook"`: from the file to a queue that can be served.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::policy::backoff::{Backoff, Jitter};
use counterfoil_engine::QueueSpec;
use counterfoil_webhook::{Secret, Settings, SettingsError, WebhookDestination};

use super::at::At;
use super::file;
use super::settings::Judge;

/// The queue of this destination, unless something is wrong with it.
pub(super) fn queue(
    name: &str,
    section: &file::Webhook,
    judge: &mut Judge<'_>,
) -> Option<QueueSpec> {
    // Both are asked, so that what is wrong with one does not hide the other.
    let policies = section.keys().judge(name, judge);
    let waits = waits(name, section, judge);
    let destination = destination(name, section, judge);
    let mut queue = policies?.queue(name, Arc::new(destination?));
    if let Some(waits) = waits? {
        queue.backoff = waits.with_jitter(Jitter::Slight);
    }
    Some(queue)
}

/// The waits as the file lists them, if it does, unless something is wrong with them.
fn waits(name: &str, section: &file::Webhook, judge: &mut Judge<'_>) -> Option<Option<Backoff>> {
    if section.retry_waits.is_empty() {
        return Some(None);
    }
    let mut at = At::destination(name, judge);
    if section.keys().says_when() {
        at.wrong(
            "retry-waits",
            &"it says when to try again, and so do `max-attempts`, `backoff-base` and `backoff-cap`: \
              leave one out",
        );
        return None;
    }
    let waits: Vec<Duration> = section.retry_waits.iter().map(|wait| wait.0).collect();
    match Backoff::listed(&waits) {
        Ok(backoff) => Some(Some(backoff)),
        Err(error) => {
            at.wrong("retry-waits", &error);
            None
        }
    }
}

fn destination(
    name: &str,
    section: &file::Webhook,
    judge: &mut Judge<'_>,
) -> Option<WebhookDestination> {
    let path = |key: &str| format!("destination.{name}.{key}");
    let shown = |key: &str| format!("`{key}` in [destination.{name}]");
    // All are asked, so that what is wrong with one does not hide the others.
    let url = match &section.url {
        Some(url) => judge.resolve(&path("url"), &shown("url"), url),
        None => {
            judge.refuse(&path("url"), format!("[destination.{name}] needs a `url`"));
            None
        }
    };
    let secrets = secrets(name, section, judge);
    let headers: Vec<_> = section
        .headers
        .iter()
        .map(|(header, value)| {
            let value = judge.resolve(&path("headers"), &shown("headers"), value)?;
            Some((header, value))
        })
        .collect();
    let headers: Option<Vec<_>> = headers.into_iter().collect();
    let url = url?;
    let mut settings = match secrets? {
        Some(secrets) => Settings::signed(url, secrets),
        None => Settings::unsigned(url),
    };
    settings = settings
        .timeout(section.timeout.0)
        .concurrency(section.concurrency)
        .max_response(section.max_response)
        .allow_private(section.allow_private)
        .allow_plain(section.allow_plain);
    if let Some(connect) = section.connect_timeout {
        settings = settings.connect_timeout(connect.0);
    }
    for (header, value) in headers? {
        settings = settings.header(header, value);
    }
    if let Some(file) = &section.extra_ca {
        settings = settings.extra_ca(certificates(name, file, judge)?);
    }
    match WebhookDestination::new(settings) {
        Ok(destination) => Some(destination),
        Err(error) => {
            let (key, text) = explain(name, &error);
            judge.refuse(&path(key), text);
            None
        }
    }
}

fn certificates(name: &str, file: &str, judge: &mut Judge<'_>) -> Option<Vec<u8>> {
    let file = judge.beside.join(file);
    let refuse = |e| {
        let text = format!("{} cannot be read: {e}", file.display());
        let path = format!("destination.{name}.extra-ca");
        judge.refuse(&path, format!("`extra-ca` in [destination.{name}]: {text}"));
    };
    std::fs::read(&file).map_err(refuse).ok()
}

/// The keys to sign with; none inside: unsigned. Nothing: something is wrong with them.
fn secrets(
    name: &str,
    section: &file::Webhook,
    judge: &mut Judge<'_>,
) -> Option<Option<Vec<Secret>>> {
    let path = format!("destination.{name}.secrets");
    if section.unsigned {
        if !section.secrets.is_empty() {
            let text =
                format!("the destination `{name}` has secrets and is `unsigned`: choose one");
            judge.refuse(&path, text);
            return None;
        }
        return Some(None);
    }
    if section.secrets.is_empty() {
        let text = format!(
            "the destination `{name}` has no secrets to sign with: set `secrets`, or \
             unsigned = true if that is meant"
        );
        judge.refuse(&path, text);
        return None;
    }
    let shown = format!("`secrets` in [destination.{name}]");
    let mut secrets = Vec::new();
    for value in &section.secrets {
        let Some(text) = judge.resolve(&path, &shown, value) else {
            continue;
        };
        match Secret::parse(&text) {
            Ok(secret) => secrets.push(secret),
            Err(error) => judge.refuse(&path, format!("{shown}: {error}")),
        }
    }
    (secrets.len() == section.secrets.len()).then_some(Some(secrets))
}

/// The key that is to blame, and what is wrong, in the words of the file.
fn explain(name: &str, error: &SettingsError) -> (&'static str, String) {
    let here = |text: String| format!("[destination.{name}]: {text}");
    match error {
        SettingsError::PrivateAddress(address) => {
            let text = format!(
                "the address {address} of the destination `{name}` is private: set \
                 allow-private = true if that is meant"
            );
            ("url", text)
        }
        SettingsError::Plain => {
            let text = format!(
                "the destination `{name}` begins with http://, and everybody on the way could read and change \
                 what is sent: use https://, or set allow-plain = true if that is meant"
            );
            ("url", text)
        }
        SettingsError::Url(_) | SettingsError::Scheme(_) | SettingsError::CredentialsInUrl => {
            ("url", here(error.to_string()))
        }
        SettingsError::Timeout(_) => ("timeout", here(error.to_string())),
        SettingsError::ConnectTimeout(_) => ("connect-timeout", here(error.to_string())),
        SettingsError::Concurrency(_) => ("concurrency", here(error.to_string())),
        SettingsError::Header { .. } => ("headers", here(error.to_string())),
        SettingsError::ExtraCa(_) => ("extra-ca", here(error.to_string())),
        SettingsError::NoSecret => ("secrets", here(error.to_string())),
        _ => ("type", here(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read::read;
    use super::super::settings::validate;

    const HOOK: &str = "type = \"webhook\"\nurl = \"https://example.com/\"\nunsigned = true\n";

    #[test]
    fn breakers_and_budgets_that_cannot_be_are_refused_by_their_key() {
        for (key, value) in [
            ("breaker-ratio", "0.0"),
            ("breaker-ratio", "1.1"),
            ("breaker-ratio", "nan"),
            ("breaker-min-calls", "0"),
            ("breaker-open", "\"0s\""),
            ("breaker-open-cap", "\"1ms\""),
            ("retry-ratio", "-0.1"),
            ("retry-cap", "999"),
        ] {
            let reading = read(&format!("[destination.a]\n{HOOK}{key} = {value}\n"));
            assert_eq!(reading.problems, []);

            let problems = validate(&reading.file, &reading.lines, Path::new(""))
                .err()
                .unwrap_or_default();

            assert_eq!(problems.len(), 1, "{key} = {value}: {problems:?}");
            assert_eq!(problems[0].line, Some(5), "{key}");
            assert!(problems[0].text.starts_with(&format!("`{key}`")), "{key}");
        }
    }

    #[test]
    fn what_is_configured_reaches_the_queue() {
        let text = format!(
            "[destination.a]\n{HOOK}breaker-failures = 0\nbreaker-min-calls = 7\nretry-cap = 2000\n"
        );
        let reading = read(&text);

        let settings = validate(&reading.file, &reading.lines, Path::new("")).ok();

        let queue = &settings.unwrap().queues[0];
        assert_eq!(queue.breaker.consecutive, None);
        assert_eq!(queue.breaker.min_calls, 7);
        assert_eq!(queue.budget.cap, 2_000);
    }
}
