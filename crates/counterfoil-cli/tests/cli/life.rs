//! The life of messages, from a request to the webhook, and what operators do meanwhile.

use serde_json::{Value, json};

use crate::home::{Home, until};
use crate::on_every_database;
use crate::receiver::Receiver;

const ID: &str = "0198c0de-0000-7000-8000-000000000001";

fn with_route(home: &Home, receiver: &Receiver, relay: &str, more: &str) {
    let section = receiver.section("billing", more);
    let route = "[[route]]\nevents = \"Order*\"\nto = [\"billing\"]\n";
    home.configure(&format!("[relay]\n{relay}\n{section}{route}"));
}

fn audit(home: &Home) -> Value {
    home.json(&["audit"])["counts"].clone()
}

/// Waits until nothing is pending any more.
fn drained(home: &Home) {
    until("an empty outbox", || {
        (audit(home)["pending"] == 0).then_some(())
    });
}

on_every_database!(
    a_posted_message_reaches_its_webhook_once,
    a_refused_message_is_parked_and_redriven,
    an_ignored_message_lets_the_rest_go_on,
    a_paused_queue_waits_and_a_cancelled_message_is_not_sent,
    a_message_that_nobody_serves_waits_and_is_explained,
    a_message_without_a_route_waits_and_is_counted,
    a_full_history_accounts_for_every_message,
);

fn a_posted_message_reaches_its_webhook_once(home: &Home) {
    let receiver = Receiver::start();
    with_route(home, &receiver, "", "");
    let served = home.serve();
    let message = json!({
        "id": ID, "event_type": "OrderPaid", "aggregate_type": "order", "aggregate_id": 42,
        "version": 7, "payload": {"total": 7}, "headers": {"correlation-id": "c-1"},
    });

    let first = served.post(message.to_string());
    let request = receiver.wait_for(ID);
    let again = served.post(message.to_string());

    assert_eq!(
        (first.status, first.stored()),
        (201, vec![(ID.to_owned(), false)])
    );
    assert!(first.head.contains(&format!("location: /v1/messages/{ID}")));
    assert_eq!(
        (again.status, again.stored()),
        (200, vec![(ID.to_owned(), true)])
    );
    assert_eq!(
        (request.event.as_str(), request.body.as_str()),
        ("OrderPaid", "{\"total\":7}")
    );
    for line in [
        "counterfoil-aggregate-id: 42",
        "counterfoil-version: 7",
        "correlation-id: c-1",
    ] {
        assert!(request.head.contains(line), "{}", request.head);
    }
    drained(home);
    assert_eq!(receiver.requests().len(), 1);
    assert!(home.ok(&["explain", ID]).starts_with("Settled"));
    assert!(
        served
            .get(&format!("/v1/messages/{ID}"))
            .body
            .contains("Settled")
    );
    served.stop();
}

fn a_refused_message_is_parked_and_redriven(home: &Home) {
    let receiver = Receiver::start();
    receiver.answer_by(|request| {
        if request.body.contains("bad") {
            422
        } else {
            204
        }
    });
    with_route(home, &receiver, "", "");
    let served = home.serve();
    let order = |id: &str, payload: &str| json!({ "id": id, "event_type": "OrderPaid", "aggregate_id": "42", "payload": payload });
    let next = "0198c0de-0000-7000-8000-000000000002";
    let both = json!({ "messages": [order(ID, "bad"), order(next, "good")] });

    assert_eq!(served.post(both.to_string()).status, 201);
    until("a parked message", || {
        (audit(home)["parked"] == 1).then_some(())
    });

    let parked = home.json(&[
        "parked",
        "list",
        "--queue",
        "billing",
        "--code",
        "UPSTREAM_4XX",
    ]);
    assert_eq!(parked[0]["id"], ID);
    assert!(
        home.ok(&["explain", ID])
            .contains("with UPSTREAM_4XX after 1 attempt")
    );
    until("the reason", || {
        home.ok(&["explain", next])
            .contains("waits behind parked")
            .then_some(())
    });
    assert!(
        home.ok(&["parked", "redrive", "--all", "--dry-run"])
            .contains(ID)
    );
    assert_eq!(audit(home)["parked"], 1, "a dry run changes nothing");

    receiver.answer_by(|_| 204);
    let redriven = home.json(&["parked", "redrive", "--queue", "billing", "--by", "ann"]);

    assert_eq!(redriven["redriven"], json!([ID]));
    drained(home);
    let ids: Vec<String> = receiver
        .requests()
        .into_iter()
        .map(|request| request.id)
        .collect();
    assert_eq!(ids, [ID, ID, next]);
    let shown = home.ok(&["parked", "show", ID]);
    assert!(
        shown.contains("redriven") && shown.contains("ann"),
        "{shown}"
    );
    assert_eq!(
        home.run(&["parked", "redrive", ID]).code,
        Some(1),
        "it is no longer pending"
    );
    assert_eq!(
        home.run(&["parked", "show", next]).code,
        Some(3),
        "it was never parked"
    );
    served.stop();
}

