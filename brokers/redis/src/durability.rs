//! Settings of Redis that lose data.
//!
//! # Promise
//! Whoever runs this destination on a Redis that may forget entries is told once, in one line of the
//! log. Looking never holds up or fails a message. A Redis that does not show its settings is not
//! talked about.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, cmd};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);
const NAMES: [&str; 5] = [
    "appendonly",
    "appendfsync",
    "save",
    "maxmemory-policy",
    "proto-max-bulk-len",
];

/// Looks, and warns if there is a reason to. Whether it got an answer.
pub(crate) async fn look(
    mut connection: MultiplexedConnection,
    shown: &str,
    max_payload: usize,
) -> bool {
    let mut found = BTreeMap::new();
    for name in NAMES {
        // One by one: before version 7 Redis takes one name only.
        let mut question = cmd("CONFIG");
        question.arg("GET").arg(name);
        let answer = question.query_async::<Vec<String>>(&mut connection);
        match timeout(PATIENCE, answer).await {
            Ok(Ok(pair)) => {
                if let [_, value] = pair.as_slice() {
                    found.insert(name, value.clone());
                }
            }
            Ok(Err(error)) if is_answer(&error) => {
                tracing::debug!(redis = shown, %error, "Redis does not show its settings");
                return true;
            }
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    let risks = risks(&found, max_payload);
    if !risks.is_empty() {
        let risks = risks.join("; ");
        tracing::warn!(
            redis = shown,
            risks,
            "this Redis can lose entries of streams"
        );
    }
    true
}

fn is_answer(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType
    )
}

/// What can go wrong, in words.
fn risks(found: &BTreeMap<&str, String>, max_payload: usize) -> Vec<String> {
    let value = |name: &str| found.get(name).map(String::as_str);
    let mut risks = Vec::new();
    match (value("appendonly"), value("save").map(str::trim)) {
        (Some("no"), Some("")) => {
            risks.push("it keeps nothing on disk: set `appendonly yes`".to_owned());
        }
        (Some("no"), Some(_)) => risks.push(
            "a crash loses what came after the last snapshot: set `appendonly yes`".to_owned(),
        ),
        (Some("yes"), _) if value("appendfsync").is_some_and(|fsync| fsync != "always") => {
            let text = "a crash of the machine loses the last second or more: set \
                        `appendfsync always` if that is too much";
            risks.push(text.to_owned());
        }
        _ => {}
    }
    if let Some(policy) = value("maxmemory-policy").filter(|policy| *policy != "noeviction") {
        risks.push(format!(
            "when its memory is full it may drop whole streams (`maxmemory-policy {policy}`): set \
             `maxmemory-policy noeviction`"
        ));
    }
    let longest = value("proto-max-bulk-len").and_then(|text| text.parse::<usize>().ok());
    if let Some(longest) = longest.filter(|longest| *longest < max_payload) {
        risks.push(format!(
            "it takes values of {longest} bytes at most (`proto-max-bulk-len`) and closes the \
             connection at larger ones, and up to {max_payload} are sent: lower the largest payload"
        ));
    }
    risks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&'static str, &str)]) -> Vec<String> {
        let safe = [
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("save", "3600 1"),
            ("maxmemory-policy", "noeviction"),
            ("proto-max-bulk-len", "536870912"),
        ];
        let all = safe.iter().chain(pairs);
        let found = all.map(|(k, v)| (*k, (*v).to_owned())).collect();
        risks(&found, 1_000)
    }

    #[test]
    fn a_redis_that_keeps_everything_is_not_talked_about() {
        assert_eq!(with(&[]), Vec::<String>::new());
        assert_eq!(risks(&BTreeMap::new(), 1_000), Vec::<String>::new());
    }

    #[test]
    fn each_risk_is_named() {
        let one = |pairs: &[(&'static str, &str)], words: &str| {
            let risks = with(pairs);
            assert_eq!(risks.len(), 1, "{risks:?}");
            assert!(risks[0].contains(words), "{risks:?}");
        };

        one(&[("appendonly", "no"), ("save", "")], "nothing on disk");
        one(&[("appendonly", "no")], "the last snapshot");
        one(&[("appendfsync", "everysec")], "the last second");
        one(&[("appendfsync", "no")], "the last second");
        one(
            &[("maxmemory-policy", "allkeys-lru")],
            "`maxmemory-policy allkeys-lru`",
        );
        one(&[("proto-max-bulk-len", "999")], "999 bytes at most");
        one(
            &[("save", ""), ("maxmemory-policy", "volatile-ttl")],
            "drop",
        );
    }
}
