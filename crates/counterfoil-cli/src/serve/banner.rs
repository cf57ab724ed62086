//! What a newcomer reads first: what runs, where, and what to try next.

use std::path::Path;

use crate::config::Settings;
use crate::database::Outbox;
use crate::failure::Result;
use crate::print;

/// What runs beside the relay, for people.
pub(super) struct Beside {
    /// The gateway, where there is one.
    pub(super) gateway: Option<Vec<String>>,
    /// What is consumed.
    pub(super) consumers: Vec<String>,
    /// How connections to the database are encrypted.
    pub(super) encryption: Option<String>,
}

/// Says what was started.
pub(super) fn print(
    outbox: &dyn Outbox,
    settings: &Settings,
    url: &str,
    file: Option<&Path>,
    beside: &Beside,
) -> Result {
    print::line(&format!("counterfoil {}", env!("CARGO_PKG_VERSION")))?;
    let file = file.map_or("defaults".into(), |file| file.display().to_string());
    let mut rows = vec![("config", file), ("database", outbox.describe())];
    if let Some(encryption) = &beside.encryption {
        rows.push(("encryption", encryption.clone()));
    }
    for line in beside.gateway.iter().flatten() {
        rows.push(("gateway", line.clone()));
    }
    rows.push((
        "listening",
        format!("{url}  (/healthz /readyz /metrics /v1/messages)"),
    ));
    for queue in &settings.queues {
        rows.push((
            "serving",
            format!("{} → {}", queue.name, queue.destination.describe()),
        ));
    }
    for line in &beside.consumers {
        rows.push(("consuming", line.clone()));
    }
    for route in settings.routes.iter() {
        rows.push((
            "route",
            format!("{} → {}", route.events, route.queues.join(", ")),
        ));
    }
    if settings.queues.is_empty() && beside.gateway.is_none() && beside.consumers.is_empty() {
        let hint = "nothing yet: messages wait until a destination is configured; see \
                    `counterfoil config default`";
        rows.push(("serving", hint.into()));
    }
    rows.push(("try", example(settings, url)));
    rows.push(("then", "counterfoil outbox stats".into()));
    print::facts(&rows)
}

fn example(settings: &Settings, url: &str) -> String {
    let token = match settings.tokens.is_empty() {
        true => "",
        false => " -H \"authorization: Bearer $TOKEN\"",
    };
    let event = settings
        .routes
        .iter()
        .next()
        .map(|route| matching(&route.events));
    let event = event.unwrap_or_else(|| "OrderPaid".into());
    let queue = match (settings.routes.is_empty(), settings.queues.first()) {
        (true, Some(queue)) => format!(",\"queue\":\"{}\"", queue.name),
        _ => String::new(),
    };
    format!(
        "curl -X POST {url}/v1/messages{token} -H 'content-type: application/json' \
         -d '{{\"event_type\":\"{event}\"{queue},\"payload\":{{\"total\":7}}}}'"
    )
}

/// An event type that a pattern matches.
fn matching(pattern: &str) -> String {
    match pattern.replace('*', "").replace('?', "x") {
        empty if empty.is_empty() => "OrderPaid".into(),
        plain => plain,
    }
}
