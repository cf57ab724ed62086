//! `[[consumer]]`: from a stream in Redis into statements, and on to webhooks.

use std::collections::BTreeMap;

use counterfoil_testkit::server::PrivateRedis;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::home::{Home, until};
use crate::on_every_database;
use crate::receiver::Receiver;

on_every_database!(
    a_message_takes_effect_once_however_often_it_comes,
    everything_of_a_message_can_be_bound,
    what_fails_is_tried_again_and_parked_and_the_rest_goes_on,
    a_statement_that_changes_nothing_can_be_a_failure,
    a_procedure_or_statement_that_is_not_there_is_refused_at_the_start,
    messages_go_on_to_a_webhook_under_their_id,
    a_foreign_producer_is_understood,
    a_broker_that_is_down_keeps_nobody_waiting,
    a_consumer_whose_broker_goes_away_says_so,
    every_message_takes_effect_once_although_the_process_is_killed,
    the_gate_forgets_and_nothing_is_done_twice,
);

/// A Redis of its own, with a stream `orders`.
pub(crate) struct Broker {
    redis: PrivateRedis,
    runtime: Runtime,
    /// One partition of `orders`, which has one consumer at a time: the order is kept through its
    /// death. Otherwise `orders` itself.
    partitioned: bool,
}

impl Broker {
    pub(crate) fn start() -> Option<Self> {
        let runtime = Runtime::new().unwrap();
        let redis = runtime.block_on(PrivateRedis::start())?;
        Some(Self {
            redis,
            runtime,
            partitioned: false,
        })
    }

    /// A consumer of `orders`.
    pub(crate) fn consumer(&self, to: &str, more: &str) -> String {
        let url = self.redis.url();
        let partitions = if self.partitioned {
            ", partitions = 1"
        } else {
            ""
        };
        format!(
            "[[consumer]]\nname = \"stock\"\n\
             from = {{ type = \"redis\", url = \"{url}\", stream = \"orders\", missed-after = \"500ms\"{partitions} }}\n\
             to = {{ {to} }}\nbackoff-base = \"20ms\"\nbackoff-cap = \"100ms\"\n{more}\n"
        )
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.redis.url()).unwrap();
        client.get_connection().unwrap()
    }

    /// Adds an entry with these fields.
    fn add(&self, fields: &[(&str, &str)]) {
        let stream = if self.partitioned {
            "orders.0"
        } else {
            "orders"
        };
        self.add_to(stream, fields);
    }

    pub(crate) fn add_to(&self, stream: &str, fields: &[(&str, &str)]) {
        let mut command = redis::cmd("XADD");
        command.arg(stream).arg("*");
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        command.exec(&mut self.connection()).unwrap();
    }

    /// The address, for the file.
    pub(crate) fn url(&self) -> String {
        self.redis.url()
    }

    /// Adds the n-th message: of aggregate n % 10, with its total.
    pub(crate) fn order(&self, n: u32, total: &Value) {
        let (order, version) = ((n % 10).to_string(), (n / 10).to_string());
        let data = json!({ "total": total, "note": "it's" }).to_string();
        self.add(&[
            ("ce_specversion", "1.0"),
            ("ce_id", &id(n)),
            ("ce_source", "/shop"),
            ("ce_type", "OrderPaid"),
            ("ce_subject", &order),
            ("ce_aggregatetype", "order"),
            ("ce_partitionkey", &format!("order/{order}")),
            ("ce_aggregateversion", &version),
            ("content-type", "application/json"),
            ("correlation-id", "c-1"),
            ("data", &data),
        ]);
    }
}

pub(crate) fn id(n: u32) -> String {
    format!("0198c0de-0000-7000-8000-{n:012}")
}

/// Tables exist before the consumer starts, or its statement is refused.
pub(crate) fn with_table(home: &Home) {
    home.ok(&["migrate"]);
    home.execute(
        "CREATE TABLE paid (id VARCHAR(64), kind VARCHAR(64), of VARCHAR(64), number INTEGER, \
         version BIGINT, total DECIMAL(20, 2) CHECK (total > 0), headers TEXT, place VARCHAR(200), \
         payload TEXT, missing TEXT)",
    );
}

