//! Messages that are not stored, and what that is called.

use counterfoil_core::source::SourceError;
use counterfoil_core::{Delivery, Destination as _, Outcome};
use counterfoil_rabbitmq::{RabbitMqSource, Settings, SourceSettings};
use counterfoil_testkit::server::{self, PrivateRabbitMq};
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::{
    build, channel, count, delivery, label_and_code, of_size, one, own_name, passing_queue,
};

const REFUSED: (&str, &str) = ("destination-refused", "DESTINATION_REFUSED");

#[tokio::test]
async fn what_no_queue_takes_is_not_stored() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (_connection, channel) = channel(&url).await;
    let topic = own_name();
    let options = ExchangeDeclareOptions::default();
    let none = FieldTable::default();
    let declared =
        channel.exchange_declare(topic.clone().into(), ExchangeKind::Direct, options, none);
    declared.await.unwrap();

    let destination = build(Settings::new(&url, &topic));
    let outcome = one(&destination, &delivery(1)).await;

    assert_eq!(label_and_code(&outcome), REFUSED, "{outcome:?}");
    let options = ExchangeDeleteOptions::default();
    channel
        .exchange_delete(topic.into(), options)
        .await
        .unwrap();
}

#[tokio::test]
async fn in_a_batch_only_those_without_a_queue_are_refused() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (_connection, channel) = channel(&url).await;
    let name = own_name();
    // Of two partitions one is there.
    passing_queue(&channel, &format!("{name}.1"), FieldTable::default()).await;
    let destination = build(Settings::queue(&url, &name).partitions(2));
    let batch: Vec<Delivery> = (0..200).map(delivery).collect();

    let outcomes = destination.publish(&batch).await;

    let stored = outcomes.iter().filter(|o| **o == Outcome::Stored).count();
    let refused = outcomes
        .iter()
        .filter(|o| label_and_code(o) == REFUSED)
        .count();
    assert_eq!(stored + refused, batch.len());
    assert!(stored > 50 && refused > 50, "{stored} and {refused}");
    // Each of them is the right one: where an aggregate goes does not change.
    for (delivery, outcome) in batch.iter().zip(&outcomes) {
        assert_eq!(
            label_and_code(&one(&destination, delivery).await),
            label_and_code(outcome)
        );
    }
    let found = count(&channel, &format!("{name}.1")).await;
    assert_eq!(found as usize, 2 * stored);
}

#[tokio::test]
async fn a_queue_that_comes_later_gets_what_is_sent_then() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (_connection, channel) = channel(&url).await;
    let name = own_name();
    let destination = build(Settings::queue(&url, &name));

    let early = one(&destination, &delivery(1)).await;
    passing_queue(&channel, &name, FieldTable::default()).await;
    let late = one(&destination, &delivery(1)).await;

    assert_eq!(label_and_code(&early), REFUSED);
    assert_eq!(late, Outcome::Stored);
    assert_eq!(count(&channel, &name).await, 1);
}

#[tokio::test]
async fn a_full_queue_is_tried_again() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (_connection, channel) = channel(&url).await;
    let name = own_name();
    let mut small = FieldTable::default();
    small.insert("x-max-length".into(), AMQPValue::LongInt(1));
    let how = AMQPValue::LongString("reject-publish".into());
    small.insert("x-overflow".into(), how);
    passing_queue(&channel, &name, small).await;
    let destination = build(Settings::queue(&url, &name));

    assert_eq!(one(&destination, &delivery(1)).await, Outcome::Stored);
    let full = one(&destination, &delivery(2)).await;

    assert_eq!(label_and_code(&full), ("retry", "UPSTREAM_5XX"), "{full:?}");
}

#[tokio::test]
async fn headers_that_fit_into_no_frame_are_the_messages_own_fault() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (_connection, channel) = channel(&url).await;
    let name = own_name();
    passing_queue(&channel, &name, FieldTable::default()).await;
    let destination = build(Settings::queue(&url, &name));
    let with = |size: usize| Delivery {
        headers: [("a", "x".repeat(size))].into_iter().collect(),
        ..delivery(2)
    };

    let outcomes = destination
        .publish(&[delivery(1), with(131_072), with(120_000)])
        .await;

    let labels: Vec<_> = outcomes.iter().map(label_and_code).collect();
    assert_eq!(
        labels,
        [("stored", ""), ("refused", "TOO_LARGE"), ("stored", "")]
    );
}

#[tokio::test]
async fn the_servers_own_limit_is_respected_and_spoils_nothing() {
    let Some(rabbit) = PrivateRabbitMq::start_with("max_message_size = 1000").await else {
        return;
    };
    let url = rabbit.url();
    let (_connection, channel) = channel(&url).await;
    passing_queue(&channel, "q", FieldTable::default()).await;
    let destination = build(Settings::queue(&url, "q"));
    let batch = [
        of_size(1, 10),
        of_size(2, 1_001),
        of_size(3, 1_000),
        of_size(4, 5_000),
    ];

    for _ in 0..2 {
        let outcomes = destination.publish(&batch).await;

        let labels: Vec<_> = outcomes.iter().map(label_and_code).collect();
        let large = ("refused", "TOO_LARGE");
        let stored = ("stored", "");
        assert_eq!(labels, [stored, large, stored, large], "{outcomes:?}");
    }
}

#[tokio::test]
async fn a_queue_with_other_settings_is_refused_and_left_alone() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let (_connection, channel) = channel(&url).await;
    let name = own_name();
    passing_queue(&channel, &name, FieldTable::default()).await;

    let source = RabbitMqSource::new(SourceSettings::queue(&url, &name)).unwrap();
    let refused = source.declare().await.unwrap_err();

    let SourceError::Refused(text) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        text.contains("inequivalent") && text.contains("passive"),
        "{text}"
    );
    assert_eq!(count(&channel, &name).await, 0);
    let options = QueueDeleteOptions::default();
    let letters = format!("{name}.DLQ");
    channel.queue_delete(letters.into(), options).await.unwrap();
}

#[tokio::test]
async fn a_login_that_is_wrong_says_so_and_shows_no_password() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let wrong = url.replace("guest:guest", "guest:hunter2");
    let nowhere = url.replace("%2f", "nowhere");
    for url in [wrong, nowhere] {
        let outcome = one(&build(Settings::new(&url, "t")), &delivery(1)).await;
        assert_eq!(label_and_code(&outcome), REFUSED, "{outcome:?}");
        assert!(!format!("{outcome:?}").contains("hunter2"));
    }
}
