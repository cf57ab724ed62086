//! The processes between the two ends of a journey: who writes, who relays, who consumes.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use counterfoil::inbox::{Event, HandleError};
use counterfoil::{Counterfoil, Message, OnPark, Postgres, QueueSpec, Settings, Tx};
use counterfoil_core::BoxError;
use counterfoil_core::policy::Backoff;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::untold::DiesUntold;
use super::{End, Where, say};
use crate::journey::books::{self, BROKEN, Content, STOCK_TAKEN, TRANSFERRED, UNKNOWN};
use crate::journey::{Kind, STOCK};

/// Longer than a driver waits for its broker.
const LEASE: Duration = Duration::from_secs(4);

/// The arguments of somebody who writes.
#[derive(Debug, Clone, Args)]
pub struct ProduceArgs {
    #[command(flatten)]
    place: Where,
    /// Queues of the outbox that each message goes to.
    #[arg(long = "queue")]
    queues: Vec<String>,
    #[arg(long)]
    aggregates: i32,
    /// Messages of all writers together.
    #[arg(long)]
    messages: i64,
    /// Milliseconds between two transactions, at most.
    #[arg(long)]
    pause: u64,
    #[arg(long)]
    seed: u64,
}

/// The arguments of a relay.
#[derive(Debug, Clone, Args)]
pub struct ForwardArgs {
    #[command(flatten)]
    place: Where,
    #[arg(long)]
    label: String,
    #[arg(long)]
    broker: Kind,
    #[arg(long)]
    url: String,
    #[arg(long = "queue")]
    queues: Vec<String>,
}

/// The arguments of a consumer.
#[derive(Debug, Clone, Args)]
pub struct ConsumeArgs {
    #[command(flatten)]
    place: Where,
    #[arg(long)]
    label: String,
    #[arg(long)]
    broker: Kind,
    #[arg(long)]
    url: String,
    /// Under which name it remembers.
    #[arg(long)]
    name: String,
    /// Of a thousand messages so many fail at the first try.
    #[arg(long)]
    failing: u32,
    /// Milliseconds that it takes to apply a message, at most.
    #[arg(long)]
    slow: u64,
    /// Dies when it would tell the broker for the first time what is committed.
    #[arg(long)]
    dies_untold: bool,
}

async fn pool(place: &Where, connections: u32) -> Result<PgPool, BoxError> {
    let options = PgPoolOptions::new().max_connections(connections);
    Ok(options.connect_lazy(&place.database)?)
}

fn settings(label: &str) -> Settings {
    Settings {
        lease: LEASE,
        poll: Duration::from_millis(50),
        rescan: Duration::from_secs(1),
        drain: Duration::from_secs(10),
        keep_sent: true,
        label: label.to_owned(),
        ..Settings::default()
    }
}

/// Quick, and never at its end.
fn backoff() -> Result<Backoff, BoxError> {
    let base = Duration::from_millis(50);
    Ok(Backoff::new(base, base * 8, 100_000)?)
}

pub(super) async fn produce(args: ProduceArgs) -> Result<(), BoxError> {
    let pool = pool(&args.place, 2).await?;
    let cf = Counterfoil::postgres(pool.clone())
        .migrate(false)
        .start()
        .await?;
    let mut end = End::listen()?;
    let mut rng = fastrand::Rng::with_seed(args.seed);
    say("ready");
    loop {
        match write(&pool, &cf, &args, &mut rng).await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "no business"),
        }
        let pause = Duration::from_millis(rng.u64(0..=args.pause));
        tokio::select! {
            () = end.asked() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    cf.stop().await;
    say("written");
    Ok(())
}

/// One transaction with one message for each of some aggregates. True when all is written.
async fn write(
    pool: &PgPool,
    cf: &Counterfoil<Postgres>,
    args: &ProduceArgs,
    rng: &mut fastrand::Rng,
) -> Result<bool, BoxError> {
    let left = args.messages - books::committed(pool).await?;
    if left <= 0 {
        return Ok(true);
    }
    let most = usize::try_from(left.min(20))?;
    let mut chosen: Vec<i32> = (0..rng.usize(1..=most))
        .map(|_| rng.i32(0..args.aggregates))
        .collect();
    chosen.sort_unstable();
    chosen.dedup();
    let mut tx = pool.begin().await?;
    // In one order for all writers, so that they do not wait for each other in a circle.
    let numbered: Vec<(i32, i64)> = sqlx::query_as(
        "WITH mine AS MATERIALIZED (
             SELECT aggregate FROM j_counters WHERE aggregate = ANY($1) ORDER BY aggregate FOR UPDATE
         )
         UPDATE j_counters c SET version = c.version + 1 FROM mine WHERE c.aggregate = mine.aggregate
         RETURNING c.aggregate, c.version",
    )
    .bind(&chosen)
    .fetch_all(&mut *tx)
    .await?;
    let mut messages = Vec::new();
    for (aggregate, version) in numbered {
        let (kind, content) = business(args, rng, aggregate, version);
        sqlx::query("INSERT INTO j_facts VALUES ($1, $2, $3, $4, $5)")
            .bind(aggregate)
            .bind(version)
            .bind(kind)
            .bind(content.amount)
            .bind(content.other)
            .execute(&mut *tx)
            .await?;
        for queue in &args.queues {
            let message = Message::json("thing", aggregate, kind, &content)?;
            messages.push(message.queue(queue).version(version));
        }
    }
    cf.enqueue_all(&mut tx, &messages).await?;
    cf.commit(tx).await?;
    Ok(false)
}

