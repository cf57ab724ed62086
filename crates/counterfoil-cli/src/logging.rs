//! Log lines on standard error, so that standard output holds results alone.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt};

use crate::args::{Global, LogFormat};
use crate::failure::{Failure, Result};

/// Starts logging. `usual` holds when nobody asked for a level.
pub(crate) fn start(global: &Global, usual: &str) -> Result {
    let wanted = global
        .log
        .as_deref()
        .filter(|text| !text.trim().is_empty())
        .unwrap_or(usual);
    let filter = filter(wanted)?;
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match global.log_format {
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(|e| Failure::failed(format!("cannot log: {e}")))
}

/// The client of RabbitMQ would write the content of messages that come back into the log: it says
/// something only when it is asked to.
fn filter(wanted: &str) -> Result<Targets> {
    let asked: Targets = wanted.parse().map_err(|_| {
        let levels = "error, warn, info, debug or trace, also by target, as in info,sqlx=debug";
        Failure::config(format!("`{wanted}` says not what to log: write {levels}"))
    })?;
    Ok(match wanted.contains("lapin") {
        true => asked,
        false => asked.with_target("lapin", LevelFilter::OFF),
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_client_of_rabbitmq_is_silent_unless_it_is_asked() {
        let says = |wanted: &str| {
            let filter = filter(wanted).unwrap_or_default();
            filter.would_enable("lapin::channel", &Level::WARN)
        };

        assert!(!says("info"));
        assert!(!says("trace,sqlx=debug"));
        assert!(says("info,lapin=warn"));
    }
}
