//! The producer.
//!
//! # Promise
//! Whoever asks has a producer that was connected once, or a failure in time, and nothing of a
//! message was sent meanwhile. One producer serves all, and it finds its way back to a broker that
//! was gone. One that can do nothing more is not given to anybody again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_core::Outcome;
use krafka::producer::{Acks, Producer};
use krafka::{CloseOptions, Kafka, KrafkaError};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use crate::access::Access;
use crate::classify::before;
use crate::durability;
use crate::record::MAX_BESIDE;
use crate::settings::Times;

/// Messages of one partition that go together.
const BATCH_BYTES: usize = 256 * 1024;
/// What may wait to be sent, unless one message is larger.
const BUFFER_BYTES: usize = 32 * 1024 * 1024;
/// How many topics are looked at for settings that lose data.
const MOST_LOOKED_AT: usize = 100;
const FAREWELL: Duration = Duration::from_secs(1);

/// The way to one Kafka.
pub(crate) struct Link {
    access: Access,
    times: Times,
    max_payload: usize,
    live: AsyncMutex<Option<Arc<Live>>>,
    /// The topics whose settings were looked at.
    looked: Mutex<BTreeSet<String>>,
}

/// A producer that several use.
pub(crate) struct Live {
    kafka: Kafka,
    pub(crate) producer: Arc<Producer>,
    /// Sends each record by itself.
    alone: OnceCell<Arc<Producer>>,
    whole: Duration,
    max_payload: usize,
}

impl Live {
    /// A producer whose records have an outcome within this time.
    pub(crate) async fn new(
        kafka: Kafka,
        whole: Duration,
        max_payload: usize,
    ) -> Result<Self, KrafkaError> {
        let producer = producer(&kafka, whole, max_payload, BATCH_BYTES).await?;
        Ok(Self {
            kafka,
            producer: Arc::new(producer),
            alone: OnceCell::new(),
            whole,
            max_payload,
        })
    }

    /// For what was refused together with others. The client halves a batch that is too large, but
    /// not often enough, and then says of all of what is left that it is too large.
    pub(crate) async fn alone(&self) -> Result<&Arc<Producer>, KrafkaError> {
        let open = || async {
            let producer = producer(&self.kafka, self.whole, self.max_payload, 1).await?;
            Ok(Arc::new(producer))
        };
        self.alone.get_or_try_init(open).await
    }
}

impl Link {
    /// Opens nothing yet.
    pub(crate) fn new(access: Access, times: Times, max_payload: usize) -> Self {
        Self {
            access,
            times,
            max_payload,
            live: AsyncMutex::default(),
            looked: Mutex::default(),
        }
    }

    /// The servers, for people.
    pub(crate) fn shown(&self) -> &str {
        &self.access.servers
    }

    /// A producer. The failure is the outcome of everything that was to be sent.
    pub(crate) async fn take(&self) -> Result<Arc<Live>, Outcome> {
        let mut live = self.live.lock().await;
        if let Some(present) = &*live {
            return Ok(Arc::clone(present));
        }
        let opened = self.open().await.map_err(|error| before(&error))?;
        let opened = Arc::new(opened);
        *live = Some(Arc::clone(&opened));
        Ok(opened)
    }

    async fn open(&self) -> Result<Live, KrafkaError> {
        let Times {
            whole,
            connect,
            request,
        } = self.times;
        let kafka = self.access.connect(connect, request).await?;
        Live::new(kafka, whole, self.max_payload).await
    }

    /// Nobody gets this producer any more.
    pub(crate) async fn discard(&self, broken: &Arc<Live>) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, broken)) {
            *live = None;
        }
    }

    /// Looks at the settings of a topic, once, in the background.
    pub(crate) fn look_at(&self, live: &Live, topic: &str) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.len() < MOST_LOOKED_AT && looked.insert(topic.to_owned()) {
            let (admin, topic) = (live.kafka.admin(), topic.to_owned());
            tokio::spawn(async move { durability::look(&admin, &topic).await });
        }
    }
}

async fn producer(
    kafka: &Kafka,
    whole: Duration,
    max_payload: usize,
    batch_bytes: usize,
) -> Result<Producer, KrafkaError> {
    kafka
        .producer()
        .acks(Acks::All)
        .idempotent(true)
        // While one batch is under way the next one fills: waiting for it would only be late.
        .linger(Duration::ZERO)
        .batch_size(batch_bytes)
        .buffer_memory(BUFFER_BYTES.max(2 * (max_payload + MAX_BESIDE)))
        // Before ours, because it knows more about what was written.
        .delivery_timeout(whole * 9 / 10)
        // A topic that is not there yet may be on its way.
        .max_block(whole / 5)
        .metrics_push(false)
        .build()
        .await
}

impl Drop for Live {
    fn drop(&mut self) {
        // Nobody waits for anything any more: what is left is a connection to be closed.
        if let Ok(runtime) = Handle::try_current() {
            let alone = self.alone.take();
            let both = [Some(Arc::clone(&self.producer)), alone];
            for producer in both.into_iter().flatten() {
                runtime.spawn(async move {
                    let options = CloseOptions::new().timeout(FAREWELL);
                    let _ = producer.close_with(options).await;
                });
            }
        }
    }
}