fn business(
    args: &ProduceArgs,
    rng: &mut fastrand::Rng,
    aggregate: i32,
    version: i64,
) -> (&'static str, Content) {
    let kind = match rng.u32(0..1_000) {
        0..5 => UNKNOWN,
        5..10 => BROKEN,
        _ if aggregate % 2 == 0 => STOCK_TAKEN,
        _ => TRANSFERRED,
    };
    // Mostly to the partner; now and then two consumers get in each other's way.
    let other = match rng.u32(0..500) {
        0 => rng.i32(0..args.aggregates / 2) * 2 + 1,
        _ => aggregate + args.aggregates,
    };
    let content = Content {
        aggregate,
        version,
        amount: rng.i64(1..=3),
        other,
    };
    (kind, content)
}

pub(super) async fn forward(args: ForwardArgs) -> Result<(), BoxError> {
    let pool = pool(&args.place, 8).await?;
    let mut builder = Counterfoil::postgres(pool)
        .migrate(false)
        .settings(settings(&args.label));
    for queue in &args.queues {
        let destination = args.broker.destination(&args.url, queue)?;
        let mut spec = QueueSpec::new(queue, destination);
        spec.backoff = backoff()?;
        spec.breaker.open_for = Duration::from_millis(100);
        spec.breaker.open_cap = Duration::from_secs(1);
        builder = builder.queue(spec);
    }
    let mut end = End::listen()?;
    let cf = builder.start().await?;
    say("ready");
    end.asked().await;
    cf.stop().await;
    say("stopped");
    Ok(())
}

/// Who consumes.
struct Who {
    name: String,
    process: String,
    failing: u32,
    slow: u64,
}

pub(super) async fn consume(args: ConsumeArgs) -> Result<(), BoxError> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let pool = pool(&args.place, 16).await?;
    let cf = Counterfoil::postgres(pool)
        .migrate(false)
        .settings(settings(&args.label))
        .start()
        .await?;
    let mut source = args.broker.source(&args.url, &args.name)?;
    if args.dies_untold {
        source = Arc::new(DiesUntold(source));
    }
    let who = Arc::new(Who {
        name: args.name.clone(),
        process: args.label.clone(),
        failing: args.failing,
        slow: args.slow,
    });
    let mut end = End::listen()?;
    let mut builder = cf
        .consumer_of(&args.name, source)
        .workers(4)
        .batch(25)
        .held(400)
        .backoff(backoff()?)
        .on_park(OnPark::Skip);
    for kind in [STOCK_TAKEN, TRANSFERRED, BROKEN] {
        let who = Arc::clone(&who);
        builder = builder.on(kind, move |tx, event| {
            let who = Arc::clone(&who);
            async move { apply(&who, tx, event).await }
        });
    }
    let consumer = builder.start().await?;
    say("ready");
    let counting = tokio::spawn(count(metrics));
    end.asked().await;
    consumer.stop().await;
    cf.stop().await;
    counting.abort();
    say("stopped");
    Ok(())
}

/// What was processed, and what was a repeat, whenever that changes.
async fn count(metrics: PrometheusHandle) {
    let mut said = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let rendered = metrics.render();
        let repeats = rendered
            .lines()
            .filter(|l| l.starts_with("counterfoil_consumed_total") && l.contains("\"repeat\""))
            .filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        if repeats != said {
            said = repeats;
            say(&format!("repeats {said}"));
        }
    }
}

async fn apply(who: &Who, mut tx: Tx<Postgres>, event: Event<Content>) -> Result<(), HandleError> {
    let content = event.content;
    if event.event_type == BROKEN {
        return Err(HandleError::Park("refused for ever".into()));
    }
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=who.slow))).await;
    if fastrand::u32(0..1_000) < who.failing {
        return Err(HandleError::failed("bad luck"));
    }
    sqlx::query(
        "INSERT INTO j_log (consumer, process, aggregate, version, kind) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(&who.name)
    .bind(&who.process)
    .bind(content.aggregate)
    .bind(event.version)
    .bind(&event.event_type)
    .execute(&mut **tx)
    .await?;
    if who.name != STOCK {
        return Ok(());
    }
    match event.event_type.as_str() {
        STOCK_TAKEN => take(&mut tx, &content).await,
        _ => transfer(&mut tx, &content).await,
    }
}

async fn take(tx: &mut Tx<Postgres>, content: &Content) -> Result<(), HandleError> {
    let take =
        sqlx::query("UPDATE j_stock SET on_hand = on_hand - $2 WHERE item = $1 AND on_hand >= $2");
    let taken = take.bind(content.aggregate).bind(content.amount);
    let none = sqlx::query("SELECT 1 WHERE false");
    match counterfoil::write::update_if::<Postgres>(tx, taken, none).await? {
        counterfoil::Applied::Refused => Err(HandleError::Park("none left".into())),
        _ => Ok(()),
    }
}

async fn transfer(tx: &mut Tx<Postgres>, content: &Content) -> Result<(), HandleError> {
    for (account, change) in [
        (content.aggregate, -content.amount),
        (content.other, content.amount),
    ] {
        sqlx::query("UPDATE j_accounts SET balance = balance + $2 WHERE account = $1")
            .bind(account)
            .bind(change)
            .execute(&mut ***tx)
            .await?;
    }
    Ok(())
}