pub(crate) const INSERT: &str =
    "sql = \"INSERT INTO paid (id, number, total) VALUES (:id, :aggregate_id, :body/total)\"";

pub(crate) fn until_count(home: &Home, expected: i64) {
    until("the effects", || {
        (home.number("SELECT COUNT(*) FROM paid") == expected).then_some(())
    });
}

fn pending(home: &Home) -> i64 {
    home.json(&["audit"])["counts"]["pending"].as_i64().unwrap()
}

fn a_message_takes_effect_once_however_often_it_comes(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    home.configure(&broker.consumer(INSERT, "batch = 7"));
    for n in 0..60 {
        broker.order(n, &json!(n + 1));
        broker.order(n / 2, &json!(n / 2 + 1));
    }

    let served = home.serve();
    until_count(home, 60);
    for n in 0..60 {
        broker.order(n, &json!(n + 1));
    }
    broker.order(60, &json!(1));
    until_count(home, 61);

    assert_eq!(home.number("SELECT COUNT(DISTINCT id) FROM paid"), 61);
    assert_eq!(
        home.number("SELECT CAST(SUM(total) AS INTEGER) FROM paid"),
        1_831
    );
    served.stop();
}

/// Two effects in one procedure: both of them once, whatever comes again.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn a_procedure_takes_effect_once(home: &Home, language: [&str; 2]) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    let [before, after] = language;
    home.execute(&format!(
        "CREATE PROCEDURE order_paid(what VARCHAR(64), whom INTEGER, amount DECIMAL(20, 2)) {before} \
         INSERT INTO paid (id, number, total) VALUES (what, whom, amount); \
         UPDATE paid SET version = COALESCE(version, 0) + 1 WHERE id = what; {after}"
    ));
    let call = "sql = \"CALL order_paid(:id, :aggregate_id, :body/total)\"";
    home.configure(&broker.consumer(call, "batch = 7\nmax-attempts = 2"));
    for n in 0..20 {
        broker.order(n, &json!(n + 1));
        broker.order(n / 2, &json!(n / 2 + 1));
    }
    // The table refuses it, and with it the whole procedure.
    broker.order(20, &json!(-1));
    broker.order(21, &json!(1));

    let served = home.serve();
    until_count(home, 21);
    let parked = until("the one that is refused", || {
        let parked = home.json(&["parked", "list"]);
        parked.as_array().unwrap().first().cloned()
    });

    assert_eq!(parked["id"], id(20), "{parked}");
    assert_eq!(home.number("SELECT COUNT(DISTINCT id) FROM paid"), 21);
    assert_eq!(
        home.number("SELECT COUNT(*) FROM paid WHERE version = 1"),
        21
    );
    served.stop();
}

#[cfg(feature = "postgres")]
#[test]
fn a_procedure_of_postgres_takes_effect_once() {
    if let Some(home) = Home::postgres() {
        a_procedure_takes_effect_once(&home, ["LANGUAGE sql AS $$", "$$"]);
    }
}

#[cfg(feature = "mysql")]
#[test]
fn a_procedure_of_mysql_takes_effect_once() {
    if let Some(home) = Home::mysql() {
        a_procedure_takes_effect_once(&home, ["BEGIN", "END"]);
    }
}

fn everything_of_a_message_can_be_bound(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    let sql = "sql = \"\"\"INSERT INTO paid VALUES (:id, :type, :aggregate_type, :aggregate_id, :version, \
               :body/total, :headers, :position, :payload, :body/nothing/here)\"\"\"";
    home.configure(&broker.consumer(sql, ""));
    broker.order(37, &json!(19.99));

    let served = home.serve();
    until_count(home, 1);

    let same = format!(
        "SELECT COUNT(*) FROM paid WHERE id = '{}' AND kind = 'OrderPaid' AND of = 'order' \
         AND number = 7 AND version = 3 AND total = 19.99 AND missing IS NULL \
         AND headers LIKE '%\"correlation-id\":\"c-1\"%' AND place LIKE 'orders@%' \
         AND payload LIKE '%it''s%'",
        id(37)
    );
    assert_eq!(home.number(&same), 1);
    served.stop();
}

