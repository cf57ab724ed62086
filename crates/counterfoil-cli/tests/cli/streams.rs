//! The life of messages, from a request to a stream in Redis.

use std::collections::BTreeMap;

use counterfoil_testkit::server::PrivateRedis;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::home::{Home, Served, until};
use crate::on_every_database;

on_every_database!(
    messages_reach_their_stream_once_and_in_order,
    messages_wait_for_a_redis_that_is_gone,
    a_redis_that_hangs_loses_nothing_and_keeps_the_order,
    what_a_dying_redis_did_not_confirm_is_sent_again,
    what_is_too_large_is_parked_and_the_rest_goes_on,
    wrong_credentials_open_the_breaker_and_park_nothing,
);

/// A Redis of its own, and a file that names it.
struct Streams {
    redis: PrivateRedis,
    runtime: Runtime,
}

/// Does not wait long, and comes back soon.
const HASTY: &str = "timeout = \"1s\"\nconnect-timeout = \"500ms\"\nmax-batch = 3\n\
                     backoff-base = \"20ms\"\nbackoff-cap = \"1s\"\nmax-attempts = 1000";

type Entry = BTreeMap<String, String>;

impl Streams {
    fn start(home: &Home, more: &str) -> Option<Self> {
        let runtime = Runtime::new().unwrap();
        let redis = runtime.block_on(PrivateRedis::start())?;
        let url = redis.url();
        home.configure(&format!(
            "[destination.search]\ntype = \"redis\"\nurl = \"{url}\"\n\
             stream = \"events:{{aggregate-type}}\"\n{more}\n\
             [[route]]\nevents = \"*\"\nto = [\"search\"]\n"
        ));
        Some(Self { redis, runtime })
    }

