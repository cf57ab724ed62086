//! `cargo xtask mutants`: do the tests notice when the pure parts do something else?
//!
//! # Promise
//! cargo-mutants changes one thing at a time in a copy of the sources and runs the tests of the crate.
//! For each part it says how many changes were caught and how many were missed, and names the missed
//! ones. It fails when less than nine in ten were caught. Changes that do not compile do not count.
//!
//! It takes hours for all of it, so it is no part of what has to pass before a change goes in. A part
//! or a file can be named.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cargo;
use crate::process::{batch, find};
use crate::servers::cache;
use crate::servers::unstable::{self, Tree};
use crate::stop::Stop;

/// Of a hundred changes, so many have to be caught.
const NEEDED: usize = 90;

/// Code that decides and does nothing else: its tests need no server.
struct Part {
    name: &'static str,
    package: &'static str,
    files: &'static [&'static str],
}

const PARTS: &[Part] = &[
    Part {
        name: "lanes",
        package: "counterfoil-engine",
        files: &[
            "crates/counterfoil-engine/src/lanes.rs",
            "crates/counterfoil-engine/src/consume/lanes.rs",
        ],
    },
    Part {
        name: "queue",
        package: "counterfoil-engine",
        files: &[
            "crates/counterfoil-engine/src/queue.rs",
            "crates/counterfoil-engine/src/relay/turn.rs",
        ],
    },
    Part {
        name: "policies",
        package: "counterfoil-core",
        files: &["crates/counterfoil-core/src/policy/*.rs"],
    },
    Part {
        name: "marks",
        package: "counterfoil-core",
        files: &[
            "crates/counterfoil-core/src/mark.rs",
            "crates/counterfoil-core/src/balance.rs",
        ],
    },
    Part {
        name: "guard",
        package: "counterfoil-core",
        files: &["crates/counterfoil-core/src/guard/decide.rs"],
    },
    Part {
        name: "inbox",
        package: "counterfoil-core",
        files: &["crates/counterfoil-core/src/inbox.rs"],
    },
    Part {
        name: "kafka",
        package: "counterfoil-kafka",
        files: &[
            "brokers/kafka/src/ledger.rs",
            "brokers/kafka/src/ledger/*.rs",
        ],
    },
    Part {
        name: "nats",
        package: "counterfoil-nats",
        files: &["brokers/nats/src/state.rs"],
    },
    Part {
        name: "redis",
        package: "counterfoil-redis-streams",
        files: &["brokers/redis/src/hold.rs"],
    },
    Part {
        name: "rabbitmq",
        package: "counterfoil-rabbitmq",
        files: &["brokers/rabbitmq/src/lane.rs"],
    },
    Part {
        name: "gateway",
        package: "counterfoil-http",
        files: &[
            "crates/counterfoil-http/src/gateway/framing.rs",
            "crates/counterfoil-http/src/gateway/headers.rs",
        ],
    },
];

/// What became of the changes in a part.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    caught: usize,
    missed: Vec<String>,
}

impl Outcome {
    fn share(&self) -> usize {
        let all = self.caught + self.missed.len();
        (100 * self.caught).checked_div(all).unwrap_or(100)
    }
}

/// Runs it over the parts or files that are named; over all parts when none is.
pub(crate) fn run(chosen: &[String]) -> Result<u8, Stop> {
    let rounds = choose(chosen)?;
    let program = Program::provide()?;
    let mut report = Vec::new();
    let mut below = 0;
    for (name, package, files) in &rounds {
        eprintln!("xtask: mutants of {name}");
        let outcome = examine(&program, name, package, files)?;
        below += u8::from(outcome.share() < NEEDED);
        report.push((*name, outcome));
    }
    for (name, outcome) in &report {
        for missed in &outcome.missed {
            println!("missed  {missed}");
        }
        let (caught, missed) = (outcome.caught, outcome.missed.len());
        println!(
            "{name:<10} {caught:>4} caught {missed:>4} missed  {} %",
            outcome.share()
        );
    }
    if below > 0 {
        eprintln!("xtask: {below} of {} below {NEEDED} %", report.len());
    }
    Ok(u8::from(below > 0))
}

type Round<'a> = (&'a str, &'static str, Vec<&'a str>);

fn choose(chosen: &[String]) -> Result<Vec<Round<'_>>, Stop> {
    if chosen.is_empty() {
        let whole = |part: &Part| (part.name, part.package, part.files.to_vec());
        return Ok(PARTS.iter().map(whole).collect());
    }
    chosen
        .iter()
        .map(|word| {
            one(word).ok_or_else(|| {
                let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
                let names = names.join(", ");
                Stop::Usage(format!(
                    "`{word}` is neither a file of a part nor one of {names}"
                ))
            })
        })
        .collect()
}

/// A part by its name, or one of its files.
fn one(word: &str) -> Option<Round<'_>> {
    if let Some(part) = PARTS.iter().find(|part| part.name == word) {
        return Some((part.name, part.package, part.files.to_vec()));
    }
    let has = |part: &&Part| part.files.iter().any(|file| is_of(word, file));
    let part = PARTS.iter().find(has)?;
    Some((part.name, part.package, vec![word]))
}

