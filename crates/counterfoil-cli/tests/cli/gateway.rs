//! The gateway in front of a service in another language: killed, reconfigured, filled.

use std::net::TcpStream;

use crate::client::{Answer, ask};
use crate::home::{Home, Served, until};
use crate::on_every_database;
use crate::upstream::Upstream;

/// A route that has time, however busy the machine is: tests let it pass by hand.
pub fn configure(home: &Home, upstream: &Upstream, more: &str) {
    configure_at(home, &upstream.address, more);
}

/// The same, to a service at this address.
pub fn configure_at(home: &Home, address: &str, more: &str) {
    home.configure(&format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"header:x-caller\"\n\
         lease = \"30s\"\nprobe = \"GET /orders?ref={{key}}\"\nprobe-after = \"30s\"\nwait = \"1s\"\n\
         {more}\n\
         [upstream.shop]\nurl = \"http://{address}\"\ntimeout = \"20s\"\n\
         connect-timeout = \"500ms\"\n"
    ));
}

pub fn order(door: &str, key: &str, what: &str) -> Answer {
    let key = format!("idempotency-key: {key}");
    // One host, whatever port the gateway has found free this time.
    let headers = [
        "host: shop.example",
        "x-caller: alice",
        "content-type: application/json",
        &*key,
    ];
    let body = format!("{{\"do\":\"{what}\"}}");
    ask(door, "POST", "/orders", &headers, body.as_bytes())
}

pub fn replayed(answer: &Answer) -> bool {
    answer.head.contains("idempotent-replayed: true")
}

pub fn door(served: &Served) -> &str {
    served.gateway.as_deref().unwrap()
}

on_every_database!(
    gateway_case_22_killed_before_the_effect_it_runs_once,
    gateway_case_22_killed_after_the_effect_it_is_found_out,
    gateway_case_22_killed_after_completion_it_is_replayed,
);

/// Kills the gateway while a request stands still at the service. Its lease is over, and the doubt
/// is old enough for a probe.
fn killed_at(home: &Home, upstream: &Upstream, what: &str) {
    configure(home, upstream, "");
    let served = home.serve();
    let address = door(&served).to_owned();
    let asked = what.to_owned();
    let caller = std::thread::spawn(move || order(&address, "k", &asked));
    upstream.waiting(1);
    served.signal("KILL");
    served.end();
    assert_eq!(caller.join().unwrap().status, 0);
    home.an_hour_later();
}

/// Lets doubts grow old enough for a probe, and has the gateway look for them now.
pub fn look_into(home: &Home, served: &Served) {
    home.an_hour_later();
    served.signal("HUP");
}

/// What a repeat is told once the probe has settled the request.
pub fn settled(served: &Served, key: &str, what: &str) -> Answer {
    until("the end of the doubt", || {
        let told = order(door(served), key, what);
        let open = ["in-progress", "outcome-uncertain"];
        let open = told.status == 409 && open.contains(&told.problem().as_str());
        (!open).then_some(told)
    })
}

fn gateway_case_22_killed_before_the_effect_it_runs_once(home: &Home) {
    let upstream = Upstream::start(home.path());
    killed_at(home, &upstream, "hold-before");
    assert_eq!(upstream.effects(), 0);

    // The service itself has not given up: what it does late would be a second effect. It is told
    // to stop before the probe asks.
    drop(upstream);
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let served = home.serve();
    let address = door(&served).to_owned();
    let repeat = std::thread::spawn(move || {
        until("an answer", || {
            let told = order(&address, "k", "hold-before");
            (told.status == 201).then_some(told)
        })
    });
    upstream.waiting(1);
    upstream.go();
    let answer = repeat.join().unwrap();

    assert_eq!((answer.status, upstream.effects()), (201, 1));
    assert!(replayed(&order(door(&served), "k", "hold-before")));
    served.stop();
}

