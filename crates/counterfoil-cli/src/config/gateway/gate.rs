//! The gate in Redis: `gate` and its settings in `[gateway]`.

use std::sync::Arc;

use counterfoil_core::guard::Gate;

use super::super::settings::Judge;
use super::file::Gateway;

/// The gate, unless there is none or something is wrong with it. Nothing is opened yet.
pub(super) fn gate(section: &Gateway, judge: &mut Judge<'_>) -> Option<Arc<dyn Gate>> {
    let url = section.gate.as_ref()?;
    let url = judge.resolve("gateway.gate", "`gate` in [gateway]", url)?;
    open(&url, section, judge)
}

#[cfg(feature = "redis")]
fn open(url: &str, section: &Gateway, judge: &mut Judge<'_>) -> Option<Arc<dyn Gate>> {
    use std::error::Error as _;

    use counterfoil_redis_gate::{Options, OptionsError, RedisGate};

    if section.gate_prefix.trim().is_empty() {
        wrong(
            judge,
            "gate-prefix",
            "without it names could be those of others",
        );
    }
    let ca = match &section.gate_ca_file {
        None => None,
        Some(file) => {
            let file = judge.beside.join(file);
            match std::fs::read(&file) {
                Ok(pem) => Some(pem),
                Err(error) => {
                    let text = format!("{} cannot be read: {error}", file.display());
                    wrong(judge, "gate-ca-file", &text);
                    return None;
                }
            }
        }
    };
    let options = Options {
        prefix: section.gate_prefix.clone(),
        ttl: section.gate_ttl.0,
        patience: section.gate_patience.0,
        ca,
    };
    match RedisGate::new(url, options) {
        Ok(gate) => Some(Arc::new(gate)),
        Err(error) => {
            let key = match error {
                OptionsError::Ttl(_) => "gate-ttl",
                OptionsError::Patience => "gate-patience",
                OptionsError::Ca(_) | OptionsError::Plain => "gate-ca-file",
                _ => "gate",
            };
            let text = match error.source() {
                Some(source) => format!("{error}: {source}; write redis://HOST:PORT/"),
                None => error.to_string(),
            };
            wrong(judge, key, &text);
            None
        }
    }
}

#[cfg(not(feature = "redis"))]
fn open(_: &str, _: &Gateway, judge: &mut Judge<'_>) -> Option<Arc<dyn Gate>> {
    let text =
        "this program was built without Redis: leave it out, or build it with the feature `redis`";
    wrong(judge, "gate", text);
    None
}

fn wrong(judge: &mut Judge<'_>, key: &str, text: &str) {
    super::refuse(judge, &format!("gateway.{key}"), key, "[gateway]", text);
}
