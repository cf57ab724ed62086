//! Suites that run again on another server.
//!
//! # Promise
//! Every suite of a store, its inbox and its guard run on each server that the store is said to work
//! on, from the same binaries. `cargo xtask test` runs those of MySQL a second time, because what
//! works on MariaDB need not work there; `--matrix` runs all.
//!
//! A test asks one variable for the server of its store. Here the address of another server stands
//! in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::follow_run;
use super::tally::Tally;
use crate::args::TestOptions;
use crate::cargo;
use crate::process::quiet;
use crate::servers::{self, Fleet, Server};
use crate::stop::Stop;

/// A server on which the suites of a store run again.
struct Round {
    /// The name of the server on the command line.
    server: &'static str,
    /// The store: also the name of its modules in the tests of the facade.
    store: &'static str,
    /// Where its tests look for their server.
    variable: &'static str,
}

const POSTGRES: &str = "COUNTERFOIL_TEST_POSTGRES_URL";
const MYSQL: &str = "COUNTERFOIL_TEST_MYSQL_URL";

const fn round(server: &'static str, store: &'static str, variable: &'static str) -> Round {
    Round {
        server,
        store,
        variable,
    }
}

/// What an ordinary run adds to itself.
const AGAIN: &[Round] = &[round("mysql", "mysql", MYSQL)];

const MATRIX: &[Round] = &[
    round("postgres", "postgres", POSTGRES),
    round("postgres17", "postgres", POSTGRES),
    round("postgres18", "postgres", POSTGRES),
    round("mariadb", "mysql", MYSQL),
    round("mysql", "mysql", MYSQL),
];

/// Test binaries of the facade that run on every database, each in modules of its own.
const FACADE: (&str, &[&str]) = ("counterfoil", &["consumer", "guard"]);

/// A test binary that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    package: String,
    target: String,
    executable: PathBuf,
    directory: PathBuf,
}

/// The servers of the whole matrix.
pub(crate) fn servers() -> impl Iterator<Item = &'static Server> {
    MATRIX
        .iter()
        .filter_map(|round| servers::named(round.server))
}

/// Runs the suites on the servers that are there.
pub(crate) fn run(
    base: &[&str],
    options: &TestOptions,
    fleet: &Fleet,
    mut tally: Tally,
) -> Result<Tally, Stop> {
    let rounds = if options.matrix { MATRIX } else { AGAIN };
    let rounds: Vec<_> = rounds
        .iter()
        .filter_map(|round| {
            let server = servers::named(round.server)?;
            Some((round, server, fleet.url(server)?))
        })
        .collect();
    if rounds.is_empty() {
        return Ok(tally);
    }
    let built = match quiet(&mut cargo::test_binaries(base, options)) {
        Ok(said) => said.lines().filter_map(binary).collect::<Vec<_>>(),
        // Outside of the matrix it has been said already, test by test.
        Err(Stop::Failed(_)) if !options.matrix => return Ok(tally),
        Err(stop) => return Err(stop),
    };
    for (round, server, url) in rounds {
        for binary in &built {
            let Some(filter) = filter(round.store, binary, options.filter.as_deref()) else {
                continue;
            };
            let label = format!("{} {} on {}", binary.package, binary.target, server.title);
            println!("\n     Running {label}");
            tally.begin(label.clone());
            let mut command = Command::new(&binary.executable);
            command.args(filter).args(&options.binary_args);
            command.current_dir(&binary.directory);
            fleet.equip(&mut command);
            command.env(round.variable, &url);
            tally = follow_run(&mut command, &label, &fleet.file("skips"), tally)?;
        }
    }
    Ok(tally)
}

/// Which tests of a binary run on a server of this store: absent for none, empty for all.
fn filter(store: &str, binary: &Binary, only: Option<&str>) -> Option<Option<String>> {
    if binary.package == format!("counterfoil-{store}") {
        return Some(only.map(str::to_owned));
    }
    let (package, targets) = FACADE;
    let of_facade = binary.package == package && targets.contains(&binary.target.as_str());
    // A test binary takes one name or the other, and not both.
    (of_facade && only.is_none()).then(|| Some(store.to_owned()))
}

/// A line of cargo that tells about a test binary.
fn binary(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(text(&message["manifest_path"])?);
    let directory = manifest.parent()?.to_owned();
    Some(Binary {
        package: package(&text(&message["package_id"])?, &directory)?,
        target: text(&message["target"]["name"])?,
        executable: text(&message["executable"])?.into(),
        directory,
    })
}

/// `path+file:///…/stores/mysql#counterfoil-mysql@0.1.0`, or `…/counterfoil#0.1.0` when the directory
/// has the name of the package.
fn package(id: &str, directory: &Path) -> Option<String> {
    let (_, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name.to_owned()),
        None => Some(directory.file_name()?.to_str()?.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(package: &str, target: &str) -> Binary {
        let line = format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///x/{package}#{package}@0.1.0",
                "manifest_path":"/x/{package}/Cargo.toml","target":{{"name":"{target}"}},
                "profile":{{"test":true}},"executable":"/t/{target}-1"}}"#
        );
        binary(&line.replace('\n', "")).unwrap()
    }

    #[test]
    fn a_server_gets_the_suites_of_its_store_and_its_part_of_the_facade() {
        let all = Some(None);
        let suite = built("counterfoil-mysql", "conformance");
        let shop = built("counterfoil", "consumer");

        assert_eq!(suite.directory, Path::new("/x/counterfoil-mysql"));
        assert_eq!(filter("mysql", &suite, None), all);
        assert_eq!(filter("postgres", &suite, None), None);
        assert_eq!(filter("mysql", &suite, Some("x")), Some(Some("x".into())));
        assert_eq!(filter("mysql", &shop, None), Some(Some("mysql".into())));
        assert_eq!(filter("mysql", &shop, Some("x")), None);
        assert_eq!(
            filter("mysql", &built("counterfoil", "application"), None),
            None
        );
    }

    #[test]
    fn a_package_is_named_by_its_id_or_its_directory() {
        let id = "path+file:///house/crates/counterfoil#0.1.0";
        let directory = Path::new("/house/crates/counterfoil");

        assert_eq!(package(id, directory).as_deref(), Some("counterfoil"));
        assert!(binary(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn every_round_has_a_server() {
        for round in MATRIX.iter().chain(AGAIN) {
            assert!(servers::named(round.server).is_some(), "{}", round.server);
        }
    }
}
