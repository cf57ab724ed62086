//! Requests of up to ten messages.
//!
//! # Promise
//! One answer for each message, also when SQS forgets some of them. When it refuses a request as a
//! whole for something that one of its messages may be guilty of, each of them gets a request of
//! its own.

use futures_util::future::join_all;

use crate::classify::{Problem, entry_problem, problem};
use crate::link::Queue;
use crate::parcel::Parcel;

/// The most entries of one request.
pub(crate) const REQUEST: usize = 10;
/// Requests at one time, where there are many.
pub(crate) const TOGETHER: usize = 8;

/// Sends up to ten. An answer for each, in order.
pub(crate) async fn send(queue: &Queue, parcels: Vec<Parcel>) -> Vec<Result<(), Problem>> {
    let failed = match request(queue, parcels.clone()).await {
        Ok(answers) => return answers,
        Err(failed) => failed,
    };
    let perhaps_one = matches!(failed, Problem::TooLarge(_) | Problem::Invalid(_));
    if !perhaps_one || parcels.len() < 2 {
        return vec![Err(failed); parcels.len()];
    }
    let alone = parcels.into_iter().map(|parcel| async {
        match request(queue, vec![parcel]).await {
            Ok(mut answers) => answers.remove(0),
            Err(failed) => Err(failed),
        }
    });
    join_all(alone).await
}

async fn request(queue: &Queue, parcels: Vec<Parcel>) -> Result<Vec<Result<(), Problem>>, Problem> {
    let count = parcels.len();
    let entries: Result<Vec<_>, _> = parcels
        .into_iter()
        .enumerate()
        .map(|(number, parcel)| parcel.entry(number))
        .collect();
    let answer = queue
        .client
        .send_message_batch()
        .queue_url(&queue.url)
        .set_entries(Some(entries?))
        .send()
        .await
        .map_err(|e| problem(&e))?;
    let forgotten = Problem::Unconfirmed("SQS gave no answer for this message".into());
    let mut answers = vec![Err(forgotten); count];
    let stored = answer.successful.iter().map(|entry| (&entry.id, Ok(())));
    let failed = answer.failed.iter();
    let failed = failed.map(|entry| (&entry.id, Err(entry_problem(entry))));
    for (id, answer) in stored.chain(failed) {
        let place = id.parse::<usize>().ok();
        if let Some(slot) = place.and_then(|place| answers.get_mut(place)) {
            *slot = answer;
        }
    }
    Ok(answers)
}
