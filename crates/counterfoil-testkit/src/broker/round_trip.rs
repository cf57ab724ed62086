//! What goes in comes out.

use bytes::Bytes;
use counterfoil_core::envelope::{self, Envelope};
use counterfoil_core::source::{Arrival, HeaderValues};
use counterfoil_core::{Aggregate, Delivery, Headers, Payload};

use super::fixture::{BrokerFixture, Member, attribute, message, opaque};
use super::harness::{BrokerHarness, Foreign};

/// Publishes one message and receives it.
async fn there_and_back<H: BrokerHarness>(
    t: &BrokerFixture<H>,
    member: &mut Member,
    delivery: &Delivery,
) -> Arrival {
    t.publish(std::slice::from_ref(delivery)).await;
    let mut arrivals = member.take_done(1).await;
    let arrival = arrivals.remove(0);
    assert_eq!(t.id(&arrival), delivery.id);
    arrival
}

/// Fails unless the arrival holds the whole envelope of the delivery.
fn assert_whole<H: BrokerHarness>(t: &BrokerFixture<H>, arrival: &Arrival, delivery: &Delivery) {
    let source = envelope::Source::default();
    let expected = Envelope::of(delivery, &source);
    for (name, value) in &expected.attributes {
        let found = attribute(arrival, t.manner, name);
        // Each harness names its own source.
        match *name {
            "source" => assert!(found.is_some_and(|found| !found.is_empty())),
            name => assert_eq!(found, Some(&**value), "{name}"),
        }
    }
    assert_eq!(arrival.text("content-type"), Some(expected.content_type));
    assert_eq!(&arrival.body[..], expected.body);
    for (name, value) in &expected.headers {
        assert_eq!(arrival.text(name), Some(*value), "{name}");
    }
    let absent = [
        "subject",
        "partitionkey",
        "aggregatetype",
        "aggregateversion",
    ];
    for name in absent {
        if !expected
            .attributes
            .iter()
            .any(|(present, _)| *present == name)
        {
            assert_eq!(attribute(arrival, t.manner, name), None, "{name}");
        }
    }
}

/// JSON with everything that a message can have.
pub async fn the_envelope_comes_out_as_it_went_in<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let full = Delivery {
        aggregate: Some(Aggregate::new("Bestellung", "größe/42 \u{1F600}")),
        version: Some(i64::MAX),
        event_type: "OrderPaid".into(),
        payload: Payload::Json("{ \"a\": \"\u{1F600}\\u0000\" }\n".into()),
        headers: [
            (
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
            ("correlation-id", "c-1"),
            ("idempotency-key", "k 1"),
        ]
        .into_iter()
        .collect(),
        attempt: 3,
        epoch: 7,
        ..message("order", 1, 1)
    };

    let arrival = there_and_back(&t, &mut member, &full).await;

    assert_whole(&t, &arrival, &full);
    member.close().await;
}

/// No aggregate, no version, no type, no headers, no payload.
pub async fn a_message_with_little_to_say_comes_out_as_it_went_in<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let mut member = t.member().await;
    let bare = Delivery {
        aggregate: None,
        version: None,
        event_type: String::new(),
        ..opaque(1, Bytes::new())
    };
    let odd = Delivery {
        aggregate: Some(Aggregate::new("", "")),
        version: Some(i64::MIN),
        ..opaque(1, Bytes::new())
    };

    for delivery in [bare, odd] {
        let arrival = there_and_back(&t, &mut member, &delivery).await;
        assert_whole(&t, &arrival, &delivery);
    }
    member.close().await;
}

/// Opaque payloads with every byte value, alone and together, and with a type of their own.
pub async fn every_byte_of_a_payload_comes_out<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let every: Vec<u8> = (0..=u8::MAX).collect();
    let mut large = every.repeat(200);
    large.extend([0, 13, 10, 0]);
    let typed = Delivery {
        headers: [("content-type", "image/png")].into_iter().collect(),
        ..opaque(1, every.clone())
    };

    for payload in [every, large, vec![0], vec![13, 10], vec![255, 254]] {
        let delivery = opaque(1, payload);
        let arrival = there_and_back(&t, &mut member, &delivery).await;
        assert_whole(&t, &arrival, &delivery);
    }
    let arrival = there_and_back(&t, &mut member, &typed).await;
    assert_whole(&t, &arrival, &typed);
    member.close().await;
}

