//! The processes that tests start and kill: a relay, a writer, a migration, a guarded server, and
//! those of a journey through a broker.
//!
//! # Promise
//! They do what an application would do, through the same functions. Nothing in them knows at which
//! moment they will die; the guarded server stands still where a request asks it to.

mod journey;
mod relay;
mod serve;
mod untold;
mod writer;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use counterfoil_core::BoxError;
use counterfoil_core::store::Store;
use counterfoil_postgres::PostgresStore;
use counterfoil_sqlite::SqliteStore;
use sqlx::postgres::PgPoolOptions;

pub use journey::{ConsumeArgs, ForwardArgs, ProduceArgs};
pub use relay::RelayArgs;
pub use serve::ServeArgs;
pub use writer::{Moment, POISON, WriterArgs};

/// Plays one part and ends.
#[derive(Debug, Parser)]
#[command(name = "cf-actor")]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Deliver messages until told to stop.
    Relay(RelayArgs),
    /// Do business.
    Writer(WriterArgs),
    /// Take payments behind the guard.
    Serve(ServeArgs),
    /// Create or upgrade the tables.
    Migrate(Where),
    /// Do business whose messages go through a broker.
    Produce(ProduceArgs),
    /// Deliver messages to a broker.
    Forward(ForwardArgs),
    /// Apply what comes from a broker.
    Consume(ConsumeArgs),
}

/// Which database.
#[derive(Debug, Clone, Args)]
pub struct Where {
    /// The URL of the database.
    #[arg(long)]
    pub database: String,
}

impl Where {
    fn store(&self) -> Result<Arc<dyn Store>, BoxError> {
        if self.database.starts_with("sqlite:") {
            return Ok(Arc::new(SqliteStore::connect(&self.database)?));
        }
        // From a pool: the test finds a process among the server's connections by its name.
        let pool = PgPoolOptions::new().connect_lazy(&self.database)?;
        Ok(Arc::new(PostgresStore::from_pool(&pool)))
    }
}

/// Plays the part that these arguments (after the program's name) ask for.
pub fn main(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let cli = Cli::parse_from(std::iter::once("cf-actor".to_owned()).chain(arguments));
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let played = runtime.map_err(BoxError::from).and_then(|runtime| {
        runtime.block_on(async {
            match cli.part {
                Part::Relay(args) => Box::pin(relay::run(args)).await,
                Part::Writer(args) => Box::pin(writer::run(args)).await,
                Part::Serve(args) => Box::pin(serve::run(args)).await,
                Part::Migrate(place) => migrate(&place).await,
                Part::Produce(args) => Box::pin(journey::produce(args)).await,
                Part::Forward(args) => Box::pin(journey::forward(args)).await,
                Part::Consume(args) => Box::pin(journey::consume(args)).await,
            }
        })
    });
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "failed");
            ExitCode::FAILURE
        }
    }
}

async fn migrate(place: &Where) -> Result<(), BoxError> {
    say("begun");
    place.store()?.migrate().await?;
    say("migrated");
    Ok(())
}

/// Tells the test something. A test that has gone away hears nothing.
fn say(line: &str) {
    use std::io::Write as _;
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// The request to end. It is heard from the moment on at which this exists.
struct End(tokio::signal::unix::Signal);

impl End {
    fn listen() -> Result<Self, BoxError> {
        let kind = tokio::signal::unix::SignalKind::terminate();
        Ok(Self(tokio::signal::unix::signal(kind)?))
    }

    async fn asked(&mut self) {
        self.0.recv().await;
    }
}
