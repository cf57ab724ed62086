//! How receptions end.
//!
//! # Promise
//! A message is deleted only after somebody said that it is done, or after its dead letter is
//! stored. A message that somebody else has by now is passed over. What SQS fails to do for a few of
//! many is tried again, for a short time.

use std::time::Duration;

use aws_sdk_sqs::types::DeleteMessageBatchRequestEntry;
use counterfoil_core::source::{DeadLetter, Settle, SourceError, Tag};
use futures_util::future::join_all;

use crate::classify::{Problem, entry_problem, problem};
use crate::dead;
use crate::desk::{Desk, Held};
use crate::link::Queue;
use crate::parcel::Parcel;
use crate::send::{REQUEST, TOGETHER, send};
use crate::settings::LONGEST_VISIBILITY;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// What a release without a delay waits in a FIFO queue. A server may hand out the first message of
/// all again and again, and nothing else: meanwhile, the others get their turn.
const BREATH: i32 = 1;

/// What is to be done, sorted by kind.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) done: Vec<(Tag, Held)>,
    /// With the seconds after which they come again.
    pub(crate) released: Vec<(Tag, String, i32)>,
    pub(crate) dead: Vec<(Tag, Held, DeadLetter)>,
}

impl Ends {
    /// Sorts. Tags that mean nothing here are left out, and so is all but the first word about one.
    pub(crate) fn of(desk: &Desk, settled: Vec<(Tag, Settle)>) -> Result<Self, SourceError> {
        let mut ends = Self::default();
        let mut seen = std::collections::BTreeSet::new();
        for (tag, end) in settled {
            let Some(held) = desk.held(tag).filter(|_| seen.insert(tag)) else {
                continue;
            };
            match end {
                // Its effect is committed: deleting is right even if somebody else has it by now.
                Settle::Done => ends.done.push((tag, held)),
                Settle::Release { delay } => {
                    let delay = match delay {
                        Some(delay) => seconds(delay, held.age())?,
                        None if desk.queue.fifo => BREATH,
                        None => 0,
                    };
                    ends.released.push((tag, held.receipt, delay));
                }
                Settle::Dead(why) if held.is_ours() => ends.dead.push((tag, held, why)),
                Settle::Dead(_) => {}
            }
        }
        // In the order in which they came: so they come again.
        ends.released.sort_unstable_by_key(|(tag, ..)| *tag);
        Ok(ends)
    }
}

/// Whole seconds, not fewer than asked for. SQS keeps nothing back for more than twelve hours from
/// its reception on.
fn seconds(delay: Duration, age: Duration) -> Result<i32, SourceError> {
    let whole = delay
        .as_secs()
        .saturating_add(u64::from(delay.subsec_nanos() > 0));
    let most = LONGEST_VISIBILITY.saturating_sub(age).as_secs();
    i32::try_from(whole)
        .ok()
        .filter(|_| whole <= most)
        .ok_or(SourceError::Unsupported(
            "SQS delays a message until twelve hours after its reception at most",
        ))
}

/// Gives messages back.
pub(crate) async fn release(desk: &Desk, released: &[(Tag, String, i32)]) -> Result<(), Problem> {
    if released.is_empty() {
        return Ok(());
    }
    let _times = desk.times.lock().await;
    let changed = desk.change(released).await;
    desk.forget(released.iter().map(|(tag, ..)| *tag));
    changed
}

/// Stores dead letters. All of them, or an error.
pub(crate) async fn bury(
    desk: &Desk,
    grave: &Queue,
    letters: &[(Tag, Held, DeadLetter)],
    max_message: usize,
) -> Result<(), Problem> {
    let (mut load, mut size) = (Vec::new(), 0);
    for (_, held, why) in letters {
        let parcel = dead::letter(&held.message, why, &desk.queue, max_message);
        let more = parcel.size();
        if load.len() == REQUEST || (size + more > max_message && !load.is_empty()) {
            store(grave, std::mem::take(&mut load)).await?;
            size = 0;
        }
        size += more;
        load.push(parcel);
    }
    match load.is_empty() {
        true => Ok(()),
        false => store(grave, load).await,
    }
}

/// Sends until all are stored, or nothing can be done any more.
async fn store(grave: &Queue, mut parcels: Vec<Parcel>) -> Result<(), Problem> {
    loop {
        let answers = send(grave, parcels.clone()).await;
        let mut left = Vec::new();
        for (parcel, answer) in parcels.into_iter().zip(answers) {
            match answer {
                Ok(()) => {}
                Err(problem) if problem.may_pass() => left.push(parcel),
                Err(problem) => return Err(problem),
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        parcels = left;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Deletes until all are gone, or nothing can be done any more.
pub(crate) async fn delete(desk: &Desk, done: &[(Tag, Held)]) -> Result<(), Problem> {
    let chunks: Vec<_> = done.chunks(REQUEST).collect();
    for some in chunks.chunks(TOGETHER) {
        let deleted = some.iter().map(|some| delete_some(desk, some));
        for deleted in join_all(deleted).await {
            deleted?;
        }
    }
    Ok(())
}

async fn delete_some(desk: &Desk, some: &[(Tag, Held)]) -> Result<(), Problem> {
    let mut left: Vec<(Tag, &str)> = some.iter().map(|(t, h)| (*t, h.receipt.as_str())).collect();
    loop {
        let failed = match request(desk, &left).await {
            Err(problem) if problem.may_pass() => left.iter().map(|(tag, _)| *tag).collect(),
            failed => failed?,
        };
        desk.forget(left.iter().map(|(t, _)| *t).filter(|t| !failed.contains(t)));
        left.retain(|(tag, _)| failed.contains(tag));
        if left.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Which of them were not deleted and may be in a moment.
async fn request(desk: &Desk, left: &[(Tag, &str)]) -> Result<Vec<Tag>, Problem> {
    let mut entries = Vec::with_capacity(left.len());
    for (tag, receipt) in left {
        let entry = DeleteMessageBatchRequestEntry::builder()
            .id(tag.to_string())
            .receipt_handle(*receipt)
            .build()
            .map_err(|e| Problem::Invalid(e.to_string()))?;
        entries.push(entry);
    }
    let answer = desk
        .queue
        .client
        .delete_message_batch()
        .queue_url(&desk.queue.url)
        .set_entries(Some(entries))
        .send()
        .await
        .map_err(|e| problem(&e))?;
    let mut failed = Vec::new();
    for entry in &answer.failed {
        match entry_problem(entry) {
            // The receipt is too old, so that the message is somebody else's, or gone.
            Problem::Stale(_) | Problem::Invalid(_) => {}
            problem if problem.may_pass() => {
                failed.extend(entry.id.parse().ok().map(Tag));
            }
            problem => return Err(problem),
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_whole_seconds_and_ends_within_twelve_hours() {
        let ms = Duration::from_millis;
        let second = ms(1_000);
        assert_eq!(seconds(ms(0), second).ok(), Some(0));
        assert_eq!(seconds(ms(1), second).ok(), Some(1));
        assert_eq!(seconds(ms(3_000), second).ok(), Some(3));
        assert_eq!(seconds(LONGEST_VISIBILITY, ms(0)).ok(), Some(43_200));
        let late = seconds(LONGEST_VISIBILITY, second);
        assert!(matches!(late, Err(SourceError::Unsupported(_))));
        assert!(seconds(Duration::MAX, second).is_err());
    }
}
