//! Settings of a queue that lose data.
//!
//! # Promise
//! Whoever runs on a queue that may forget messages, or hand them to the wrong place, is told once,
//! in one line of the log. Looking never holds up or fails a message. A queue that does not show its
//! settings is not talked about.

use std::collections::HashMap;

use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;

use crate::classify::{Problem, problem};
use crate::link::Queue;

/// A weekend.
const SHORT_RETENTION: u64 = 3 * 24 * 60 * 60;
/// A pause of the process or of the network is as long as that.
const SHORT_VISIBILITY: u64 = 10;
/// How often a consumer tries a message before it gives up: see the schedule of consumers.
const ATTEMPTS: u64 = 10;

/// The settings of a queue, as it shows them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shown(HashMap<QueueAttributeName, String>);

impl Shown {
    /// Asks for all of them.
    pub(crate) async fn of(queue: &Queue) -> Result<Self, Problem> {
        let request = queue
            .client
            .get_queue_attributes()
            .queue_url(&queue.url)
            .attribute_names(QueueAttributeName::All);
        let answer = Box::pin(request.send()).await.map_err(|e| problem(&e))?;
        Ok(Self(answer.attributes.unwrap_or_default()))
    }

    /// A number.
    pub(crate) fn number(&self, name: &QueueAttributeName) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    /// The name of the queue for everybody.
    pub(crate) fn arn(&self) -> Option<&str> {
        self.0
            .get(&QueueAttributeName::QueueArn)
            .map(String::as_str)
    }

    /// Where SQS itself puts what was received too often: the queue, and how often that is.
    pub(crate) fn redrive(&self) -> Option<(String, u64)> {
        let text = self.0.get(&QueueAttributeName::RedrivePolicy)?;
        let policy: Value = serde_json::from_str(text).ok()?;
        let target = policy.get("deadLetterTargetArn")?.as_str()?.to_owned();
        // Some write the number as a text.
        let count = policy.get("maxReceiveCount")?;
        let count = count.as_u64().or_else(|| count.as_str()?.parse().ok())?;
        Some((target, count))
    }
}

/// Looks for who sends, and warns if there is a reason to. Whether it got an answer.
pub(crate) async fn look(queue: &Queue, max_message: usize) -> bool {
    match Shown::of(queue).await {
        Ok(shown) => {
            warn(queue, &sending(&shown, max_message));
            true
        }
        Err(Problem::Denied(error)) => {
            tracing::debug!(
                queue = queue.name,
                error,
                "the queue does not show its settings"
            );
            true
        }
        Err(_) => false,
    }
}

/// Says what can go wrong, in one line.
pub(crate) fn warn(queue: &Queue, risks: &[String]) {
    if !risks.is_empty() {
        let risks = risks.join("; ");
        tracing::warn!(queue = queue.name, risks, "this queue can lose messages");
    }
}

/// What can go wrong for who sends, in words.
fn sending(shown: &Shown, max_message: usize) -> Vec<String> {
    let mut risks: Vec<_> = retention(shown).into_iter().collect();
    let most = shown.number(&QueueAttributeName::MaximumMessageSize);
    let ours = u64::try_from(max_message).unwrap_or(u64::MAX);
    if let Some(most) = most.filter(|most| *most < ours) {
        risks.push(format!(
            "it takes messages of {most} bytes at most (`MaximumMessageSize`), and up to {ours} are \
             sent: larger ones are parked when it refuses them; lower the largest message"
        ));
    }
    risks
}

/// What can go wrong for who receives, in words.
pub(crate) fn receiving(shown: &Shown, visibility: u64, dead: Option<&Shown>) -> Vec<String> {
    let mut risks: Vec<_> = retention(shown).into_iter().collect();
    match shown.redrive() {
        None => risks.push(
            "it has no redrive policy: a message that kills its consumers comes again until it \
             expires, and is lost then"
                .to_owned(),
        ),
        Some((_, count)) if count < ATTEMPTS => risks.push(format!(
            "its redrive policy takes a message away after {count} receptions, before our own \
             attempts are used up: set `maxReceiveCount` to {ATTEMPTS} at least"
        )),
        Some(_) => {}
    }
    if visibility < SHORT_VISIBILITY {
        risks.push(format!(
            "a consumer that is silent for {visibility} s loses its messages to others, who do the \
             work again: a visibility timeout of 30 s is usual"
        ));
    }
    let kept = |shown: &Shown| shown.number(&QueueAttributeName::MessageRetentionPeriod);
    if let (Some(here), Some(there)) = (kept(shown), dead.and_then(kept))
        && there < here
    {
        risks.push(format!(
            "its dead letters are kept for {there} s, which is shorter than the {here} s here, and \
             the time before they died counts: set `MessageRetentionPeriod` there to 1209600"
        ));
    }
    risks
}

fn retention(shown: &Shown) -> Option<String> {
    let kept = shown.number(&QueueAttributeName::MessageRetentionPeriod)?;
    (kept < SHORT_RETENTION).then(|| {
        format!(
            "it forgets what nobody has received within {kept} s: set `MessageRetentionPeriod` to \
             1209600, which are 14 days"
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shown(pairs: &[(&str, &str)]) -> Shown {
        let named =
            |(name, value): &(&str, &str)| (QueueAttributeName::from(*name), (*value).to_owned());
        Shown(pairs.iter().map(named).collect())
    }

    const POLICY: &str =
        r#"{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:1:dead","maxReceiveCount":10}"#;

    #[test]
    fn a_queue_that_keeps_everything_is_not_talked_about() {
        let safe = shown(&[
            ("MessageRetentionPeriod", "1209600"),
            ("RedrivePolicy", POLICY),
            ("MaximumMessageSize", "1048576"),
        ]);

        assert_eq!(receiving(&safe, 30, Some(&safe)), Vec::<String>::new());
        assert_eq!(sending(&safe, 1024 * 1024), Vec::<String>::new());
        assert_eq!(
            sending(&Shown::default(), 1024 * 1024),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_risk_is_named() {
        let one = |risks: Vec<String>, words: &str| {
            assert_eq!(risks.len(), 1, "{risks:?}");
            assert!(risks[0].contains(words), "{risks:?}");
        };
        let low = POLICY.replace("10}", "\"3\"}");
        let safe = shown(&[("RedrivePolicy", POLICY)]);
        let long = shown(&[
            ("RedrivePolicy", POLICY),
            ("MessageRetentionPeriod", "1209600"),
        ]);
        let short = shown(&[("MessageRetentionPeriod", "345600")]);

        one(receiving(&Shown::default(), 30, None), "no redrive policy");
        one(
            receiving(&shown(&[("RedrivePolicy", &low)]), 30, None),
            "after 3 receptions",
        );
        one(receiving(&safe, 9, None), "silent for 9 s");
        one(
            receiving(&long, 30, Some(&short)),
            "dead letters are kept for 345600 s",
        );
        one(
            sending(&shown(&[("MessageRetentionPeriod", "3600")]), 1),
            "within 3600 s",
        );
        one(
            sending(&shown(&[("MaximumMessageSize", "1024")]), 2_048),
            "1024 bytes at most",
        );
    }

    #[test]
    fn a_redrive_policy_names_a_queue() {
        let policy = shown(&[("RedrivePolicy", POLICY)]).redrive();
        assert_eq!(policy, Some(("arn:aws:sqs:eu-west-1:1:dead".into(), 10)));
        assert_eq!(shown(&[("RedrivePolicy", "{}")]).redrive(), None);
    }
}
