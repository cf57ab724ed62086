//! Breakers by hand, and what a server tells about them.

use serde_json::json;

use crate::client::ask;
use crate::gateway::door;
use crate::home::{Home, until};
use crate::on_every_database;
use crate::receiver::Receiver;
use crate::upstream::Upstream;

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
    until("a breaker that is shown", || {
        let list = home.ok(&["queue", "list"]);
        (list.contains("breaker open since") && list.contains("503") && list.contains("next probe"))
            .then_some(())
    });
    until("a breaker that is explained", || {
        let explained = home.ok(&["explain", &id(59)]);
        (explained.contains("breaker") && explained.contains("503")).then_some(())
    });
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
fn retries_and_changes_are_counted_beside_what_may_still_be_retried() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    home.configure(&format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n\
         [[gateway.route]]\nupstream = \"shop\"\nguard = false\n\
         [upstream.shop]\nurl = \"http://{}\"\nretries = 1\nretry-deadline = \"1m\"\n\
         retry-ratio = 0.0\nretry-floor = 1\n",
        upstream.address
    ));
    let served = home.serve();
    let server = format!("http://{}", served.address);
    let policies = || home.json(&["policies", "--server", &server])[0].clone();
    assert_eq!(policies()["retries_allowance"], 1);

    for _ in 0..2 {
        let told = ask(door(&served), "GET", "/status?is=500", &[], b"");
        assert_eq!(told.status, 500);
    }
    home.ok(&["policies", "open", "upstream:shop", "--server", &server]);

    let shop = policies();
    assert_eq!(shop["destination"], "upstream:shop");
    assert_eq!(
        (&shop["retries_left"], &shop["retries_allowance"]),
        (&0.into(), &1.into())
    );
    assert_eq!((&shop["in_use"], &shop["waiting"]), (&0.into(), &0.into()));
    assert_eq!(
        shop["counts"],
        json!({
            "retries_allowed": 1, "retries_exhausted": 1, "retry_after_honored": 0,
            "transitions": 1, "rejected": 0, "coalesced": 0,
        })
    );
    let table = home.ok(&["policies", "--server", &server]);
    let words = |line: Option<&str>| -> Vec<String> {
        let cells = line.unwrap().split("  ").map(str::trim);
        cells
            .filter(|c| !c.is_empty())
            .map(ToOwned::to_owned)
            .collect()
    };
    let mut lines = table.lines();
    let header = words(lines.next());
    let row = words(lines.next());
    let cell = |name: &str| row[header.iter().position(|h| h == name).unwrap()].clone();
    assert_eq!(cell("RETRIES LEFT"), "0 of 1");
    assert_eq!(cell("RETRIED"), "1");
    assert_eq!(cell("NOT RETRIED"), "1");
    assert_eq!(cell("CHANGES"), "1");
    assert_eq!(cell("WAITING"), "0");
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
    home.amend(
        "[server]",
        &format!("[server]\nlisten = \"{}\"", served.address),
    );

    home.ok(&["policies"]);
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
