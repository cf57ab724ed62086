//! Results on standard output: tables for people, JSON for programs.
//!
//! # Promise
//! What strangers wrote into a message cannot move the cursor or paint the terminal. A reader that
//! goes away (`| head`) is no error.

use std::fmt::Write as _;
use std::io::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::Table;
use counterfoil_core::desk::Entry;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// Prints text and ends the line.
pub(crate) fn line(text: &str) -> Result {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Prints a value as JSON, indented.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Result {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::failed(format!("cannot be written as JSON: {e}")))?;
    line(&escaped(&text))
}

/// JSON in which nothing can move the cursor or turn the text around. Outside strings JSON has no such
/// characters, so each of them can be written as its number.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match is_treacherous(c) && c != '\n' {
            true => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            false => out.push(c),
        }
    }
    out
}

/// Control characters, and those that change the direction in which text is read.
fn is_treacherous(c: char) -> bool {
    let bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || bidi
}

/// Prints a table, or a sentence when it would be empty.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>, nothing: &str) -> Result {
    if rows.is_empty() {
        return line(nothing);
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.into_iter().map(|cell| clean(&cell)));
    }
    line(&table.trim_fmt())
}

/// Prints two columns without a header: what, and its value.
pub(crate) fn facts(rows: &[(&str, String)]) -> Result {
    let width = rows.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    for (what, value) in rows {
        line(&format!("{what:width$}  {}", clean(value)))?;
    }
    Ok(())
}

/// Text without control characters, and without those that change its direction.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if is_treacherous(c) { ' ' } else { c })
        .collect()
}

/// A time as people read it.
pub(crate) fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// A value, or a dash.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value
        .map(|value| value.to_string())
        .filter(|text| !text.is_empty())
        .unwrap_or("-".into())
}

/// A queue's name; messages that no route has taken have none.
pub(crate) fn queue(name: &str) -> String {
    match name {
        "" => "(unrouted)".into(),
        name => name.into(),
    }
}

/// Prints messages as a table or as JSON.
pub(crate) fn entries(entries: &[Entry], as_json: bool, nothing: &str) -> Result {
    if as_json {
        return json(entries);
    }
    let header = [
        "NUMBER",
        "ID",
        "QUEUE",
        "AGGREGATE",
        "VERSION",
        "EVENT",
        "STATE",
        "TRIES",
        "CREATED",
        "NEXT",
        "CODE",
    ];
    let rows = entries.iter().map(|e| {
        vec![
            e.seq.to_string(),
            or_dash(Some(&e.id)),
            queue(&e.queue),
            or_dash(e.aggregate.as_ref()),
            or_dash(e.version),
            or_dash(Some(&e.event_type)),
            e.state.clone(),
            e.attempts.to_string(),
            time(e.created_at),
            or_dash(e.available_at.map(time)),
            or_dash(e.code.as_ref()),
        ]
    });
    table(&header, rows.collect(), nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_cannot_paint_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc\u{9b}d\u{202e}e"), "a [31mb c d e");
    }

    #[test]
    fn json_says_the_same_without_painting_the_terminal() {
        let value = serde_json::json!({ "a\u{9b}": "b\u{202e}c\u{7f}\u{1b}\n\u{2066}ü" });

        let text = escaped(&serde_json::to_string_pretty(&value).unwrap());

        assert!(
            !text.chars().any(|c| is_treacherous(c) && c != '\n'),
            "{text}"
        );
        assert!(text.contains("\\u009b") && text.contains("\\u202e") && text.contains('ü'));
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, value);
    }
}
