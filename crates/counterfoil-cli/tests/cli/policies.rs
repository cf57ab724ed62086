//! Breakers by hand, and what a server tells about them.

use serde_json::json;

use crate::home::{Home, until};
use crate::on_every_database;
use crate::receiver::Receiver;

const FIRST: &str = "0198c0de-0000-7000-8000-000000000001";
const SECOND: &str = "0198c0de-0000-7000-8000-000000000002";

fn message(id: &str, event: &str) -> String {
    json!({ "id": id, "event_type": event, "payload": {} }).to_string()
}

fn configure(home: &Home, receiver: &Receiver) {
    let route =
        |events: &str, to: &str| format!("[[route]]\nevents = \"{events}\"\nto = [\"{to}\"]\n");
    home.configure(&format!(
        "{}{}{}{}",
        receiver.section("billing", ""),
        receiver.section("mail", ""),
        route("Order*", "billing"),
        route("Mail*", "mail"),
    ));
}

on_every_database!(
    a_breaker_that_is_opened_by_hand_holds_messages_back_through_a_restart,
    a_destination_in_trouble_is_left_alone_and_gets_everything_in_the_end,
);

fn a_breaker_that_is_opened_by_hand_holds_messages_back_through_a_restart(home: &Home) {
    let receiver = Receiver::start();
    configure(home, &receiver);
    let served = home.serve();
    let server = format!("http://{}", served.address);
    let policies = |server: &str| home.json(&["policies", "--server", server]);
    let before = policies(&server);
    assert_eq!(before[0]["destination"], "billing");
    assert_eq!(before[0]["breaker"], "closed");

    let said = home.ok(&[
        "policies", "open", "billing", "--by", "anna", "--server", &server,
    ]);
    assert!(said.contains("billing is open"), "{said}");
    served.post(message(FIRST, "OrderPaid"));
    served.post(message(SECOND, "MailSent"));
    receiver.wait_for(SECOND);
    served.stop();

    let served = home.serve();
    let server = format!("http://{}", served.address);
    let after = policies(&server);
    assert_eq!(after[0]["breaker"], "open");
    assert_eq!(after[0]["forced"], "open");
    assert_eq!(after[0]["forced_by"], "anna");
    assert_eq!(after[1]["breaker"], "closed");
    let table = home.ok(&["policies", "--server", &server]);
    assert!(table.contains("set by anna"), "{table}");
    let metrics = served.request("GET", "/metrics", &[], b"").body;
    let open = "counterfoil_breaker_state{destination=\"billing\"} 2";
    assert!(metrics.contains(open), "{metrics}");
    assert!(receiver.requests().iter().all(|r| r.id != FIRST));

    home.ok(&["policies", "auto", "billing", "--server", &server]);
    receiver.wait_for(FIRST);
    served.stop();
}

fn a_destination_in_trouble_is_left_alone_and_gets_everything_in_the_end(home: &Home) {
    let receiver = Receiver::start();
    receiver.answer_by(|_| 503);
    configure(home, &receiver);
    let served = home.serve();
    let server = format!("http://{}", served.address);
    let id = |n: u32| format!("0198c0de-0000-7000-8000-{n:012}");
    for n in 0..60 {
        served.post(message(&id(n), "OrderPaid"));
    }

    until("an open breaker", || {
        let all = home.json(&["policies", "--server", &server]);
        (all[0]["breaker"] != "closed").then_some(())
    });
    assert!(receiver.requests().len() < 60, "most were never sent");
    receiver.answer_by(|_| 204);

    for n in 0..60 {
        receiver.wait_for(&id(n));
    }
    until("an empty outbox", || {
        (home.json(&["audit"])["counts"]["pending"] == 0).then_some(())
    });
    assert_eq!(home.json(&["audit"])["counts"]["parked"], 0);
    served.stop();
}

#[test]
fn who_asks_for_a_destination_that_is_not_there_is_told_so() {
    let home = Home::sqlite();
    let receiver = Receiver::start();
    configure(&home, &receiver);
    let served = home.serve();
    let server = format!("http://{}", served.address);

    let nobody = home.refused(
        &["policies", "open", "nobody/at all", "--server", &server],
        3,
    );
    assert!(nobody.contains("no destination has this name"), "{nobody}");
    let wrong = served.request(
        "PUT",
        "/v1/policies/billing",
        &["content-type: application/json"],
        b"{\"breaker\":\"ajar\"}",
    );
    assert_eq!(wrong.status, 400, "{wrong:?}");
    served.stop();
    let gone = home.refused(&["policies", "--server", &server], 1);
    assert!(gone.contains("no server answers at"), "{gone}");
    let odd = home.refused(&["policies", "--server", "ftp://here"], 2);
    assert!(odd.contains("--server"), "{odd}");
}

#[test]
fn a_server_that_wants_a_token_gets_the_configured_one() {
    let home = Home::sqlite();
    let receiver = Receiver::start();
    home.configure(&format!(
        "[server]\ntokens = [\"0123456789abcdef\"]\n{}",
        receiver.section("billing", "")
    ));
    let served = home.serve();
    let server = format!("http://{}", served.address);

    home.ok(&["policies", "--server", &server]);
    let wrong = [
        "policies",
        "--server",
        &server,
        "--token",
        "fedcba9876543210",
    ];
    assert!(home.refused(&wrong, 1).contains("wants a token"));
    served.stop();
}
