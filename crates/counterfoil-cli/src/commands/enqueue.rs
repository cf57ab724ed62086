//! `enqueue`: put one message into the outbox.

use std::io::Read as _;

use chrono::{TimeDelta, Utc};
use counterfoil_core::message::{Aggregate, Message, MessageId, Payload};
use counterfoil_core::store::Keyed;
use serde_json::json;

use crate::args::Enqueue;
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

pub(super) async fn run(outbox: &dyn Outbox, args: Enqueue) -> Result {
    let as_json = args.output.json;
    let message = message(args)?;
    message.validate()?;
    let key = Some(("message".to_owned(), message.id.to_string()));
    let answers = outbox.enqueue(&[Keyed { message, key }]).await?;
    // Relays find it by polling when they cannot be told.
    let _ = outbox.announce().await;
    let Some(answer) = answers.first() else {
        return Err(Failure::failed("the database gave no answer"));
    };
    if as_json {
        return print::json(&json!({ "id": answer.id(), "duplicate": !answer.is_first() }));
    }
    let what = if answer.is_first() {
        "enqueued"
    } else {
        "duplicate: it was enqueued before"
    };
    print::line(&format!("{} {what}", answer.id()))
}

fn message(args: Enqueue) -> Result<Message> {
    let mut message = Message::new(args.event_type, Payload::Json(payload(&args.payload)?));
    if let Some(id) = &args.id {
        message.id = MessageId::parse(id).ok_or_else(|| {
            Failure::config(format!("the id `{}` is not a UUID", print::clean(id)))
        })?;
    }
    message.queue = args.queue;
    message.version = args.version;
    if let Some(aggregate) = &args.aggregate {
        let (kind, id) = aggregate.split_once('/').unwrap_or(("", aggregate));
        message.aggregate = Some(Aggregate::new(kind, id));
    }
    for header in &args.headers {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Failure::config(format!(
                "write the header `{header}` as NAME=VALUE"
            )));
        };
        message.headers.set(name.trim(), value);
    }
    if let Some(delay) = args.delay {
        let at = TimeDelta::from_std(delay)
            .ok()
            .and_then(|d| Utc::now().checked_add_signed(d));
        message.available_at = Some(at.ok_or_else(|| Failure::config("the delay is too long"))?);
    }
    Ok(message)
}

fn payload(argument: &str) -> Result<String> {
    let (bytes, source) = match argument.strip_prefix('@') {
        Some(path) => (std::fs::read(path), path),
        None if argument == "-" => {
            let mut bytes = Vec::new();
            let limit = counterfoil_core::message::MAX_PAYLOAD as u64 + 1;
            let read = std::io::stdin().take(limit).read_to_end(&mut bytes);
            (read.map(|_| bytes), "standard input")
        }
        None => return Ok(argument.to_owned()),
    };
    let bytes = bytes.map_err(|e| Failure::config(format!("{source} cannot be read: {e}")))?;
    String::from_utf8(bytes).map_err(|_| Failure::config(format!("{source} is not UTF-8 text")))
}
