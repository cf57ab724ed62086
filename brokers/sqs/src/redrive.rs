//! Bringing dead letters back.
//!
//! # Promise
//! The dead letters that lie there go back to their queue, not faster than asked for, and none is
//! ever nowhere: it is in the queue before it is gone here. In a FIFO queue, messages of a group
//! come back in their order. One that dies again meanwhile does not come back a second time. What
//! breaks off in the middle can be begun again; some may come twice then.

use std::num::NonZeroU32;
use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as System, QueueAttributeName};
use counterfoil_core::source::SourceError;
use tokio::time::{Instant, sleep, sleep_until};

use crate::classify::{Problem, problem};
use crate::dead::{again, queue_for};
use crate::durability::Shown;
use crate::link::{Link, Queue};
use crate::send::send;
use crate::settings::{SettingsError, SourceChecked, SourceSettings};

/// SQS itself moves no faster.
const FASTEST: u32 = 500;
/// Between two looks at what SQS moves.
const LOOK: Duration = Duration::from_millis(500);
/// Nobody else gets a letter while we move it.
const OURS: i32 = 60;
/// The most messages of one request.
const REQUEST: i32 = 10;

/// Why dead letters did not come back, or not all of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedriveError {
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// SQS did not do it.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Moves the dead letters of a queue back to it, at most so many in a second, and returns when all
/// that lay there, as SQS counts them, are back: about how many there were.
///
/// SQS moves them itself where it can (`StartMessageMoveTask`). A server that has no such thing, and
/// a queue for dead letters that no redrive policy names, are served one by one from here.
pub async fn redrive_dead_letters(
    settings: SourceSettings,
    per_second: NonZeroU32,
) -> Result<u64, RedriveError> {
    let settings = settings.check()?;
    let moved = redrive(&settings, per_second.get().min(FASTEST)).await;
    Ok(moved.map_err(Problem::source_error)?)
}

async fn redrive(settings: &SourceChecked, per_second: u32) -> Result<u64, Problem> {
    let queue = Link::new(settings.place.clone(), settings.connect_timeout)
        .queue()
        .await?;
    let shown = Shown::of(&queue).await?;
    let grave = queue_for(&queue, &shown, settings.dead_letters.as_deref()).await?;
    let there = Shown::of(&grave).await?;
    let lying = visible(&there);
    let moved = match (shown.arn(), there.arn()) {
        (Some(here), Some(from)) => by_service(&queue, from, here, per_second).await?,
        _ => 0,
    };
    // A server may say that it has moved everything, and have moved nothing of a FIFO queue.
    let left = match lying > moved {
        true => visible(&Shown::of(&grave).await?).min(lying - moved),
        false => 0,
    };
    Ok(moved + by_hand(&queue, &grave, per_second, left).await?)
}

fn visible(shown: &Shown) -> u64 {
    let count = shown.number(&QueueAttributeName::ApproximateNumberOfMessages);
    count.unwrap_or_default()
}

/// Lets SQS move them, where it can. How many it has moved.
async fn by_service(queue: &Queue, from: &str, to: &str, per_second: u32) -> Result<u64, Problem> {
    let started = queue
        .client
        .start_message_move_task()
        .source_arn(from)
        .destination_arn(to)
        .max_number_of_messages_per_second(i32::try_from(per_second).unwrap_or(1))
        .send()
        .await;
    match started.map_err(|e| problem(&e)) {
        Ok(_) => watch(queue, from).await,
        Err(Problem::Unsupported(error) | Problem::Invalid(error)) => {
            tracing::debug!(
                queue = queue.name,
                error,
                "dead letters are moved one by one"
            );
            Ok(0)
        }
        Err(other) => Err(other),
    }
}

/// Waits for the end of what SQS moves.
async fn watch(queue: &Queue, from: &str) -> Result<u64, Problem> {
    loop {
        let tasks = queue
            .client
            .list_message_move_tasks()
            .source_arn(from)
            .send()
            .await
            .map_err(|e| problem(&e))?;
        // The latest one is the first.
        let task = tasks.results.unwrap_or_default().into_iter().next();
        let Some(task) = task else {
            return Err(Problem::Failed("SQS does not know what it moves".into()));
        };
        let moved = u64::try_from(task.approximate_number_of_messages_moved).unwrap_or(0);
        match task.status.as_deref() {
            Some("COMPLETED") => return Ok(moved),
            Some("RUNNING" | "CANCELLING") => sleep(LOOK).await,
            status => {
                let why = task.failure_reason.unwrap_or_default();
                let status = status.unwrap_or("unknown");
                return Err(Problem::Failed(format!("moving ended as {status}: {why}")));
            }
        }
    }
}

/// Receives, sends and deletes so many, one after another.
async fn by_hand(
    queue: &Queue,
    grave: &Queue,
    per_second: u32,
    count: u64,
) -> Result<u64, Problem> {
    let pace = Duration::from_secs(1) / per_second;
    let mut next = Instant::now();
    let mut moved = 0;
    while moved < count {
        let letters = letters(grave, count - moved).await?;
        if letters.is_empty() {
            break;
        }
        for letter in letters {
            sleep_until(next).await;
            next = Instant::now() + pace;
            let answers = send(queue, vec![again(&letter, queue.fifo)]).await;
            // Those behind it in its group must not overtake it.
            answers.into_iter().collect::<Result<(), Problem>>()?;
            grave
                .client
                .delete_message()
                .queue_url(&grave.url)
                .set_receipt_handle(letter.receipt_handle)
                .send()
                .await
                .map_err(|e| problem(&e))?;
            moved += 1;
        }
    }
    Ok(moved)
}

/// The next ones, up to ten.
async fn letters(grave: &Queue, most: u64) -> Result<Vec<Message>, Problem> {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    let received = grave
        .client
        .receive_message()
        .queue_url(&grave.url)
        .max_number_of_messages(most.min(REQUEST))
        // Without waiting, SQS may overlook some.
        .wait_time_seconds(1)
        .visibility_timeout(OURS)
        .message_attribute_names("All")
        .message_system_attribute_names(System::All)
        .send()
        .await
        .map_err(|e| problem(&e))?;
    Ok(received.messages.unwrap_or_default())
}
