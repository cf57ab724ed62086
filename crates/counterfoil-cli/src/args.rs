//! The command line.
//!
//! Every command says in one sentence what it does and shows an example.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use counterfoil_core::policy::Ratio;

use crate::config::Overrides;

/// Messages that commit with your data, and a relay that delivers them.
#[derive(Debug, Parser)]
#[command(
    name = "counterfoil",
    version,
    arg_required_else_help = true,
    after_help = "Start with:\n  counterfoil serve\n  counterfoil config default > counterfoil.toml\n\n\
                  Exit codes: 0 fine, 1 failed, 2 wrong command line or configuration, 3 not found."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Group)]
pub(crate) struct Global {
    /// The configuration file [default: ./counterfoil.toml if it is there]
    #[arg(long, global = true, value_name = "FILE", env = "COUNTERFOIL_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The database: sqlite:PATH, postgres://…, mysql://… [default: SQLite in the data directory]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "COUNTERFOIL_DATABASE",
        hide_env_values = true
    )]
    pub(crate) database: Option<String>,
    /// Where the default database is kept
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "COUNTERFOIL_DATA_DIR",
        default_value = "./counterfoil-data"
    )]
    pub(crate) data_dir: PathBuf,
    /// What to log: error, warn, info, debug, trace; also by target, as in info,sqlx=debug
    #[arg(long, global = true, value_name = "LEVEL", env = "COUNTERFOIL_LOG")]
    pub(crate) log: Option<String>,
    /// How to log
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        env = "COUNTERFOIL_LOG_FORMAT",
        default_value = "text"
    )]
    pub(crate) log_format: LogFormat,
}

impl Global {
    /// What the command line says instead of the file.
    pub(crate) fn overrides(&self, listen: Option<String>) -> Overrides {
        let named = self.database.as_deref().unwrap_or_default();
        Overrides {
            listen,
            database: !named.trim().is_empty(),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How results look.
#[derive(Debug, Clone, Copy, Group)]
pub(crate) struct Output {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who does it.
#[derive(Debug, Clone, Group)]
pub(crate) struct Operator {
    /// Your name, for the record [default: $USER]; a server with tokens takes the token's
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
}

impl Operator {
    /// The name for the record.
    pub(crate) fn name(&self) -> String {
        let named = self.by.clone().or_else(|| std::env::var("USER").ok());
        let named = named.or_else(|| std::env::var("LOGNAME").ok());
        named
            .filter(|name| !name.trim().is_empty())
            .unwrap_or_else(|| "operator".into())
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the relay and the API until stopped
    #[command(after_help = "Example:\n  counterfoil serve --listen 127.0.0.1:7070")]
    Serve(Serve),
    /// Run a small shop under live traffic, with duplicates, failures and poison messages
    #[cfg(feature = "sqlite")]
    #[command(
        after_help = "Runs until Ctrl-C on a database of its own, and removes it.\n\n\
                      Example:\n  counterfoil demo --listen 127.0.0.1:7171"
    )]
    Demo(Demo),
    /// Create or upgrade the tables, or print the SQL that does
    #[command(
        after_help = "Examples:\n  counterfoil migrate --database postgres://localhost/app\n  \
                      counterfoil migrate --print --dialect postgres > counterfoil.sql"
    )]
    Migrate(Migrate),
    /// The configuration file
    #[command(subcommand)]
    Config(Config),
    /// Put a message into the outbox
    #[command(after_help = "Examples:\n  \
                      counterfoil enqueue --event-type OrderPaid --aggregate order/42 --payload '{\"total\": 7}'\n  \
                      counterfoil enqueue --event-type Import --queue billing --payload @body.json --delay 5m")]
    Enqueue(Enqueue),
    /// Messages that are not delivered yet
    #[command(subcommand)]
    Outbox(Outbox),
    /// Queues: figures, pause, resume, history
    #[command(subcommand)]
    Queue(Queue),
    /// Consumers of all processes: connected or not, and why
    #[command(subcommand)]
    Consumer(Consumer),
    /// Relays: who lives, and who owns what
    #[command(subcommand)]
    Relay(Relay),
    /// Messages that could not pass
    #[command(subcommand)]
    Parked(Parked),
    /// Requests and what is remembered of them
    #[command(subcommand)]
    Guard(Guard),
    /// Breakers and retry budgets: what they do, and what they would do
    #[command(after_help = "Without a subcommand: list.")]
    Policies {
        #[command(subcommand)]
        what: Option<Policies>,
        #[command(flatten)]
        reach: Reach,
        #[command(flatten)]
        output: Output,
    },
    /// Say in one sentence why a message has not arrived
    #[command(after_help = "Example:\n  counterfoil explain 0198c0de-0000-7000-8000-000000000001")]
    Explain(One),
    /// Count every message by state and look for what is missing or double
    #[command(after_help = "Exit code 1 when something is missing or double.\n\n\
                      Example:\n  counterfoil audit --history-kept")]
    Audit(Audit),
    /// Measure this database: enqueue and drain rate, time from commit to delivery
    #[command(
        after_help = "Works in the queue `counterfoil-bench` with a destination that does nothing, \
                      beside whatever else is going on, and leaves no message behind.\n\n\
                      Example:\n  counterfoil bench --messages 50000 --aggregates 5000"
    )]
    Bench(Bench),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  counterfoil completions bash > /etc/bash_completion.d/counterfoil"
    )]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// `demo`
