//! A seeded random run: relays and writers are killed, frozen and asked to end, connections are cut,
//! the receiver fails in every way it can. In the end everything is healed, and the checker looks.
//!
//! # Promise
//! The seed decides what is done and when; the machine decides the rest, so the same seed plays a
//! similar history, not the same one. A violation is reported with the seed.

mod cast;
mod mood;
mod report;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::desk::Filter;

use crate::checker::{Repeats, Rules, Violation, check};
use crate::process::Launcher;
use crate::site::{Place, PostgresSite, Site, SqliteSite};
use crate::wait;
use crate::world::World;

use cast::Cast;
use mood::Moods;
pub use report::Report;

/// A lane of this queue waits behind a parked message.
const HOLDING: &str = "orders";
/// A lane of this queue goes on.
const SKIPPING: &str = "mail";
/// Relays give up waiting for an answer after this time.
const TIMEOUT: Duration = Duration::from_millis(800);
/// The lease of the relays.
const LEASE: Duration = Duration::from_millis(2_500);
/// How long everything may take to come to rest.
const REST: Duration = Duration::from_secs(120);

/// On which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// The server named by the environment.
    Postgres,
    /// A file that goes away afterwards.
    Sqlite,
}

/// What to play.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything random follows from it.
    pub seed: u64,
    /// How long things are broken, before everything is healed.
    pub length: Duration,
    /// They stay so until this many messages are committed and relays killed.
    pub least: Least,
    /// On which database.
    pub store: StoreKind,
    /// Relays at one time.
    pub relays: usize,
    /// Writers at one time.
    pub writers: usize,
}

/// What has to happen in a run, even on a machine that is slow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Least {
    /// Messages.
    pub committed: usize,
    /// Relays.
    pub killed: u64,
}

/// Plays a run. Absent when the database is missing.
pub async fn run(options: &Options, launcher: Launcher) -> Option<Report> {
    let site: Arc<dyn Site> = match options.store {
        StoreKind::Postgres => Arc::new(PostgresSite::fresh().await?),
        StoreKind::Sqlite => Arc::new(SqliteSite::fresh().await),
    };
    let world = Arc::new(World::new(site, launcher).await);
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let mut moods = Moods::new(rng.fork());
    let mut cast = Cast::new(Arc::clone(&world), options, rng.fork());
    cast.everybody_enters().await;
    let begun = Instant::now();
    while begun.elapsed() < options.length
        || (begun.elapsed() < options.length + REST && !cast.has_done(options.least).await)
    {
        tokio::time::sleep(Duration::from_millis(rng.u64(30..250))).await;
        if rng.u8(..) < 50 {
            moods.change(&world).await;
        } else {
            cast.something_happens().await;
        }
    }
    moods.heal(&world).await;
    cast.heal().await;
    let mut report = Report::new(options);
    judge(&world, &mut cast, &mut report).await;
    cast.everybody_leaves(&mut report).await;
    report.moods = moods.changes;
    if !report.violations.is_empty() {
        report.keep_logs(world.logs(), &world.book().offers());
    }
    if let Some(world) = Arc::into_inner(world) {
        world.end().await;
    }
    Some(report)
}

/// Lets everything come to rest and checks: first with what is parked, then without.
async fn judge(world: &World, cast: &mut Cast, report: &mut Report) {
    let mut rules = Rules {
        timeout: Some(TIMEOUT),
        skipping: BTreeSet::from([SKIPPING.to_owned()]),
        ..Rules::new(Repeats::Near(cast.disturbances())).or_parked()
    };
    at_rest(world, &rules).await;
    report.parked(&world.site.standings().await);
    report.add(
        "with parked messages",
        &check(&world.evidence().await, &rules),
    );

    mood::mend(world);
    report.redriven = redrive_all(world).await;
    rules.parked = false;
    rules.repeats = Repeats::Near(cast.disturbances());
    let evidence = world.evidence().await;
    report.add("in the end", &check(&evidence, &rules));
    report.evidence(&evidence);
}

/// Waits until nothing waits that need not.
async fn at_rest(world: &World, rules: &Rules) {
    wait::within(REST, || async {
        let found = check(&world.evidence().await, rules);
        let waiting = found.iter().any(|v| matches!(v, Violation::Pending(..)));
        (!waiting).then_some(())
    })
    .await;
}

/// Puts back what is parked, until nothing is. Answers how many messages that were.
async fn redrive_all(world: &World) -> usize {
    let (desk, begun, mut redriven) = (world.site.desk(), Instant::now(), 0);
    while begun.elapsed() < REST {
        let filter = Filter {
            state: Some("pending".into()),
            limit: 1_000,
            ..Filter::default()
        };
        let parked = desk
            .parked(&filter)
            .await
            .expect("the parking lot cannot be read");
        let ids: Vec<String> = parked.into_iter().map(|entry| entry.id).collect();
        redriven += desk
            .redrive(&ids, true, "chaos")
            .await
            .expect("no redrive")
            .redriven
            .len();
        if world
            .site
            .standings()
            .await
            .iter()
            .all(|s| s.place == Place::Sent)
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    redriven
}
