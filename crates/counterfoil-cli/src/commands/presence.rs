//! `consumer list` and `relay list`: who is there, and how they are.

use counterfoil_core::presence::RelayEntry;

use crate::args::{Consumer, Relay};
use crate::database::Outbox;
use crate::failure::Result;
use crate::print;

pub(super) async fn consumer(outbox: &dyn Outbox, what: &Consumer) -> Result {
    let Consumer::List(output) = what;
    let consumers = outbox.consumers().await?;
    if output.json {
        return print::json(&consumers);
    }
    let header = [
        "CONSUMER",
        "FROM",
        "STATUS",
        "LAG",
        "IN PROGRESS",
        "LAST MESSAGE",
        "LAST ERROR",
        "PROCESS",
    ];
    let rows = consumers.iter().map(|c| {
        let status = &c.status;
        let error = status.last_error.as_deref().map(|error| {
            let at = status.last_error_at.map(print::time).unwrap_or_default();
            format!("{at} {error}")
        });
        vec![
            c.consumer.clone(),
            status.source.clone(),
            c.words(),
            print::or_dash(status.lag),
            status.in_progress.to_string(),
            print::or_dash(status.last_message_at.map(print::time)),
            print::or_dash(error),
            c.member.clone(),
        ]
    });
    print::table(
        &header,
        rows.collect(),
        "No consumer has reported within a day.",
    )
}

pub(super) async fn relay(outbox: &dyn Outbox, what: &Relay) -> Result {
    let Relay::List(output) = what;
    let relays = outbox.relays().await?;
    if output.json {
        return print::json(&relays);
    }
    let header = ["RELAY", "STATUS", "SERVES", "OWNS"];
    let rows = relays.iter().map(|relay| {
        let serves: Vec<String> = relay.queues.iter().map(|q| print::queue(q)).collect();
        let owns = relay.owns.iter();
        let owns: Vec<String> = owns
            .map(|(queue, shards)| format!("{} {}", print::queue(queue), ranges(shards)))
            .collect();
        vec![
            relay.relay.clone(),
            status(relay),
            print::or_dash(Some(serves.join(", "))),
            print::or_dash(Some(owns.join(", "))),
        ]
    });
    print::table(&header, rows.collect(), "No relay is there.")
}

fn status(relay: &RelayEntry) -> String {
    match (relay.alive, relay.lease_until, relay.since) {
        (true, Some(until), _) => format!("alive until {}", print::time(until)),
        (true, None, Some(since)) => format!("alive since {}", print::time(since)),
        (true, None, None) => "alive".into(),
        (false, Some(until), _) => format!("dead since {}", print::time(until)),
        (false, None, _) => "dead".into(),
    }
}

/// Ascending numbers, as `0-3,7`.
fn ranges(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let texts: Vec<String> = runs
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_told_as_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }
}
