//! Messages as callers write them, and what is refused.
//!
//! # Promise
//! Whatever comes in, the answer is messages that can be stored or a problem that says what is
//! wrong with which of them. A payload is kept to the letter.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Datelike as _, TimeDelta, Utc};
use counterfoil_core::message::{Aggregate, Message, MessageId, Payload};
use serde::Deserialize;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::problem::Problem;

/// Messages in one request.
pub(super) const MOST: usize = 1_000;
/// Deeper JSON is refused: most readers, ours included, stop at this depth.
const DEEPEST: usize = 128;

#[derive(Deserialize)]
struct Peek<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Incoming<'a> {
    id: Option<String>,
    queue: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<Name>,
    version: Option<i64>,
    event_type: String,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    available_at: Option<String>,
    delay: Option<Delay>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or an integer")]
enum Name {
    Text(String),
    Number(i64),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a duration such as \"90s\", or seconds")]
enum Delay {
    Text(String),
    Seconds(u64),
}

/// What a request holds.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) messages: Vec<Message>,
    /// It was one message by itself, not a list.
    pub(super) single: bool,
}

/// Reads one message, or `{"messages": […]}`.
pub(super) fn parse(body: &[u8]) -> Result<Parsed, Problem> {
    let text = std::str::from_utf8(body)
        .map_err(|e| Problem::invalid_json(format!("the body is not UTF-8 text: {e}")))?;
    let peek: Peek<'_> = object(text)?;
    if peek.messages.is_none() {
        let message = one(text)?;
        return Ok(Parsed {
            messages: vec![message],
            single: true,
        });
    }
    let batch: Batch<'_> = object(text)?;
    if batch.messages.len() > MOST {
        return Err(Problem::too_many(MOST));
    }
    if batch.messages.is_empty() {
        return Err(Problem::invalid_message(
            "there is no message in `messages`",
        ));
    }
    let all = batch.messages.iter().enumerate();
    let messages = all.map(|(i, raw)| one(raw.get()).map_err(|problem| problem.at(Some(i))));
    Ok(Parsed {
        messages: messages.collect::<Result<_, _>>()?,
        single: false,
    })
}

/// Reads a JSON object. (A struct could be read from a list too, by position.)
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Problem> {
    let parsed = serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => Problem::invalid_message(error.to_string()),
        _ => Problem::invalid_json(error.to_string()),
    });
    match text.trim_start().starts_with('{') {
        false if parsed.is_ok() => Err(Problem::invalid_message("a message is a JSON object")),
        _ => parsed,
    }
}

fn one(text: &str) -> Result<Message, Problem> {
    let incoming: Incoming<'_> = object(text)?;
    let payload = payload(&incoming)?;
    let available_at = available_at(&incoming)?;
    let mut message = Message::new(incoming.event_type, payload);
    if let Some(id) = incoming.id {
        let parsed = MessageId::parse(&id);
        message.id = parsed.ok_or_else(|| Problem::invalid_message("`id` is not a UUID"))?;
    }
    message.queue = incoming.queue;
    message.version = incoming.version;
    message.available_at = available_at;
    let id = incoming.aggregate_id.map(|id| match id {
        Name::Text(text) => text,
        Name::Number(number) => number.to_string(),
    });
    message.aggregate = match (incoming.aggregate_type, id) {
        (kind, Some(id)) => Some(Aggregate::new(kind.unwrap_or_default(), id)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(Problem::invalid_message(
                "`aggregate_type` needs an `aggregate_id`",
            ));
        }
    };
    for (name, value) in incoming.headers {
        message.headers.set(&name, value);
    }
    message.validate()?;
    Ok(message)
}

fn payload(incoming: &Incoming<'_>) -> Result<Payload, Problem> {
    match (incoming.payload, &incoming.payload_base64) {
        (Some(_), Some(_)) => Err(Problem::invalid_message(
            "give `payload` or `payload_base64`, not both",
        )),
        (None, Some(text)) => match STANDARD.decode(text) {
            Ok(bytes) => Ok(Payload::Opaque(bytes.into())),
            Err(error) => Err(Problem::invalid_message(format!(
                "`payload_base64`: {error}"
            ))),
        },
        (Some(raw), None) if depth(raw.get()) > DEEPEST => Err(Problem::invalid_message(format!(
            "`payload` is nested deeper than {DEEPEST} levels"
        ))),
        (Some(raw), None) => Ok(Payload::Json(raw.get().to_owned())),
        (None, None) => Ok(Payload::Json("null".into())),
    }
}

