//! Settings of a topic that lose data.
//!
//! # Promise
//! Whoever writes to or reads from a topic that may forget messages is told once, in one line of
//! the log. Looking never holds up or fails a message. A broker that does not show its settings is
//! not talked about.

use std::collections::BTreeMap;
use std::time::Duration;

use krafka::KrafkaError;
use krafka::admin::{AdminClient, ConfigResource, DescribeConfigsOptions, DescribeTopicsOptions};

const PATIENCE: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of a topic, as far as they are shown.
pub(crate) type Shown = BTreeMap<String, String>;

/// Looks, and warns if there is a reason to.
pub(crate) async fn look(admin: &AdminClient, topic: &str) {
    let (replicas, shown) = tokio::join!(replicas(admin, topic), settings(admin, topic));
    let shown = shown.unwrap_or_else(|error| {
        tracing::debug!(topic, %error, "Kafka does not show the settings of a topic");
        Shown::new()
    });
    let risks = risks(replicas.unwrap_or_default(), &shown);
    if !risks.is_empty() {
        let risks = risks.join("; ");
        tracing::warn!(topic, risks, "this topic can lose messages");
    }
}

/// On how many brokers the partition with the fewest is kept.
async fn replicas(admin: &AdminClient, topic: &str) -> Result<Option<usize>, KrafkaError> {
    let options = DescribeTopicsOptions::default().timeout(PATIENCE);
    let mut found = admin.describe_topics([topic], options).await?;
    let Some(description) = found.remove(topic) else {
        return Ok(None);
    };
    let partitions = description?.partitions;
    Ok(partitions.iter().map(|p| p.replicas.len()).min())
}

/// What the broker shows of the topic's settings.
pub(crate) async fn settings(admin: &AdminClient, topic: &str) -> Result<Shown, KrafkaError> {
    let options = DescribeConfigsOptions::default().timeout(PATIENCE);
    let resource = ConfigResource::topic(topic);
    let mut found = admin.describe_configs([resource.clone()], options).await?;
    let entries = found.remove(&resource).transpose()?.unwrap_or_default();
    let shown = entries.into_iter().filter_map(|e| Some((e.name, e.value?)));
    Ok(shown.collect())
}

/// For how long a message may still be handed out, if there is an end to it.
pub(crate) fn retention(shown: &Shown) -> Option<Duration> {
    let policy = shown.get("cleanup.policy")?;
    if policy.split(',').any(|part| part.trim() == "compact") {
        return None;
    }
    // Messages go together with their segment, when its youngest is old enough.
    let segment = millis(shown, "segment.ms").unwrap_or_default();
    Some(millis(shown, "retention.ms")?.saturating_add(segment))
}

/// Absent also when it is without an end.
fn millis(shown: &Shown, name: &str) -> Option<Duration> {
    let number: i64 = shown.get(name)?.parse().ok()?;
    u64::try_from(number).ok().map(Duration::from_millis)
}

/// What can go wrong, in words.
fn risks(replicas: Option<usize>, shown: &Shown) -> Vec<String> {
    let value = |name: &str| shown.get(name).map(String::as_str);
    let mut risks = Vec::new();
    match (replicas, value("min.insync.replicas")) {
        (Some(1), _) => risks.push(
            "it is kept by one broker only: make it with a replication factor of 3".to_owned(),
        ),
        (Some(_), Some("1")) => risks.push(
            "a message is confirmed when one broker has it: set `min.insync.replicas=2`".to_owned(),
        ),
        _ => {}
    }
    if value("unclean.leader.election.enable") == Some("true") {
        let text = "a broker that missed confirmed messages may become the leader: set \
                    `unclean.leader.election.enable=false`";
        risks.push(text.to_owned());
    }
    let policy = value("cleanup.policy").unwrap_or_default();
    let has = |name: &str| policy.split(',').any(|part| part.trim() == name);
    if has("compact") {
        let text = "all but the last message of each key are dropped, read or not: set \
                    `cleanup.policy=delete`";
        risks.push(text.to_owned());
    }
    if has("delete") {
        if millis(shown, "retention.ms").is_some_and(|kept| kept < DAY) {
            let text = "messages are dropped, read or not, before they are a day old: raise \
                        `retention.ms`";
            risks.push(text.to_owned());
        }
        if millis(shown, "retention.bytes").is_some() {
            let text = "the oldest messages are dropped, read or not, when a partition is large \
                        (`retention.bytes`)";
            risks.push(text.to_owned());
        }
    }
    risks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pairs: &[(&str, &str)]) -> Shown {
        let safe = [
            ("min.insync.replicas", "2"),
            ("unclean.leader.election.enable", "false"),
            ("cleanup.policy", "delete"),
            ("retention.ms", "604800000"),
            ("retention.bytes", "-1"),
            ("segment.ms", "604800000"),
        ];
        let all = safe.iter().chain(pairs);
        all.map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn a_safe_topic_and_one_that_shows_nothing_are_not_talked_about() {
        assert_eq!(risks(Some(3), &shown(&[])), [""; 0]);
        assert_eq!(risks(None, &Shown::new()), [""; 0]);
    }

    #[test]
    fn each_setting_that_loses_data_is_named() {
        for (replicas, pair, word) in [
            (1, ("min.insync.replicas", "1"), "replication factor"),
            (3, ("min.insync.replicas", "1"), "min.insync.replicas=2"),
            (3, ("unclean.leader.election.enable", "true"), "unclean"),
            (3, ("cleanup.policy", "compact"), "cleanup.policy"),
            (3, ("cleanup.policy", "compact,delete"), "cleanup.policy"),
            (3, ("retention.ms", "3600000"), "retention.ms"),
            (3, ("retention.bytes", "1000"), "retention.bytes"),
        ] {
            let risks = risks(Some(replicas), &shown(&[pair]));
            assert_eq!(risks.len(), 1, "{pair:?}: {risks:?}");
            assert!(risks[0].contains(word), "{risks:?}");
        }
    }

    #[test]
    fn a_message_lives_as_long_as_its_segment() {
        assert_eq!(retention(&shown(&[])), Some(DAY * 14));
        assert_eq!(retention(&shown(&[("segment.ms", "0")])), Some(DAY * 7));
        assert_eq!(retention(&shown(&[("retention.ms", "-1")])), None);
        assert_eq!(retention(&shown(&[("cleanup.policy", "compact")])), None);
        assert_eq!(retention(&Shown::new()), None);
    }
}