/// Every character that fits a byte except NUL, and some that do not.
fn texts() -> Vec<String> {
    let low: String = (1..=0xff_u8).map(char::from).collect();
    let mut all: Vec<String> = vec![
        "plain".into(),
        " spaces around ".into(),
        "two\r\nlines: and\tmore\r\n".into(),
        "a%20b%0d%0a%zz%".into(),
        "\"quoted\", 'and', =?utf-8?q?so?=".into(),
        "größe \u{1F600} \u{10FFFF} \u{FEFF}".into(),
        String::new(),
        "long ".repeat(1_600),
        low,
    ];
    // Each of these alone: what a broker does to the first or last character shows here.
    all.extend(
        (1..=0x20_u8)
            .chain([0x7f])
            .map(|b| char::from(b).to_string()),
    );
    all
}

/// The message's own headers: any text.
pub async fn headers_come_out_as_they_went_in<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    for texts in texts().chunks(8) {
        let headers: Headers = texts
            .iter()
            .enumerate()
            .map(|(n, text)| (format!("x-own_{n}.a"), text.clone()))
            .collect();
        let delivery = Delivery {
            headers,
            ..message("order", 1, 1)
        };

        let arrival = there_and_back(&t, &mut member, &delivery).await;

        assert_whole(&t, &arrival, &delivery);
    }
    let escaped = Delivery {
        headers: ["ce_id", "data", "content-type", "header-data"]
            .map(|name| (name, "evil"))
            .into_iter()
            .collect(),
        ..message("order", 1, 1)
    };
    let arrival = there_and_back(&t, &mut member, &escaped).await;
    assert_whole(&t, &arrival, &escaped);
    member.close().await;
}

/// Headers of another program: every byte value where that is declared.
pub async fn headers_of_others_come_out_as_they_went_in<H: BrokerHarness>(t: BrokerFixture<H>) {
    let values: Vec<Bytes> = match t.features().await.headers {
        HeaderValues::Bytes => vec![
            (0..=u8::MAX).collect::<Vec<u8>>().into(),
            Bytes::new(),
            Bytes::from_static(&[0]),
            Bytes::from_static(&[0xff, 0xfe, 0x80]),
        ],
        HeaderValues::Text => vec![Bytes::from_static(b"plain"), "größe \u{1F600}".into()],
    };
    let mut member = t.member().await;
    let named = |(n, value): (usize, Bytes)| (format!("x-own-{n}"), value);
    let foreign = Foreign {
        key: Some(Bytes::from_static(b"k")),
        headers: values.into_iter().enumerate().map(named).collect(),
        body: Bytes::from_static(b"{}"),
    };

    t.harness.put(&t.topic, &foreign).await;

    let arrival = member.take_done(1).await.remove(0);
    for (name, value) in &foreign.headers {
        let found = arrival.headers.iter().find(|(n, _)| n == name);
        assert_eq!(found.map(|(_, v)| v), Some(value), "{name}");
    }
    member.close().await;
}

/// No header of ours, and a body that is no JSON.
pub async fn a_message_of_somebody_who_knows_nothing_of_us_is_received<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let mut member = t.member().await;
    let foreign = Foreign {
        body: Bytes::from_static(b"hello, world"),
        ..Foreign::default()
    };

    t.harness.put(&t.topic, &foreign).await;

    let arrival = member.take_done(1).await.remove(0);
    assert_eq!(arrival.body, foreign.body);
    assert!(!arrival.position.is_empty());
    assert_eq!(attribute(&arrival, t.manner, "id"), None);
    member.close().await;
}
