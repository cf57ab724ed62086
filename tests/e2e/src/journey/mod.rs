//! The whole journey under faults: business transaction, outbox, relay, broker, consumer, inbox.
//!
//! # Promise
//! Every process here is real, and so are the broker and the deaths. Afterwards sums are conserved,
//! no effect happened twice and none is missing, every aggregate was processed in its order, and
//! what can never pass is parked once for each consumer. The seed decides what is done to whom; the
//! machine decides the rest.

pub mod books;
mod broker;
mod cast;
mod check;
mod report;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::process::{Launcher, Process};
use crate::site::{PostgresSite, Site};
use crate::wait;

pub use broker::{Kind, Server};
pub use report::Report;

use cast::{Cast, Part};

/// The consumer that moves goods and money.
pub const STOCK: &str = "stock";
/// The consumer that only notes what it has seen.
pub const AUDIT: &str = "audit";
/// Both.
const CONSUMERS: [&str; 2] = [STOCK, AUDIT];
/// How long everything may take to come to rest after the last fault.
const REST: Duration = Duration::from_secs(300);

/// What to play.
#[derive(Debug, Clone)]
pub struct Options {
    /// Through which broker.
    pub broker: Kind,
    /// Everything random follows from it.
    pub seed: u64,
    /// Messages to be written.
    pub messages: i64,
    /// Over so many aggregates.
    pub aggregates: i32,
    /// Processes that write.
    pub writers: usize,
    /// Milliseconds between two transactions of a writer, at most.
    pub pause: u64,
    /// Milliseconds that a consumer takes for a message, at most: so that faults find it at work.
    pub slow: u64,
    /// Faults go on until nearly everything has been processed. Otherwise each happens once.
    pub relentless: bool,
    /// In its first life each consumer dies when it would tell the broker for the first time what is
    /// committed: so that a duplicate comes, whatever the other faults hit.
    pub dies_untold: bool,
}

impl Options {
    /// A short one: every fault once.
    pub fn short(broker: Kind, seed: u64) -> Self {
        let (messages, pause) = match broker.is_slow() {
            true => (400, 450),
            false => (1_500, 120),
        };
        Self {
            broker,
            seed,
            messages,
            aggregates: 60,
            writers: 1,
            pause,
            slow: 60,
            relentless: false,
            dies_untold: true,
        }
    }

    /// A long one: so many messages over 500 aggregates, and faults all the time.
    pub fn long(broker: Kind, seed: u64, messages: i64) -> Self {
        Self {
            broker,
            seed,
            messages,
            aggregates: 500,
            writers: 2,
            pause: 20,
            slow: 0,
            relentless: true,
            dies_untold: true,
        }
    }
}

/// The place of a journey: a database, a broker, and everything that processes need to know.
struct Stage {
    site: PostgresSite,
    pool: PgPool,
    launcher: Launcher,
    logs: tempfile::TempDir,
    options: Options,
    url: String,
}

impl Stage {
    async fn set(options: &Options, launcher: Launcher) -> Option<(Arc<Self>, Box<dyn Server>)> {
        let site = PostgresSite::fresh().await?;
        let server = options.broker.start().await?;
        server.prepare(&CONSUMERS).await;
        let pool = PgPoolOptions::new()
            .max_connections(3)
            .connect(&site.url("director"))
            .await
            .expect("the server was there a moment ago");
        books::found(&pool, options.aggregates).await;
        let stage = Self {
            site,
            pool,
            launcher,
            logs: tempfile::tempdir().expect("no directory for logs"),
            options: options.clone(),
            url: server.url(),
        };
        Some((Arc::new(stage), server))
    }