    /// All entries, oldest first.
    fn entries(&self, stream: &str) -> Vec<Entry> {
        let client = redis::Client::open(self.redis.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let all: Vec<(String, Entry)> = redis::cmd("XRANGE")
            .arg(stream)
            .arg("-")
            .arg("+")
            .query(&mut connection)
            .unwrap();
        all.into_iter().map(|(_, entry)| entry).collect()
    }
}

fn order(aggregate: u32, version: u32) -> Value {
    json!({
        "event_type": "OrderPaid", "aggregate_type": "order", "aggregate_id": aggregate,
        "version": version, "payload": {"n": version},
        "headers": {"correlation-id": format!("c-{aggregate}")},
    })
}

fn counts(home: &Home) -> Value {
    home.json(&["audit"])["counts"].clone()
}

fn drained(home: &Home) {
    until("an empty outbox", || {
        (counts(home)["pending"] == 0).then_some(())
    });
}

/// Waits until something was not delivered.
fn until_it_fails(served: &Served) {
    until("a failure", || {
        let metrics = served.get("/metrics").body;
        let failed = ["outcome=\"retry\"", "outcome=\"unavailable\""];
        failed.iter().any(|f| metrics.contains(f)).then_some(())
    });
}

fn messages_reach_their_stream_once_and_in_order(home: &Home) {
    let Some(streams) = Streams::start(home, "max-batch = 7\nsource = \"/shop\"") else {
        return;
    };
    let served = home.serve();
    let list: Vec<Value> = (0..300).map(|n| order(n % 10, n / 10)).collect();

    let posted = served
        .post(json!({ "messages": list }).to_string())
        .stored();
    drained(home);

    let entries = streams.entries("events:order");
    let mut ids: Vec<&str> = entries.iter().map(|e| e["ce_id"].as_str()).collect();
    let mut expected: Vec<&str> = posted.iter().map(|(id, _)| id.as_str()).collect();
    ids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    for aggregate in (0..10).map(|n| n.to_string()) {
        let of = entries.iter().filter(|e| e["ce_subject"] == aggregate);
        let versions: Vec<u32> = of
            .map(|e| {
                let version = e["ce_aggregateversion"].parse().unwrap();
                assert_eq!(e["data"], format!("{{\"n\":{version}}}"));
                assert_eq!(e["correlation-id"], format!("c-{aggregate}"));
                assert_eq!(e["ce_source"], "/shop");
                assert_eq!(e["content-type"], "application/json");
                version
            })
            .collect();
        assert_eq!(versions, (0..30).collect::<Vec<u32>>(), "{aggregate}");
    }
    served.stop();
}

fn messages_wait_for_a_redis_that_is_gone(home: &Home) {
    let Some(mut streams) = Streams::start(home, "max-attempts = 1") else {
        return;
    };
    streams.runtime.block_on(streams.redis.kill());
    // It starts all the same.
    let served = home.serve();
    let list: Vec<Value> = (0..20).map(|n| order(n % 4, n / 4)).collect();
    let posted = served
        .post(json!({ "messages": list }).to_string())
        .stored();
    until_it_fails(&served);
    assert_eq!(counts(home)["pending"], 20);

    streams.runtime.block_on(streams.redis.restart());
    drained(home);

    let entries = streams.entries("events:order");
    assert_eq!(entries.len(), posted.len());
    assert!(entries.iter().all(|e| e["ce_attempt"] == "1"));
    assert_eq!(counts(home)["parked"], 0);
    served.stop();
}

fn a_redis_that_hangs_loses_nothing_and_keeps_the_order(home: &Home) {
    let Some(streams) = Streams::start(home, HASTY) else {
        return;
    };
    let served = home.serve();
    let list = |from: u32| -> Vec<Value> {
        let numbers = from..from + 500;
        numbers.map(|n| order(n % 20, n / 20)).collect()
    };

    let mut posted = served
        .post(json!({ "messages": list(0) }).to_string())
        .stored();
    until("the first entry", || {
        (!streams.entries("events:order").is_empty()).then_some(())
    });
    streams.runtime.block_on(streams.redis.pause());
    let more = json!({ "messages": list(500) }).to_string();
    posted.extend(served.post(more).stored());
    until_it_fails(&served);
    streams.redis.resume();
    drained(home);

    // Copies have the id of an entry before them.
    let mut seen = BTreeMap::new();
    for entry in streams.entries("events:order") {
        let versions = seen.entry(entry["ce_subject"].clone());
        let versions: &mut Vec<u32> = versions.or_default();
        let version = entry["ce_aggregateversion"].parse().unwrap();
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    assert_eq!(seen.len(), 20);
    for (aggregate, versions) in seen {
        assert_eq!(versions, (0..50).collect::<Vec<u32>>(), "{aggregate}");
    }
    assert_eq!(posted.len(), 1_000);
    assert_eq!(counts(home)["parked"], 0);
    served.stop();
}

fn what_a_dying_redis_did_not_confirm_is_sent_again(home: &Home) {
    let Some(mut streams) = Streams::start(home, HASTY) else {
        return;
    };
    let served = home.serve();
    served.post(order(0, 0).to_string());
    drained(home);

    // With a connection that was good a moment ago, the first batches are sent and not answered.
    streams.runtime.block_on(streams.redis.pause());
    let list: Vec<Value> = (0..20).map(|n| order(n, 1)).collect();
    let posted = served
        .post(json!({ "messages": list }).to_string())
        .stored();
    until_it_fails(&served);
    // What was sent is gone with it, and so is the first message, which was confirmed.
    streams.runtime.block_on(streams.redis.restart());
    drained(home);

    let entries = streams.entries("events:order");
    let mut ids: Vec<&str> = entries.iter().map(|e| e["ce_id"].as_str()).collect();
    let mut expected: Vec<&str> = posted.iter().map(|(id, _)| id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    served.stop();
}

fn what_is_too_large_is_parked_and_the_rest_goes_on(home: &Home) {
    let Some(streams) = Streams::start(home, "max-payload = \"1 kB\"") else {
        return;
    };
    let served = home.serve();
    let mut large = order(1, 1);
    large["payload"] = json!("x".repeat(1_000));
    let list = [order(0, 1), large, order(1, 2), order(2, 1)];

    let posted = served
        .post(json!({ "messages": list }).to_string())
        .stored();
    until("a parked message", || {
        (counts(home)["parked"] == 1).then_some(())
    });
    until("two entries", || {
        (streams.entries("events:order").len() == 2).then_some(())
    });

    let parked = home.json(&["parked", "list", "--code", "TOO_LARGE"]);
    assert_eq!(parked[0]["id"], posted[1].0);
    until("the reason", || {
        let said = home.ok(&["explain", &posted[2].0]);
        said.contains("waits behind parked").then_some(())
    });
    served.stop();
}

fn wrong_credentials_open_the_breaker_and_park_nothing(home: &Home) {
    let Some(streams) = Streams::start(home, "password = \"file:password\"") else {
        return;
    };
    std::fs::write(home.path().join("password"), "hunter2\n").unwrap();
    let say = |command: &str| streams.runtime.block_on(streams.redis.say(command));
    let _ = say("CONFIG SET requirepass other");
    let served = home.serve();
    let list: Vec<Value> = (0..20).map(|n| order(n, 1)).collect();

    served.post(json!({ "messages": list }).to_string());
    until("the open breaker", || {
        let list = home.ok(&["queue", "list"]);
        (list.contains("breaker open") && list.contains("DESTINATION_REFUSED")).then_some(())
    });

    let counts = counts(home);
    assert_eq!(
        (&counts["pending"], &counts["parked"]),
        (&json!(20), &json!(0))
    );
    served.signal("TERM");
    let (_, log) = served.end();
    assert!(!log.contains("hunter2"), "{log}");
}
