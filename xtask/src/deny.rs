//! `cargo xtask deny`: what may come in through dependencies, by cargo-deny.
//!
//! # Promise
//! It is installed when it is missing. Licences, bans and sources are always checked. Advisories are
//! checked where their database can be had; where it cannot, that is said loudly and is no failure:
//! a machine without a way to it could check nothing else otherwise.

use std::path::PathBuf;

use crate::cargo::{self, cargo};
use crate::process::{batch, find, quiet};
use crate::servers::cache;
use crate::stop::Stop;

const VERSION: &str = "0.20.2";
const WITHOUT_ADVISORIES: &[&str] = &["bans", "licenses", "sources"];

/// Runs the checks.
pub(crate) fn run() -> Result<u8, Stop> {
    let program = provide()?;
    let deny = |args: &[&str]| {
        let mut command = cargo::in_workspace(&program);
        command.arg("deny").args(args);
        command
    };
    let database = quiet(&mut deny(&["fetch", "db"]));
    // Which of our crates has it says `cargo tree -i`.
    let mut check = deny(&["check", "--hide-inclusion-graph"]);
    match &database {
        Ok(_) => {}
        Err(Stop::Failed(reason)) => {
            eprintln!("xtask: !!! ADVISORIES ARE NOT CHECKED: their database cannot be had");
            eprintln!("xtask: !!! {}", reason.lines().next().unwrap_or_default());
            check.args(WITHOUT_ADVISORIES);
        }
        Err(_) => return database.map(|_| 0),
    }
    let passed = batch(&mut check)?.success();
    let missing = if database.is_ok() {
        ""
    } else {
        ", without advisories"
    };
    let verdict = if passed { "passed" } else { "failed" };
    eprintln!("xtask: deny {verdict}{missing}");
    Ok(u8::from(!passed))
}

fn provide() -> Result<PathBuf, Stop> {
    if let Some(found) = find("cargo-deny", &[]) {
        return Ok(found);
    }
    let directory = cache::provide(&format!("cargo-deny-{VERSION}"), |parts| {
        let mut install = cargo();
        install
            .args([
                "install",
                "--quiet",
                "--locked",
                "cargo-deny",
                "--version",
                VERSION,
            ])
            .arg("--root")
            .arg(parts)
            .arg("--target-dir")
            .arg(parts.join("build"));
        let installed = batch(&mut install)?.success();
        let _ = std::fs::remove_dir_all(parts.join("build"));
        match installed {
            true => Ok(()),
            false => Err(Stop::failed("cargo-deny cannot be installed")),
        }
    })?;
    Ok(directory.join("bin/cargo-deny"))
}
