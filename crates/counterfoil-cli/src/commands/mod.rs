//! Everything that can be asked for.
//!
//! # Promise
//! Looking changes nothing and creates nothing. What changes something says who did it.

mod audit;
mod bench;
mod config;
mod enqueue;
mod explain;
mod guard;
mod migrate;
mod outbox;
mod parked;
mod policies;
mod presence;
mod queue;
mod server;
mod show;

use std::sync::Arc;

use clap::CommandFactory as _;

use crate::args::{Args, Command, Dialect, Global, Guard, Policies};
use crate::config::Loaded;
use crate::database::{Outbox, Place, guard_table};
use crate::failure::Result;
use crate::print;

/// Runs a command.
pub(crate) async fn run(global: &Global, command: Command) -> Result {
    match command {
        Command::Serve(serve) => crate::serve::run(global, serve).await,
        #[cfg(feature = "sqlite")]
        Command::Demo(args) => crate::demo::run(args).await,
        Command::Migrate(args) => migrate::run(global, &args).await,
        Command::Config(what) => config::run(global, &what),
        Command::Completions { shell } => completions(shell),
        Command::Bench(args) => bench::run(&place(global)?, &args).await,
        Command::Enqueue(args) => {
            let place = place(global)?;
            // The file is ours to create; a server's tables belong to whoever migrates.
            let outbox = match place.dialect() {
                Dialect::Sqlite => place.open_migrated().await?,
                _ => place.open_existing().await?,
            };
            with(outbox, async |outbox| enqueue::run(outbox, args).await).await
        }
        Command::Outbox(what) => look(global, async |desk| outbox::run(desk, what).await).await,
        Command::Queue(what) => {
            let configured = Loaded::load(global.config.as_deref())?.queues();
            look(global, async |desk| {
                queue::run(desk, &configured, what).await
            })
            .await
        }
        Command::Consumer(what) => {
            look(global, async |desk| presence::consumer(desk, &what).await).await
        }
        Command::Relay(what) => look(global, async |desk| presence::relay(desk, &what).await).await,
        Command::Parked(what) => look(global, async |desk| parked::run(desk, what).await).await,
        Command::Guard(Guard::Table { name, dialect }) => {
            let dialect = match dialect {
                Some(dialect) => dialect,
                None => place(global)?.dialect(),
            };
            print::line(guard_table(dialect, &name)?.trim_end())
        }
        Command::Guard(what) => look(global, async |outbox| guard::run(outbox, what).await).await,
        Command::Policies {
            what,
            reach,
            output,
        } => {
            let what = what.unwrap_or(Policies::List { reach, output });
            policies::run(global, what).await
        }
        Command::Explain(args) => look(global, async |desk| explain::run(desk, &args).await).await,
        Command::Audit(args) => look(global, async |desk| audit::run(desk, &args).await).await,
    }
}

fn place(global: &Global) -> Result<Place> {
    Place::find(global, &Loaded::load(global.config.as_deref())?)
}

async fn look(global: &Global, work: impl AsyncFnOnce(&dyn Outbox) -> Result) -> Result {
    with(place(global)?.open_existing().await?, work).await
}

async fn with(outbox: Arc<dyn Outbox>, work: impl AsyncFnOnce(&dyn Outbox) -> Result) -> Result {
    let result = work(&*outbox).await;
    outbox.close().await;
    result
}

fn completions(shell: clap_complete::Shell) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "counterfoil", &mut script);
    print::line(String::from_utf8_lossy(&script).trim_end())
}
