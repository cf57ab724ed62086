//! Streams that are missing, and what is found in those that are there.

use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy, StorageType};
use counterfoil_core::Outcome;
use counterfoil_core::source::{Source as _, SourceError};
use counterfoil_nats::{Create, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateNats;
use std::time::Duration;

use crate::{build, context, delivery, join, make, one, publish, source, stream};

#[tokio::test]
async fn a_stream_is_made_only_where_that_was_asked_for() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    let settings = Settings::new(nats.url(), "shop.orders").partitions(3);

    let refused = one(&build(settings.clone()), &delivery(1, 1)).await;
    let none = context(&nats).await.get_stream("shop-orders").await;
    let age = Duration::from_secs(3_600);
    let creating = build(settings.clone().create(Create::new().max_age(age)));
    let stored = one(&creating, &delivery(1, 1)).await;

    assert_eq!(refused.label(), "destination-refused", "{refused:?}");
    assert!(none.is_err());
    assert_eq!(stored, Outcome::Stored);
    let jetstream = context(&nats).await;
    let made = jetstream.get_stream("shop-orders").await.unwrap();
    let config = &made.cached_info().config;
    assert_eq!(
        config.subjects,
        ["shop.orders.0", "shop.orders.1", "shop.orders.2"]
    );
    assert_eq!(config.storage, StorageType::File);
    assert_eq!(config.discard, DiscardPolicy::New);
    assert_eq!(config.retention, RetentionPolicy::Limits);
    assert_eq!(config.max_age, age);
    // Once it is there, nobody has to ask for it.
    assert_eq!(
        one(&build(settings), &delivery(1, 2)).await,
        Outcome::Stored
    );
}

#[tokio::test]
async fn a_repeat_is_stored_once_and_counts_as_stored() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let destination = build(Settings::new(nats.url(), "orders"));
    let message = delivery(1, 1);

    for _ in 0..3 {
        assert_eq!(one(&destination, &message).await, Outcome::Stored);
    }

    let jetstream = context(&nats).await;
    let orders = jetstream.get_stream("orders").await.unwrap();
    assert_eq!(orders.cached_info().state.messages, 1);
}

#[tokio::test]
async fn the_retention_is_that_of_the_stream() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let mut brief = stream("payments", "payments");
    brief.max_age = Duration::from_secs(86_400);
    make(&nats, brief).await;
    let of = |subject: &str| source(SourceSettings::new(nats.url(), subject, "stock"));

    assert_eq!(of("orders").retention().await.unwrap(), None);
    let day = of("payments").retention().await.unwrap();

    assert_eq!(day, Some(Duration::from_secs(86_400)));
}

#[tokio::test]
async fn a_source_may_make_the_stream_too() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    let settings = SourceSettings::new(nats.url(), "orders", "stock").create(Create::new());

    let mut member = source(settings).subscribe().await.unwrap();
    publish(&nats, "orders", 1..3).await;

    let came = crate::take(&mut member, 2).await;
    assert_eq!(crate::versions(&came), [1, 2]);
    assert_eq!(came[0].position, "orders@1");
    member.close().await.unwrap();
}

#[tokio::test]
async fn a_consumer_of_another_kind_under_our_name_is_not_used() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let config = async_nats::jetstream::consumer::push::Config {
        durable_name: Some("stock".into()),
        deliver_subject: "elsewhere".into(),
        ..Default::default()
    };
    let jetstream = context(&nats).await;
    let orders = jetstream.get_stream("orders").await.unwrap();
    orders.create_consumer(config).await.unwrap();

    let settings = SourceSettings::new(nats.url(), "orders", "stock");
    let refused = source(settings).subscribe().await.err().unwrap();

    assert!(matches!(refused, SourceError::Refused(_)), "{refused:?}");
    assert!(refused.to_string().contains("stock"), "{refused}");
}

#[tokio::test]
async fn a_consumer_follows_the_settings() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    join(&nats, "orders", 1).await.close().await.unwrap();

    let settings = SourceSettings::new(nats.url(), "orders", "stock").max_in_flight(7);
    let member = source(settings).subscribe().await.unwrap();

    let jetstream = context(&nats).await;
    let orders = jetstream.get_stream("orders").await.unwrap();
    let info = orders.consumer_info("stock").await.unwrap();
    assert_eq!(info.config.max_ack_pending, 7);
    member.close().await.unwrap();
}
