use std::sync::Arc;

use super::*;
use crate::envelope::{Envelope, Source};
use crate::row::RowState;
use crate::source::Tag;

fn arrival(headers: &[(&str, &[u8])], body: &[u8]) -> Arrival {
    Arrival {
        tag: Tag(1),
        position: "orders/3@17".into(),
        key: None,
        headers: headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), Bytes::copy_from_slice(v)))
            .collect(),
        body: Bytes::copy_from_slice(body),
        deliveries: None,
    }
}

fn delivery() -> Delivery {
    Delivery {
        seq: 9,
        shard: 0,
        epoch: 3,
        id: MessageId::new(),
        queue: Arc::from("q"),
        aggregate: Some(Aggregate::new("order", 42)),
        version: Some(7),
        event_type: "OrderPaid".into(),
        payload: Payload::Json("{ \"a\": 1}".into()),
        headers: [("traceparent", "00-a"), ("data", "odd"), ("ce_id", "evil")]
            .into_iter()
            .collect(),
        attempt: 2,
        crashes: 0,
        created_at: chrono::Utc::now(),
        state: RowState::New,
        defect: None,
    }
}

fn sent(delivery: &Delivery, prefix: &str) -> Arrival {
    let source = Source::default();
    let envelope = Envelope::of(delivery, &source);
    let mut headers: Vec<(String, Bytes)> = envelope
        .attributes
        .iter()
        .map(|(n, v)| (format!("{prefix}{n}"), Bytes::from(v.to_string())))
        .collect();
    headers.push((
        "content-type".into(),
        envelope.content_type.to_owned().into(),
    ));
    let own = envelope.headers.iter();
    headers.extend(own.map(|(n, v)| (n.to_string(), Bytes::from((*v).to_owned()))));
    Arrival {
        headers,
        ..arrival(&[], envelope.body)
    }
}

#[test]
fn what_the_relay_sent_comes_out_as_it_went_in_on_every_transport() {
    let json = delivery();
    let opaque = Delivery {
        payload: Payload::Opaque(vec![0, 255].into()),
        headers: [("content-type", "image/png")].into_iter().collect(),
        aggregate: None,
        version: None,
        ..delivery()
    };
    for prefix in ["ce_", "ce-", "cloudEvents:", "cloudEvents_", "CE_"] {
        for sent_one in [&json, &opaque] {
            let found = Incoming::of(&sent(sent_one, prefix), &Mapping::default());

            assert_eq!(found.defect, None);
            assert_eq!(
                (found.id, &found.key),
                (sent_one.id, &sent_one.id.to_string())
            );
            assert_eq!(found.aggregate, sent_one.aggregate);
            assert_eq!(found.version, sent_one.version);
            assert_eq!(found.event_type, sent_one.event_type);
            assert_eq!(found.payload, sent_one.payload);
            assert_eq!(found.headers, sent_one.headers);
        }
    }
}

#[test]
fn what_is_put_off_comes_back_as_it_was() {
    let foreign = arrival(
        &[
            ("x-id", b"A 1"),
            ("bin", &[0xff]),
            ("", b"a\0b"),
            ("n\n", b"1"),
        ],
        b"{}",
    );
    let mapping = Mapping {
        id: Some(Place::Header("x-id".into())),
        ..Mapping::default()
    };
    let broken = arrival(&[], b"not json");
    for (arrival, mapping) in [(&foreign, &mapping), (&broken, &Mapping::default())] {
        let incoming = Incoming::of(arrival, mapping);
        let message = incoming.to_message("inbox:stock");
        message.validate().unwrap();
        let row = Delivery {
            id: message.id,
            aggregate: message.aggregate.clone(),
            version: message.version,
            event_type: message.event_type.clone(),
            payload: message.payload.clone(),
            headers: message.headers.clone(),
            ..delivery()
        };

        assert_eq!(Incoming::of_delivery(&row), incoming);
    }
}

#[test]
fn a_foreign_message_is_read_where_the_mapping_says() {
    let mapping = Mapping {
        dedup: Dedup::Id,
        id: Some(Place::Body("/meta/id".into())),
        aggregate_type: Some(Place::Fixed("order".into())),
        aggregate_id: Some(Place::Body("/order".into())),
        version: Some(Place::Header("X-Version".into())),
        event_type: Some(Place::Body("/kind".into())),
    };
    let body = br#"{"meta": {"id": "evt-1"}, "order": 42, "kind": "paid"}"#;

    let found = Incoming::of(&arrival(&[("x-version", b" 3 ")], body), &mapping);

    assert_eq!(found.defect, None);
    assert_eq!(found.key, "evt-1");
    assert_eq!(found.aggregate, Some(Aggregate::new("order", 42)));
    assert_eq!(
        (found.version, found.event_type.as_str()),
        (Some(3), "paid")
    );
    let again = Incoming::of(&arrival(&[("x-version", b"3")], body), &mapping);
    assert_eq!(found.id, again.id, "the derived id is stable");
}

