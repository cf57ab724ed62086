//! `cargo xtask bench brokers`: from the outbox to a broker and from there into the inbox, next to
//! the bare client library.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use clap::Parser;
use counterfoil::inbox::{Event, HandleError};
use counterfoil::{Counterfoil, Tx};
use counterfoil_benches::brokers::{Broker, Kind, Record};
use counterfoil_benches::subject::{Postgres, Subject};
use counterfoil_benches::{Report, drain, latency, median, percentile};
use counterfoil_core::{Capabilities, Delivery, Destination, Outcome};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::sync::Notify;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures the relay and the inbox next to the bare client library of a broker.
#[derive(Parser)]
struct Options {
    /// The broker; its address is in COUNTERFOIL_TEST_<BROKER>_URL.
    #[arg(long, value_enum)]
    broker: Kind,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
    /// Smaller numbers, and one round: ratios become rough.
    #[arg(long)]
    quick: bool,
    /// Rounds of each compared pair; the medians are reported.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

impl Options {
    fn published(&self) -> u64 {
        self.less(if self.quick { 5_000 } else { 50_000 })
    }

    fn consumed(&self) -> u64 {
        self.less(if self.quick { 1_000 } else { 10_000 })
    }

    /// What stands in for SQS stores some hundred messages in a second, and fewer the more it has.
    fn less(&self, messages: u64) -> u64 {
        match self.broker {
            #[cfg(feature = "sqs")]
            Kind::Sqs => (messages / 10).max(1_000),
            _ => messages,
        }
    }

    fn runs(&self) -> usize {
        if self.quick { 1 } else { self.runs.max(1) }
    }
}

struct Bench {
    options: Options,
    subject: Arc<Postgres>,
    pool: PgPool,
    broker: Box<dyn Broker>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .init();
    let options = Options::parse();
    let url = std::env::var("COUNTERFOIL_TEST_POSTGRES_URL").map_err(|_| {
        anyhow::anyhow!("set COUNTERFOIL_TEST_POSTGRES_URL, or run `cargo xtask bench brokers`")
    })?;
    let subject = Arc::new(Postgres::open(&url).await?);
    let bench = Bench {
        broker: options.broker.open().await?,
        pool: PgPool::connect(subject.url()).await?,
        subject,
        options,
    };
    let mut report = Report::default();
    bench.relay(&mut report).await?;
    bench.latency(&mut report).await?;
    bench.inbox(&mut report).await?;
    if bench.options.json {
        println!("{}", report.json());
    }
    Ok(())
}

impl Bench {
    /// Messages per second, through the relay and by the bare client, in turn.
    async fn relay(&self, report: &mut Report) -> anyhow::Result<()> {
        let n = self.options.published();
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..self.options.runs() {
            let topic = self.broker.topic().await?;
            let records: Vec<Record> = (0..n).map(Record::of).collect();
            let begun = Instant::now();
            self.broker.publish(&topic, &records).await?;
            bare.push(rate(n, begun.elapsed()));

            self.subject.clean().await?;
            self.subject.preload(n, 20_000).await?;
            let topic = self.broker.topic().await?;
            ours.push(self.relayed(&topic, n).await?);
            said("bare", &bare, "relay", &ours);
        }
        let (ours, bare) = (median(&mut ours), median(&mut bare));
        report.put("relay_per_s", ours);
        report.put("bare_per_s", bare);
        report.put("relay_ratio", ours / bare);
        Ok(())
    }

    /// The last settlement is part of the time.
    async fn relayed(&self, topic: &str, n: u64) -> anyhow::Result<f64> {
        let counted = Arc::new(Counted {
            inner: self.broker.destination(topic)?,
            left: AtomicU64::new(n),
            all: Notify::new(),
        });
        let begun = Instant::now();
        let engine = drain::engine(&*self.subject, Arc::clone(&counted) as _).await?;
        tokio::time::timeout(LIMIT, counted.all.notified()).await?;
        engine.stop().await;
        let rate = rate(n, begun.elapsed());
        let left = self.subject.pending().await?;
        anyhow::ensure!(left == 0, "{left} messages are still in the outbox");
        Ok(rate)
    }

