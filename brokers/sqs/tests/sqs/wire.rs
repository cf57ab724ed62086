//! What a program finds that knows SQS and nothing of us.

use aws_sdk_sqs::types::MessageSystemAttributeName as System;
use counterfoil_core::source::Source as _;
use counterfoil_core::{Aggregate, Delivery, Destination as _, Outcome, Payload};
use counterfoil_sqs::{Sqs, SqsSource};
use counterfoil_testkit::broker::fixture::{message, opaque};
use counterfoil_testkit::broker::harness::BrokerHarness as _;

use crate::harness::{Fifo, Standard, settings, source_settings};

#[tokio::test]
async fn json_is_the_body_and_the_envelope_stands_in_attributes() {
    let Some(sqs) = Standard::start().await else {
        return;
    };
    let queue = sqs.queue(true).await;
    let destination = Sqs::new(settings(&sqs.url, &queue).source("/shop")).unwrap();
    let one = Delivery {
        headers: [("traceparent", "00-a-b-01")].into_iter().collect(),
        ..message("order", 42, 7)
    };

    assert_eq!(
        destination.publish(std::slice::from_ref(&one)).await,
        [Outcome::Stored]
    );

    let found = sqs.drain(&queue).await.remove(0);
    assert_eq!(
        found.body.as_deref(),
        Some(r#"{"aggregate":42,"version":7}"#)
    );
    let attributes = found.message_attributes.unwrap();
    let value = |name: &str| attributes[name].string_value.clone().unwrap();
    assert_eq!(value("ce_id"), one.id.to_string());
    assert_eq!(value("ce_source"), "/shop");
    assert_eq!(value("ce_partitionkey"), "order/42");
    assert_eq!(value("content-type"), "application/json");
    let rest = value("counterfoil-headers");
    let rest: serde_json::Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(rest["traceparent"], "00-a-b-01");
    assert_eq!(rest["ce_aggregateversion"], "7");
    assert!(!attributes.contains_key("counterfoil-body"));
}

#[tokio::test]
async fn bytes_are_encoded_and_nothing_is_something() {
    let Some(sqs) = Standard::start().await else {
        return;
    };
    let queue = sqs.queue(true).await;
    let destination = Sqs::new(settings(&sqs.url, &queue)).unwrap();

    for (payload, body, written) in [
        (vec![0, 255], "AP8=", Some("base64")),
        (vec![], "-", Some("empty")),
        (b"a;b".to_vec(), "a;b", None),
    ] {
        destination.publish(&[opaque(1, payload)]).await;
        let found = sqs.drain(&queue).await.remove(0);
        assert_eq!(found.body.as_deref(), Some(body));
        let said = found.message_attributes.unwrap().remove("counterfoil-body");
        assert_eq!(said.and_then(|a| a.string_value).as_deref(), written);
    }
}

#[tokio::test]
async fn the_group_is_the_partition_key_or_its_digest() {
    let Some(sqs) = Fifo::start().await else {
        return;
    };
    let queue = sqs.queue(true).await;
    let destination = Sqs::new(settings(&sqs.url, &queue)).unwrap();
    let odd = Delivery {
        aggregate: Some(Aggregate::new("order", "größe")),
        payload: Payload::Json("2".into()),
        ..message("order", 1, 1)
    };
    let batch = [message("order", 1, 1), odd];

    destination.publish(&batch).await;

    let found = sqs.drain(&queue).await;
    let fact = |n: usize, name: System| found[n].attributes.as_ref().unwrap()[&name].clone();
    let at = usize::from(found[0].body.as_deref() == Some("2"));
    assert_eq!(fact(at, System::MessageGroupId), "order/1");
    assert_eq!(
        fact(at, System::MessageDeduplicationId),
        batch[0].id.to_string()
    );
    assert!(fact(1 - at, System::MessageGroupId).starts_with("sha256-"));
}

#[tokio::test]
async fn a_queue_may_be_given_by_its_url_with_credentials_inside() {
    let Some(sqs) = Standard::start().await else {
        return;
    };
    let name = sqs.queue(true).await;
    let url = sqs
        .queue_url(&name)
        .await
        .replace("http://", "http://key:se%2Fcret@");

    let destination = Sqs::new(counterfoil_sqs::Settings::new(&url)).unwrap();
    let source = SqsSource::new(counterfoil_sqs::SourceSettings::new(&url)).unwrap();

    let stored = destination.publish(&[message("order", 1, 1)]).await;
    assert_eq!(stored, [Outcome::Stored]);
    let mut member = source.subscribe().await.unwrap();
    assert_eq!(member.receive(1).await.unwrap().len(), 1);
    assert!(!source.describe().contains("cret"), "{}", source.describe());
    member.close().await.unwrap();
    let again = SqsSource::new(source_settings(&sqs.url, &name)).unwrap();
    let mut member = again.subscribe().await.unwrap();
    let arrival = member.receive(1).await.unwrap().remove(0);
    assert_eq!(arrival.deliveries, Some(2), "it came back at once");
    member.close().await.unwrap();
}
