//! The consumer: from a broker into the inbox.
//!
//! # Promise
//! A message is settled at its broker after what it did has been committed, and never before.
//! Messages of one aggregate are applied in the order of their arrival, one batch at a time; others
//! beside them. What cannot be applied because the database does not answer stays with us and is
//! tried again; the broker is asked for no more than [`ConsumerSettings::held`] meanwhile. While too
//! much is put off, it is asked for nothing.
//!
//! When the broker goes away, it is subscribed to again. What was received before and not begun is
//! forgotten here, because it comes again; what was begun is finished, and its second reception is a
//! repeat.
//!
//! # When it is stopped
//! What is being applied is finished and settled, within [`ConsumerSettings::drain`]. The rest goes
//! back to the broker. When it is dropped instead, nothing is settled any more, and everything that
//! was not comes again.

mod lanes;
mod report;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use counterfoil_core::incoming::{Incoming, Mapping};
use counterfoil_core::presence::ConsumerStatus;
use counterfoil_core::source::{DeadLetter, Settle, Source, SourceError, Subscription, Tag};
use counterfoil_core::store::{Disposition, Result, StoreError};
use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::publish::panic_text;
use lanes::{Lane, Lanes};
use report::{describe_metrics, measure};

pub use report::{Monitor, Reporter};

/// How long to wait before the broker or the database is asked again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often it is asked whether less is put off by now.
const FULL_PAUSE: Duration = Duration::from_millis(500);

/// How a consumer works.
///
/// | setting | default |
/// |---|---|
/// | `workers` | 8 |
/// | `batch` | 100 |
/// | `held` | 2,000 |
/// | `drain` | 30 s |
/// | `lag_every` | 10 s |
#[derive(Debug, Clone)]
pub struct ConsumerSettings {
    /// Its name: what is processed is remembered under it.
    pub name: Arc<str>,
    /// Where the id and the like are found.
    pub mapping: Mapping,
    /// The most transactions at one time.
    pub workers: usize,
    /// The most messages in one transaction.
    pub batch: usize,
    /// The most messages that are received and not settled.
    pub held: usize,
    /// How long to wait for what has begun, at a stop.
    pub drain: Duration,
    /// How often the broker is asked how many messages wait.
    pub lag_every: Duration,
}

impl ConsumerSettings {
    /// The defaults under this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: Arc::from(name),
            mapping: Mapping::default(),
            workers: 8,
            batch: 100,
            held: 2_000,
            drain: Duration::from_secs(30),
            lag_every: Duration::from_secs(10),
        }
    }
}

/// A message with what the broker says of its reception.
#[derive(Debug, Clone)]
pub struct Received {
    /// The message.
    pub incoming: Incoming,
    /// How often it was handed out, this time included, where the broker counts.
    pub deliveries: Option<u32>,
}

/// What became of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// It took effect now.
    Done,
    /// It had been processed, or put off, before.
    Repeat,
    /// It failed, or waits behind one that did: it is stored, and will be tried again.
    Deferred,
    /// It can never pass: it is stored, and will be parked.
    Parked,
    /// It can never pass, and goes to the dead letters of its broker.
    Dead(DeadLetter),
    /// Something stood in its way, for this reason, and in nobody else's: nothing happened, and it is
    /// given again after a pause. Later ones of its aggregate are answered so, too.
    Postponed(String),
}

impl Applied {
    /// The label under which it is counted.
    pub fn label(&self) -> &'static str {
        match self {
            Applied::Done => "applied",
            Applied::Repeat => "repeat",
            Applied::Deferred => "deferred",
            Applied::Parked => "parked",
            Applied::Dead(_) => "dead",
            Applied::Postponed(_) => "postponed",
        }
    }
}

/// The inbox, as the consumer sees it.
#[async_trait]
pub trait Apply: Send + Sync + 'static {
    /// Processes messages in their order, and answers for each. Everything that the answers say is
    /// committed. After an error nothing, or only a part, is: the same messages may be given again.
    async fn apply(&self, batch: &[&Received]) -> Result<Vec<Applied>>;

    /// Whether so much is put off that the broker had better keep the rest.
    async fn is_full(&self) -> Result<bool>;
}

