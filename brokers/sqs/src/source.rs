//! Receiving from a queue.
//!
//! # Promise
//! What SQS has handed out is returned to the caller, even if a call was given up in between, and is
//! kept from others until it is settled. Nothing is deleted that was not settled.
//!
//! # When a subscription is dropped
//! The signs of life end. What was not settled comes again after the visibility timeout, and so does
//! what SQS hands to a request that nobody waits for any more.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::types::QueueAttributeName;
use counterfoil_core::source::{
    Arrival, Features, HeaderValues, Settle, Source, SourceError, Subscription, Tag,
};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::classify::Problem;
use crate::dead;
use crate::desk::Desk;
use crate::durability::{self, Shown};
use crate::link::{Link, Queue};
use crate::send::REQUEST;
use crate::settings::{SettingsError, SourceChecked, SourceSettings, largest_payload};
use crate::settle::{self, Ends};
use crate::width::{Answer, Width};

/// Where the queue does not say.
const USUAL_VISIBILITY: u64 = 30;
const SHORTEST_VISIBILITY: i32 = 3;

/// Receives messages from a queue.
///
/// ```no_run
/// use counterfoil_sqs::{SourceSettings, SqsSource};
///
/// let source = SqsSource::new(SourceSettings::new("orders.fifo").region("eu-west-1"))?;
/// # Ok::<(), counterfoil_sqs::SettingsError>(())
/// ```
pub struct SqsSource {
    link: Link,
    settings: SourceChecked,
}

impl SqsSource {
    /// Builds the source. Nothing is connected yet.
    pub fn new(settings: SourceSettings) -> Result<Self, SettingsError> {
        let settings = settings.check()?;
        Ok(Self {
            link: Link::new(settings.place.clone(), settings.connect_timeout),
            settings,
        })
    }

    /// Within the timeout of a request.
    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, SourceError> {
        bounded(self.settings.timeout, work).await
    }

    async fn open(&self) -> Result<(Queue, Shown), Problem> {
        let queue = self.link.queue().await?;
        let shown = Shown::of(&queue).await?;
        Ok((queue, shown))
    }
}

async fn bounded<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, SourceError> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(Problem::source_error),
        Err(_) => Err(SourceError::Unavailable(format!(
            "no answer within {limit:?}"
        ))),
    }
}

/// The visibility timeout in seconds: as configured, or that of the queue.
fn visibility(settings: &SourceChecked, shown: &Shown) -> i32 {
    let own = || {
        let shown = shown.number(&QueueAttributeName::VisibilityTimeout);
        i32::try_from(shown.unwrap_or(USUAL_VISIBILITY)).unwrap_or(i32::MAX)
    };
    settings
        .visibility
        .unwrap_or_else(own)
        .max(SHORTEST_VISIBILITY)
}

#[async_trait]
impl Source for SqsSource {
    fn describe(&self) -> String {
        self.settings.place.shown()
    }

    fn features(&self) -> Features {
        let fifo = self.settings.place.is_fifo();
        Features {
            ordering_key: fifo,
            native_dedup: fifo,
            delay: true,
            dead_letters: true,
            largest_payload: Some(largest_payload(self.settings.max_message)),
            headers: HeaderValues::Text,
        }
    }

    async fn retention(&self) -> Result<Option<Duration>, SourceError> {
        let (_, shown) = self.bounded(self.open()).await?;
        let kept = shown.number(&QueueAttributeName::MessageRetentionPeriod);
        Ok(kept.map(Duration::from_secs))
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        let (queue, shown) = self.bounded(self.open()).await?;
        let visibility = visibility(&self.settings, &shown);
        let named = self.settings.dead_letters.as_deref();
        let grave = self.bounded(dead::queue_for(&queue, &shown, named)).await;
        let dead = match &grave {
            Ok(grave) => self.bounded(Shown::of(grave)).await.ok(),
            Err(error) => {
                tracing::warn!(queue = queue.name, %error, "dead letters have nowhere to go");
                None
            }
        };
        let seconds = u64::from(visibility.unsigned_abs());
        durability::warn(
            &queue,
            &durability::receiving(&shown, seconds, dead.as_ref()),
        );
        let desk = Arc::new(Desk::new(queue, visibility, self.settings.timeout));
        let mut heart = JoinSet::new();
        let beating = Arc::clone(&desk);
        heart.spawn(async move { beating.beat().await });
        Ok(Box::new(Member {
            desk,
            settings: self.settings.clone(),
            shown,
            grave: OnceCell::new_with(grave.ok()),
            polls: JoinSet::new(),
            width: Width::default(),
            heart,
        }))
    }
}

