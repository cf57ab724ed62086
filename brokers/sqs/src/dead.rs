//! Dead letters.
//!
//! # Promise
//! A dead letter is the message as it was, body and attributes, with headers that say why it died.
//! It goes to the queue of the redrive policy, where SQS itself puts what was received too often.
//! A letter that has no room for all of these headers says less, and goes nevertheless.

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as System};
use counterfoil_core::source::{DeadLetter, dead};

use crate::arrival::{deliveries, fact};
use crate::classify::Problem;
use crate::durability::Shown;
use crate::link::{Queue, url_of};
use crate::parcel::{
    Attributes, HEADERS, MOST_ATTRIBUTES, Parcel, read_headers, text, write_headers,
};
use crate::place::dead_name;

/// The queue for the dead letters of another one.
pub(crate) async fn queue_for(
    queue: &Queue,
    shown: &Shown,
    named: Option<&str>,
) -> Result<Queue, Problem> {
    let policy = shown.redrive().map(|(target, _)| target);
    let target = policy.as_deref().and_then(parts);
    let (name, account) = match (named, target) {
        (Some(named), _) => (named.to_owned(), None),
        (None, Some((account, name))) => (name.to_owned(), Some(account)),
        (None, None) => (dead_name(&queue.name), None),
    };
    let url = url_of(&queue.client, &name, account).await;
    let url = url.map_err(|problem| match problem {
        Problem::Denied(error) => {
            Problem::Denied(format!("no queue {name} for dead letters: {error}"))
        }
        other => other,
    })?;
    Ok(Queue {
        client: queue.client.clone(),
        fifo: queue.fifo,
        url,
        name,
    })
}

/// The account and the name of `arn:aws:sqs:region:account:name`.
fn parts(arn: &str) -> Option<(&str, &str)> {
    let mut parts = arn.rsplit(':');
    let (name, account) = (parts.next()?, parts.next()?);
    (!name.is_empty() && !account.is_empty()).then_some((account, name))
}

/// The letter of a message that died.
pub(crate) fn letter(
    message: &Message,
    why: &DeadLetter,
    queue: &Queue,
    max_message: usize,
) -> Parcel {
    let mut whole = again(message, queue.fifo);
    let traceparent = header(&whole.attributes, "traceparent");
    let mut words: Vec<(&str, String)> = why.headers(traceparent.as_deref());
    words.push((dead::TOPIC, queue.name.clone()));
    let id = message.message_id.clone().unwrap_or_default();
    words.push((dead::OFFSET, id));
    let brief = words.iter().filter(|(name, _)| *name != dead::ERROR);
    let brief: Vec<_> = brief.cloned().collect();
    for words in [words, brief] {
        let Some(attributes) = with(&whole.attributes, words) else {
            tracing::warn!(queue = queue.name, "a dead letter has no room to say why");
            return whole;
        };
        let before = std::mem::replace(&mut whole.attributes, attributes);
        if whole.size() <= max_message {
            return whole;
        }
        whole.attributes = before;
    }
    whole
}

/// The same message once more. A FIFO queue must not take it for a repeat of the one that it had: a
/// message may die twice within minutes.
pub(crate) fn again(message: &Message, fifo: bool) -> Parcel {
    let group = fact(message, &System::MessageGroupId).map(ToOwned::to_owned);
    let id = message.message_id.as_deref().unwrap_or_default();
    let once = format!("{id}-{}", deliveries(message).unwrap_or_default());
    Parcel {
        body: message.body.clone().unwrap_or_default(),
        attributes: message.message_attributes.clone().unwrap_or_default(),
        group: group.filter(|_| fifo),
        once: fifo.then_some(once),
    }
}

/// A header of a message, wherever it stands.
fn header(attributes: &Attributes, name: &str) -> Option<String> {
    let value = |name: &str| attributes.get(name)?.string_value.clone();
    let among = || read_headers(&value(HEADERS)?)?.remove(name);
    value(name).or_else(among)
}