fn an_ignored_message_lets_the_rest_go_on(home: &Home) {
    let receiver = Receiver::start();
    receiver.answer_by(|request| {
        if request.body.contains("bad") {
            422
        } else {
            204
        }
    });
    with_route(home, &receiver, "", "");
    let served = home.serve();
    let next = "0198c0de-0000-7000-8000-000000000002";
    let order = |id: &str, payload: &str| json!({ "id": id, "event_type": "OrderPaid", "aggregate_id": "42", "payload": payload });
    let both = json!({ "messages": [order(ID, "bad"), order(next, "good")] });
    assert_eq!(served.post(both.to_string()).status, 201);
    until("a parked message", || {
        (audit(home)["parked"] == 1).then_some(())
    });
    assert_eq!(
        home.run(&["parked", "ignore", ID]).code,
        Some(2),
        "a reason is needed"
    );

    let ignored = home.json(&["parked", "ignore", ID, "--reason", "refunded by hand"]);

    assert_eq!(ignored, json!({ "ignored": [ID], "refused": [] }));
    receiver.wait_for(next);
    drained(home);
    assert!(home.ok(&["explain", ID]).contains("and ignored"));
    let shown = home.ok(&["parked", "show", ID]);
    assert!(
        shown.contains("ignored") && shown.contains("refunded by hand") && shown.contains("ann"),
        "{shown}"
    );
    let again = home.run(&["parked", "ignore", ID, "--reason", "twice"]);
    assert_eq!(again.code, Some(1));
    assert!(again.out.contains("refused: already ignored"), "{again:?}");
    assert!(
        home.run(&["parked", "redrive", ID])
            .out
            .contains("needs a confirmation")
    );

    receiver.answer_by(|_| 204);
    assert!(
        home.ok(&["parked", "redrive", ID, "--confirm"])
            .contains("redriven")
    );
    drained(home);
    assert!(home.ok(&["explain", ID]).starts_with("Sent at"));
    served.stop();
}

fn a_paused_queue_waits_and_a_cancelled_message_is_not_sent(home: &Home) {
    let receiver = Receiver::start();
    with_route(home, &receiver, "", "");
    let served = home.serve();
    home.ok(&["queue", "pause", "billing", "--reason", "deploying"]);
    let queues = home.json(&["queue", "list"]);
    assert!(
        queues.to_string().contains("deploying (by ann)"),
        "{queues}"
    );

    let other = "0198c0de-0000-7000-8000-000000000002";
    for id in [ID, other] {
        home.ok(&[
            "enqueue",
            "--event-type",
            "OrderPaid",
            "--queue",
            "billing",
            "--id",
            id,
        ]);
    }
    let sentence = home.ok(&["explain", ID]);
    assert!(sentence.contains("is paused: deploying"), "{sentence}");
    home.ok(&["outbox", "cancel", ID, "--reason", "by hand"]);
    assert_eq!(home.run(&["outbox", "cancel", ID]).code, Some(3));
    assert!(receiver.requests().is_empty());
    home.ok(&["queue", "resume", "billing"]);
    assert_eq!(home.run(&["queue", "resume", "billing"]).code, Some(3));
    let story = home.json(&["queue", "history", "billing"]);
    assert_eq!(story[0]["kind"], "paused");
    assert_eq!(story[0]["detail"], "deploying");
    assert_eq!(
        (&story[1]["kind"], &story[1]["actor"]),
        (&json!("resumed"), &json!("ann"))
    );
    assert!(
        home.ok(&["queue", "history", "billing"])
            .contains("deploying")
    );

    receiver.wait_for(other);
    drained(home);
    assert_eq!(receiver.requests().len(), 1);
    assert!(home.ok(&["explain", ID]).contains("by hand (by ann)"));
    served.stop();
}

fn a_message_that_nobody_serves_waits_and_is_explained(home: &Home) {
    let served = home.serve();

    let posted = served
        .post(r#"{"event_type":"OrderPaid","queue":"nobody"}"#)
        .stored();

    let sentence = home.ok(&["explain", &posted[0].0]);
    assert!(
        sentence.contains("No live relay serves the queue \"nobody\""),
        "{sentence}"
    );
    assert!(home.ok(&["queue", "list"]).contains("nobody serves it"));
    assert_eq!(home.run(&["explain", ID]).code, Some(3));
    served.stop();
    assert_eq!(audit(home)["pending"], 1);
}

fn a_message_without_a_route_waits_and_is_counted(home: &Home) {
    let receiver = Receiver::start();
    with_route(home, &receiver, "", "");
    let served = home.serve();

    let posted = served.post(r#"{"event_type":"Stray"}"#).stored();

    let sentence = until("the reason", || {
        let said = home.ok(&["explain", &posted[0].0]);
        said.contains("No route matches").then_some(said)
    });
    assert!(
        sentence.contains("\"Stray\"; it is looked at again at 2"),
        "{sentence}"
    );
    assert!(home.ok(&["queue", "list"]).contains("no route matches 1"));
    assert_eq!(home.json(&["outbox", "stats"])[0]["no_route"], 1);
    until("the metric", || {
        let metrics = served.get("/metrics").body;
        metrics.contains("counterfoil_no_route 1").then_some(())
    });
    served.signal("TERM");
    let (_, log) = served.end();
    assert!(log.contains("messages wait that no route matches"), "{log}");
}

fn a_full_history_accounts_for_every_message(home: &Home) {
    let receiver = Receiver::start();
    with_route(home, &receiver, "keep-sent = \"1h\"", "");
    let served = home.serve();

    let list: Vec<Value> = (0..50)
        .map(|n| json!({ "event_type": "OrderPaid", "aggregate_id": n % 5, "version": n }))
        .collect();
    let posted = served
        .post(json!({ "messages": list }).to_string())
        .stored();
    drained(home);

    let counts = audit(home);
    assert_eq!(
        (&counts["sent_kept"], &counts["ledger"]),
        (&json!(50), &json!(50)),
        "{counts}"
    );
    home.ok(&["audit", "--history-kept"]);
    assert!(home.ok(&["explain", &posted[0].0]).starts_with("Sent at"));
    served.stop();

    home.execute("DELETE FROM counterfoil_history WHERE version = 7");
    let done = home.run(&["audit", "--history-kept"]);
    assert_eq!(done.code, Some(1));
    assert!(
        done.out
            .contains("FOUND: 1 keys in the ledger have no message"),
        "{done:?}"
    );
}
