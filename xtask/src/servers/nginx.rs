//! nginx, which the bench of the gateway starts itself.

use std::path::PathBuf;

use super::packages;
use crate::process::find;
use crate::stop::Stop;

/// Tells the bench where the program is.
pub(crate) const VARIABLE: &str = "COUNTERFOIL_BENCH_NGINX";

/// The program; its service is never started.
pub(crate) fn provide() -> Result<PathBuf, Stop> {
    packages::provide(&["nginx"], || find("nginx", &[PathBuf::from("/usr/sbin")])).map_err(|stop| {
        match stop {
            Stop::Failed(reason) => Stop::failed(format!("nginx: {reason}")),
            other => other,
        }
    })
}
