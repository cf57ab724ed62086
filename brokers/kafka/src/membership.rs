//! Being a member of a group: one task that fetches, whatever the caller does.
//!
//! # Promise
//! The broker hears from us for as long as the subscription lives, also while the caller is busy or
//! does not ask. When enough waits in memory nothing more is fetched. A partition is given away
//! only after what was settled of it is told to the broker. Nothing here is ever cut off half way,
//! because a change of the group that is dropped in the middle would be lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use krafka::admin::DescribeClusterOptions;
use krafka::consumer::{
    AutoOffsetReset, Consumer, ConsumerRebalanceListener, GroupProtocol, IsolationLevel,
    OffsetAndMetadata, PartitionAssignmentStrategy, TopicPartition,
};
use krafka::{CloseOptions, ConsumerRecord, Kafka, KrafkaError};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::classify::is_rebalance;
use crate::ledger::{Ledger, Mark};
use crate::record::Fetched;
use crate::settings::CheckedSource;

/// One turn of the task.
const TURN: Duration = Duration::from_millis(500);
/// After a turn that failed, and between two attempts to tell the broker how far we are.
const REST: Duration = Duration::from_millis(50);
/// Leaving the group.
const FAREWELL: Duration = Duration::from_secs(5);
const FETCH_BYTES: i32 = 4 * 1024 * 1024;
const PARTITION_BYTES: i32 = 1024 * 1024;
const FETCH_MESSAGES: i32 = 500;
/// Of the older way of forming groups. In the newer one the broker decides.
const SESSION: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(3);

/// A member, and the task that keeps it one.
pub(crate) struct Member {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
    topic: String,
}

/// What the task and the caller both use.
pub(crate) struct Shared {
    ledger: Mutex<Ledger>,
    /// There is something to receive, or the membership began or ended.
    changed: Notify,
    joined: AtomicBool,
    /// The caller is gone.
    leaving: AtomicBool,
    /// Some partitions are not fetched from, because enough waits in memory.
    paused: AtomicBool,
    end: Mutex<Option<KrafkaError>>,
    /// One at a time tells the broker how far we are.
    telling: AsyncMutex<()>,
}

impl Shared {
    fn new(settings: &CheckedSource) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new(settings.topic.clone(), settings.prefetch)),
            changed: Notify::new(),
            joined: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            end: Mutex::new(None),
            telling: AsyncMutex::new(()),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the membership is over, if it is.
    pub(crate) fn end(&self) -> Option<KrafkaError> {
        self.end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn end_with(&self, error: KrafkaError) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.changed.notify_waiters();
    }

    /// Waits until this gives something, looking again whenever something changed.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    fn take_in(&self, records: Vec<ConsumerRecord>) {
        if records.is_empty() {
            return;
        }
        let mut ledger = self.ledger();
        for record in records {
            let (partition, offset, epoch) = (record.partition, record.offset, record.leader_epoch);
            ledger.push(partition, offset, epoch, Fetched::of(record));
        }
        drop(ledger);
        self.changed.notify_waiters();
    }
}