fn what_fails_is_tried_again_and_parked_and_the_rest_goes_on(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    home.configure(&broker.consumer(INSERT, "max-attempts = 2\nskip = [\"Audit*\"]"));
    // The first of aggregate 3 fails, and its next one waits; one has no id; one is not wanted.
    for n in 0..20 {
        broker.order(n, &json!(if n == 3 { -1 } else { 1 }));
    }
    broker.add(&[("data", "{}")]);
    broker.add(&[("ce_id", "x"), ("ce_type", "AuditWritten"), ("data", "{}")]);

    let served = home.serve();
    until_count(home, 18);
    let parked = until("two parked messages", || {
        let parked = home.json(&["parked", "list", "--queue", "inbox:stock"]);
        (parked.as_array().unwrap().len() == 2).then_some(parked)
    });

    let by_code: BTreeMap<&str, &Value> = parked
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (p["code"].as_str().unwrap(), p))
        .collect();
    assert_eq!(by_code["TASK_ERROR"]["id"], id(3), "{parked}");
    assert!(by_code.contains_key("VALIDATION_ERROR"), "{parked}");
    let explained = home.ok(&["explain", &id(13)]);
    assert!(explained.contains("waits behind parked"), "{explained}");
    assert_eq!(pending(home), 1);

    home.execute("DELETE FROM paid");
    home.ok(&["parked", "ignore", &id(3), "--reason", "a mistake"]);
    until_count(home, 1);
    assert_eq!(home.number("SELECT number FROM paid"), 3);
    served.stop();
}

fn a_statement_that_changes_nothing_can_be_a_failure(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    let sql = "sql = \"UPDATE paid SET total = total + :body/total WHERE number = :aggregate_id\", expect-rows = true";
    home.configure(&broker.consumer(sql, "max-attempts = 1000"));
    broker.order(4, &json!(5));

    let served = home.serve();
    until("a message that waits", || {
        (pending(home) == 1).then_some(())
    });
    home.execute("INSERT INTO paid (number, total) VALUES (4, 1)");
    until("its effect", || {
        (home.number("SELECT CAST(total AS INTEGER) FROM paid") == 6).then_some(())
    });

    until("an empty outbox", || (pending(home) == 0).then_some(()));
    served.stop();
}

fn a_procedure_or_statement_that_is_not_there_is_refused_at_the_start(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    for sql in [
        "sql = \"INSERT INTO nowhere (a) VALUES (:id)\"",
        "sql = \"SELECT no_such_function(:id)\"",
    ] {
        home.configure(&broker.consumer(sql, ""));

        let refused = home.refused(&["serve", "--listen", "127.0.0.1:0"], 2);

        let expected =
            "error: [[consumer]] `stock`: the database does not understand the statement: ";
        assert!(refused.starts_with(expected), "{refused}");
    }
}

fn messages_go_on_to_a_webhook_under_their_id(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    let receiver = Receiver::start();
    let hook = receiver.section(
        "billing",
        "backoff-base = \"20ms\"\nbackoff-cap = \"100ms\"",
    );
    let consumer = broker.consumer("destination = \"billing\"", "");
    home.configure(&format!("{hook}\n{consumer}"));
    receiver.answer_by(|_| 503);
    for n in 0..30 {
        broker.order(n % 20, &json!(1));
    }

    let served = home.serve();
    until("a failure", || {
        (!receiver.requests().is_empty()).then_some(())
    });
    receiver.answer_by(|_| 204);
    until("every message", || {
        let requests = receiver.requests();
        let all = (0..20).all(|n| requests.iter().any(|r| r.id == id(n)));
        (all && pending(home) == 0).then_some(())
    });

    let before = receiver.requests().len();
    let request = receiver.wait_for(&id(7));
    assert_eq!(request.event, "OrderPaid");
    assert!(request.head.contains("counterfoil-aggregate-id: 7"));
    assert!(request.head.contains("correlation-id: c-1"));
    // A repeat goes nowhere.
    broker.order(7, &json!(1));
    broker.order(20, &json!(1));
    receiver.wait_for(&id(20));
    assert_eq!(receiver.requests().len(), before + 1);
    served.stop();
}

