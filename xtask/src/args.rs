//! Reads the command line.
//!
//! # Promise
//! An unknown option is an error and never silently passed on, except where a command says that
//! all its arguments belong to another program.

use crate::servers::{self, Server};
use crate::stop::Stop;
use crate::test::matrix;

/// What `cargo xtask help` prints.
pub(crate) const HELP: &str = include_str!("help.txt");

/// A command with its options.
#[derive(Debug)]
pub(crate) enum Command {
    /// Print the help.
    Help,
    /// Run the tests.
    Test(TestOptions),
    /// Keep servers for a command, or until Ctrl-C when the command is empty.
    Servers {
        /// The servers to start.
        only: Vec<&'static Server>,
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// Look at the code without running it.
    Check {
        /// Leave out what takes long.
        fast: bool,
    },
    /// Compile each crate by itself.
    CheckAlone,
    /// Look at what comes in through dependencies.
    Deny,
    /// See whether tests notice changes.
    Mutants {
        /// Parts or files; empty means all.
        chosen: Vec<String>,
    },
    /// Run one bench.
    Bench {
        /// The binary.
        name: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// Run the chaos test.
    Chaos {
        /// Its arguments.
        args: Vec<String>,
    },
}

/// What to test, and with which servers.
#[derive(Debug, Default)]
pub(crate) struct TestOptions {
    /// The servers to have; empty with `--no-servers`.
    pub(crate) servers: Vec<&'static Server>,
    /// Crates to test; empty means all.
    pub(crate) packages: Vec<String>,
    /// Run only tests whose name contains this.
    pub(crate) filter: Option<String>,
    /// Arguments for the test binaries.
    pub(crate) binary_args: Vec<String>,
    /// Run the stores' suites on each version of their servers, and nothing else.
    pub(crate) matrix: bool,
}

/// Reads the words after `cargo xtask`.
pub(crate) fn parse(words: &[String]) -> Result<Command, Stop> {
    let Some((command, rest)) = words.split_first() else {
        return Ok(Command::Help);
    };
    match command.as_str() {
        "test" => test(rest),
        "servers" => keep_servers(rest),
        "check" => check(rest),
        "deny" => nothing_more("deny", rest, Command::Deny),
        "mutants" => mutants(rest),
        "bench" => bench(rest),
        "chaos" => Ok(Command::Chaos {
            args: rest.to_vec(),
        }),
        "help" | "--help" | "-h" => Ok(Command::Help),
        other => Err(usage(format!("unknown command `{other}`"))),
    }
}

fn test(words: &[String]) -> Result<Command, Stop> {
    let mut options = TestOptions::default();
    let mut none = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--no-servers" => none = true,
            "--matrix" => options.matrix = true,
            "--with" => options
                .servers
                .push(server(value("--with", words.next())?)?),
            "--only" => options.filter = Some(value("--only", words.next())?.to_owned()),
            "-p" | "--package" => options.packages.push(value("-p", words.next())?.to_owned()),
            "--" => options.binary_args = words.by_ref().cloned().collect(),
            other => return Err(usage(format!("unknown option `{other}` of test"))),
        }
    }
    if none && !options.servers.is_empty() {
        return Err(usage("--no-servers and --with exclude each other"));
    }
    if none && options.matrix {
        return Err(usage("--no-servers and --matrix exclude each other"));
    }
    if options.matrix && options.servers.is_empty() {
        options.servers = matrix::servers().collect();
    }
    if !none {
        options.servers = some_or_all(options.servers);
    }
    Ok(Command::Test(options))
}

fn keep_servers(words: &[String]) -> Result<Command, Stop> {
    let (mut only, mut command) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--with" => only.push(server(value("--with", words.next())?)?),
            "--" => command = words.by_ref().cloned().collect(),
            other => return Err(usage(format!("unknown option `{other}` of servers"))),
        }
    }
    Ok(Command::Servers {
        only: some_or_all(only),
        command,
    })
}

fn check(words: &[String]) -> Result<Command, Stop> {
    match words {
        [] => Ok(Command::Check { fast: false }),
        [word] if word == "--fast" => Ok(Command::Check { fast: true }),
        [word] if word == "--alone" => Ok(Command::CheckAlone),
        [word] if word == "--help" || word == "-h" => Ok(Command::Help),
        _ => Err(usage("check takes only --fast or --alone")),
    }
}