/// The attributes with these words among the headers. Absent when there is no room for them: ten
/// attributes of others, all of them bytes.
fn with(attributes: &Attributes, words: Vec<(&str, String)>) -> Option<Attributes> {
    let mut attributes = attributes.clone();
    let present = attributes.remove(HEADERS);
    let json = present.as_ref().and_then(|a| a.string_value.as_deref());
    let mut headers = match json {
        Some(json) => read_headers(json)?,
        None => Default::default(),
    };
    if attributes.len() >= MOST_ATTRIBUTES {
        // One of them makes room: its text is as good among the headers.
        let named = attributes.iter().find(|(_, a)| a.string_value.is_some());
        let name = named.map(|(name, _)| name.clone())?;
        let moved = attributes.remove(&name)?;
        headers.insert(name, moved.string_value.unwrap_or_default());
    }
    headers.extend(words.into_iter().map(|(n, v)| (n.to_owned(), v)));
    attributes.insert(HEADERS.to_owned(), text(&write_headers(&headers))?);
    Some(attributes)
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::primitives::Blob;
    use aws_sdk_sqs::types::MessageAttributeValue;
    use aws_sdk_sqs::{Client, config};
    use counterfoil_core::Code;

    use super::*;

    fn queue() -> Queue {
        let config = config::Builder::new()
            .behavior_version(config::BehaviorVersion::v2026_01_12())
            .build();
        Queue {
            client: Client::from_conf(config),
            url: String::new(),
            name: "orders.fifo".into(),
            fifo: true,
        }
    }

    fn why() -> DeadLetter {
        DeadLetter {
            code: Code::VALIDATION_ERROR,
            error: "no\r\n\u{1}".into(),
            attempts: 3,
        }
    }

    fn message(attributes: Attributes) -> Message {
        Message::builder()
            .message_id("m-1")
            .body("hello")
            .set_message_attributes(Some(attributes))
            .attributes(System::MessageGroupId, "g")
            .attributes(System::ApproximateReceiveCount, "4")
            .build()
    }

    fn strings(count: usize) -> Attributes {
        let one = |n| (format!("a{n}"), text("v").unwrap());
        (0..count).map(one).collect()
    }

    #[test]
    fn a_letter_is_the_message_with_words_about_its_end() {
        for count in [0, 5, 10] {
            let letter = letter(&message(strings(count)), &why(), &queue(), 1 << 20);

            assert_eq!(letter.body, "hello");
            assert!(letter.attributes.len() <= MOST_ATTRIBUTES);
            let said = |name: &str| header(&letter.attributes, name);
            assert_eq!(said(dead::CODE).as_deref(), Some("VALIDATION_ERROR"));
            assert_eq!(said(dead::ERROR).as_deref(), Some("no\r\n\u{1}"));
            assert_eq!(said(dead::TOPIC).as_deref(), Some("orders.fifo"));
            assert_eq!(said(dead::OFFSET).as_deref(), Some("m-1"));
            for n in 0..count {
                assert_eq!(said(&format!("a{n}")).as_deref(), Some("v"), "{n}");
            }
            assert_eq!(letter.group.as_deref(), Some("g"));
            assert_eq!(letter.once.as_deref(), Some("m-1-4"));
        }
    }

    #[test]
    fn a_letter_without_room_says_less_and_goes_nevertheless() {
        let plain = message(Attributes::new());
        let full = letter(&plain, &why(), &queue(), 1 << 20).size();
        let brief = letter(&plain, &why(), &queue(), full - 1);
        assert_eq!(header(&brief.attributes, dead::ERROR), None);
        assert!(header(&brief.attributes, dead::CODE).is_some());
        let silent = letter(&plain, &why(), &queue(), 10);
        assert_eq!(silent.attributes, Attributes::new());

        let bytes = MessageAttributeValue::builder()
            .data_type("Binary")
            .binary_value(Blob::new([1]))
            .build()
            .unwrap();
        let all: Attributes = (0..10).map(|n| (format!("b{n}"), bytes.clone())).collect();
        let letter = letter(&message(all.clone()), &why(), &queue(), 1 << 20);
        assert_eq!(letter.attributes, all);
    }

    #[test]
    fn a_redrive_policy_names_an_account_and_a_queue() {
        let arn = "arn:aws:sqs:eu-west-1:123456789012:dead.fifo";
        assert_eq!(parts(arn), Some(("123456789012", "dead.fifo")));
        assert_eq!(parts("dead"), None);
    }
}
