//! A process that does business.

use std::time::Duration;

use clap::{Args, ValueEnum};
use counterfoil_core::BoxError;

use super::{End, Where, say};
use crate::app::{App, Draft, Fact};

/// Messages of this type are refused by the receiver until it is mended.
pub const POISON: &str = "Poison";

/// The moment at which a writer stands still, to be killed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Moment {
    /// Everything is written and nothing is committed.
    BeforeCommit,
    /// Everything is committed and nobody has been told.
    AfterCommit,
}

/// The arguments of a writer.
#[derive(Debug, Clone, Args)]
pub struct WriterArgs {
    /// Which database.
    #[command(flatten)]
    pub place: Where,
    /// Queues to write to.
    #[arg(long = "queue")]
    pub queues: Vec<String>,
    /// The number of aggregates, shared by all writers.
    #[arg(long)]
    pub aggregates: u32,
    /// What it does follows from this number.
    #[arg(long)]
    pub seed: u64,
    /// Do one piece of business with one message for each aggregate, and stand still at a moment.
    /// Without it: go on until told to end.
    #[arg(long)]
    pub stand_still: Option<Moment>,
    /// Milliseconds between two pieces of business, at most.
    #[arg(long)]
    pub pause: u64,
}

impl WriterArgs {
    /// The command line that gives these arguments.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["writer".to_owned()];
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("database", self.place.database.clone());
        self.queues.iter().for_each(|q| add("queue", q.clone()));
        add("aggregates", self.aggregates.to_string());
        add("seed", self.seed.to_string());
        if let Some(moment) = self.stand_still {
            let value = moment.to_possible_value().map(|v| v.get_name().to_owned());
            add("stand-still", value.unwrap_or_default());
        }
        add("pause", self.pause.to_string());
        args
    }
}

pub(super) async fn run(args: WriterArgs) -> Result<(), BoxError> {
    let app = App::open(&args.place.database).await?;
    if let Some(moment) = args.stand_still {
        return stand_still(&app, &args, moment).await;
    }
    let mut end = End::listen()?;
    say("ready");
    let mut rng = fastrand::Rng::with_seed(args.seed);
    let mut committed = 0u64;
    loop {
        // Asked to end, it finishes what it has begun.
        match do_business(&app, &args, &mut rng).await {
            Ok(written) => committed += written,
            // The database was cut off, or somebody else writes for too long: that is its business
            // too. Nothing of it was committed, or the table says so.
            Err(error) => tracing::warn!(error, "no business"),
        }
        let pause = Duration::from_millis(rng.u64(0..=args.pause));
        tokio::select! {
            () = end.asked() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    say(&format!("committed {committed}"));
    Ok(())
}

async fn stand_still(app: &App, args: &WriterArgs, moment: Moment) -> Result<(), BoxError> {
    let mut tx = app.begin().await?;
    let drafts: Vec<Draft> = (0..args.aggregates)
        .map(|n| Draft::new(&args.queues[0], format!("a{n}")))
        .collect();
    let facts = app.write(&mut tx, &drafts).await?;
    match moment {
        Moment::BeforeCommit => {
            say(&format!("written {}", ids(&facts)));
            std::future::pending::<()>().await;
            drop(tx);
        }
        Moment::AfterCommit => {
            tx.commit_in_silence().await?;
            say(&format!("committed {}", ids(&facts)));
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}

fn ids(facts: &[Fact]) -> String {
    facts
        .iter()
        .map(|f| f.id.to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

/// One transaction: a few messages, now and then a poisonous one, sometimes late, sometimes undone.
async fn do_business(
    app: &App,
    args: &WriterArgs,
    rng: &mut fastrand::Rng,
) -> Result<u64, BoxError> {
    let drafts = drafts(args, rng);
    let (late, undo) = (rng.u8(..) < 40, rng.u8(..) < 25);
    let delay = Duration::from_millis(rng.u64(1..40));
    let mut tx = app.begin().await.map_err(|e| e.to_string())?;
    app.write(&mut tx, &drafts)
        .await
        .map_err(|e| e.to_string())?;
    if late {
        tokio::time::sleep(delay).await;
    }
    if undo {
        tx.rollback().await?;
        return Ok(0);
    }
    app.commit(tx).await.map_err(|e| e.to_string())?;
    Ok(drafts.len() as u64)
}

fn drafts(args: &WriterArgs, rng: &mut fastrand::Rng) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = (0..rng.usize(1..=4))
        .map(|_| {
            let queue = rng.choice(&args.queues).map_or("", String::as_str);
            let draft = Draft::new(queue, format!("a{}", rng.u32(0..args.aggregates)));
            if rng.u8(..) < 3 {
                draft.event(POISON)
            } else {
                draft
            }
        })
        .collect();
    // In one order for all writers, so that they do not wait for each other in a circle.
    drafts.sort();
    drafts
}