#[cfg(feature = "sqlite")]
#[derive(Debug, Group)]
pub(crate) struct Demo {
    /// Address and port of the API; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub(crate) listen: std::net::SocketAddr,
    /// Stop by itself after so many seconds
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
}

/// `serve`
#[derive(Debug, Group)]
pub(crate) struct Serve {
    /// Address and port, instead of the configuration's; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", env = "COUNTERFOIL_LISTEN")]
    pub(crate) listen: Option<String>,
    /// Leave the tables as they are: somebody else migrates
    #[arg(long)]
    pub(crate) no_migrate: bool,
}

/// `migrate`
#[derive(Debug, Group)]
pub(crate) struct Migrate {
    /// Print the SQL and change nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// For which database to print, when none is named
    #[arg(long, value_enum, requires = "print")]
    pub(crate) dialect: Option<Dialect>,
}

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dialect {
    /// SQLite
    Sqlite,
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    #[value(alias = "mariadb")]
    Mysql,
}

/// `config`
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print the commented default file
    #[command(after_help = "Example:\n  counterfoil config default > counterfoil.toml")]
    Default,
    /// Say everything that is wrong with the configuration
    #[command(after_help = "Example:\n  counterfoil config check --config /etc/counterfoil.toml")]
    Check,
}

/// `enqueue`
#[derive(Debug, Group)]
pub(crate) struct Enqueue {
    /// What happened, for example OrderPaid; routes decide by it
    #[arg(long, value_name = "TYPE")]
    pub(crate) event_type: String,
    /// JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", default_value = "null")]
    pub(crate) payload: String,
    /// The queue, instead of leaving it to the routes
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// What its order is kept for
    #[arg(long, value_name = "TYPE/ID")]
    pub(crate) aggregate: Option<String>,
    /// Your number within the aggregate
    #[arg(
        long,
        value_name = "N",
        requires = "aggregate",
        allow_negative_numbers = true
    )]
    pub(crate) version: Option<i64>,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub(crate) headers: Vec<String>,
    /// Not to be delivered before this much time has passed, such as 90s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) delay: Option<Duration>,
    /// The message's id, a UUID: enqueueing it again is recognised as a repeat
    #[arg(long, value_name = "UUID")]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A message.