fn nothing_more(name: &str, words: &[String], command: Command) -> Result<Command, Stop> {
    match words {
        [] => Ok(command),
        [word] if word == "--help" || word == "-h" => Ok(Command::Help),
        _ => Err(usage(format!("{name} takes no arguments"))),
    }
}

fn mutants(words: &[String]) -> Result<Command, Stop> {
    match words.iter().find(|word| word.starts_with('-')) {
        None => Ok(Command::Mutants {
            chosen: words.to_vec(),
        }),
        Some(word) if word == "--help" || word == "-h" => Ok(Command::Help),
        Some(word) => Err(usage(format!("unknown option `{word}` of mutants"))),
    }
}

fn bench(words: &[String]) -> Result<Command, Stop> {
    match words.split_first() {
        None => Err(usage("bench needs a name")),
        Some((name, _)) if name == "--help" || name == "-h" => Ok(Command::Help),
        Some((name, _)) if name.starts_with('-') => {
            Err(usage(format!("bench needs a name before `{name}`")))
        }
        Some((name, args)) => Ok(Command::Bench {
            name: name.clone(),
            args: without_separator(args),
        }),
    }
}

/// `bench relay -- --json` means the same as `bench relay --json`.
fn without_separator(args: &[String]) -> Vec<String> {
    let args = match args.split_first() {
        Some((first, rest)) if first == "--" => rest,
        _ => args,
    };
    args.to_vec()
}

fn some_or_all(chosen: Vec<&'static Server>) -> Vec<&'static Server> {
    if chosen.is_empty() {
        servers::ALL.iter().collect()
    } else {
        chosen
    }
}

fn server(name: &str) -> Result<&'static Server, Stop> {
    servers::named(name).ok_or_else(|| usage(format!("unknown server `{name}`")))
}

fn value<'a>(option: &str, word: Option<&'a String>) -> Result<&'a str, Stop> {
    word.map(String::as_str)
        .ok_or_else(|| usage(format!("{option} needs a value")))
}

fn usage(reason: impl Into<String>) -> Stop {
    Stop::Usage(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Stop> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn test_takes_crates_a_filter_and_arguments_of_the_binaries() {
        let Ok(Command::Test(options)) = parsed("test -p a -p b --only relay -- --nocapture -q")
        else {
            panic!("not a test command");
        };

        assert_eq!(options.packages, ["a", "b"]);
        assert_eq!(options.filter.as_deref(), Some("relay"));
        assert_eq!(options.binary_args, ["--nocapture", "-q"]);
        assert_eq!(options.servers.len(), servers::ALL.len());
    }

    #[test]
    fn no_servers_means_none_and_with_means_only_that_one() {
        let Ok(Command::Test(none)) = parsed("test --no-servers") else {
            panic!("not a test command");
        };
        let Ok(Command::Test(one)) = parsed("test --with mariadb") else {
            panic!("not a test command");
        };

        assert!(none.servers.is_empty());
        assert_eq!(one.servers.len(), 1);
        assert!(matches!(
            parsed("test --no-servers --with mariadb"),
            Err(Stop::Usage(_))
        ));
        let Ok(Command::Test(matrix)) = parsed("test --matrix") else {
            panic!("not a test command");
        };
        assert!(
            matrix
                .servers
                .iter()
                .any(|server| server.name == "postgres18")
        );
        assert!(matrix.servers.iter().all(|server| server.name != "redis"));
    }

    #[test]
    fn a_bench_gets_all_its_arguments() {
        for line in ["bench relay --json -n 5", "bench relay -- --json -n 5"] {
            let Ok(Command::Bench { name, args }) = parsed(line) else {
                panic!("not a bench command");
            };
            assert_eq!(name, "relay");
            assert_eq!(args, ["--json", "-n", "5"]);
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for line in [
            "tset",
            "test --fast",
            "servers psql",
            "check --slow",
            "deny --fast",
            "mutants --all",
            "bench",
        ] {
            assert!(matches!(parsed(line), Err(Stop::Usage(_))), "{line}");
        }
    }

    #[test]
    fn the_help_names_every_server_and_its_variable() {
        for server in servers::ALL.iter().chain(servers::OTHER_VERSIONS) {
            assert!(HELP.contains(server.name), "{}", server.name);
            assert!(HELP.contains(server.variable), "{}", server.variable);
        }
    }
}
