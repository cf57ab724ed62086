//! What is fetched once and kept in the cache directory of the user.
//!
//! # Promise
//! Either all of it is there under its name, or nothing: what is cut off is not found the next time.

use std::fs;
use std::path::{Path, PathBuf};

use crate::stop::Stop;

/// The directory `counterfoil/<name>` in the cache, which `fill` makes if it is not there. The
/// testkit looks there too.
pub(crate) fn provide(
    name: &str,
    fill: impl FnOnce(&Path) -> Result<(), Stop>,
) -> Result<PathBuf, Stop> {
    let directory = parent()?.join(name);
    if directory.is_dir() {
        return Ok(directory);
    }
    eprintln!("xtask: fetching {name}");
    let parts = directory.with_file_name(format!("{name}.part-{}", std::process::id()));
    let failed =
        |error: std::io::Error| Stop::failed(format!("cannot fill {}: {error}", parts.display()));
    let filled = fs::create_dir_all(&parts)
        .map_err(failed)
        .and_then(|()| fill(&parts))
        .and_then(|()| fs::rename(&parts, &directory).map_err(failed));
    let _ = fs::remove_dir_all(&parts);
    match filled {
        // Another xtask was faster.
        Err(Stop::Failed(_)) if directory.is_dir() => Ok(directory),
        Err(stop) => Err(stop),
        Ok(()) => Ok(directory),
    }
}

fn parent() -> Result<PathBuf, Stop> {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    given("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|cache| cache.join("counterfoil"))
        .ok_or_else(|| Stop::failed("neither XDG_CACHE_HOME nor HOME is set"))
}