impl fmt::Debug for SqsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSource")
            .field("queue", &self.settings.place.shown())
            .finish_non_exhaustive()
    }
}

/// One consumer. Its tasks end with it.
struct Member {
    desk: Arc<Desk>,
    settings: SourceChecked,
    shown: Shown,
    /// Where dead letters go, once it is there.
    grave: OnceCell<Queue>,
    /// Requests under way. What they bring is on the desk before they end.
    polls: JoinSet<Result<Answer, Problem>>,
    /// How many requests follow one that brought all it could.
    width: Width,
    heart: JoinSet<()>,
}

impl Member {
    fn poll(&mut self, max: usize, wait: i32, follows: bool) {
        let desk = Arc::clone(&self.desk);
        self.polls.spawn(async move {
            let asked = Instant::now();
            let count = desk.fetch(max, wait).await?;
            Ok(Answer {
                follows,
                full: count == REQUEST,
                took: asked.elapsed(),
            })
        });
    }

    /// A full answer promises more: as much as the caller wants, without waiting for it.
    fn poll_for_more(&mut self, max: usize) {
        let missing = max.saturating_sub(self.desk.waiting());
        let requests = self.width.take(missing.div_ceil(REQUEST));
        for n in 0..requests {
            self.poll(missing - n * REQUEST, 0, true);
        }
    }

    async fn bury(&self, ends: &mut Ends) -> Result<(), Problem> {
        if ends.dead.is_empty() {
            return Ok(());
        }
        let named = self.settings.dead_letters.as_deref();
        let find = || dead::queue_for(&self.desk.queue, &self.shown, named);
        let grave = self.grave.get_or_try_init(find).await?;
        settle::bury(&self.desk, grave, &ends.dead, self.settings.max_message).await?;
        let buried = ends.dead.drain(..).map(|(tag, held, _)| (tag, held));
        ends.done.extend(buried);
        Ok(())
    }
}

fn brought(
    poll: Result<Result<Answer, Problem>, tokio::task::JoinError>,
) -> Result<Answer, SourceError> {
    match poll {
        Ok(answer) => answer.map_err(Problem::source_error),
        Err(error) => Err(SourceError::Failed(error.into())),
    }
}

#[async_trait]
impl Subscription for Member {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        loop {
            let ready = self.desk.take(max);
            if !ready.is_empty() || max == 0 {
                return Ok(ready);
            }
            if self.polls.is_empty() {
                self.poll(max, self.settings.wait, false);
            }
            while let Some(poll) = self.polls.join_next().await {
                let answer = brought(poll)?;
                self.width.learn(&answer);
                if answer.full && !answer.follows {
                    self.poll_for_more(max);
                }
            }
        }
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        let mut ends = Ends::of(&self.desk, settled)?;
        let limit = self.settings.timeout;
        bounded(limit, self.bury(&mut ends)).await?;
        bounded(limit, settle::delete(&self.desk, &ends.done)).await?;
        bounded(limit, settle::release(&self.desk, &ends.released)).await
    }

    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        let shown = bounded(self.settings.timeout, Shown::of(&self.desk.queue)).await?;
        Ok(shown.number(&QueueAttributeName::ApproximateNumberOfMessages))
    }

    async fn close(mut self: Box<Self>) -> Result<(), SourceError> {
        // What a request brings that is under way should not wait for its visibility timeout.
        let wait = Duration::from_secs(self.settings.wait.unsigned_abs().into());
        let ended = async { while self.polls.join_next().await.is_some() {} };
        let _ = timeout(wait + self.settings.timeout, ended).await;
        self.heart.abort_all();
        let all = self.desk.all().into_iter();
        let ours = all.filter(|(_, held)| held.is_ours());
        let released: Vec<_> = ours.map(|(tag, held)| (tag, held.receipt, 0)).collect();
        bounded(
            self.settings.timeout,
            settle::release(&self.desk, &released),
        )
        .await
    }
}