    /// From the commit to the confirmation of the broker.
    async fn latency(&self, report: &mut Report) -> anyhow::Result<()> {
        let time = Duration::from_secs(if self.options.quick { 2 } else { 10 });
        let (mut middle, mut late) = (Vec::new(), Vec::new());
        for _ in 0..self.options.runs().min(3) {
            self.subject.clean().await?;
            let topic = self.broker.topic().await?;
            let destination = self.broker.destination(&topic)?;
            let subject = Arc::clone(&self.subject) as Arc<dyn Subject>;
            let mut times = latency::to(destination, subject, 500, time).await?;
            middle.push(percentile(&mut times, 0.50));
            late.push(percentile(&mut times, 0.99));
        }
        report.put("commit_to_broker_p50_ms", median(&mut middle));
        report.put("commit_to_broker_p99_ms", median(&mut late));
        Ok(())
    }

    /// Messages per second with one INSERT for each: in the inbox, and by the bare client, in turn.
    async fn inbox(&self, report: &mut Report) -> anyhow::Result<()> {
        let n = self.options.consumed();
        let records: Vec<Record> = (0..n).map(Record::of).collect();
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..self.options.runs() {
            let topic = self.broker.topic().await?;
            self.broker.publish(&topic, &records).await?;
            let mut database = PgConnection::connect(self.subject.url()).await?;
            self.clean().await?;
            let begun = Instant::now();
            let consuming = self.broker.consume(&topic, n, &mut database);
            tokio::time::timeout(LIMIT, consuming).await??;
            bare.push(rate(n, begun.elapsed()));

            let topic = self.broker.topic().await?;
            self.broker.publish(&topic, &records).await?;
            self.clean().await?;
            ours.push(self.consumed(&topic, n).await?);
            said("bare", &bare, "inbox", &ours);
        }
        let (ours, bare) = (median(&mut ours), median(&mut bare));
        report.put("inbox_per_s", ours);
        report.put("bare_consume_per_s", bare);
        report.put("inbox_ratio", ours / bare);
        Ok(())
    }

    async fn clean(&self) -> anyhow::Result<()> {
        self.subject.clean().await?;
        sqlx::raw_sql("TRUNCATE counterfoil_inbox, counterfoil_inbox_lanes; CHECKPOINT")
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Until every row is committed.
    async fn consumed(&self, topic: &str, n: u64) -> anyhow::Result<f64> {
        let cf = Counterfoil::postgres(self.pool.clone()).start().await?;
        let begun = Instant::now();
        let consumer = cf
            .consumer_of("bench", self.broker.source(topic)?)
            .on("OrderPaid", on_paid)
            .start()
            .await?;
        while self.rows().await? < n {
            anyhow::ensure!(begun.elapsed() < LIMIT, "not all were consumed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let rate = rate(n, begun.elapsed());
        consumer.stop().await;
        cf.stop().await;
        anyhow::ensure!(self.rows().await? == n, "more rows than messages");
        Ok(rate)
    }

    async fn rows(&self) -> anyhow::Result<u64> {
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM business")
            .fetch_one(&self.pool)
            .await?;
        Ok(rows.cast_unsigned())
    }
}

async fn on_paid(
    mut tx: Tx<counterfoil::Postgres>,
    paid: Event<String>,
) -> Result<(), HandleError> {
    sqlx::query("INSERT INTO business (name, amount) VALUES ($1, 1)")
        .bind(paid.content)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// A destination that says when everything has been confirmed.
struct Counted {
    inner: Arc<dyn Destination>,
    left: AtomicU64,
    all: Notify,
}

#[async_trait]
impl Destination for Counted {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let outcomes = self.inner.publish(batch).await;
        let stored = outcomes.iter().filter(|o| **o == Outcome::Stored).count() as u64;
        if stored > 0 && self.left.fetch_sub(stored, Ordering::Relaxed) == stored {
            self.all.notify_one();
        }
        outcomes
    }
}

fn said(one: &str, of_one: &[f64], other: &str, of_other: &[f64]) {
    if let (Some(a), Some(b)) = (of_one.last(), of_other.last()) {
        eprintln!("  {one} {a:.0}/s, {other} {b:.0}/s");
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(n: u64, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64()
}