#[derive(Debug, Group)]
pub(crate) struct One {
    /// The message's id, or its number as '#123'
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What to list.
#[derive(Debug, Group)]
pub(crate) struct Filters {
    /// Only this queue; "" for messages that no route has taken
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Only this aggregate: its id, or type/id
    #[arg(long, value_name = "ID")]
    pub(crate) aggregate: Option<String>,
    /// Only this error code, for example UPSTREAM_5XX
    #[arg(long, value_name = "CODE")]
    pub(crate) code: Option<String>,
    /// At most this many, up to 1000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Only what is numbered above this: the last number of the page before
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: i64,
}

/// `outbox`
#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// List messages in order of insertion
    #[command(after_help = "Example:\n  counterfoil outbox list --queue billing --state retrying")]
    List {
        #[command(flatten)]
        filters: Filters,
        /// Only this state: new, scheduled, retrying or held
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Show everything about one message, wherever it stands
    #[command(
        after_help = "Example:\n  counterfoil outbox show 0198c0de-0000-7000-8000-000000000001"
    )]
    Show(One),
    /// Count messages by queue and state
    #[command(after_help = "Example:\n  counterfoil outbox stats --json")]
    Stats(Output),
    /// Take pending messages out of the outbox
    #[command(
        after_help = "A delivery that is under way at this moment may still arrive.\n\n\
                      Example:\n  counterfoil outbox cancel 0198c0de-0000-7000-8000-000000000001 --reason 'sent by hand'"
    )]
    Cancel {
        /// The messages' ids, or their numbers as '#123'
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why, for the record
        #[arg(long, default_value = "cancelled")]
        reason: String,
        #[command(flatten)]
        operator: Operator,
        #[command(flatten)]
        output: Output,
    },
}

/// `queue`
#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// List queues: how many wait, who serves them, which are paused
    #[command(after_help = "Example:\n  counterfoil queue list")]
    List(Output),
    /// Stop delivery from a queue
    #[command(after_help = "Example:\n  counterfoil queue pause billing --reason 'deploying'")]
    Pause {
        /// The queue
        queue: String,
        /// Why, for the record
        #[arg(long, default_value = "paused by hand")]
        reason: String,
        #[command(flatten)]
        operator: Operator,
        /// Also a queue that nobody has seen yet
        #[arg(long)]
        force: bool,
    },
    /// Start delivery again
    #[command(after_help = "Example:\n  counterfoil queue resume billing")]
    Resume {
        /// The queue
        queue: String,
        #[command(flatten)]
        operator: Operator,
    },
    /// Show who paused and resumed a queue, and why
    #[command(after_help = "Example:\n  counterfoil queue history billing")]
    History {
        /// The queue
        queue: String,
        #[command(flatten)]
        output: Output,
    },
}

/// `consumer`
#[derive(Debug, Subcommand)]
pub(crate) enum Consumer {
    /// List consumers: whether they are connected, how many messages wait, the last error
    #[command(
        after_help = "Consumers report every few seconds. One that has fallen silent is listed for a day.\n\n\
                      Example:\n  counterfoil consumer list"
    )]
    List(Output),
}

/// `relay`
#[derive(Debug, Subcommand)]
pub(crate) enum Relay {
    /// List relays: which live, which queues they serve, which shards they own
    #[command(after_help = "Example:\n  counterfoil relay list")]
    List(Output),
}

/// `parked`
#[derive(Debug, Subcommand)]
pub(crate) enum Parked {
    /// List parked messages
    #[command(
        after_help = "Example:\n  counterfoil parked list --queue billing --code UPSTREAM_4XX"
    )]
    List {
        #[command(flatten)]
        filters: Filters,
        /// Only this state: pending, redriven, delivered, ignored, or all
        #[arg(long, default_value = "pending")]
        state: String,
        #[command(flatten)]
        output: Output,
    },
    /// Show one parked message and what happened to it
    #[command(
        after_help = "Example:\n  counterfoil parked show 0198c0de-0000-7000-8000-000000000001"
    )]
    Show(One),
    /// Put parked messages back into their queues, lowest number first, under the same ids
    #[command(
        after_help = "Of an aggregate that is held, the message that was parked first goes first. An ignored message comes \
                      back with --confirm.\n\n\
                      Examples:\n  counterfoil parked redrive 0198c0de-0000-7000-8000-000000000001\n  \
                      counterfoil parked redrive --queue billing --code UPSTREAM_4XX --dry-run"
    )]
    Redrive(Redrive),
    /// Give parked messages up: later ones of their aggregates go on without them
    #[command(
        after_help = "They stay in the parking lot as ignored until the sweep (keep-parked). Taking one back needs \
                      `parked redrive --confirm`.\n\n\
                      Example:\n  counterfoil parked ignore 0198c0de-0000-7000-8000-000000000001 --reason 'refunded by hand'"
    )]
    Ignore {
        /// The messages' ids
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why, for the record
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        operator: Operator,
        #[command(flatten)]
        output: Output,
    },
}

