//! Log lines on standard error, so that standard output holds results alone.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
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
    let filter: Targets = wanted.parse().map_err(|_| {
        let levels = "error, warn, info, debug or trace, also by target, as in info,sqlx=debug";
        Failure::config(format!("`{wanted}` says not what to log: write {levels}"))
    })?;
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