fn a_foreign_producer_is_understood(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    let mapping = "id = \"header:x-request\"\naggregate-type = \"fixed:order\"\n\
                   aggregate-id = \"body:/order\"\nversion = \"body:/rev\"\nevent-type = \"fixed:Paid\"";
    let sql = "sql = \"INSERT INTO paid (kind, of, number, version, total) VALUES (:type, :aggregate_type, :aggregate_id, :version, :body/sum)\"";
    home.configure(&broker.consumer(sql, mapping));
    let add = |request: &str, rev: u32| {
        let data = json!({ "order": 5, "rev": rev, "sum": rev * 10 }).to_string();
        broker.add(&[("x-request", request), ("data", &data)]);
    };
    add("a", 1);
    add("b", 2);
    add("a", 1);

    let served = home.serve();
    until_count(home, 2);
    // Never processed, and older than what was applied.
    add("c", 1);
    let parked = until("a conflict", || {
        let parked = home.json(&["parked", "list"]);
        parked.as_array().unwrap().first().cloned()
    });

    assert_eq!(parked["code"], "VERSION_CONFLICT");
    let same = "SELECT COUNT(*) FROM paid WHERE kind = 'Paid' AND of = 'order' AND number = 5 \
                AND total = version * 10";
    assert_eq!(home.number(same), 2);
    served.stop();
}

fn a_broker_that_is_down_keeps_nobody_waiting(home: &Home) {
    let Some(mut broker) = Broker::start() else {
        return;
    };
    with_table(home);
    let receiver = Receiver::start();
    let hook = receiver.section("billing", "");
    home.configure(&format!("{hook}\n{}", broker.consumer(INSERT, "")));
    broker.runtime.block_on(broker.redis.kill());

    let served = home.serve();
    let message = json!({ "id": id(1), "event_type": "E", "queue": "billing", "payload": {} });
    assert_eq!(served.post(message.to_string()).status, 201);
    receiver.wait_for(&id(1));

    broker.runtime.block_on(broker.redis.restart());
    broker.order(0, &json!(1));
    until_count(home, 1);
    served.stop();
}

fn a_consumer_whose_broker_goes_away_says_so(home: &Home) {
    let Some(mut broker) = Broker::start() else {
        return;
    };
    with_table(home);
    home.configure(&broker.consumer(INSERT, ""));
    assert_eq!(home.json(&["consumer", "list"]), json!([]));
    let served = home.serve();
    broker.order(0, &json!(1));
    until_count(home, 1);
    let status = |wanted: bool| {
        until("the consumer's report", || {
            let listed = home.json(&["consumer", "list"]);
            let found = listed[0]["status"].clone();
            let came = !found["last_message_at"].is_null();
            (found["connected"] == json!(wanted) && came).then_some((listed, found))
        })
    };

    let (listed, well) = status(true);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["consumer"], "stock");
    assert_eq!(listed[0]["alive"], json!(true));
    assert_eq!(well["last_error"], Value::Null);
    assert!(well["source"].as_str().unwrap().contains("orders"));
    assert_eq!(served.get("/readyz").body, "ready\nconsumer stock: ok\n");

    broker.runtime.block_on(broker.redis.kill());
    let (_, ill) = status(false);
    assert!(!ill["last_error"].as_str().unwrap().is_empty());
    assert!(!ill["last_error_at"].is_null() && !ill["since"].is_null());
    let table = home.ok(&["consumer", "list"]);
    assert!(table.contains("not connected since"), "{table}");
    let ready = served.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.body.contains("consumer stock: not connected since"));
    let metrics = served.get("/metrics").body;
    let gauge = "counterfoil_consumer_connected{consumer=\"stock\"} 0";
    assert!(metrics.contains(gauge), "{metrics}");
    let answer: Value = serde_json::from_str(&served.get("/v1/consumers").body).unwrap();
    assert_eq!(answer["consumers"][0]["status"]["connected"], json!(false));

    broker.runtime.block_on(broker.redis.restart());
    status(true);
    let relays = home.json(&["relay", "list"]);
    let owner = relays.as_array().unwrap().iter();
    let owner = owner.filter(|r| !r["owns"]["inbox:stock"].is_null());
    let owner: Vec<&Value> = owner.collect();
    assert_eq!(owner.len(), 1, "{relays}");
    assert_eq!(owner[0]["alive"], json!(true));
    assert_eq!(owner[0]["queues"], json!(["inbox:stock"]));
    let answer: Value = serde_json::from_str(&served.get("/v1/relays").body).unwrap();
    assert_eq!(
        answer["relays"].as_array().unwrap().len(),
        relays.as_array().unwrap().len()
    );
    let table = home.ok(&["relay", "list"]);
    assert!(
        table.contains("alive") && table.contains("inbox:stock 0"),
        "{table}"
    );

    served.stop();
    assert_eq!(home.json(&["consumer", "list"]), json!([]));
    assert_eq!(home.json(&["relay", "list"]), json!([]));
}