/// `guard`
#[derive(Debug, Subcommand)]
pub(crate) enum Guard {
    /// List requests, the most recently changed first
    #[command(after_help = "Example:\n  counterfoil guard list --state uncertain")]
    List {
        #[command(flatten)]
        which: Which,
        /// Only this state: processing, succeeded, retryable, failed, uncertain
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
        #[command(flatten)]
        output: Output,
    },
    /// Show what is remembered of one request, with its answer
    #[command(
        after_help = "Example:\n  counterfoil guard show 8e03978e-40d5-43e8-bc93-6894a57f9324"
    )]
    Show {
        /// The request's key
        key: String,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        output: Output,
    },
    /// Show who settled or forgot a request, and why
    #[command(
        after_help = "Of a request that was forgotten, say its type and its caller.\n\n\
                      Example:\n  counterfoil guard history 8e03978e --type pay --caller alice"
    )]
    History {
        /// The request's key
        key: String,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        output: Output,
    },
    /// Forget one request: the next one with its key runs
    #[command(after_help = "A request that took effect will take effect again.\n\n\
                      Example:\n  counterfoil guard forget 8e03978e --type pay --caller alice --reason 'refunded by hand'")]
    Forget {
        /// The request's key
        key: String,
        #[command(flatten)]
        which: Which,
        /// Why, for the record
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        operator: Operator,
        /// Also while somebody works on it: the next one runs beside it
        #[arg(long)]
        force: bool,
    },
    /// Settle an uncertain request by hand, after finding out whether it took effect
    #[command(
        group = clap::ArgGroup::new("verdict").required(true),
        after_help = "Examples:\n  counterfoil guard reconcile 8e03978e --did-not-happen --reason 'no entry at the bank'\n  \
                      counterfoil guard reconcile 8e03978e --happened --body '{\"receipt\": 7}' --reason 'seen at the bank'"
    )]
    Reconcile {
        /// The request's key
        key: String,
        #[command(flatten)]
        which: Which,
        /// Why, for the record
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        operator: Operator,
        /// It took effect: repeats get this answer
        #[arg(long, group = "verdict")]
        happened: bool,
        /// It was refused by the business: repeats get this answer
        #[arg(long, group = "verdict")]
        failed: bool,
        /// It did not take effect and will not: the next one with its key runs
        #[arg(long, group = "verdict")]
        did_not_happen: bool,
        /// The HTTP status of the answer [default: 200; 422 with --failed]
        #[arg(long, value_name = "CODE", conflicts_with = "did_not_happen", value_parser = clap::value_parser!(u16).range(200..=599))]
        status: Option<u16>,
        /// The answer's body [default: the repeat is told that the answer was not kept]
        #[arg(long, value_name = "TEXT", conflicts_with = "did_not_happen")]
        body: Option<String>,
        /// The body's kind
        #[arg(
            long,
            value_name = "TYPE",
            default_value = "application/json",
            requires = "body"
        )]
        content_type: String,
        /// How long the answer is remembered
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = humantime::parse_duration)]
        keep: Duration,
    },
    /// Count requests by business type and state
    #[command(after_help = "Example:\n  counterfoil guard stats --json")]
    Stats {
        /// A table of one domain [default: the central one]
        #[arg(long, value_name = "NAME")]
        table: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Print the SQL that creates a table of the guard for one domain
    #[command(after_help = "Example:\n  counterfoil guard table shop_guard --dialect postgres")]
    Table {
        /// The table's name
        name: String,
        /// For which database [default: the one in use]
        #[arg(long, value_enum)]
        dialect: Option<Dialect>,
    },
}

/// Which requests of the guard.
#[derive(Debug, Group)]
pub(crate) struct Which {
    /// Only of this business type
    #[arg(long = "type", value_name = "NAME")]
    pub(crate) business_type: Option<String>,
    /// Only of this caller
    #[arg(long, value_name = "NAME")]
    pub(crate) caller: Option<String>,
    /// A table of one domain [default: the central one]
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<String>,
}

