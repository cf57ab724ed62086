//! `config`: print the default file, check a file.

use crate::args::{Config, Global};
use crate::config::{DEFAULT_FILE, Loaded};
use crate::database::Place;
use crate::failure::{Failure, Result};
use crate::{print, serve};

pub(super) fn run(global: &Global, what: &Config) -> Result {
    match what {
        Config::Default => print::line(DEFAULT_FILE.trim_end()),
        Config::Check => {
            let (loaded, settings) =
                Loaded::check(global.config.as_deref(), &global.overrides(None))?;
            Place::find(global, &loaded)?;
            if let Some(certificate) = settings.certificate.clone() {
                serve::check_certificate(certificate).map_err(Failure::config)?;
            }
            let (destinations, routes) = (settings.queues.len(), settings.routes.iter().count());
            let file = match loaded.path() {
                Some(path) => path.display().to_string(),
                None => "no counterfoil.toml here, so the defaults hold".into(),
            };
            let gateway = match &settings.gateway {
                Some(gateway) => format!(", routes of the gateway: {}", gateway.routes.len()),
                None => String::new(),
            };
            let consumers = settings.consumers.len();
            print::line(&format!(
                "ok: {file} (destinations: {destinations}, routes: {routes}, consumers: {consumers}{gateway})"
            ))
        }
    }
}