    fn start(&self, part: Part, label: &str, seed: u64) -> Process {
        let mut args: Vec<String> = Vec::new();
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("database", self.site.url(label));
        if part != Part::Writer {
            add("label", label.to_owned());
            add("broker", self.options.broker.name());
            add("url", self.url.clone());
        }
        match part {
            Part::Writer => {
                add("aggregates", self.options.aggregates.to_string());
                add("messages", self.options.messages.to_string());
                add("pause", self.options.pause.to_string());
                add("seed", seed.to_string());
            }
            Part::Relay => {}
            Part::Stock | Part::Audit => {
                add("name", part.consumer().to_owned());
                add("failing", "5".to_owned());
                add("slow", self.options.slow.to_string());
            }
        }
        if matches!(part, Part::Writer | Part::Relay) {
            let queues = self.options.broker.queues(&CONSUMERS);
            queues.into_iter().for_each(|q| add("queue", q));
        }
        let consumes = matches!(part, Part::Stock | Part::Audit);
        if self.options.dies_untold && consumes && label.ends_with("-1") {
            args.push("--dies-untold".to_owned());
        }
        args.insert(0, part.command().to_owned());
        self.launcher.start(label, self.logs.path(), &args)
    }

    /// Waits until nothing is under way. Answers false when that takes too long.
    async fn at_rest(&self) -> bool {
        let rest = wait::within(REST, || async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            check::at_rest(&self.pool).await.then_some(())
        });
        rest.await.is_some()
    }

    async fn end(self: Arc<Self>) {
        self.pool.close().await;
        self.site.remove().await;
    }
}

/// Plays a run. Absent when the database or the broker is missing.
pub async fn run(options: &Options, launcher: Launcher) -> Option<Report> {
    let (stage, server) = Stage::set(options, launcher).await?;
    let mut report = Report::new(options);
    let mut cast = Cast::new(Arc::clone(&stage), server);
    cast.everybody_enters().await;
    loop {
        cast.every_fault_once().await;
        if !options.relentless || check::nearly_done(&stage.pool, options.messages).await {
            break;
        }
    }
    cast.heal().await;
    if !stage.at_rest().await {
        report.violations.push("it does not come to rest".into());
    }
    cast.everybody_leaves(&mut report).await;
    check::all(&stage, &mut report).await;
    if !report.violations.is_empty() {
        report.keep_logs(stage.logs.path());
    }
    stage.end().await;
    Some(report)
}

/// Two consumers share the work, a third joins and leaves, one with another name gets everything.
/// Nobody dies. Absent when the database or the broker is missing.
pub async fn sharing(broker: Kind, launcher: Launcher) -> Option<Report> {
    let options = Options {
        // The writer is asked to end.
        messages: i64::MAX,
        dies_untold: false,
        ..Options::short(broker, 1)
    };
    let (stage, server) = Stage::set(&options, launcher).await?;
    let mut report = Report::new(&options);
    let mut cast = Cast::new(Arc::clone(&stage), server);
    cast.everybody_enters().await;
    has_work(&stage, &["stock0-1", "stock1-1", "audit0-1"]).await;

    let mut guest = stage.start(Part::Stock, "guest", 0);
    guest.says("ready").await;
    has_work(&stage, &["guest"]).await;
    guest.terminate();
    assert!(guest.ends().await.success(), "{}", guest.log());
    let after: i64 = check::number(&stage.pool, "SELECT max(n) FROM j_log").await;
    has_work_after(&stage, &["stock0-1", "stock1-1", "audit0-1"], after).await;

    cast.writers_end().await;
    if !stage.at_rest().await {
        report.violations.push("it does not come to rest".into());
    }
    cast.everybody_leaves(&mut report).await;
    check::all(&stage, &mut report).await;
    stage.end().await;
    Some(report)
}

async fn has_work(stage: &Stage, processes: &[&str]) {
    has_work_after(stage, processes, 0).await;
}

/// Waits until each of these has applied something after this entry of the log.
async fn has_work_after(stage: &Stage, processes: &[&str], after: i64) {
    for process in processes {
        wait::until(&format!("{process} has something to do"), || async move {
            let some: i64 =
                sqlx::query_scalar("SELECT count(*) FROM j_log WHERE process = $1 AND n > $2")
                    .bind(*process)
                    .bind(after)
                    .fetch_one(&stage.pool)
                    .await
                    .unwrap();
            (some > 0).then_some(())
        })
        .await;
    }
}
