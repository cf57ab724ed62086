//! Runs one program with the servers it needs: `servers`, `bench` and `chaos`.
//!
//! # Promise
//! stdin, stdout and the exit code are those of the program; what xtask has to say goes to stderr.

use std::process::Command;

use crate::cargo;
use crate::interrupt;
use crate::process::{exit_code, interactive};
use crate::servers::{self, Fleet, Server, nginx};
use crate::stop::Stop;

/// The store of a bench that is not told one.
const DEFAULT_STORES: &[(&str, &str)] = &[
    ("relay", "postgres"),
    ("guard", "postgres"),
    ("gateway", "postgres"),
    ("brokers", "postgres"),
];

/// What a bench needs besides its store's server.
const BESIDES: &[(&str, &str)] = &[("guard", "redis")];

/// Runs a command with servers, or keeps them until Ctrl-C.
pub(crate) fn servers(only: &[&'static Server], command: &[String]) -> Result<u8, Stop> {
    let fleet = Fleet::start(only)?;
    if servers::are_mandatory() {
        fleet.require_all()?;
    }
    let Some((program, args)) = command.split_first() else {
        for line in exports(&fleet) {
            println!("{line}");
        }
        eprintln!("xtask: the servers run until Ctrl-C");
        interrupt::wait();
        return Ok(0);
    };
    for line in exports(&fleet) {
        eprintln!("{line}");
    }
    with_servers(&fleet, Command::new(program).args(args))
}

/// Runs a bench with the server of its store.
pub(crate) fn bench(name: &str, args: &[String]) -> Result<u8, Stop> {
    let wanted = needed_by_bench(name, args)?;
    build(&mut cargo::bench("build", name))?;
    let mut bench = cargo::bench("run", name);
    bench.arg("--").args(args);
    if name == "gateway" && !asks_for_help(args) {
        build(&mut cargo::binary())?;
        bench.env(nginx::VARIABLE, nginx::provide()?);
    }
    let fleet = Fleet::start(&wanted)?;
    fleet.require_all()?;
    with_servers(&fleet, &mut bench)
}

/// Runs the chaos test with its database, and with the broker that it asks for: it starts one of
/// its own, and finds it installed then.
pub(crate) fn chaos(args: &[String]) -> Result<u8, Stop> {
    let wanted = needed_by_chaos(args)?;
    build(&mut cargo::chaos("build"))?;
    let fleet = Fleet::start(&wanted)?;
    if servers::are_mandatory() {
        fleet.require_all()?;
    }
    with_servers(&fleet, cargo::chaos("run").arg("--").args(args))
}

fn with_servers(fleet: &Fleet, command: &mut Command) -> Result<u8, Stop> {
    fleet.equip(command);
    Ok(exit_code(interactive(command)?))
}

/// Builds before servers start: they would only wait, and a mistake shows sooner.
fn build(command: &mut Command) -> Result<(), Stop> {
    if interactive(command)?.success() {
        Ok(())
    } else {
        Err(Stop::failed("the build failed"))
    }
}

fn needed_by_chaos(args: &[String]) -> Result<Vec<&'static Server>, Stop> {
    if asks_for_help(args) || option(args, "--store") == Some("sqlite") {
        return Ok(Vec::new());
    }
    let needed = std::iter::once("postgres").chain(option(args, "--broker"));
    needed.map(server).collect()
}

fn server(name: &str) -> Result<&'static Server, Stop> {
    servers::named(name).ok_or_else(|| Stop::Usage(format!("unknown server `{name}`")))
}

fn needed_by_bench(name: &str, args: &[String]) -> Result<Vec<&'static Server>, Stop> {
    if asks_for_help(args) {
        return Ok(Vec::new());
    }
    let default = DEFAULT_STORES
        .iter()
        .find(|(bench, _)| *bench == name)
        .map(|(_, store)| *store);
    let store = match option(args, "--store").or(default) {
        None | Some("sqlite" | "memory") => return Ok(Vec::new()),
        Some("mysql") => "mariadb",
        Some(other) => other,
    };
    let besides = BESIDES.iter().filter(|(bench, _)| *bench == name);
    std::iter::once(store)
        .chain(besides.map(|(_, server)| *server))
        .chain(option(args, "--broker"))
        .map(server)
        .collect()
}

/// The value of an option, given as `--name value` or `--name=value`.
fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().enumerate().find_map(|(index, arg)| {
        if arg == name {
            return args.get(index + 1).map(String::as_str);
        }
        arg.strip_prefix(name)?.strip_prefix('=')
    })
}

fn asks_for_help(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--help" || arg == "-h")
}

fn exports(fleet: &Fleet) -> impl Iterator<Item = String> {
    fleet
        .urls()
        .iter()
        .map(|(name, url)| format!("export {name}={url}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(name: &str, line: &str) -> Vec<&'static str> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let servers = needed_by_bench(name, &args).unwrap();
        servers.iter().map(|server| server.name).collect()
    }

    #[test]
    fn a_bench_gets_the_server_of_its_store_and_no_other() {
        assert_eq!(needed("relay", "--json"), ["postgres"]);
        assert_eq!(needed("relay", "--json --store postgres"), ["postgres"]);
        assert_eq!(needed("relay", "--store=mysql"), ["mariadb"]);
        assert!(needed("relay", "--store sqlite --json").is_empty());
        assert!(needed("relay", "--help").is_empty());
        assert_eq!(needed("gateway", "--json"), ["postgres"]);
        assert_eq!(
            needed("brokers", "--broker redis --json"),
            ["postgres", "redis"]
        );
        assert!(needed("parsing", "").is_empty());
        assert!(needed_by_bench("relay", &["--store=paper".to_owned()]).is_err());
    }

    #[test]
    fn the_chaos_test_gets_its_database_and_the_broker_of_its_journey() {
        let needed = |line: &str| -> Vec<&'static str> {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let servers = needed_by_chaos(&args).unwrap();
            servers.iter().map(|server| server.name).collect()
        };

        assert_eq!(needed("--seed 7"), ["postgres"]);
        assert!(needed("--store sqlite").is_empty());
        assert_eq!(needed("--broker=redis --seed 7"), ["postgres", "redis"]);
        assert!(needed_by_chaos(&["--broker=carrier-pigeon".to_owned()]).is_err());
    }
}