#[test]
fn a_message_without_an_id_has_a_defect_and_a_stable_identity() {
    let bare = arrival(&[], b"{}");

    let (one, two) = (
        Incoming::of(&bare, &Mapping::default()),
        Incoming::of(&bare, &Mapping::default()),
    );

    assert!(one.defect.as_ref().unwrap().error.contains("no id"));
    assert_eq!((one.id, &one.key), (two.id, &two.key));
    let by_position = Mapping {
        id: Some(Place::Position),
        ..Mapping::default()
    };
    assert_eq!(Incoming::of(&bare, &by_position).defect, None);
}

#[test]
fn by_version_the_same_version_is_a_repeat_whatever_its_id() {
    let by_version = Mapping {
        dedup: Dedup::Version,
        ..Mapping::default()
    };
    let (one, two) = (delivery(), delivery());
    let key = |d: &Delivery| Incoming::of(&sent(d, "ce_"), &by_version);

    assert_eq!(key(&one).key, key(&two).key);
    let later = Delivery {
        version: Some(8),
        ..delivery()
    };
    assert_ne!(key(&later).key, key(&one).key);
    let without = Delivery {
        version: None,
        ..delivery()
    };
    assert!(key(&without).defect.is_some());
}

#[test]
fn foreign_ids_of_two_sources_are_two_messages() {
    let of = |source: &[u8]| {
        let found = arrival(&[("ce_id", b"1"), ("ce_source", source)], b"{}");
        Incoming::of(&found, &Mapping::default())
    };

    assert_ne!(of(b"a").key, of(b"b").key);
    assert_ne!(of(b"a").id, of(b"b").id);
}

#[test]
fn odd_content_is_parked_and_never_changed() {
    let broken = arrival(
        &[("ce_id", b"1"), ("content-type", b"application/json")],
        b"{",
    );
    let found = Incoming::of(&broken, &Mapping::default());
    assert!(found.defect.unwrap().error.contains("JSON"));
    assert_eq!(found.payload.as_bytes(), b"{");

    let silent = Incoming::of(&arrival(&[("ce_id", b"1")], b"{"), &Mapping::default());
    assert_eq!(silent.defect, None, "nobody said that it is JSON");

    let odd = arrival(&[("ce_id", b"1"), ("ce_aggregateversion", b"x")], b"1");
    assert!(Incoming::of(&odd, &Mapping::default()).defect.is_some());
    let long = vec![b'x'; 300];
    let long = arrival(
        &[("ce_id", &long), ("ce_type", &long), ("ce_subject", &long)],
        b"1",
    );
    let found = Incoming::of(&long, &Mapping::default());
    assert!(found.defect.is_some() && found.key.starts_with("sha256:"));
    found.to_message("inbox:x").validate().unwrap();
}

#[test]
fn endless_headers_do_not_keep_it_from_being_parked() {
    let endless = vec![b'x'; 100_000];
    let found = Incoming::of(
        &arrival(&[("ce_id", b"1"), ("h", &endless)], b"{}"),
        &Mapping::default(),
    );

    assert!(found.defect.as_ref().unwrap().error.contains("headers"));
    found.to_message("inbox:x").validate().unwrap();
}

#[test]
fn without_an_envelope_the_key_of_the_broker_orders() {
    let keyed = |key: &'static [u8]| Arrival {
        key: Some(Bytes::from_static(key)),
        ..arrival(&[("x-id", b"1")], b"{}")
    };
    let of = |arrival: &Arrival| Incoming::of(arrival, &Mapping::default()).aggregate;

    assert_eq!(of(&keyed(b"k1")), Some(Aggregate::new("", "k1")));
    assert_eq!(of(&keyed(&[0xff])), Some(Aggregate::new("", "ff")));
    assert_eq!(of(&keyed(b"")), None);
}

#[test]
fn control_characters_in_names_are_defects_that_can_be_stored() {
    let odd: [(&str, &[u8]); 3] = [
        ("ce_subject", b"4\x002"),
        ("ce_aggregatetype", b"or\x1bder"),
        ("ce_type", b"Pa\nid"),
    ];
    for (name, value) in odd {
        let mut headers: Vec<(&str, &[u8])> = vec![
            ("ce_id", b"1"),
            ("ce_type", b"Paid"),
            ("ce_subject", b"42"),
            ("content-type", b"text/plain\0"),
        ];
        headers.retain(|(n, _)| *n != name);
        headers.push((name, value));

        let found = Incoming::of(&arrival(&headers, b"x"), &Mapping::default());

        let defect = found.defect.as_ref().expect(name);
        assert_eq!(defect.code, Code::VALIDATION_ERROR, "{name}");
        found.to_message("inbox:stock").validate().expect(name);
    }
}

#[test]
fn a_key_in_binary_is_a_name_in_hexadecimal() {
    for (key, name) in [
        (&[0, 0, 0, 7][..], "00000007"),
        (&[0, 0, 0, 200][..], "000000c8"),
        (b"o-7", "o-7"),
    ] {
        let mut arrival = arrival(&[("x-id", b"1")], b"{}");
        arrival.key = Some(Bytes::copy_from_slice(key));
        let mapping = Mapping {
            id: Some(Place::Header("x-id".into())),
            ..Mapping::default()
        };

        let found = Incoming::of(&arrival, &mapping);

        assert_eq!(found.defect, None);
        assert_eq!(found.aggregate, Some(Aggregate::new("", name)));
    }
}