/// A message on its way through this process.
struct Item {
    tag: Tag,
    /// In which subscription it was received.
    session: u64,
    lane: Option<Lane>,
    received: Received,
}

/// A running consumer.
///
/// # When it is dropped
/// It ends at once. What was not settled comes again.
pub struct Consumer {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    monitor: Monitor,
}

impl Consumer {
    /// Subscribes and consumes, until it is stopped.
    pub fn start(
        source: Arc<dyn Source>,
        apply: Arc<dyn Apply>,
        settings: ConsumerSettings,
    ) -> Self {
        describe_metrics();
        let (stop, stopped) = watch::channel(false);
        let status = watch::Sender::new(ConsumerStatus {
            source: source.describe(),
            ..ConsumerStatus::default()
        });
        let monitor = Monitor::new(Arc::clone(&settings.name), status.subscribe());
        let work = Work {
            source,
            apply,
            settings,
            lanes: Lanes::default(),
            running: JoinSet::new(),
            session: 0,
            resume_at: None,
            failures: 0,
            putting_off: false,
            full: false,
            status,
        };
        let task = Some(tokio::spawn(work.run(stopped)));
        Self {
            stop,
            task,
            monitor,
        }
    }

    /// Looks at it.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Finishes what has begun and gives the rest back.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the consumer ended badly");
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// What a worker brings back.
struct Finished {
    batch: Vec<Item>,
    answer: Result<Vec<Applied>>,
}

/// Why a subscription is over.
enum Over {
    Stopped,
    Lost(SourceError),
}

struct Work {
    source: Arc<dyn Source>,
    apply: Arc<dyn Apply>,
    settings: ConsumerSettings,
    lanes: Lanes,
    running: JoinSet<Finished>,
    session: u64,
    /// The database did not answer: nothing begins before this.
    resume_at: Option<Instant>,
    /// In a row, of the database.
    failures: u32,
    /// Something was put off since it was last asked how much there is.
    putting_off: bool,
    /// Too much is put off.
    full: bool,
    /// How we are, for whoever looks.
    status: watch::Sender<ConsumerStatus>,
}

impl Work {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut refusals = 0;
        while !*stop.borrow() {
            let subscribed = tokio::select! {
                () = stopped(&mut stop) => break,
                subscribed = self.source.subscribe() => subscribed,
            };
            let error = match subscribed {
                Ok(subscription) => {
                    refusals = 0;
                    match self.session(subscription, &mut stop).await {
                        Over::Stopped => break,
                        Over::Lost(error) => error,
                    }
                }
                Err(error) => error,
            };
            refusals += 1;
            let pause = pause(refusals);
            self.note(|status| {
                status.connected(false, Utc::now());
                status.failed(&one_line(&error), Utc::now());
            });
            tracing::warn!(
                consumer = &*self.settings.name,
                source = self.source.describe(),
                error = one_line(&error),
                ?pause,
                "the broker is subscribed to again after a pause"
            );
            let until = Instant::now() + pause;
            self.wait(until, &mut stop).await;
        }
        // Whatever still runs has no subscription any more.
        self.finish_all(None).await;
    }