fn gateway_case_22_killed_after_the_effect_it_is_found_out(home: &Home) {
    let upstream = Upstream::start(home.path());
    killed_at(home, &upstream, "hold-after");
    upstream.go();
    let served = home.serve();

    let told = settled(&served, "k", "hold-after");

    assert_eq!(
        (told.status, told.problem().as_str()),
        (410, "result-not-kept")
    );
    assert_eq!((upstream.effects(), upstream.calls()), (1, 1));
    served.stop();
}

fn gateway_case_22_killed_after_completion_it_is_replayed(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let served = home.serve();
    let first = order(door(&served), "k", "");
    served.signal("KILL");
    served.end();

    let served = home.serve();
    let again = order(door(&served), "k", "");

    assert_eq!((first.status, replayed(&again)), (201, true));
    assert_eq!((again.body, upstream.calls()), (first.body, 1));
    served.stop();
}

#[test]
fn the_state_of_a_request_can_be_asked_for() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(
        &home,
        &upstream,
        "degraded = true\nbusiness-type = \"orders\"\nprobe-answer = true\n\
         probe-host = \"shop.example\"\nprobe-headers = { authorization = \"file:token\" }",
    );
    std::fs::write(home.path().join("token"), "Bearer probe\n").unwrap();
    let served = home.serve();

    let accepted = order(door(&served), "private", "vanish-after");

    assert_eq!(accepted.status, 202);
    let state = |path: &str| served.get(path).json()["state"].clone();
    let path = "/v1/requests/orders/private?caller=shop.example/alice";
    assert_eq!(state(path), "uncertain");
    assert_eq!(served.get("/v1/requests/orders/private").status, 404);
    look_into(&home, &served);
    until("the probe", || (state(path) == "succeeded").then_some(()));
    let found = order(door(&served), "private", "vanish-after");
    assert_eq!((found.status, replayed(&found)), (200, true));
    assert_eq!(upstream.calls(), 1);
    served.stop();
}

#[test]
fn a_gateway_that_stops_answers_what_is_under_way() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let served = home.serve();
    let address = door(&served).to_owned();
    let caller = std::thread::spawn(move || order(&address, "k", "hold-after"));
    upstream.waiting(1);

    served.signal("TERM");
    until("a closed door", || {
        TcpStream::connect(door(&served)).is_err().then_some(())
    });
    upstream.go();

    assert_eq!(caller.join().unwrap().status, 201);
    assert!(served.end().0.success());
}

#[test]
fn the_page_of_the_book_works_as_it_stands() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/gateway.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = |kind: &str| {
        let start = format!("```{kind}\n");
        let (_, rest) = page.split_once(&start).unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let (config, session) = (block("toml"), block("console"));
    assert!(
        config.lines().filter(|l| !l.is_empty()).count() <= 5,
        "{config}"
    );
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    // The page has fixed ports; here they are whatever is free.
    let config = config.replace("127.0.0.1:8000", &upstream.address);
    home.configure(&format!("[gateway]\nlisten = \"127.0.0.1:0\"\n{config}"));
    let served = home.serve();

    let mut commands = 0;
    let mut lines = session.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ curl ") else {
            continue;
        };
        let command = command.replace("127.0.0.1:7080", door(&served));
        let done = std::process::Command::new("sh")
            .args(["-c", &format!("curl {command}")])
            .output()
            .unwrap();
        let said = String::from_utf8(done.stdout).unwrap().replace('\r', "");
        while let Some(expected) = lines.next_if(|line| !line.starts_with('$')) {
            let fits = match expected.split_once('…') {
                Some((start, _)) => said.lines().any(|l| l.starts_with(start)),
                None => said.lines().any(|l| l == expected),
            };
            assert!(fits || expected.is_empty(), "{expected:?} is not in {said}");
        }
        commands += 1;
    }
    assert_eq!((commands, upstream.effects()), (2, 1));
    served.stop();
}