fn every_message_takes_effect_once_although_the_process_is_killed(home: &Home) {
    let Some(mut broker) = Broker::start() else {
        return;
    };
    broker.partitioned = true;
    with_table(home);
    for item in 0..10 {
        home.execute(&format!(
            "INSERT INTO paid (number, total, version) VALUES ({item}, 1, 0)"
        ));
    }
    let sql = "sql = \"UPDATE paid SET total = total + :body/total, version = version + 1 WHERE number = :aggregate_id\", expect-rows = true";
    home.configure(&broker.consumer(sql, "batch = 5\nworkers = 4"));
    let done = |home: &Home| home.number("SELECT CAST(SUM(version) AS INTEGER) FROM paid");
    for n in 0..600 {
        broker.order(n, &json!(2));
    }

    for round in 1..=3 {
        let served = home.serve();
        until("some progress", || {
            (done(home) >= round * 100).then_some(())
        });
        served.signal("KILL");
        served.end();
    }
    let served = home.serve();
    until("all effects", || (done(home) >= 600).then_some(()));
    // What comes last is behind everything that was not settled.
    broker.order(600, &json!(2));
    until("the last effect", || (done(home) >= 601).then_some(()));

    assert_eq!(done(home), 601);
    assert_eq!(
        home.number("SELECT CAST(SUM(total) AS INTEGER) FROM paid"),
        10 + 2 * 601
    );
    assert_eq!(home.json(&["parked", "list"]), json!([]));
    served.stop();
}

fn the_gate_forgets_and_nothing_is_done_twice(home: &Home) {
    let Some(broker) = Broker::start() else {
        return;
    };
    with_table(home);
    let gate = format!(
        "gate = \"{}\"\ngate-prefix = \"shop:\"\ngate-ttl = \"1h\"\ngate-patience = \"10s\"",
        broker.redis.url()
    );
    home.configure(&broker.consumer(INSERT, &gate));
    let served = home.serve();
    let noted = |n: u32| -> bool {
        let mut command = redis::cmd("EXISTS");
        command.arg(format!("shop:stock:{}", id(n)));
        command.query(&mut broker.connection()).unwrap()
    };

    for n in 0..20 {
        broker.order(n, &json!(1));
    }
    until("the notes", || (0..20).all(noted).then_some(()));
    let mut forget = redis::cmd("DEL");
    forget.arg(
        (0..10)
            .map(|n| format!("shop:stock:{}", id(n)))
            .collect::<Vec<_>>(),
    );
    forget.exec(&mut broker.connection()).unwrap();
    for n in 0..20 {
        broker.order(n, &json!(1));
    }
    broker.order(20, &json!(1));
    until("the last note", || noted(20).then_some(()));

    assert_eq!(home.number("SELECT COUNT(*) FROM paid"), 21);
    served.stop();
}

