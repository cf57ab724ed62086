//! `[[consumer]]`: what the broker has given up, and versions that wait for each other.

use serde_json::{Value, json};

use crate::consuming::{Broker, INSERT, id, until_count, with_table};
use crate::home::{Home, until};

fn parked(home: &Home, count: usize) -> Vec<Value> {
    until("parked messages", || {
        let parked = home.json(&["parked", "list", "--queue", "inbox:stock"]);
        let parked = parked.as_array().unwrap().clone();
        (parked.len() == count).then_some(parked)
    })
}

#[test]
fn what_the_broker_has_given_up_is_parked_and_redriven() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let home = Home::sqlite();
    with_table(&home);
    home.configure(&broker.consumer(INSERT, "poison = \"dead-letter\""));
    broker.add_to("orders", &[("data", "{}")]);
    broker.order(1, &json!(1));
    let served = home.serve();
    until_count(&home, 1);
    until("a dead letter", || {
        let length = redis::cmd("XLEN").arg("orders.DLQ").clone();
        (length.query::<i64>(&mut broker.connection()).unwrap() == 1).then_some(())
    });
    served.stop();

    let from = format!(
        "{{ type = \"redis\", url = \"{}\", stream = \"orders.DLQ\" }}",
        broker.url()
    );
    let more = format!("poison = \"dead-letter\"\ndead-letters = {from}");
    home.configure(&broker.consumer(INSERT, &more));
    // One that was processed after all, and one that was not.
    for n in [1, 2] {
        broker.add_to(
            "orders.DLQ",
            &[
                ("ce_specversion", "1.0"),
                ("ce_id", &id(n)),
                ("ce_source", "/shop"),
                ("ce_type", "OrderPaid"),
                ("ce_subject", &n.to_string()),
                ("content-type", "application/json"),
                ("dlq-error-code", "TIMEOUT"),
                ("dlq-error", "too slow"),
                ("data", "{\"total\": 7}"),
            ],
        );
    }
    let served = home.serve();
    let found = parked(&home, 2);

    assert!(
        found.iter().all(|p| p["code"] == "DEAD_LETTER"),
        "{found:#?}"
    );
    let lost = found.iter().find(|p| p["id"] == id(2)).unwrap();
    assert!(lost["error"].as_str().unwrap().contains("too slow"));
    let refused = home.run(&["parked", "redrive", &id(2)]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    home.ok(&["parked", "redrive", &id(2), "--confirm"]);
    until_count(&home, 2);
    assert_eq!(home.number("SELECT MAX(number) FROM paid"), 2);
    assert_eq!(parked(&home, 1)[0]["code"], "DEAD_LETTER");
    served.stop();
}

#[test]
fn versions_wait_for_each_other_when_asked_to() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let home = Home::sqlite();
    with_table(&home);
    let sql = "sql = \"INSERT INTO paid (number, version) VALUES (:aggregate_id, :version)\"";
    home.configure(&broker.consumer(
        sql,
        "versions = \"gapless\"\nfirst-version = 0\nmax-attempts = 1000",
    ));
    for n in (0..60).rev() {
        broker.order(n, &json!(1));
    }
    let served = home.serve();
    until_count(&home, 60);

    let disordered = "SELECT COUNT(*) FROM paid a JOIN paid b \
                      ON a.number = b.number AND a.rowid < b.rowid AND a.version > b.version";
    assert_eq!(home.number(disordered), 0);
    served.stop();
}
