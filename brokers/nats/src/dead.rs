//! Dead letters.
//!
//! # Promise
//! A dead letter is the message as it came, with headers beside its own that say why it is dead and
//! where it stood. It counts as stored only after a stream has confirmed it.

use async_nats::{HeaderMap, Request};
use bytes::Bytes;
use counterfoil_core::Outcome;
use counterfoil_core::source::{DeadLetter, dead};
use tokio::time::timeout;

use crate::classify::{self, Answer, one_line};
use crate::entry::{self, MESSAGE_ID};
use crate::link::Trouble;
use crate::state::{Held, Shared};
use crate::streams;
use crate::subject::stream_name;

/// A letter, ready to be sent.
pub(crate) struct Letter {
    headers: HeaderMap,
    payload: Bytes,
}

/// The dead letter of a message.
pub(crate) fn letter(held: &Held, why: &DeadLetter) -> Letter {
    let message = &held.item.message;
    let mut headers = HeaderMap::new();
    let own = message.headers.as_ref().map(HeaderMap::iter);
    for (name, values) in own.into_iter().flatten() {
        let text: &str = name.as_ref();
        // What speaks to the server is said for one stream, and would be taken for a repeat or a
        // condition by another one. The id stays readable, in letters that mean nothing to it.
        let kept = match text {
            MESSAGE_ID => MESSAGE_ID.to_lowercase().parse().ok(),
            _ if text.starts_with("Nats-") => None,
            _ => Some(name.clone()),
        };
        if let Some(kept) = kept {
            for value in values {
                headers.append(kept.clone(), value.clone());
            }
        }
    }
    let parent = message.headers.as_ref().and_then(|h| h.get("traceparent"));
    let mut says: Vec<(&str, String)> = why.headers(parent.map(async_nats::HeaderValue::as_str));
    says.push((dead::TOPIC, message.subject.to_string()));
    says.push((dead::PARTITION, held.partition.to_string()));
    says.push((dead::OFFSET, held.item.sequence.to_string()));
    for (name, value) in says {
        // Encoded, every text fits.
        let _ = entry::put(&mut headers, name, &value);
    }
    Letter {
        headers,
        payload: message.payload.clone(),
    }
}

/// Stores it, in a stream that is made when it is missing and that is wanted.
pub(crate) async fn store(shared: &Shared, letter: Letter) -> Result<(), Trouble> {
    let settings = &shared.settings;
    let (subject, wait) = (&settings.dead, settings.timeout);
    let mut answer = send(shared, &letter).await?;
    if answer == Answer::Nobody {
        let subjects = [subject.clone()];
        let name = stream_name(subject);
        streams::provide(&shared.live, &subjects, &name, settings.create, wait).await?;
        answer = send(shared, &letter).await?;
    }
    match answer {
        Answer::Known(Outcome::Stored) => Ok(()),
        Answer::Known(
            Outcome::Refused { error, .. }
            | Outcome::DestinationRefused { error, .. }
            | Outcome::Retry { error, .. },
        ) => Err(Trouble::Refused(one_line(&format!(
            "the dead letter was not stored: {error}"
        )))),
        Answer::Known(_) | Answer::Nobody | Answer::Unknown(_) => Err(Trouble::Unavailable(
            "the dead letter was not confirmed".to_owned(),
        )),
    }
}

async fn send(shared: &Shared, letter: &Letter) -> Result<Answer, Trouble> {
    let request = Request::new()
        .headers(letter.headers.clone())
        .payload(letter.payload.clone())
        .timeout(None);
    let subject = shared.settings.dead.clone();
    let denied = [subject.clone()];
    let wait = shared.settings.timeout;
    let answer = timeout(wait, shared.live.client.send_request(subject, request));
    tokio::select! {
        answer = answer => match answer {
            Ok(Ok(message)) => Ok(Answer::Known(classify::answer(&message.payload))),
            Ok(Err(error)) => Ok(classify::silence(&error)),
            Err(_) => Err(Trouble::Unavailable(format!("no answer within {wait:?}"))),
        },
        trouble = shared.live.hindered(&denied) => Err(trouble),
    }
}
