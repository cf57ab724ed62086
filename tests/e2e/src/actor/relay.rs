//! A relay on the library.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use counterfoil_core::policy::Backoff;
use counterfoil_core::{BoxError, Capabilities, Destination};
use counterfoil_engine::{EngineBuilder, OnPark, QueueSpec, Settings};
use counterfoil_webhook::WebhookDestination;

use super::{End, Where, say};
use crate::journal::Journal;
use crate::webhook;

/// The arguments of a relay. Their defaults are those of most tests.
#[derive(Debug, Clone, Args)]
pub struct RelayArgs {
    /// Which database.
    #[command(flatten)]
    pub place: Where,
    /// Its name.
    #[arg(long)]
    pub label: String,
    /// Where the receiver listens.
    #[arg(long)]
    pub receiver: SocketAddr,
    /// Deliver by webhook instead of the receiver's own protocol.
    #[arg(long)]
    pub webhook: bool,
    /// Queues whose lanes wait behind a parked message.
    #[arg(long = "queue")]
    pub queues: Vec<String>,
    /// Queues whose lanes go on behind a parked message.
    #[arg(long = "skipping-queue")]
    pub skipping: Vec<String>,
    /// Milliseconds.
    #[arg(long)]
    pub lease: u64,
    /// Calls of the receiver at one time, for each queue.
    #[arg(long)]
    pub concurrency: usize,
    /// Messages in one call.
    #[arg(long)]
    pub batch: usize,
    /// Milliseconds to wait for an answer; without it, for ever.
    #[arg(long)]
    pub timeout: Option<u64>,
    /// Milliseconds before the second attempt.
    #[arg(long)]
    pub backoff: u64,
    /// Attempts before a message is parked.
    #[arg(long)]
    pub attempts: u32,
    /// Milliseconds between two looks below the low mark.
    #[arg(long)]
    pub rescan: u64,
}

impl RelayArgs {
    /// A relay of one queue with the settings of most tests.
    pub fn new(database: String, label: &str, receiver: SocketAddr) -> Self {
        Self {
            place: Where { database },
            label: label.to_owned(),
            receiver,
            webhook: false,
            queues: vec![crate::QUEUE.to_owned()],
            skipping: Vec::new(),
            lease: u64::try_from(crate::LEASE.as_millis()).unwrap_or(u64::MAX),
            concurrency: 4,
            batch: 1,
            timeout: None,
            backoff: 50,
            attempts: 1_000,
            rescan: 1_000,
        }
    }

    /// The same with another lease.
    #[must_use]
    pub fn leased(mut self, lease: Duration) -> Self {
        self.lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// The command line that gives these arguments.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["relay".to_owned()];
        if self.webhook {
            args.push("--webhook".to_owned());
        }
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("database", self.place.database.clone());
        add("label", self.label.clone());
        add("receiver", self.receiver.to_string());
        self.queues.iter().for_each(|q| add("queue", q.clone()));
        self.skipping
            .iter()
            .for_each(|q| add("skipping-queue", q.clone()));
        add("lease", self.lease.to_string());
        add("concurrency", self.concurrency.to_string());
        add("batch", self.batch.to_string());
        if let Some(timeout) = self.timeout {
            add("timeout", timeout.to_string());
        }
        add("backoff", self.backoff.to_string());
        add("attempts", self.attempts.to_string());
        add("rescan", self.rescan.to_string());
        args
    }

    fn destination(&self, queue: &str) -> Result<Arc<dyn Destination>, BoxError> {
        if self.webhook {
            let settings =
                counterfoil_webhook::Settings::unsigned(format!("http://{}/", self.receiver))
                    .allow_private(true)
                    .timeout(Duration::from_millis(self.timeout.unwrap_or(800)))
                    .concurrency(self.concurrency)
                    .header(webhook::RELAY, &self.label)
                    .header(webhook::QUEUE, queue);
            return Ok(Arc::new(WebhookDestination::new(settings)?));
        }
        let capabilities = Capabilities {
            max_batch: self.batch,
            concurrency: self.concurrency,
            timeout: self.timeout.map(Duration::from_millis),
        };
        Ok(Arc::new(Journal {
            relay: self.label.clone(),
            receiver: self.receiver,
            capabilities,
        }))
    }

    fn settings(&self) -> Settings {
        Settings {
            lease: Duration::from_millis(self.lease),
            poll: Duration::from_millis(50),
            rescan: Duration::from_millis(self.rescan),
            // History is the proof that every message came to its end.
            keep_sent: true,
            label: self.label.clone(),
            ..Settings::default()
        }
    }
}

pub(super) async fn run(args: RelayArgs) -> Result<(), BoxError> {
    let base = Duration::from_millis(args.backoff);
    let backoff = Backoff::new(base, base * 8, args.attempts)?;
    let mut engine = EngineBuilder::new(args.place.store()?).settings(args.settings());
    let holding = args.queues.iter().map(|q| (q, OnPark::Hold));
    for (queue, on_park) in holding.chain(args.skipping.iter().map(|q| (q, OnPark::Skip))) {
        let mut spec = QueueSpec::new(queue, args.destination(queue)?);
        (spec.backoff, spec.on_park) = (backoff, on_park);
        // Receivers here fail by count and not by time: probes come as quickly as retries do.
        (spec.breaker.open_for, spec.breaker.open_cap) = (base, base * 8);
        engine = engine.queue(spec);
    }
    let mut end = End::listen()?;
    let engine = engine.start().await?;
    say("ready");
    end.asked().await;
    say("asked to end");
    engine.stop().await;
    say("stopped");
    Ok(())
}
