//! A missing server is a loud skip on a laptop and a failure in CI.

#![allow(
    clippy::unwrap_used,
    reason = "this is test code: a surprise ends the test"
)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use counterfoil_testkit::server;

const VARIABLE: &str = "COUNTERFOIL_TEST_NO_SUCH_URL";
const ASKING: &str = "a_test_that_needs_a_server";

/// Runs as a test of its own below, with other surroundings.
#[test]
fn a_test_that_needs_a_server() {
    if std::env::var_os("COUNTERFOIL_TEST_ASK").is_some() {
        let found = server::address(VARIABLE, "NoSuchBase");
        println!("found {found:?}");
    }
}

fn run(surroundings: &[(&str, &str)]) -> Output {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", ASKING, "--nocapture"]);
    test.env("COUNTERFOIL_TEST_ASK", "1");
    test.env_remove("CI").env_remove(server::SKIPS);
    test.envs(surroundings.iter().copied());
    test.output().unwrap()
}

fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn a_server_that_is_named_is_found() {
    let output = run(&[("CI", "true"), (VARIABLE, "no-such-base://here")]);

    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("found Some(\"no-such-base://here\")"));
}

#[test]
fn a_missing_server_is_a_loud_skip_that_is_listed() {
    let list = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("skips-{}.txt", std::process::id()));
    let path = list.to_str().unwrap().to_owned();

    let outputs = [
        run(&[(server::SKIPS, &path)]),
        run(&[(server::SKIPS, &path)]),
    ];

    for output in outputs {
        assert!(output.status.success(), "{}", said(&output));
        assert!(
            said(&output).contains(&format!("SKIPPED {ASKING}")),
            "{}",
            said(&output)
        );
    }
    let lines = fs::read_to_string(&list).unwrap();
    let line = format!("{ASKING}\t{VARIABLE} names no NoSuchBase server\n");
    assert_eq!(lines, line.repeat(2));
    fs::remove_file(list).unwrap();
}

#[test]
fn a_missing_server_is_a_failure_in_ci() {
    let output = run(&[("CI", "true")]);

    assert!(!output.status.success());
    assert!(said(&output).contains("cannot run"), "{}", said(&output));
}
