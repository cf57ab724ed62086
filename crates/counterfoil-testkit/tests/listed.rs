//! A case that no test runs is a promise that nobody checks.

#![allow(
    clippy::unwrap_used,
    reason = "this is test code: a surprise ends the test"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_case_of_the_suite_is_listed_in_the_macro() {
    assert!(check("src/suite") > 100, "the cases were not found");
}

#[test]
fn every_case_of_the_guard_is_listed_in_the_macros() {
    assert!(check("src/guard") > 60, "the cases were not found");
}

#[test]
fn every_case_of_the_brokers_is_listed_in_the_macro() {
    assert!(check("src/broker") > 35, "the cases were not found");
}

#[test]
fn every_case_of_the_inbox_is_listed_in_the_macro() {
    assert!(check("src/inbox") > 50, "the cases were not found");
}

/// Answers how many cases there are.
fn check(folder: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let texts: Vec<(PathBuf, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect();
    // The macros are in mod.rs, or next to their cases.
    let listed: BTreeSet<&str> = texts
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| line.strip_prefix("            ")?.strip_suffix(','))
        .collect();
    let mut written = BTreeSet::new();
    for (path, text) in &texts {
        // What cases start with is no case.
        if path.ends_with("fixture.rs") {
            continue;
        }
        for rest in text.split("\npub async fn ").skip(1) {
            let name: String = rest
                .chars()
                .take_while(|c| *c != '<' && *c != '(')
                .collect();
            written.insert(name);
        }
    }

    let forgotten: Vec<&String> = written
        .iter()
        .filter(|name| !listed.contains(name.as_str()))
        .collect();

    assert_eq!(forgotten, Vec::<&String>::new());
    written.len()
}
