//! `bench`: what this database can do, measured through the whole engine.
//!
//! # Promise
//! Works in a queue of its own and leaves no message behind, also when it is interrupted or fails.

mod sink;

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::message::{Aggregate, Message, MessageId, Payload};
use counterfoil_core::store::{Keyed, Store};
use counterfoil_engine::{Engine, EngineBuilder, QueueSpec, Settings};
use serde::Serialize;

use crate::args::{Bench, Dialect};
use crate::database::{Outbox, Place};
use crate::failure::{Failure, Result};
use crate::print;
use sink::Sink;

const QUEUE: &str = "counterfoil-bench";
/// Messages in one transaction while enqueueing.
const BATCH: usize = 500;
/// How long the time to delivery is measured.
const WATCH: Duration = Duration::from_secs(3);
/// Callers at one time while the time to delivery is measured.
const CALLERS: u32 = 4;
/// Nothing was delivered for so long: it will not get better.
const STUCK: Duration = Duration::from_secs(30);

/// What was measured.
#[derive(Debug, Serialize)]
struct Figures {
    database: String,
    messages: u32,
    aggregates: u32,
    enqueue_per_s: f64,
    drain_per_s: f64,
    watched_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Measures and prints.
pub(super) async fn run(place: &Place, args: &Bench) -> Result {
    let created = place.file().filter(|file| !file.exists());
    let outbox = match place.dialect() {
        Dialect::Sqlite => place.open_migrated().await?,
        _ => place.open_existing().await?,
    };
    let figures = tokio::select! {
        figures = measure(&outbox, args) => figures,
        _ = tokio::signal::ctrl_c() => Err(Failure::failed("interrupted")),
    };
    let cleaned = clean_up(&outbox).await;
    outbox.close().await;
    if let Some(file) = created {
        remove(&file);
    }
    let figures = figures?;
    cleaned?;
    match args.output.json {
        true => print::json(&figures),
        false => table(&figures),
    }
}

fn table(figures: &Figures) -> Result {
    let rate = |n: f64| format!("{n:.0} messages/s");
    let watched = format!(
        "commit to delivery at {:.0} messages/s",
        figures.watched_per_s
    );
    print::line(&format!(
        "{}: {} messages of 256 bytes, {} aggregates",
        figures.database, figures.messages, figures.aggregates
    ))?;
    let rows = [
        (
            format!("enqueue, {BATCH} in a transaction"),
            rate(figures.enqueue_per_s),
        ),
        ("drain".into(), rate(figures.drain_per_s)),
        (
            format!("{watched}, half within"),
            format!("{:.2} ms", figures.p50_ms),
        ),
        (
            format!("{watched}, 99 % within"),
            format!("{:.2} ms", figures.p99_ms),
        ),
    ];
    print::table(
        &["WHAT", "MEASURED"],
        rows.map(|(what, n)| vec![what, n]).into(),
        "",
    )
}

async fn measure(outbox: &Arc<dyn Outbox>, args: &Bench) -> Result<Figures> {
    if pending(&**outbox).await?.relays > 0 {
        return Err(Failure::failed("another bench runs on this database"));
    }
    // What an earlier run left, and whether anything arrives at all.
    clean_up(outbox).await?;

    let messages: Vec<Keyed> = (0..args.messages)
        .map(|n| message(n % args.aggregates))
        .collect();
    let started = Instant::now();
    for batch in messages.chunks(BATCH) {
        outbox.enqueue(batch).await?;
    }
    let enqueued = started.elapsed();
    drop(messages);

    let sink = Arc::new(Sink::default());
    let engine = start(outbox, &sink).await?;
    wait_for(&sink, u64::from(args.messages)).await?;
    let drained = sink.span();

    let (watched, mut times) = watch(outbox, &engine, &sink, args).await?;
    engine.stop().await;
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len().saturating_sub(1) as f64 * share) as usize;
        times
            .get(index)
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    Ok(Figures {
        database: outbox.describe(),
        messages: args.messages,
        aggregates: args.aggregates,
        enqueue_per_s: per_second(args.messages, enqueued),
        drain_per_s: per_second(args.messages, drained),
        watched_per_s: watched,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
    })
}