/// Whether a path is one of those that a part names; `*.rs` stands for every file of a directory.
fn is_of(path: &str, file: &str) -> bool {
    match file.strip_suffix("*.rs") {
        Some(directory) => path.strip_prefix(directory).is_some_and(|rest| {
            !rest.contains('/') && Path::new(rest).extension().is_some_and(|e| e == "rs")
        }),
        None => path == file,
    }
}

fn examine(program: &Program, name: &str, package: &str, files: &[&str]) -> Result<Outcome, Stop> {
    let output = cargo::target().join("mutants").join(name);
    std::fs::create_dir_all(&output)
        .map_err(|error| Stop::failed(format!("cannot make {}: {error}", output.display())))?;
    let mut command = program.command();
    command
        .args([
            "mutants",
            "--package",
            package,
            "--all-features",
            "--no-times",
        ])
        .args(["--colors", "never", "--output"])
        .arg(&output);
    for file in files {
        command.args(["--file", file]);
    }
    // Its answer is 2 when something was missed: what it wrote says more.
    let status = batch(&mut command)?;
    let written = output.join("mutants.out/outcomes.json");
    let said = std::fs::read_to_string(&written)
        .map_err(|error| Stop::failed(format!("cargo-mutants ended with {status}: {error}")))?;
    let outcomes: Value = serde_json::from_str(&said)
        .map_err(|error| Stop::failed(format!("cannot read {}: {error}", written.display())))?;
    read(&outcomes)
}

fn read(outcomes: &Value) -> Result<Outcome, Stop> {
    let mut outcome = Outcome {
        caught: 0,
        missed: Vec::new(),
    };
    for one in outcomes["outcomes"].as_array().into_iter().flatten() {
        let mutant = &one["scenario"]["Mutant"];
        let is_baseline = mutant.is_null();
        match one["summary"].as_str().unwrap_or_default() {
            "Success" if is_baseline => {}
            _ if is_baseline => return Err(Stop::failed("the tests fail without any change")),
            "CaughtMutant" | "Timeout" => outcome.caught += 1,
            "MissedMutant" => {
                let name = mutant["name"].as_str().unwrap_or("one without a name");
                outcome.missed.push(name.to_owned());
            }
            _ => {}
        }
    }
    Ok(outcome)
}

/// cargo-mutants: the one that is installed, or that of Debian's unstable suite, unpacked.
enum Program {
    Installed(PathBuf),
    Unpacked(Tree),
}

impl Program {
    fn provide() -> Result<Self, Stop> {
        if let Some(found) = find("cargo-mutants", &[]) {
            return Ok(Self::Installed(found));
        }
        let directory = cache::provide("cargo-mutants-unstable", |parts| {
            unstable::unpack("cargo-mutants", parts)
        })?;
        Tree::at(&directory).map(Self::Unpacked)
    }

    fn command(&self) -> Command {
        match self {
            Self::Installed(program) => cargo::in_workspace(program),
            Self::Unpacked(tree) => {
                let mut command = cargo::in_workspace(tree.loader());
                tree.run(&mut command, "usr/bin/cargo-mutants");
                command
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_files_can_be_named_and_nothing_else() {
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            choose(&words).map(|rounds| {
                let files = rounds.iter().flat_map(|(_, _, files)| files);
                files.map(|file| (*file).to_owned()).collect::<Vec<_>>()
            })
        };

        assert!(names(&[]).unwrap().len() >= PARTS.len());
        assert_eq!(
            names(&["guard"]).unwrap(),
            ["crates/counterfoil-core/src/guard/decide.rs"]
        );
        let file = "crates/counterfoil-core/src/policy/budget.rs";
        assert_eq!(names(&[file]).unwrap(), [file]);
        assert!(matches!(names(&["xtask/src/main.rs"]), Err(Stop::Usage(_))));
    }

    #[test]
    fn every_file_of_a_part_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in PARTS.iter().flat_map(|part| part.files) {
            let path = root.join(file.trim_end_matches("*.rs"));
            assert!(path.exists(), "{file}");
        }
    }

    #[test]
    fn what_does_not_compile_does_not_count_and_what_hangs_is_caught() {
        let of = |summary: &str| serde_json::json!({ "summary": summary, "scenario": { "Mutant": { "name": "a.rs:1: replace" } } });
        let baseline = serde_json::json!({ "summary": "Success", "scenario": "Baseline" });
        let all = ["CaughtMutant", "Timeout", "MissedMutant", "Unviable"].map(of);
        let outcomes = [&[baseline][..], &all[..]].concat();
        let found = serde_json::json!({ "outcomes": outcomes });

        let outcome = read(&found).unwrap();

        assert_eq!(
            (outcome.caught, outcome.missed.len(), outcome.share()),
            (2, 1, 66)
        );
        let broken =
            serde_json::json!({ "outcomes": [{ "summary": "Failure", "scenario": "Baseline" }] });
        assert!(read(&broken).is_err());
    }
}
