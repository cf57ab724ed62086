//! `cargo xtask bench relay`: how fast, how soon, how much memory, next to a raw loop.

use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use counterfoil_benches::subject::{Postgres, Sqlite, Subject};
use counterfoil_benches::{
    Report, cpu_time, drain, latency, median, memory_mb, percentile, reset_peak_memory,
};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Postgres,
    Sqlite,
}

/// Measures the relay next to a raw loop that only claims and deletes the same rows.
#[derive(Parser)]
struct Options {
    /// The database to measure.
    #[arg(long, value_enum, default_value = "postgres")]
    store: Kind,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
    /// Smaller numbers: minutes become seconds, and ratios become rough.
    #[arg(long)]
    quick: bool,
    /// Only this part: drain, latency, memory, enqueue, snapshot, history, idle, held, idle-queues.
    #[arg(long)]
    only: Option<String>,
    /// Queues that have nothing to do, for the part `idle-queues`.
    #[arg(long, default_value_t = 1_000)]
    idle_queues: usize,
    /// Runs of each compared pair; the medians are reported.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .init();
    let options = Options::parse();
    let subject: Arc<dyn Subject> = match options.store {
        Kind::Postgres => {
            let url = std::env::var("COUNTERFOIL_TEST_POSTGRES_URL").map_err(|_| {
                anyhow::anyhow!(
                    "set COUNTERFOIL_TEST_POSTGRES_URL, or run `cargo xtask bench relay`"
                )
            })?;
            Arc::new(Postgres::open(&url).await?)
        }
        Kind::Sqlite => Arc::new(Sqlite::open().await?),
    };
    let mut report = Report::default();
    for (name, part) in PARTS {
        let dear = matches!(part, Part::Held | Part::IdleQueues);
        if options.only.as_deref().map_or(!dear, |only| only == *name) {
            eprintln!("measuring: {name}");
            match part {
                Part::Drain => measure_drain(&*subject, &options, &mut report).await?,
                Part::Memory => measure_memory(&*subject, &options, &mut report).await?,
                Part::Latency => measure_latency(&subject, &options, &mut report).await?,
                Part::Enqueue => measure_enqueue(&*subject, &options, &mut report).await?,
                Part::Snapshot => measure_snapshot(&*subject, &options, &mut report).await?,
                Part::Idle => measure_idle(&*subject, &options, &mut report).await?,
                Part::History => measure_history(&*subject, &options, &mut report).await?,
                Part::Held => measure_held(&*subject, &options, &mut report).await?,
                Part::IdleQueues => measure_idle_queues(&*subject, &options, &mut report).await?,
            }
        }
    }
    if options.json {
        println!("{}", report.json());
    }
    Ok(())
}

enum Part {
    Drain,
    Memory,
    Latency,
    Enqueue,
    Snapshot,
    Idle,
    History,
    Held,
    IdleQueues,
}

const PARTS: &[(&str, Part)] = &[
    ("drain", Part::Drain),
    ("memory", Part::Memory),
    ("latency", Part::Latency),
    ("enqueue", Part::Enqueue),
    ("snapshot", Part::Snapshot),
    ("idle", Part::Idle),
    ("history", Part::History),
    ("held", Part::Held),
    ("idle-queues", Part::IdleQueues),
];

const AGGREGATES: u64 = 20_000;

impl Options {
    fn messages(&self) -> u64 {
        if self.quick { 40_000 } else { 200_000 }
    }

    fn runs(&self) -> usize {
        if self.quick { 1 } else { self.runs.max(1) }
    }
}

/// One engine run over `n` fresh messages.
async fn drained(subject: &dyn Subject, n: u64) -> anyhow::Result<f64> {
    subject.preload(n, AGGREGATES).await?;
    drain::through_engine(subject, n).await
}

async fn measure_drain(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..options.runs() {
        subject.clean().await?;
        subject.preload(options.messages(), AGGREGATES).await?;
        raw.push(drain::through_raw_loop(subject).await?);
        subject.clean().await?;
        ours.push(drained(subject, options.messages()).await?);
        eprintln!(
            "  raw {:.0}/s, engine {:.0}/s",
            raw[raw.len() - 1],
            ours[ours.len() - 1]
        );
    }
    let (ours, raw) = (median(&mut ours), median(&mut raw));
    report.put("drain_per_s", ours);
    report.put("raw_per_s", raw);
    report.put("ratio", ours / raw);
    Ok(())
}

async fn measure_memory(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let n = if options.quick { 200_000 } else { 1_000_000 };
    subject.clean().await?;
    subject.preload(n, AGGREGATES).await?;
    let raw = drain::through_raw_loop(subject).await?;
    subject.clean().await?;
    subject.preload(n, AGGREGATES).await?;
    reset_peak_memory();
    let rate = drain::through_engine(subject, n).await?;
    report.put("drain_1m_per_s", rate);
    report.put("ratio_1m", rate / raw);
    report.put("rss_mb_1m", memory_mb("VmHWM"));
    Ok(())
}