impl Member {
    /// Joins the group of these settings. Returns when the broker has let us in.
    pub(crate) async fn join(
        kafka: &Kafka,
        settings: &CheckedSource,
        protocol: GroupProtocol,
        patience: Duration,
    ) -> Result<Self, KrafkaError> {
        let shared = Arc::new(Shared::new(settings));
        let listener = Arc::new(Listener {
            shared: Arc::clone(&shared),
            consumer: OnceLock::new(),
            patience: settings.times.request,
        });
        let wait = TURN.min(settings.times.request / 2);
        let mut builder = kafka
            .consumer(&settings.group)
            .auto_offset_reset(AutoOffsetReset::Earliest)
            .enable_auto_commit(false)
            .isolation_level(IsolationLevel::ReadCommitted)
            .fetch_max_wait(wait)
            .fetch_max_bytes(FETCH_BYTES)
            .max_partition_fetch_bytes(PARTITION_BYTES)
            .max_poll_records(FETCH_MESSAGES)
            .max_buffered_records(FETCH_MESSAGES)
            .idle_poll_backoff(REST)
            .metrics_push(false)
            .rebalance_listener(Arc::clone(&listener))
            .group_protocol(protocol);
        if protocol == GroupProtocol::Classic {
            builder = builder
                .partition_assignment_strategy(PartitionAssignmentStrategy::CooperativeSticky)
                .session_timeout(SESSION)
                .heartbeat_interval(HEARTBEAT);
        }
        let consumer = Arc::new(builder.build().await?);
        let _ = listener.consumer.set(Arc::downgrade(&consumer));
        // From here on the task closes it, whatever becomes of us.
        let task = Task {
            kafka: kafka.clone(),
            consumer: Arc::clone(&consumer),
            shared: Arc::clone(&shared),
            topic: settings.topic.clone(),
            patience: settings.times.whole,
        };
        let member = Self {
            consumer,
            shared,
            task: Some(tokio::spawn(task.run())),
            topic: settings.topic.clone(),
        };
        let joined = member.shared.until(|| match member.shared.end() {
            Some(error) => Some(Err(error)),
            None => member
                .shared
                .joined
                .load(Ordering::Acquire)
                .then_some(Ok(())),
        });
        match timeout(patience, joined).await {
            Ok(joined) => joined.map(|()| member),
            Err(_) => Err(KrafkaError::timeout("joining the group")),
        }
    }

    /// Lets the task fetch again, if it had stopped because enough was in memory.
    pub(crate) fn ask_for_more(&self) {
        if self.shared.paused.load(Ordering::Acquire) {
            self.consumer.wakeup();
        }
    }