/// Enqueues one by one at a steady rate. Answers the rate that was reached, and how long each
/// message took from its commit to its delivery.
async fn watch(
    outbox: &Arc<dyn Outbox>,
    engine: &Engine,
    sink: &Arc<Sink>,
    args: &Bench,
) -> Result<(f64, Vec<Duration>)> {
    sink.watch();
    let pause = Duration::from_secs(1) * CALLERS / args.rate;
    let (before, started) = (sink.delivered(), Instant::now());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (outbox, nudge, aggregates) = (Arc::clone(outbox), engine.nudge(), args.aggregates);
        callers.spawn(async move {
            let mut ticks = tokio::time::interval(pause);
            let mut committed: Vec<(MessageId, Instant)> = Vec::new();
            while started.elapsed() < WATCH {
                ticks.tick().await;
                let keyed = message(fastrand::u32(..aggregates) / CALLERS * CALLERS + caller);
                let id = keyed.message.id;
                outbox.enqueue(&[keyed]).await?;
                committed.push((id, Instant::now()));
                nudge.nudge();
            }
            Ok::<_, Failure>(committed)
        });
    }
    let mut committed = Vec::new();
    while let Some(done) = callers.join_next().await {
        committed.extend(done.map_err(|e| Failure::failed(e.to_string()))??);
    }
    let rate = committed.len() as f64 / started.elapsed().as_secs_f64();
    wait_for(sink, before + committed.len() as u64).await?;
    let arrived = sink.arrived();
    let took = committed.iter().filter_map(|(id, at)| {
        arrived
            .get(id)
            .map(|arrived| arrived.saturating_duration_since(*at))
    });
    Ok((rate, took.collect()))
}

fn message(aggregate: u32) -> Keyed {
    let payload = format!("{{\"filler\":\"{}\"}}", "x".repeat(256 - 13));
    let message = Message::new("Bench", Payload::Json(payload)).queue(QUEUE);
    message.aggregate(Aggregate::new("bench", aggregate)).into()
}

fn per_second(messages: u32, took: Duration) -> f64 {
    f64::from(messages) / took.as_secs_f64().max(1e-6)
}

async fn start(outbox: &Arc<dyn Outbox>, sink: &Arc<Sink>) -> Result<Engine> {
    let settings = Settings {
        label: "bench".into(),
        ..Settings::default()
    };
    let destination = Arc::clone(sink);
    let engine = EngineBuilder::new(Arc::clone(outbox) as Arc<dyn Store>)
        .settings(settings)
        .queue(QueueSpec::new(QUEUE, destination));
    Ok(engine.start().await?)
}

async fn wait_for(sink: &Sink, count: u64) -> Result {
    let (mut last, mut since) = (sink.delivered(), Instant::now());
    while sink.delivered() < count {
        if sink.delivered() != last {
            (last, since) = (sink.delivered(), Instant::now());
        }
        if since.elapsed() > STUCK {
            let left = count - last;
            return Err(Failure::failed(format!(
                "{left} messages are not delivered: giving up"
            )));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

struct Pending {
    messages: u64,
    relays: u64,
}

async fn pending(outbox: &dyn Outbox) -> Result<Pending> {
    let stats = outbox.stats().await?;
    let ours = stats.iter().find(|queue| queue.queue == QUEUE);
    Ok(ours.map_or(
        Pending {
            messages: 0,
            relays: 0,
        },
        |queue| Pending {
            messages: queue.pending(),
            relays: queue.relays,
        },
    ))
}

/// Delivers into nothing whatever stands in the queue.
async fn clean_up(outbox: &Arc<dyn Outbox>) -> Result {
    if pending(&**outbox).await?.messages == 0 {
        return Ok(());
    }
    let engine = start(outbox, &Arc::new(Sink::default())).await?;
    let started = Instant::now();
    while pending(&**outbox).await?.messages > 0 {
        if started.elapsed() > STUCK {
            engine.stop().await;
            let text = format!("messages are left in the queue {QUEUE}: run the bench again");
            return Err(Failure::failed(text));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    engine.stop().await;
    Ok(())
}

/// Removes a database file that was not there before.
fn remove(file: &std::path::Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        // What stays is only untidy.
        let _ = std::fs::remove_file(name);
    }
    let mut locks = file.as_os_str().to_owned();
    locks.push(".locks");
    let _ = std::fs::remove_dir_all(locks);
    // Goes only when it is empty.
    let _ = file.parent().map(std::fs::remove_dir);
}
