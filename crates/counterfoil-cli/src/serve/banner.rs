//! What a newcomer reads first: what runs, where, and what to try next.

use std::net::SocketAddr;
use std::path::Path;

use crate::config::Settings;
use crate::database::Outbox;
use crate::failure::Result;
use crate::print;

/// Says what was started.
pub(super) fn print(
    outbox: &dyn Outbox,
    settings: &Settings,
    address: SocketAddr,
    file: Option<&Path>,
    gateway: Option<&[String]>,
) -> Result {
    print::line(&format!("counterfoil {}", env!("CARGO_PKG_VERSION")))?;
    let file = file.map_or("defaults".into(), |file| file.display().to_string());
    let mut rows = vec![("config", file), ("database", outbox.describe())];
    for line in gateway.unwrap_or_default() {
        rows.push(("gateway", line.clone()));
    }
    rows.push((
        "listening",
        format!("http://{address}  (/healthz /readyz /metrics /v1/messages)"),
    ));
    for queue in &settings.queues {
        rows.push((
            "serving",
            format!("{} → {}", queue.name, queue.destination.describe()),
        ));
    }
    for route in settings.routes.iter() {
        rows.push((
            "route",
            format!("{} → {}", route.events, route.queues.join(", ")),
        ));
    }
    if settings.queues.is_empty() && gateway.is_none() {
        let hint = "nothing yet: messages wait until a destination is configured; see \
                    `counterfoil config default`";
        rows.push(("serving", hint.into()));
    }
    rows.push(("try", example(settings, address)));
    rows.push(("then", "counterfoil outbox stats".into()));
    print::facts(&rows)
}

fn example(settings: &Settings, address: SocketAddr) -> String {
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
        "curl -X POST http://{address}/v1/messages{token} -H 'content-type: application/json' \
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