    /// Tells the broker how far everything is settled.
    pub(crate) async fn tell(&self, patience: Duration) -> Result<(), KrafkaError> {
        let deadline = Instant::now() + patience;
        let late = || KrafkaError::timeout("telling the broker how far we are");
        loop {
            if let Some(error) = self.shared.end() {
                return Err(error);
            }
            let telling = timeout_at(deadline, self.shared.telling.lock()).await;
            let telling = telling.map_err(|_| late())?;
            let marks = self.shared.ledger().marks();
            if marks.is_empty() {
                return Ok(());
            }
            let told = timeout_at(deadline, commit(&self.consumer, &self.topic, &marks)).await;
            match told.map_err(|_| late())? {
                Ok(()) => {
                    self.shared.ledger().marked(&marks);
                    return Ok(());
                }
                // The task finds our place in the group again; what is not ours any more is
                // forgotten meanwhile.
                Err(error) if is_rebalance(&error) || error.is_retriable() => {
                    drop(telling);
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            sleep(REST).await;
        }
    }

    /// The partitions that are ours.
    pub(crate) async fn partitions(&self) -> Vec<i32> {
        partitions(&self.consumer, &self.topic).await
    }

    /// Leaves in good order.
    pub(crate) async fn leave(mut self) {
        let task = self.task.take();
        drop(self);
        if let Some(task) = task {
            let _ = timeout(FAREWELL * 2, task).await;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Ordering::Release);
        self.consumer.wakeup();
    }
}

async fn commit(
    consumer: &Consumer,
    topic: &str,
    marks: &[(i32, Mark)],
) -> Result<(), KrafkaError> {
    let offsets = marks.iter().map(|(partition, mark)| {
        let offset = match mark.epoch {
            Some(epoch) => OffsetAndMetadata::with_epoch(mark.offset, epoch),
            None => OffsetAndMetadata::new(mark.offset),
        };
        (TopicPartition::new(topic, *partition), offset)
    });
    consumer.commit_offsets(offsets).await
}

async fn partitions(consumer: &Consumer, topic: &str) -> Vec<i32> {
    consumer
        .assignment()
        .await
        .remove(topic)
        .unwrap_or_default()
}

struct Task {
    kafka: Kafka,
    consumer: Arc<Consumer>,
    shared: Arc<Shared>,
    topic: String,
    patience: Duration,
}

impl Task {
    async fn run(self) {
        if let Err(error) = self.membership().await {
            self.shared.end_with(error);
        }
        let options = CloseOptions::new().timeout(FAREWELL);
        if let Err(error) = self.consumer.close_with(options).await {
            tracing::debug!(topic = self.topic, %error, "left a group without a goodbye");
        }
    }

    async fn membership(&self) -> Result<(), KrafkaError> {
        timeout(self.patience, self.consumer.subscribe([&self.topic])).await??;
        let mut sign_of_life = Instant::now();
        while !self.shared.leaving.load(Ordering::Acquire) {
            self.steer().await;
            match self.consumer.poll(TURN).await {
                Ok(records) if !records.is_empty() => {
                    sign_of_life = Instant::now();
                    self.shared.take_in(records);
                }
                Ok(_) | Err(KrafkaError::Wakeup) => {}
                Err(error) if error.is_retriable() && sign_of_life.elapsed() < self.patience => {
                    tracing::debug!(topic = self.topic, %error, "nothing fetched");
                    sleep(REST).await;
                }
                Err(error) => return Err(error),
            }
            if sign_of_life.elapsed() > self.patience / 2 {
                match self.probe().await {
                    Ok(()) => sign_of_life = Instant::now(),
                    Err(error) if sign_of_life.elapsed() > self.patience => return Err(error),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Whether anybody is there: to the client, a broker that is gone is one that has nothing new.
    async fn probe(&self) -> Result<(), KrafkaError> {
        let time = self.patience / 2;
        let options = DescribeClusterOptions::default().timeout(time);
        let admin = self.kafka.admin();
        let answer = timeout(time, admin.describe_cluster(options)).await;
        answer
            .map_err(|_| KrafkaError::timeout("a sign of life"))?
            .map(drop)
    }

    /// Stops fetching where enough waits, and begins again where somebody asked.
    async fn steer(&self) {
        let ours = partitions(&self.consumer, &self.topic).await;
        let paused = self.consumer.paused_partitions().await;
        let paused: BTreeSet<i32> = paused.into_iter().map(|(_, partition)| partition).collect();
        let full = |partition: &i32| self.shared.ledger().is_full(*partition);
        let (full, free): (Vec<i32>, Vec<i32>) = ours.into_iter().partition(full);
        self.shared
            .paused
            .store(!full.is_empty(), Ordering::Release);
        let pause: Vec<i32> = full.into_iter().filter(|p| !paused.contains(p)).collect();
        let resume: Vec<i32> = free.into_iter().filter(|p| paused.contains(p)).collect();
        if !pause.is_empty() {
            self.consumer.pause(&self.topic, &pause).await;
        }
        if !resume.is_empty() {
            self.consumer.resume(&self.topic, &resume).await;
        }
    }
}

/// Hears about changes of the group, inside the task.
struct Listener {
    shared: Arc<Shared>,
    consumer: OnceLock<Weak<Consumer>>,
    patience: Duration,
}

impl Listener {
    fn forget(&self, partitions: &[TopicPartition]) {
        let mut ledger = self.shared.ledger();
        for partition in partitions {
            ledger.forget(partition.partition);
        }
    }

    /// The last chance to say what was settled: afterwards the partition is somebody else's.
    async fn tell(&self, partitions: &[TopicPartition]) {
        let Some(topic) = partitions.first().map(TopicPartition::topic) else {
            return;
        };
        let mut marks = self.shared.ledger().marks();
        marks.retain(|(n, _)| partitions.iter().any(|p| p.partition == *n));
        if let Some(consumer) = self.consumer.get().and_then(Weak::upgrade)
            && !marks.is_empty()
        {
            let told = timeout(self.patience, commit(&consumer, topic, &marks)).await;
            tracing::debug!(topic, ?told, "told how far we are before a partition goes");
        }
    }
}

impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) {
        self.forget(partitions);
        self.shared.joined.store(true, Ordering::Release);
        self.shared.changed.notify_waiters();
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        let _telling = timeout(self.patience, self.shared.telling.lock()).await;
        self.tell(partitions).await;
        self.forget(partitions);
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        self.forget(partitions);
    }
}
