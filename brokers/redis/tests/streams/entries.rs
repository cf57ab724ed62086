//! What stands in the stream.

use counterfoil_core::{Delivery, Destination as _, MessageId, Outcome, Payload};
use counterfoil_redis_streams::Settings;
use counterfoil_testkit::server::{self, PrivateRedis};

use crate::{Entry, build, column, delivery, entries, of_size, one, patient};

/// A stream that no other test uses.
fn own_stream() -> String {
    format!("cf:test:{}", MessageId::new())
}

#[tokio::test]
async fn an_entry_has_every_field_byte_for_byte() {
    let Some(url) = server::redis() else { return };
    let stream = own_stream();
    let bytes: Vec<u8> = (0..=255).collect();
    let every_char: String = (0..=0x2ff_u32).filter_map(char::from_u32).collect();
    let headers = [
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("Idempotency-Key", "k-1"),
        ("content-type", "image/png"),
        ("odd", &every_char),
        ("spaces", " \t x\r\n "),
        (&every_char, "odd name"),
        ("ce_id", "forged"),
        ("data", "forged"),
    ];
    let sent = Delivery {
        version: Some(7),
        payload: Payload::Opaque(bytes.clone().into()),
        headers: headers.into_iter().collect(),
        ..delivery(42, 7)
    };

    let outcome = one(&patient(&url, &stream), &sent).await;

    assert_eq!(outcome, Outcome::Stored);
    let id = sent.id.to_string();
    let odd_name = every_char.to_ascii_lowercase();
    let expected: Vec<(&str, &[u8])> = vec![
        ("ce_specversion", b"1.0"),
        ("ce_id", id.as_bytes()),
        ("ce_source", b"counterfoil"),
        ("ce_type", b"OrderPaid"),
        ("ce_time", b"1970-01-01T00:00:00.000000Z"),
        ("ce_subject", b"42"),
        ("ce_partitionkey", b"order/42"),
        ("ce_aggregatetype", b"order"),
        ("ce_aggregateversion", b"7"),
        ("ce_attempt", b"1"),
        ("ce_epoch", b"1"),
        ("content-type", b"image/png"),
        ("traceparent", headers[0].1.as_bytes()),
        ("idempotency-key", b"k-1"),
        ("odd", every_char.as_bytes()),
        ("spaces", b" \t x\r\n "),
        (&odd_name, b"odd name"),
        ("header-ce_id", b"forged"),
        ("header-data", b"forged"),
        ("data", &bytes),
    ];
    let expected: Entry = expected
        .into_iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()))
        .collect();
    assert_eq!(entries(&url, &stream).await, [expected]);
}

#[tokio::test]
async fn messages_of_an_aggregate_stand_in_order() {
    let Some(url) = server::redis() else { return };
    let stream = own_stream();
    let destination = patient(&url, &stream);

    // As the relay does it: one message of each aggregate at a time, several batches at once.
    let lane = async |aggregates: std::ops::Range<i64>| {
        for version in 0..50 {
            let batch: Vec<Delivery> = aggregates.clone().map(|a| delivery(a, version)).collect();
            let outcomes = destination.publish(&batch).await;
            assert_eq!(outcomes, vec![Outcome::Stored; batch.len()]);
        }
    };
    tokio::join!(lane(0..5), lane(5..10), lane(10..15), lane(15..20));

    let subjects = column(&url, &stream, "ce_subject").await;
    let versions = column(&url, &stream, "ce_aggregateversion").await;
    assert_eq!(subjects.len(), 1_000);
    for aggregate in 0..20 {
        let of = |(s, v): (&String, &String)| {
            (*s == aggregate.to_string()).then(|| v.parse::<i64>().unwrap())
        };
        let found: Vec<i64> = subjects.iter().zip(&versions).filter_map(of).collect();
        assert_eq!(found, (0..50).collect::<Vec<i64>>(), "{aggregate}");
    }
}

#[tokio::test]
async fn a_batch_of_any_size_arrives_in_its_order() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "s");
    let sizes = [
        1, 600_000, 600_000, 3, 5_000_000, 400_000, 400_000, 400_000, 0,
    ];
    let batch: Vec<Delivery> = sizes.iter().map(|size| of_size(*size)).collect();

    let outcomes = destination.publish(&batch).await;

    assert_eq!(outcomes, vec![Outcome::Stored; sizes.len()]);
    let found = entries(&redis.url(), "s").await;
    let lengths: Vec<usize> = found.iter().map(|e| e[&b"data"[..]].len()).collect();
    assert_eq!(lengths, sizes);
    assert_eq!(destination.publish(&[]).await, []);
}

#[tokio::test]
async fn the_stream_is_chosen_by_the_message() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "e:{aggregate-type}:{event-type}");
    let bare = Delivery {
        aggregate: None,
        ..delivery(1, 1)
    };

    destination.publish(&[delivery(1, 1), bare]).await;

    for stream in ["e:order:OrderPaid", "e:none:OrderPaid"] {
        assert_eq!(entries(&redis.url(), stream).await.len(), 1, "{stream}");
    }
}

#[tokio::test]
async fn the_database_and_the_source_are_those_of_the_settings() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let third = format!("{}3", redis.url());
    let settings = Settings::new(&third, "s").source("https://example.com/shop");

    assert_eq!(
        one(&build(settings), &delivery(1, 1)).await,
        Outcome::Stored
    );

    assert_eq!(
        column(&third, "s", "ce_source").await,
        ["https://example.com/shop"]
    );
    assert_eq!(redis.say("EXISTS s").await, ":0");
}

#[tokio::test]
async fn many_batches_share_one_connection() {
    let Some(redis) = PrivateRedis::start().await else {
        return;
    };
    let destination = patient(&redis.url(), "s");
    let number = async || -> i64 {
        let id = redis.say("CLIENT ID").await;
        id.strip_prefix(':').unwrap().parse().unwrap()
    };
    let before = number().await;

    let (a, b, c) = (delivery(1, 1), delivery(2, 1), delivery(3, 1));
    let all = tokio::join!(
        one(&destination, &a),
        one(&destination, &b),
        one(&destination, &c)
    );
    one(&destination, &a).await;

    assert_eq!(all, (Outcome::Stored, Outcome::Stored, Outcome::Stored));
    // The destination's, and the one that asks.
    assert_eq!(number().await, before + 2);
}