#[test]
fn every_mistake_in_a_consumer_is_one_line_with_its_place() {
    let home = Home::sqlite();
    home.configure(
        "[[consumer]]\nname = \"stock\"\nworkers = 0\nid = \"heder:x\"\ngate = \"http://h/\"\n\
         from = { type = \"redis\", url = \"redis://h/\" }\n\
         to = { sql = \"DROP TABLE a\" }\n\
         [[consumer]]\nname = \"stock\"\nbatsh = 1\n\
         [consumer.from]\ntype = \"reddis\"\n\
         [consumer.to]\ndestination = \"biling\"\nexpect-row = true\n\
         [[consumer]]\nkeep = \"0s\"\nfrom = { type = \"redis\", stream = \"s\", straem = \"s\" }\n\
         to = { sql = \"UPDATE a SET b = :c\", destination = \"x\" }\n\
         [destination.billing]\ntype = \"webhook\"\nurl = \"https://example.com/\"\nunsigned = true\n\
         [destination.\"inbox:stock\"]\ntype = \"webhook\"\n\
         [[consumer]]\nname = \"gapless\"\nfrom = { type = \"redis\", url = \"redis://h/\", stream = \"s\" }\n\
         versions = \"gapless\"\non-park = \"skip\"\n\
         dead-letters = { type = \"redis\", url = \"redis://h/\" }\nto = { destination = \"billing\" }\n\
         [[consumer]]\nname = \"rising\"\nfrom = { type = \"redis\", url = \"redis://h/\", stream = \"s\" }\nfirst-version = 2\n\
         dead-letters = { type = \"kafkaa\" }\nto = { destination = \"billing\" }\n",
    );

    let done = home.run(&["config", "check"]);

    assert_eq!(done.code, Some(2), "{done:?}");
    let expected = [
        "3: `workers` in [[consumer]] `stock`: it is 1 to 256, not 0",
        "4: `id` in [[consumer]] `stock`: \"heder:x\" names no place",
        "5: `gate` in [[consumer]] `stock`: the address of Redis cannot be used",
        "6: `from` of [[consumer]] `stock` needs a `stream`",
        "7: `to` in [[consumer]] `stock`: the statement begins with \"DROP\"",
        "9: `name` in [[consumer]] `stock`: another consumer has this name",
        "10: unknown key `batsh` in [[consumer]]; did you mean `batch`?",
        "11: [[consumer]] `stock` needs a `from`",
        "11: unknown type `reddis` in `from` of [[consumer]]; did you mean `redis`?",
        "13: `to` in [[consumer]] `stock`: `biling` leads to no destination; did you mean `billing`?",
        "15: unknown key `expect-row` in `to` of [[consumer]]; did you mean `expect-rows`?",
        "16: [[consumer]] needs a `name`",
        "17: `keep` in [[consumer]]: it must not be zero",
        "18: `from` of [[consumer]] needs a `url`",
        "18: unknown key `straem` in `from` of [[consumer]]; did you mean `stream`?",
        "19: `to` in [[consumer]]: write one of `destination` and `sql`",
        "24: [destination.\"inbox:stock\"] needs another name",
        "30: `on-park` in [[consumer]] `gapless`: \"skip\" goes on without what is parked",
        "31: `dead-letters` of [[consumer]] `gapless` needs a `stream`",
        "36: `first-version` in [[consumer]] `rising`: it is for versions = \"gapless\"",
        "37: unknown type `kafkaa` in `dead-letters` of [[consumer]]; did you mean `kafka`?",
    ];
    let lines: Vec<&str> = done.err.lines().collect();
    for (line, expected) in lines.iter().zip(expected) {
        let expected = format!("error: counterfoil.toml:{expected}");
        assert!(line.starts_with(&expected), "{line} should be {expected}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
}

/// What stands in the file of a type whose driver was left out of the build.
#[cfg(not(feature = "kafka"))]
#[test]
fn a_broker_that_was_left_out_of_the_build_says_how_to_get_it() {
    let home = Home::sqlite();
    home.configure(
        "[destination.a]\ntype = \"kafka\"\nurl = \"kafka://h\"\ntopic = \"t\"\n\
         [[consumer]]\nname = \"b\"\nfrom = { type = \"kafka\", url = \"kafka://h\", topic = \"t\" }\n\
         to = { destination = \"a\" }\n",
    );

    let done = home.run(&["config", "check"]);

    let lines: Vec<&str> = done.err.lines().collect();
    assert_eq!(lines.len(), 2, "{done:?}");
    for line in lines {
        assert!(line.contains("built without Kafka"), "{line}");
        assert!(line.contains("--features kafka"), "{line}");
    }
}
