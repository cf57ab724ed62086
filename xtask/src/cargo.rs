//! What xtask asks cargo to do.
//!
//! # Promise
//! Every cargo command line of xtask is in this file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::TestOptions;

/// What `cargo xtask test` runs, one after the other. The choice of crates and the name filter are
/// added to each.
pub(crate) const TESTS: &[&[&str]] = &[&["test", "--all-features", "--no-fail-fast"]];

/// A step of `cargo xtask check`.
#[derive(Debug)]
pub(crate) struct Step {
    /// The arguments of cargo.
    pub(crate) args: &'static [&'static str],
    /// Variables to set.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Whether `--fast` leaves it out.
    pub(crate) slow: bool,
}

/// What `cargo xtask check` runs.
pub(crate) const CHECKS: &[Step] = &[
    Step {
        args: &["fmt", "--check"],
        env: &[],
        slow: false,
    },
    Step {
        args: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ],
        env: &[],
        slow: false,
    },
    Step {
        args: &["doc", "--workspace", "--no-deps"],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        slow: true,
    },
];

/// Cargo in the root of the workspace.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Another program in the root of the workspace.
pub(crate) fn in_workspace(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Where builds go.
pub(crate) fn target() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty());
    root().join(given.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// Checks one crate with some of its features. In a directory of its own: the builds of the whole
/// workspace have other features and would be made again afterwards.
pub(crate) fn check_alone(args: &[String]) -> Command {
    let mut command = cargo();
    command.args(["check", "--quiet", "--locked"]).args(args);
    command.arg("--target-dir").arg(target().join("alone"));
    command
}

/// One of [`TESTS`] with the options of this run.
pub(crate) fn test(base: &[&str], options: &TestOptions) -> Command {
    let mut command = cargo();
    command.args(base);
    if options.packages.is_empty() {
        command.arg("--workspace");
    }
    for package in &options.packages {
        command.args(["--package", package]);
    }
    command.args(&options.filter);
    if !options.binary_args.is_empty() {
        command.arg("--").args(&options.binary_args);
    }
    command
}

/// Builds the test binaries of one of [`TESTS`] and tells about each as a line of JSON.
///
/// With the same choice of crates as [`test`]: another one would unify features in another way, and
/// build everything again.
pub(crate) fn test_binaries(base: &[&str], options: &TestOptions) -> Command {
    let mut command = cargo();
    command.args(base);
    if options.packages.is_empty() {
        command.arg("--workspace");
    }
    for package in &options.packages {
        command.args(["--package", package]);
    }
    command.args(["--no-run", "--message-format=json"]);
    command
}

/// Builds (`build`) or runs (`run`) a bench.
pub(crate) fn bench(verb: &str, name: &str) -> Command {
    let mut command = cargo();
    command.args([
        verb,
        "--release",
        "-p",
        "counterfoil-benches",
        "--bin",
        name,
    ]);
    command
}

/// Builds the program that users run, beside the benches.
pub(crate) fn binary() -> Command {
    let mut command = cargo();
    command.args(["build", "--release", "-p", "counterfoil-cli"]);
    command
}

/// Builds (`build`) or runs (`run`) the chaos test.
pub(crate) fn chaos(verb: &str) -> Command {
    let mut command = cargo();
    command.args([verb, "--release", "-p", "counterfoil-chaos"]);
    command
}

fn root() -> PathBuf {
    // Cargo sets it for `cargo xtask`; a binary that was started directly remembers it.
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map_or(own.clone(), PathBuf::from)
}
