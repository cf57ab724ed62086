//! Settings of a stream that lose data.
//!
//! # Promise
//! Whoever runs this driver on a stream that may forget messages is told once, in one line of the
//! log. What a client cannot see is in the book: how often the server writes to its disk.

use serde_json::Value;

/// Warns if there is a reason to.
pub(crate) fn judge(stream: &str, config: &Value) {
    let risks = risks(config);
    if !risks.is_empty() {
        let risks = risks.join("; ");
        tracing::warn!(stream, risks, "this stream can lose messages");
    }
}

/// What can go wrong, in words.
fn risks(config: &Value) -> Vec<String> {
    let text = |name: &str| config[name].as_str().unwrap_or_default();
    let limit = |name: &str| config[name].as_i64().unwrap_or(-1) > 0;
    let mut risks = Vec::new();
    if text("storage") == "memory" {
        risks.push("a restart of the server loses everything (`storage: memory`)".to_owned());
    }
    if config["num_replicas"].as_u64() == Some(1) {
        risks.push("only one server has it (`num_replicas: 1`)".to_owned());
    }
    let limits = ["max_msgs", "max_bytes", "max_msgs_per_subject"];
    let limits: Vec<&str> = limits.into_iter().filter(|name| limit(name)).collect();
    if text("discard") == "old" && !limits.is_empty() {
        risks.push(format!(
            "when it is full the oldest messages are dropped, read or not (`discard: old` with {}): \
             set `discard: new`",
            limits.join(", ")
        ));
    }
    match text("retention") {
        "interest" => risks.push(
            "what comes while a group does not exist is dropped (`retention: interest`)".to_owned(),
        ),
        "workqueue" => risks.push(
            "only one group can read it, and what is read is gone (`retention: workqueue`)"
                .to_owned(),
        ),
        _ => {}
    }
    if config["no_ack"].as_bool() == Some(true) {
        risks.push("it confirms nothing (`no_ack: true`)".to_owned());
    }
    risks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(name: &str, value: Value) -> Vec<String> {
        let mut config = json!({
            "storage": "file",
            "num_replicas": 3,
            "discard": "new",
            "retention": "limits",
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msgs_per_subject": -1,
            "max_age": 0,
        });
        config[name] = value;
        risks(&config)
    }

    #[test]
    fn a_stream_that_keeps_everything_is_not_talked_about() {
        assert_eq!(with("name", json!("orders")), Vec::<String>::new());
        assert_eq!(with("max_bytes", json!(1_000)), Vec::<String>::new());
        assert_eq!(with("discard", json!("old")), Vec::<String>::new());
    }

    #[test]
    fn each_risk_is_named() {
        for (name, value, words) in [
            ("storage", json!("memory"), "a restart"),
            ("num_replicas", json!(1), "only one server"),
            ("retention", json!("interest"), "dropped"),
            ("retention", json!("workqueue"), "one group"),
            ("no_ack", json!(true), "confirms nothing"),
        ] {
            let risks = with(name, value);
            assert_eq!(risks.len(), 1, "{risks:?}");
            assert!(risks[0].contains(words), "{risks:?}");
        }
        let full = risks(&json!({ "discard": "old", "max_bytes": 1, "max_msgs": 1 }));
        assert_eq!(full.len(), 1);
        assert!(full[0].contains("max_msgs, max_bytes"), "{full:?}");
    }
}
