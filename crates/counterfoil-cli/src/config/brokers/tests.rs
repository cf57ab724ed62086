//! Each broker in both directions: what is written reaches the driver, and what cannot be is refused
//! by its key.

use std::path::Path;

use super::super::read::read;
use super::super::settings::{Settings, validate};

fn file(destination: &str, from: &str) -> String {
    format!(
        "[destination.a]\n{destination}\n[[consumer]]\nname = \"stock\"\n\
         to = {{ destination = \"a\" }}\n[consumer.from]\n{from}\n"
    )
}

fn settings(destination: &str, from: &str) -> Settings {
    let reading = read(&file(destination, from));
    assert_eq!(reading.problems, []);
    let settings = validate(&reading.file, &reading.lines, Path::new(""));
    settings.unwrap_or_else(|problems| panic!("{problems:#?}"))
}

/// What is refused in the destination, and what in the consumer.
fn refused(destination: &str, from: &str) -> Vec<String> {
    let reading = read(&file(destination, from));
    assert_eq!(reading.problems, []);
    let problems = validate(&reading.file, &reading.lines, Path::new("")).err();
    let problems = problems.unwrap_or_default();
    problems.into_iter().map(|p| p.text).collect()
}

/// Both directions are understood; a wrong line added to each is refused by its key; without the
/// `needed` lines each says what it needs.
#[cfg_attr(
    not(any(
        feature = "kafka",
        feature = "nats",
        feature = "rabbitmq",
        feature = "sqs"
    )),
    expect(dead_code)
)]
fn holds(kind: &str, needed: &str, rest: (&str, &str), wrong: [(&str, &str); 2], shown: &str) {
    let base = format!("type = \"{kind}\"\n");
    let (to, from) = (
        format!("{base}{needed}\n{}", rest.0),
        format!("{base}{needed}\n{}", rest.1),
    );
    let settings = settings(&to, &from);
    let described = settings.queues[0].destination.describe();
    assert!(described.contains(shown), "{described}");
    let described = settings.consumers[0].source.describe();
    assert!(described.contains(shown), "{described}");

    for (key, line) in wrong {
        let expected = [
            format!("`{key}` in [destination.a]: "),
            format!("`{key}` in `from` of [[consumer]] `stock`: "),
        ];
        let found = refused(&format!("{to}\n{line}"), &format!("{from}\n{line}"));
        assert_eq!(found.len(), 2, "{line}: {found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(&expected), "{found} should be {expected}");
            assert!(!found.contains("hunter2"), "{found}");
        }
    }

    let bare = refused(&base, &base);
    assert!(bare[0].starts_with("[destination.a] needs a `"), "{bare:?}");
    let of_consumer = |text: &String| text.starts_with("`from` of [[consumer]] `stock` needs a `");
    assert!(bare.iter().any(of_consumer), "{bare:?}");
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_in_both_directions() {
    holds(
        "kafka",
        "url = \"kafkas://relay@one,two:9093\"\npassword = \"pw\"\nmechanism = \"scram-sha-512\"\ntopic = \"orders\"",
        ("max-batch = 7", "prefetch = 7\ngroup = \"g\""),
        [
            ("timeout", "timeout = \"0s\""),
            ("ca-file", "ca-file = \"no-such-file.pem\""),
        ],
        "kafka topic orders at one:9092,two:9093",
    );
}

#[cfg(feature = "nats")]
#[test]
fn nats_in_both_directions() {
    holds(
        "nats",
        "url = \"nats://relay@one\"\npassword = \"pw\"\nsubject = \"shop.orders\"\npartitions = 4\ncreate = true\nreplicas = 3\nmax-age = \"7d\"",
        (
            "max-batch = 7",
            "ack-wait = \"5s\"\ndead-letters = \"dead\"",
        ),
        [
            ("timeout", "timeout = \"0s\""),
            ("password", "token = \"hunter2\""),
        ],
        "nats subject shop.orders at ",
    );
}

#[cfg(feature = "rabbitmq")]
#[test]
fn rabbitmq_in_both_directions() {
    holds(
        "rabbitmq",
        "url = \"amqp://one/shop\"\nuser = \"relay\"\npassword = \"pw\"\ntopic = \"orders\"",
        ("max-batch = 7", "prefetch = 7\npartitions = 3"),
        [
            ("timeout", "timeout = \"0s\""),
            ("topic", "queue = \"hunter\""),
        ],
        "rabbitmq topic orders",
    );
    let queue = "type = \"rabbitmq\"\nurl = \"amqp://one\"\nqueue = \"orders\"\npartitions = 2";
    settings(queue, &format!("{queue}\npassive = true"));
    let exchange = "type = \"rabbitmq\"\nurl = \"amqp://one\"\nexchange = \"e\"\nrouting-key = \"{event-type}\"";
    settings(exchange, queue);
    let found = refused(
        &format!("{queue}\nrouting-key = \"k\""),
        &format!("{queue}\ngroup = \"g\""),
    );
    assert!(
        found[0].starts_with("`routing-key` in [destination.a]: "),
        "{found:?}"
    );
    assert!(found[1].starts_with("`group` in `from`"), "{found:?}");
}

#[cfg(feature = "sqs")]
#[test]
fn sqs_in_both_directions() {
    holds(
        "sqs",
        "queue = \"orders.fifo\"\nregion = \"eu-west-1\"\nendpoint = \"http://127.0.0.1:9324\"\naccess-key-id = \"k\"",
        (
            "max-batch = 7\nsecret-access-key = \"hunter2\"",
            "wait = \"1s\"\nvisibility = \"10s\"\nsecret-access-key = \"hunter2\"",
        ),
        [
            ("timeout", "timeout = \"0s\""),
            ("max-message", "max-message = 7"),
        ],
        "orders.fifo",
    );
    let half = "type = \"sqs\"\nqueue = \"q\"\nsession-token = \"hunter2\"";
    for found in refused(half, half) {
        assert!(found.contains("go together"), "{found}");
        assert!(!found.contains("hunter2"), "{found}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn redis_as_a_source() {
    let to = "type = \"redis\"\nurl = \"redis://h/\"\nstream = \"s\"\npartitions = 2";
    let from = "type = \"redis\"\nurl = \"redis://u@h/\"\npassword = \"hunter2\"\nstream = \"s\"\n\
                partitions = 2\nonly-new = true\ntrim = true\nmissed-after = \"5s\"";

    let settings = settings(to, from);

    let source = &settings.consumers[0].source;
    assert_eq!(
        source.describe(),
        "redis stream s at redis://h:6379/0 as stock"
    );
    assert!(source.features().ordering_key);
    for (key, line) in [
        ("group", "group = \"\""),
        ("connect-timeout", "connect-timeout = \"1h\""),
        ("ca-file", "ca-file = \"no-such-file.pem\""),
    ] {
        let found = refused(to, &format!("{from}\n{line}"));
        let expected = format!("`{key}` in `from` of [[consumer]] `stock`: ");
        assert!(found[0].starts_with(&expected), "{found:?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
}