/// How deep valid JSON is nested.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn available_at(incoming: &Incoming<'_>) -> Result<Option<DateTime<Utc>>, Problem> {
    let refuse = |text: String| Err(Problem::invalid_message(text));
    let at = match (&incoming.available_at, &incoming.delay) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return refuse("give `available_at` or `delay`, not both".into()),
        (Some(text), None) => match DateTime::parse_from_rfc3339(text) {
            Ok(at) => Some(at.to_utc()),
            Err(e) => {
                return refuse(format!(
                    "`available_at` is not a time such as 2026-01-31T12:00:00Z: {e}"
                ));
            }
        },
        (None, Some(Delay::Seconds(seconds))) => after(Duration::from_secs(*seconds)),
        (None, Some(Delay::Text(text))) => match humantime::parse_duration(text) {
            Ok(delay) => after(delay),
            Err(e) => return refuse(format!("`delay` is not a duration such as \"90s\": {e}")),
        },
    };
    // What every database can store.
    match at.filter(|at| (1970..10_000).contains(&at.year())) {
        Some(at) => Ok(Some(at)),
        None => refuse("the time of delivery is out of bounds".into()),
    }
}

fn after(delay: Duration) -> Option<DateTime<Utc>> {
    TimeDelta::from_std(delay)
        .ok()
        .and_then(|delay| Utc::now().checked_add_signed(delay))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        format!("{:?}", parse(body.as_bytes()).unwrap_err())
    }

    #[test]
    fn a_payload_is_kept_to_the_letter() {
        let body = r#"{"event_type":"Paid","payload": {"b":1.0, "a":1e3,"b":2} ,"aggregate_id":7}"#;

        let parsed = parse(body.as_bytes()).unwrap();

        assert!(parsed.single);
        let message = &parsed.messages[0];
        assert_eq!(
            message.payload,
            Payload::Json(r#"{"b":1.0, "a":1e3,"b":2}"#.into())
        );
        assert_eq!(message.aggregate, Some(Aggregate::new("", "7")));
    }

    #[test]
    fn what_is_wrong_is_said_and_where() {
        for (body, word) in [
            ("", "invalid-json"),
            ("{", "invalid-json"),
            ("[]", "invalid-message"),
            ("\"x\"", "invalid-message"),
            (r#"["OrderPaid"]"#, "invalid-message"),
            ("{}", "event_type"),
            (r#"{"event_type":"a","evnt":1}"#, "unknown field `evnt`"),
            (r#"{"event_type":"a","id":"7"}"#, "`id` is not a UUID"),
            (
                r#"{"event_type":"a","payload":1,"payload_base64":"AA=="}"#,
                "not both",
            ),
            (
                r#"{"event_type":"a","payload_base64":"*"}"#,
                "payload_base64",
            ),
            (r#"{"event_type":"a","aggregate_type":"o"}"#, "aggregate_id"),
            (
                r#"{"event_type":"a","available_at":"tomorrow"}"#,
                "available_at",
            ),
            (
                r#"{"event_type":"a","available_at":"9999-12-31T23:59:59-12:00"}"#,
                "out of bounds",
            ),
            (r#"{"event_type":"a","delay":"soon"}"#, "delay"),
            (
                r#"{"event_type":"a","delay":18446744073709551615}"#,
                "out of bounds",
            ),
            (r#"{"event_type":"a","delay":-1}"#, "seconds"),
            (r#"{"event_type":"a","version":1e99}"#, "i64"),
            (r#"{"event_type":"a","headers":{"x":"a\u0000"}}"#, "NUL"),
            (r#"{"event_type":""}"#, "event type is empty"),
            (
                r#"{"event_type":"a\u0007"}"#,
                "event type holds a control character",
            ),
            (
                r#"{"event_type":"a","queue":"b\n"}"#,
                "queue holds a control character",
            ),
            (
                r#"{"event_type":"a","aggregate_type":"\u001b","aggregate_id":"1"}"#,
                "aggregate type holds a control character",
            ),
            (
                r#"{"event_type":"a","aggregate_id":"1\u0000"}"#,
                "aggregate id holds a control character",
            ),
            (
                r#"{"event_type":"a","headers":{"x\u0009":"y"}}"#,
                "header name holds a control character",
            ),
            (r#"{"messages":[]}"#, "no message"),
            (r#"{"messages":7}"#, "invalid-message"),
            (
                r#"{"messages":[{"event_type":"a"}],"id":"x"}"#,
                "unknown field `id`",
            ),
            (
                r#"{"messages":[{"event_type":"a"},{"event_type":7}]}"#,
                "messages[1]",
            ),
        ] {
            let problem = refused(body);
            assert!(problem.contains(word), "{body}: {problem}");
        }
        assert!(
            format!("{:?}", parse(b"{\"event_type\":\"\xff\"}").unwrap_err()).contains("UTF-8")
        );
    }

    #[test]
    fn deep_and_endless_requests_are_refused() {
        let deep = |n: usize| {
            format!(
                r#"{{"event_type":"a","payload":{}{}}}"#,
                "[".repeat(n),
                "]".repeat(n)
            )
        };
        assert!(parse(deep(DEEPEST).as_bytes()).is_ok());
        assert!(refused(&deep(DEEPEST + 1)).contains("nested deeper"));
        assert!(refused(&deep(1_000_000)).contains("nested deeper"));
        assert_eq!(depth(r#"{"a":"[[\"[[","b":[{}]}"#), 3);

        let many = vec![r#"{"event_type":"a"}"#; MOST + 1].join(",");
        assert!(refused(&format!(r#"{{"messages":[{many}]}}"#)).contains("too-many"));
    }
}
