//! What NATS does not take, and what is not even sent.

use counterfoil_core::{Destination as _, Outcome};
use counterfoil_nats::Settings;
use counterfoil_testkit::server::PrivateNats;

use crate::{LONG, build, context, delivery, label_and_code, make, of_size, one, stream};

const TOO_LARGE: (&str, &str) = ("refused", "TOO_LARGE");
const STORED: (&str, &str) = ("stored", "");

#[tokio::test]
async fn one_that_cannot_pass_does_not_spoil_its_batch() {
    let Some(nats) = PrivateNats::start_with("max_payload: 20000").await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let destination = build(Settings::new(nats.url(), "orders").max_payload(30_000));
    let batch = [
        delivery(1, 1),
        of_size(25_000), // over the limit of the server
        delivery(2, 1),
        of_size(30_001), // over our own
        of_size(18_000),
    ];

    let outcomes = destination.publish(&batch).await;

    let found: Vec<_> = outcomes.iter().map(label_and_code).collect();
    assert_eq!(found, [STORED, TOO_LARGE, STORED, TOO_LARGE, STORED]);
    // The next one finds everything as it was.
    assert_eq!(one(&destination, &delivery(1, 2)).await, Outcome::Stored);
}

#[tokio::test]
async fn the_largest_payload_passes_and_one_byte_more_does_not() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    // With the settings that both sides have by default.
    let destination = build(Settings::new(nats.url(), "orders"));

    let fits = one(&destination, &of_size(960 * 1024)).await;
    let over = one(&destination, &of_size(960 * 1024 + 1)).await;

    assert_eq!(fits, Outcome::Stored);
    assert_eq!(label_and_code(&over), TOO_LARGE);
}

#[tokio::test]
async fn a_stream_with_a_lower_limit_refuses_the_message_only() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    let mut config = stream("orders", "orders");
    config.max_message_size = 5_000;
    make(&nats, config).await;
    let destination = build(Settings::new(nats.url(), "orders"));

    let outcomes = destination.publish(&[of_size(6_000), delivery(2, 1)]).await;

    let found: Vec<_> = outcomes.iter().map(label_and_code).collect();
    assert_eq!(found, [TOO_LARGE, STORED]);
}

#[tokio::test]
async fn a_stream_that_is_full_is_tried_again() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    let mut config = stream("orders", "orders");
    config.max_messages = 1;
    make(&nats, config).await;
    let destination = build(Settings::new(nats.url(), "orders"));
    assert_eq!(one(&destination, &delivery(1, 1)).await, Outcome::Stored);
    let next = delivery(1, 2);

    let full = one(&destination, &next).await;
    let jetstream = context(&nats).await;
    let orders = jetstream.get_stream("orders").await.unwrap();
    orders.purge().await.unwrap();

    assert_eq!(label_and_code(&full), ("retry", "UPSTREAM_5XX"), "{full:?}");
    assert_eq!(one(&destination, &next).await, Outcome::Stored);
}

#[tokio::test]
async fn a_subject_that_is_not_ours_is_the_destinations_fault() {
    let settings = r#"authorization { users: [
        { user: relay, password: pw, permissions: {
            publish: ["orders", "$JS.API.>"], subscribe: ["_INBOX.>"] } }
        { user: admin, password: pw } ] }"#;
    let Some(nats) = PrivateNats::start_with(settings).await else {
        return;
    };
    let url = |user: &str| nats.url().replace("//", &format!("//{user}:pw@"));
    let create = counterfoil_nats::Create::new();
    let admin = build(Settings::new(url("admin"), "payments").create(create));
    assert_eq!(one(&admin, &delivery(1, 1)).await, Outcome::Stored);

    let begin = tokio::time::Instant::now();
    let refused = one(
        &build(Settings::new(url("relay"), "payments")),
        &delivery(1, 1),
    )
    .await;
    let allowed = build(Settings::new(url("relay"), "orders").create(create));

    let expected = ("destination-refused", "DESTINATION_REFUSED");
    assert_eq!(label_and_code(&refused), expected, "{refused:?}");
    assert!(begin.elapsed() < LONG / 2, "it is said, not waited for");
    assert_eq!(one(&allowed, &delivery(1, 1)).await, Outcome::Stored);
}