async fn measure_latency(
    subject: &Arc<dyn Subject>,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let time = Duration::from_secs(if options.quick { 3 } else { 15 });
    for rate in [500, 2_000] {
        let (mut middle, mut late) = (Vec::new(), Vec::new());
        for _ in 0..options.runs().min(3) {
            subject.clean().await?;
            let mut times = latency::at_rate(Arc::clone(subject), rate, time).await?;
            middle.push(percentile(&mut times, 0.50));
            late.push(percentile(&mut times, 0.99));
        }
        report.put(&format!("p50_ms_{rate}"), median(&mut middle));
        report.put(&format!("p99_ms_{rate}"), median(&mut late));
    }
    Ok(())
}

async fn measure_enqueue(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let time = Duration::from_secs(if options.quick { 1 } else { 5 });
    let (mut with, mut without) = (Vec::new(), Vec::new());
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    for _ in 0..options.runs() {
        subject.clean().await?;
        without.push(subject.transactions(false, time, 8).await? as f64 / time.as_secs_f64());
        subject.clean().await?;
        with.push(subject.transactions(true, time, 8).await? as f64 / time.as_secs_f64());
    }
    let (with, without) = (median(&mut with), median(&mut without));
    report.put("tx_per_s", without);
    report.put("tx_with_message_per_s", with);
    report.put("enqueue_ratio", with / without);
    subject.clean().await
}

async fn measure_snapshot(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut free, mut held) = (Vec::new(), Vec::new());
    for _ in 0..options.runs() {
        subject.clean().await?;
        free.push(drained(subject, options.messages()).await?);
        subject.clean().await?;
        subject.preload(options.messages(), AGGREGATES).await?;
        let snapshot = subject.hold_snapshot().await?;
        held.push(drain::through_engine(subject, options.messages()).await?);
        drop(snapshot);
    }
    let (free, held) = (median(&mut free), median(&mut held));
    report.put("held_snapshot_per_s", held);
    report.put("held_snapshot_ratio", held / free);
    Ok(())
}

async fn measure_history(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let behind = if options.quick { 200_000 } else { 10_000_000 };
    let mut empty = Vec::new();
    for _ in 0..options.runs() {
        subject.clean().await?;
        empty.push(drained(subject, options.messages()).await?);
    }
    subject.clean().await?;
    subject.pass_through(behind).await?;
    let mut after = Vec::new();
    for _ in 0..options.runs() {
        after.push(drained(subject, options.messages()).await?);
    }
    let (empty, after) = (median(&mut empty), median(&mut after));
    report.put("history_per_s", after);
    report.put("history_ratio", after / empty);
    subject.clean().await
}

async fn measure_idle(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let time = Duration::from_secs(if options.quick { 3 } else { 20 });
    subject.clean().await?;
    let engine = drain::engine(subject, Arc::new(drain::Nowhere::default())).await?;
    // An engine that has just started, or had work, looks more often for a while.
    tokio::time::sleep(Duration::from_secs(if options.quick { 1 } else { 12 })).await;
    let before = cpu_time();
    tokio::time::sleep(time).await;
    let used = cpu_time().saturating_sub(before);
    engine.stop().await;
    report.put(
        "idle_cpu_percent",
        used.as_secs_f64() / time.as_secs_f64() * 100.0,
    );
    Ok(())
}

/// One queue drains while another has lanes that wait behind parked messages.
async fn measure_held(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let rows = if options.quick { 100_000 } else { 1_000_000 };
    let others = ["held".to_owned()];
    let (mut free, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..options.runs() {
        subject.clean().await?;
        subject.preload(options.messages(), AGGREGATES).await?;
        free.push(drain::beside(subject, options.messages(), &others).await?);
        subject.clean().await?;
        subject.hold_lanes(&others[0], rows, rows / 10).await?;
        subject.preload(options.messages(), AGGREGATES).await?;
        beside.push(drain::beside(subject, options.messages(), &others).await?);
    }
    let (free, beside) = (median(&mut free), median(&mut beside));
    report.put("beside_held_lanes_per_s", beside);
    report.put("held_lanes_ratio", beside / free);
    subject.clean().await
}

/// What queues cost that have nothing to do.
async fn measure_idle_queues(
    subject: &dyn Subject,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    let time = Duration::from_secs(if options.quick { 10 } else { 60 });
    subject.clean().await?;
    let others: Vec<String> = (0..options.idle_queues)
        .map(|n| format!("idle-{n:05}"))
        .collect();
    let nowhere = Arc::new(drain::Nowhere::default());
    let engine = drain::engine_with(subject, nowhere, &others).await?;
    // An engine that has just started takes its shards, and looks more often for a while.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let ended = subject.ended_transactions().await?;
    let (cpu, begun) = (cpu_time(), std::time::Instant::now());
    tokio::time::sleep(time).await;
    let used = cpu_time().saturating_sub(cpu).as_secs_f64();
    let passed = begun.elapsed().as_secs_f64();
    report.put("idle_queues_cpu_percent", used / passed * 100.0);
    if let (Some(before), Some(after)) = (ended, subject.ended_transactions().await?) {
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let ended = (after - before) as f64;
        let passed = begun.elapsed().as_secs_f64();
        report.put("idle_queues_transactions_per_s", ended / passed);
    }
    engine.stop().await;
    Ok(())
}