/// `parked redrive`
#[derive(Debug, Group)]
pub(crate) struct Redrive {
    /// The messages' ids
    #[arg(required_unless_present_any = ["queue", "code", "all"])]
    pub(crate) ids: Vec<String>,
    /// Every pending one of this queue
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    pub(crate) queue: Option<String>,
    /// Every pending one with this error code
    #[arg(long, value_name = "CODE", conflicts_with = "ids")]
    pub(crate) code: Option<String>,
    /// Every pending one
    #[arg(long, conflicts_with_all = ["ids", "queue", "code"])]
    pub(crate) all: bool,
    /// Also those whose handler asked for a person's confirmation, and ignored ones that are named
    #[arg(long)]
    pub(crate) confirm: bool,
    /// Say what would be done and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) operator: Operator,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `audit`
#[derive(Debug, Group)]
pub(crate) struct Audit {
    /// Sent messages were kept since the oldest key: then a key without its message is a finding
    #[arg(long)]
    pub(crate) history_kept: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `bench`
#[derive(Debug, Group)]
pub(crate) struct Bench {
    /// Messages to enqueue and drain
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) messages: u32,
    /// Aggregates that they are spread over
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) aggregates: u32,
    /// Messages a second while the time to delivery is measured
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Which server is asked.
#[derive(Debug, Clone, Group)]
pub(crate) struct Reach {
    /// The server [default: `listen` of the configuration]
    #[arg(long, value_name = "URL", env = "COUNTERFOIL_SERVER")]
    pub(crate) server: Option<String>,
    /// Its token [default: one of the configuration, for the server that it describes]
    #[arg(
        long,
        value_name = "TOKEN",
        env = "COUNTERFOIL_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// For https: the authorities to believe, as PEM [default: the public ones]
    #[arg(long, value_name = "FILE", env = "COUNTERFOIL_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

/// Sets a breaker by hand.
#[derive(Debug, Group)]
pub(crate) struct Setting {
    /// The destination, as `policies list` names it
    pub(crate) destination: String,
    #[command(flatten)]
    pub(crate) operator: Operator,
    #[command(flatten)]
    pub(crate) reach: Reach,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `policies`
#[derive(Debug, Subcommand)]
pub(crate) enum Policies {
    /// The breakers and budgets of a running server
    #[command(after_help = "Example:\n  counterfoil policies list --json")]
    List {
        #[command(flatten)]
        reach: Reach,
        #[command(flatten)]
        output: Output,
    },
    /// Open a breaker: nobody calls the destination, its messages wait
    #[command(after_help = "Holds after a restart, too, until `policies auto`.\n\n\
                      Example:\n  counterfoil policies open billing --by anna")]
    Open(Setting),
    /// Close a breaker: the destination is called whatever comes of it
    #[command(after_help = "Holds after a restart, too, until `policies auto`.\n\n\
                      Example:\n  counterfoil policies close billing --by anna")]
    Close(Setting),
    /// Let a breaker decide by itself again
    #[command(after_help = "Example:\n  counterfoil policies auto billing --by anna")]
    Auto(Setting),
    /// Simulate an outage: how much load do retries add?
    #[command(
        after_help = "Changes nothing and asks nobody: the same options give the same figures.\n\n\
                      Example:\n  counterfoil policies simulate --rate 200 --outage 30s --ratio 0.05"
    )]
    Simulate(Simulate),
}

/// `policies simulate`
#[derive(Debug, Group)]
pub(crate) struct Simulate {
    /// Requests per second, 1 to 10,000
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// How long every call fails, at most 10m
    #[arg(long, default_value = "60s", value_parser = outage)]
    pub(crate) outage: Duration,
    /// The ratio of the budget: retries for each success, 0 to 1
    #[arg(long, default_value = "0.1", value_parser = ratio)]
    pub(crate) ratio: Ratio,
    /// Decides the jitter
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

fn outage(text: &str) -> Result<Duration, String> {
    let outage: Duration = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if outage > Duration::from_secs(600) {
        return Err("at most 10m".into());
    }
    Ok(outage)
}

fn ratio(text: &str) -> Result<Ratio, String> {
    let number: f64 = text.parse().map_err(|_| "a number between 0 and 1")?;
    Ratio::new(number).map_err(|e| e.to_string())
}
