//! Everything about one message.

use counterfoil_core::desk::{Detail, Event};
use serde_json::json;

use crate::args::One;
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

/// Shows a message; with `place`, only when it stands there.
pub(super) async fn run(outbox: &dyn Outbox, one: &One, place: Option<&str>) -> Result {
    let facts = outbox.facts(&one.id).await?;
    let Some(detail) = outbox.show(&one.id).await? else {
        return Err(Failure::NotFound(format!(
            "{}: {}",
            print::clean(&one.id),
            facts.sentence()
        )));
    };
    if place.is_some_and(|place| place != detail.place) {
        let text = format!("{} stands in the {}", print::clean(&one.id), detail.place);
        return Err(Failure::NotFound(format!("{text}: {}", facts.sentence())));
    }
    if one.output.json {
        return print::json(&json!({ "explain": facts.sentence(), "message": detail }));
    }
    print::facts(&rows(&detail, facts.sentence()))?;
    if let Some(payload) = &detail.payload {
        print::line(&format!("\n{}", lines(payload)))?;
    }
    events(&detail.events)
}

fn rows(detail: &Detail, sentence: String) -> Vec<(&'static str, String)> {
    let entry = &detail.entry;
    let mut rows = vec![
        ("id", entry.id.clone()),
        ("number", entry.seq.to_string()),
        ("place", detail.place.to_owned()),
        ("state", entry.state.clone()),
        ("queue", print::queue(&entry.queue)),
        ("event", entry.event_type.clone()),
        ("aggregate", print::or_dash(entry.aggregate.as_ref())),
        ("version", print::or_dash(entry.version)),
        ("attempts", entry.attempts.to_string()),
        ("created", print::time(entry.created_at)),
    ];
    let mut add = |what, value: Option<String>| rows.extend(value.map(|value| (what, value)));
    add("next", entry.available_at.map(print::time));
    add("ended", entry.ended_at.map(print::time));
    add("code", entry.code.clone());
    add("error", entry.error.clone());
    add("headers", detail.headers.clone());
    add(
        "payload",
        detail
            .payload_bin_bytes
            .map(|n| format!("{n} bytes, opaque")),
    );
    add("why", Some(sentence));
    rows
}

/// Text of several lines, without other control characters.
fn lines(text: &str) -> String {
    text.split('\n')
        .map(print::clean)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The same below something else; nothing when nothing happened.
pub(super) fn events(events: &[Event]) -> Result {
    if events.is_empty() {
        return Ok(());
    }
    print::line("")?;
    story(events, "")
}

/// A table of what happened, or a sentence when nothing did.
pub(super) fn story(events: &[Event], nothing: &str) -> Result {
    let rows = events.iter().map(|e| {
        vec![
            print::time(e.at),
            e.kind.clone(),
            print::or_dash(e.attempt),
            print::or_dash(e.code.as_ref()),
            print::or_dash(e.actor.as_ref()),
            print::or_dash(e.detail.as_ref()),
        ]
    });
    print::table(
        &["WHEN", "WHAT", "ATTEMPT", "CODE", "BY", "DETAIL"],
        rows.collect(),
        nothing,
    )
}
