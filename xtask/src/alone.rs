//! `cargo xtask check --alone`: every crate compiles by itself.
//!
//! # Promise
//! A build of the whole workspace gives each dependency the features that anybody in it asks for, and
//! hides a crate that relies on another's. Here each crate is checked as if it were the only one: its
//! tests with its own features, and if it is published, with each of its features and with none.
//! Every one is checked, also after a failure, and the end names those that failed.

use serde_json::Value;

use crate::cargo::{self, cargo};
use crate::process::{batch, quiet};
use crate::stop::Stop;

/// Checks all of them.
pub(crate) fn run() -> Result<u8, Stop> {
    let said = quiet(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&said)
        .map_err(|error| Stop::failed(format!("cannot read what cargo says: {error}")))?;
    let checks = checks(&metadata);
    let mut failed = Vec::new();
    for (n, check) in checks.iter().enumerate() {
        let line = check.join(" ");
        eprintln!("xtask: [{}/{}] cargo check {line}", n + 1, checks.len());
        if !batch(&mut cargo::check_alone(check))?.success() {
            failed.push(line);
        }
    }
    for line in &failed {
        eprintln!("xtask: failed: cargo check {line}");
    }
    let (all, bad) = (checks.len(), failed.len());
    eprintln!("xtask: {} of {all} pass alone", all - bad);
    Ok(u8::from(bad > 0))
}

/// The arguments of `cargo check`, one list for each of its runs.
fn checks(metadata: &Value) -> Vec<Vec<String>> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages.flat_map(of_package).collect()
}

fn of_package(package: &Value) -> Vec<Vec<String>> {
    let name = package["name"].as_str().unwrap_or_default();
    let of = |rest: &[&str]| -> Vec<String> {
        let words = ["-p", name].into_iter().chain(rest.iter().copied());
        words.map(str::to_owned).collect()
    };
    let mut checks = vec![of(&["--tests"])];
    // An empty list of registries: it is not published.
    let is_published = package["publish"]
        .as_array()
        .is_none_or(|to| !to.is_empty());
    let features: Vec<&String> = package["features"]
        .as_object()
        .into_iter()
        .flat_map(|all| all.keys().filter(|feature| *feature != "default"))
        .collect();
    if is_published && !features.is_empty() {
        checks.push(of(&["--no-default-features"]));
        checks.extend(
            features
                .iter()
                .map(|feature| of(&["--no-default-features", "--features", feature])),
        );
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_crates_are_checked_with_each_feature_and_all_with_their_tests() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "a", "publish": null, "features": { "default": ["x"], "x": [], "y": [] } },
            { "name": "b", "publish": [], "features": { "z": [] } },
            { "name": "c", "publish": null, "features": {} },
        ]});

        let lines: Vec<String> = checks(&metadata).iter().map(|c| c.join(" ")).collect();

        assert_eq!(
            lines,
            [
                "-p a --tests",
                "-p a --no-default-features",
                "-p a --no-default-features --features x",
                "-p a --no-default-features --features y",
                "-p b --tests",
                "-p c --tests",
            ]
        );
    }
}