    /// Lets workers finish meanwhile.
    async fn wait(&mut self, until: Instant, stop: &mut watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = stopped(stop) => return,
                () = tokio::time::sleep_until(until) => return,
                Some(done) = self.running.join_next() => {
                    let _ = self.finished(done.ok());
                }
            }
        }
    }

    async fn session(
        &mut self,
        mut subscription: Box<dyn Subscription>,
        stop: &mut watch::Receiver<bool>,
    ) -> Over {
        self.session += 1;
        self.lanes.forget_waiting();
        self.note(|status| status.connected(true, Utc::now()));
        tracing::info!(
            consumer = &*self.settings.name,
            source = self.source.describe(),
            "consuming"
        );
        let mut lag = tokio::time::interval(self.settings.lag_every);
        lag.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(FULL_PAUSE);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.begin();
            let room = self.settings.held.saturating_sub(self.lanes.len());
            let step = tokio::select! {
                biased;
                () = stopped(stop) => {
                    self.lanes.forget_waiting();
                    self.finish_all(Some(&mut *subscription)).await;
                    if let Err(error) = subscription.close().await {
                        tracing::warn!(error = one_line(&error), "the broker was left without a word");
                    }
                    return Over::Stopped;
                }
                Some(done) = self.running.join_next() => self.settle(done.ok(), &mut *subscription).await,
                () = until(self.resume_at) => {
                    self.resume_at = None;
                    self.note(|_| {});
                    Ok(())
                }
                () = until(self.lanes.next_rested()) => Ok(()),
                _ = look.tick(), if self.full || self.putting_off => {
                    self.look_whether_full().await;
                    Ok(())
                }
                received = subscription.receive(room), if room > 0 && !self.full => received.map(|arrivals| {
                    if !arrivals.is_empty() {
                        self.status.send_modify(|s| s.last_message_at = Some(Utc::now()));
                    }
                    for arrival in arrivals {
                        let received = Received {
                            incoming: Incoming::of(&arrival, &self.settings.mapping),
                            deliveries: arrival.deliveries,
                        };
                        let (session, tag) = (self.session, arrival.tag);
                        self.lanes.push(Item { tag, session, lane: None, received });
                    }
                }),
                _ = lag.tick() => self.tell_lag(&mut *subscription).await,
            };
            if let Err(error) = step {
                return Over::Lost(error);
            }
        }
    }

    /// Gives work to everybody who has none.
    fn begin(&mut self) {
        let now = Instant::now();
        if self.resume_at.is_some_and(|at| now < at) {
            return;
        }
        self.lanes.rested(now);
        while self.running.len() < self.settings.workers && self.lanes.has_ready() {
            let free = self.settings.workers - self.running.len();
            let share = self.lanes.waiting().div_ceil(free);
            let batch = self.lanes.next_batch(share.clamp(1, self.settings.batch));
            let apply = Arc::clone(&self.apply);
            self.running.spawn(async move {
                let received: Vec<&Received> = batch.iter().map(|i| &i.received).collect();
                let answer = AssertUnwindSafe(apply.apply(&received))
                    .catch_unwind()
                    .await
                    .unwrap_or_else(|panic| {
                        let text = format!("the inbox panicked: {}", panic_text(panic.as_ref()));
                        Err(StoreError::Database(text.into()))
                    });
                Finished { batch, answer }
            });
        }
    }

    /// Tells the broker about one batch, and about others that are done by now.
    async fn settle(
        &mut self,
        first: Option<Finished>,
        subscription: &mut dyn Subscription,
    ) -> std::result::Result<(), SourceError> {
        let mut settled = self.finished(first);
        while let Some(done) = self.running.try_join_next() {
            settled.extend(self.finished(done.ok()));
        }
        match settled.is_empty() {
            true => Ok(()),
            false => subscription.settle(settled).await,
        }
    }

    /// What the broker has to be told. What was received in an earlier subscription is not among it.
    fn finished(&mut self, done: Option<Finished>) -> Vec<(Tag, Settle)> {
        let Some(Finished { batch, answer }) = done else {
            return Vec::new();
        };
        let name = &self.settings.name;
        match answer {
            Ok(applied) => {
                self.failures = 0;
                self.putting_off |= applied.contains(&Applied::Deferred);
                count(name, &applied);
                self.split(batch, applied)
            }
            Err(error) => {
                self.failures += 1;
                let pause = pause(self.failures);
                let error_text = error.one_line();
                match error.disposition() {
                    Disposition::Retry => tracing::warn!(
                        consumer = &**name,
                        error = error_text,
                        ?pause,
                        "the inbox is tried again after a pause"
                    ),
                    Disposition::Fail => tracing::error!(
                        consumer = &**name,
                        error = error_text,
                        ?pause,
                        "the inbox is tried again after a pause"
                    ),
                }
                self.resume_at = Some(Instant::now() + pause);
                self.give_back(batch);
                self.note(|status| status.failed(&error_text, Utc::now()));
                Vec::new()
            }
        }
    }

    /// What is over, and how it ends at the broker. What is postponed waits in its lane.
    fn split(&mut self, batch: Vec<Item>, applied: Vec<Applied>) -> Vec<(Tag, Settle)> {
        let (mut done, mut postponed, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for (item, applied) in batch.into_iter().zip(applied) {
            let ours = item.session == self.session;
            let settle = match applied {
                Applied::Postponed(error) if ours => {
                    postponed.push((item, error));
                    continue;
                }
                Applied::Dead(letter) => Settle::Dead(letter),
                _ => Settle::Done,
            };
            if ours {
                settled.push((item.tag, settle));
            }
            done.push(item);
        }
        self.lanes.done(&done);
        if let Some((_, error)) = postponed.first() {
            tracing::warn!(
                consumer = &*self.settings.name,
                messages = postponed.len(),
                error,
                "messages are tried again after a pause; others go on"
            );
            let error = error.clone();
            self.note(|status| status.failed(&error, Utc::now()));
            let postponed = postponed.into_iter().map(|(item, _)| item).collect();
            self.lanes.postpone(postponed, Instant::now());
        }
        settled
    }

    /// What was received in this subscription is tried again; the rest comes again by itself.
    fn give_back(&mut self, batch: Vec<Item>) {
        match batch.iter().all(|item| item.session == self.session) {
            true => self.lanes.put_back(batch),
            false => self.lanes.done(&batch),
        }
    }

    /// Waits for everything that has begun, for a while.
    async fn finish_all(&mut self, mut subscription: Option<&mut dyn Subscription>) {
        let deadline = Instant::now() + self.settings.drain;
        while !self.running.is_empty() {
            let done = match tokio::time::timeout_at(deadline, self.running.join_next()).await {
                Ok(done) => done.and_then(std::result::Result::ok),
                Err(_) => {
                    tracing::warn!(
                        consumer = &*self.settings.name,
                        left = self.running.len(),
                        "what was not applied in time is received again later"
                    );
                    self.running.shutdown().await;
                    return;
                }
            };
            let settled = self.finished(done);
            if let (Some(subscription), false) = (&mut subscription, settled.is_empty())
                && let Err(error) = subscription.settle(settled).await
            {
                tracing::warn!(
                    error = one_line(&error),
                    "what was applied is received again later"
                );
            }
        }
    }

    async fn look_whether_full(&mut self) {
        self.putting_off = false;
        let full = match self.apply.is_full().await {
            Ok(full) => full,
            // Whoever applies will see it, too.
            Err(_) => self.full,
        };
        let name = &*self.settings.name;
        match (self.full, full) {
            (false, true) => tracing::warn!(
                consumer = name,
                "too much is put off: nothing more is received until less waits"
            ),
            (true, false) => tracing::info!(consumer = name, "receiving again"),
            _ => {}
        }
        if std::mem::replace(&mut self.full, full) != full {
            self.note(|_| {});
        }
    }

    async fn tell_lag(
        &self,
        subscription: &mut dyn Subscription,
    ) -> std::result::Result<(), SourceError> {
        let lag = subscription.lag().await?;
        self.note(|status| status.lag = lag);
        Ok(())
    }

    /// Notes how we are, after this change.
    fn note(&self, change: impl FnOnce(&mut ConsumerStatus)) {
        self.status.send_modify(|status| {
            change(status);
            status.in_progress = self.lanes.len() as u64;
            status.full = self.full;
            let left = |at: Instant| Utc::now() + at.duration_since(Instant::now());
            status.resume_at = self.resume_at.map(left);
        });
        measure(&self.settings.name, &self.status.borrow());
    }
}

fn count(name: &str, applied: &[Applied]) {
    let mut labels: Vec<&'static str> = applied.iter().map(Applied::label).collect();
    labels.sort_unstable();
    for same in labels.chunk_by(|a, b| a == b) {
        metrics::counter!(
            "counterfoil_consumed_total",
            "consumer" => name.to_owned(), "outcome" => same[0]
        )
        .increment(same.len() as u64);
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A handle that is gone cannot stop us: then the task is aborted.
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn pause(failures: u32) -> Duration {
    let doubled = PAUSE
        .0
        .saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(PAUSE.1)
}

fn one_line(error: &SourceError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text.replace('\n', " ")
}
