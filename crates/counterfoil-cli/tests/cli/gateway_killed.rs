//! The gateway is killed at each step of a guarded request, and the request comes again.
//!
//! | killed when | the repeat |
//! |---|---|
//! | the claim is written, the gateway has not heard so | runs, once the doubt is over |
//! | the claim is written, nothing is sent | runs, once the doubt is over |
//! | a part of the request is sent | runs, once the doubt is over |
//! | the service has taken effect, and not answered | is told that it happened |
//! | a part of the answer is there | is told that it happened |
//! | the answer is there, and not recorded | is told that it happened |
//! | the answer is recorded, the gateway has not heard so | is a replay |
//! | the answer is recorded, the caller does not have it | is a replay |
//!
//! Nothing in the product helps these tests: requests stand still at the service, on the way to it,
//! on the way to the database, or at a lock in it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::JoinHandle;

use crate::cable::{Arrives, Cable};
use crate::client::Answer;
use crate::gateway::{configure, configure_at, door, look_into, order, replayed, settled};
use crate::home::{Home, Served, until};
use crate::on_every_database;
use crate::standstill::{Strait, Wall};
use crate::upstream::Upstream;

on_every_database!(
    gateway_case_22_killed_before_a_byte_is_sent_it_runs_once,
    gateway_case_22_killed_while_it_sends_it_runs_once,
    gateway_case_22_killed_in_the_middle_of_the_answer_it_is_found_out,
    gateway_case_22_killed_before_the_answer_is_recorded_it_is_found_out,
    gateway_case_22_killed_before_the_caller_has_the_answer_it_is_replayed,
);

type Caller = JoinHandle<Answer>;

fn called(served: &Served, key: &str, what: &str) -> Caller {
    let (address, key, what) = (door(served).to_owned(), key.to_owned(), what.to_owned());
    std::thread::spawn(move || order(&address, &key, &what))
}

/// Kills the gateway; its caller gets nothing.
fn kill(served: Served, caller: Caller) {
    served.signal("KILL");
    served.end();
    assert_eq!(caller.join().unwrap().status, 0);
}

/// Starts the gateway again, and sees that a repeat is told of the doubt, and does not run. Then the
/// doubt is looked into.
fn doubted(home: &Home, upstream: &Upstream, more: &str, (key, what): (&str, &str)) -> Served {
    configure(home, upstream, more);
    let (calls, effects) = (upstream.calls(), upstream.effects());
    home.leases_end();
    let served = home.serve();
    until("the doubt", || {
        let told = order(door(&served), key, what);
        assert_eq!(told.status, 409, "{told:?}");
        (told.problem() == "outcome-uncertain").then_some(())
    });
    assert_eq!((upstream.calls(), upstream.effects()), (calls, effects));
    look_into(home, &served);
    served
}

/// The request has not happened: it does, once, and repeats get its answer.
fn runs_once(home: &Home, upstream: &Upstream, key: &str, what: &str) {
    assert_eq!(upstream.effects(), 0);
    let served = doubted(home, upstream, "max-body = \"32 MB\"", (key, what));

    let answer = settled(&served, key, what);
    let again = order(door(&served), key, what);

    assert_eq!((answer.status, replayed(&answer)), (201, false));
    assert_eq!((again.status, replayed(&again)), (201, true));
    assert_eq!((again.body, upstream.effects()), (answer.body, 1));
    served.stop();
}

/// The request has happened, and its answer is lost: it is found out, and does not run again.
fn found_out(home: &Home, upstream: &Upstream, key: &str, what: &str) {
    assert_eq!(upstream.effects(), 1);
    let served = doubted(home, upstream, "probe-answer = true", (key, what));

    let told = settled(&served, key, what);
    let again = order(door(&served), key, what);

    for told in [&told, &again] {
        assert_eq!((told.status, replayed(told)), (200, true), "{told:?}");
        assert_eq!(told.json()["order"], 1);
    }
    assert_eq!((upstream.effects(), upstream.calls()), (1, 1));
    served.stop();
}

/// The answer is recorded: whoever comes again gets it at once.
fn is_replayed(home: &Home, upstream: &Upstream, key: &str, what: &str) -> Answer {
    let served = home.serve();
    let answer = order(door(&served), key, what);
    assert!(replayed(&answer), "{answer:?}");
    assert_eq!((upstream.effects(), upstream.calls()), (1, 1));
    served.stop();
    answer
}

fn processing(served: &Served, key: &str) {
    let path = format!("/v1/requests/shop/{key}?caller=shop.example/alice");
    until("the claim", || {
        let told = served.get(&path);
        (told.status == 200 && told.json()["state"] == "processing").then_some(())
    });
}

fn gateway_case_22_killed_before_a_byte_is_sent_it_runs_once(home: &Home) {
    let wall = Wall::build();
    configure_at(home, &wall.address, "");
    home.amend("\ntimeout = \"20s\"", "\ntimeout = \"1s\"")
        .amend("connect-timeout = \"500ms\"", "connect-timeout = \"20s\"");
    let served = home.serve();
    let caller = called(&served, "k", "");
    processing(&served, "k");

    kill(served, caller);

    let upstream = Upstream::start(home.path());
    runs_once(home, &upstream, "k", "");
}

fn gateway_case_22_killed_while_it_sends_it_runs_once(home: &Home) {
    let upstream = Upstream::start(home.path());
    let strait = Strait::to(&upstream.address);
    configure_at(home, &strait.address, "max-body = \"32 MB\"");
    let served = home.serve();
    // More than fits into all buffers on the way.
    let large = format!("\",\"filler\":\"{}", "x".repeat(16 << 20));
    let caller = called(&served, "k", &large);
    strait.halted();

    kill(served, caller);
    strait.clear();

    runs_once(home, &upstream, "k", &large);
}

fn gateway_case_22_killed_in_the_middle_of_the_answer_it_is_found_out(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let served = home.serve();
    let caller = called(&served, "k", "stuck-answer");
    upstream.waiting(1);

    kill(served, caller);
    upstream.go();

    found_out(home, &upstream, "k", "stuck-answer");
}

fn gateway_case_22_killed_before_the_answer_is_recorded_it_is_found_out(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let what = match home.database() {
        Some(url) => {
            // The answer is on its way to the database, and does not arrive.
            let cable = Cable::to(url);
            let served = home.serve_with(&["--database", &cable.url]);
            cable.halt_at("\"salt\"", Arrives::Never);
            let caller = called(&served, "k", "");
            cable.halted();
            kill(served, caller);
            cable.cut(true);
            ""
        }
        None => {
            locked(home, &upstream);
            "hold-after"
        }
    };
    assert_eq!(upstream.effects(), 1);

    found_out(home, &upstream, "k", what);
}

/// The gateway has the answer, and waits for a lock in order to record it.
fn locked(home: &Home, upstream: &Upstream) {
    let file = home.path().join("counterfoil.toml");
    let text = std::fs::read_to_string(file).unwrap();
    home.configure(&format!("{text}connections = 1\n"));
    let served = home.serve();
    let caller = called(&served, "k", "hold-after");
    upstream.waiting(1);

    let lock = home.lock();
    upstream.go();
    // There is one connection to the service: it is free when the answer was read to its end.
    until("the end of the answer", || {
        let asked = crate::client::ask(door(&served), "GET", "/status?is=200", &[], b"");
        (asked.status == 200).then_some(())
    });
    kill(served, caller);
    drop(lock);
}

fn gateway_case_22_killed_before_the_caller_has_the_answer_it_is_replayed(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "max-answer = \"8 MB\"");
    let served = home.serve();
    // A caller that does not read, and an answer that is too large to wait in its socket.
    let mut caller = TcpStream::connect(door(&served)).unwrap();
    let body = "{\"do\":\"big\"}";
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: shop.example\r\nx-caller: alice\r\nidempotency-key: k\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    caller.write_all(head.as_bytes()).unwrap();
    until("the record", || {
        let told = served.get("/v1/requests/shop/k?caller=shop.example/alice");
        (told.status == 200 && told.json()["state"] == "succeeded").then_some(())
    });

    served.signal("KILL");
    served.end();

    let answer = is_replayed(home, &upstream, "k", "big");
    assert!(answer.body.len() > 3 << 20);
    let mut got = Vec::new();
    let _ = caller.read_to_end(&mut got);
    let got = String::from_utf8(got).unwrap();
    let got = got.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    assert!(answer.body.starts_with(got), "another answer");
}

#[cfg(feature = "postgres")]
#[test]
fn gateway_case_22_killed_before_it_hears_of_its_claim_it_runs_once() {
    let Some(home) = Home::postgres() else { return };
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let cable = Cable::to(home.database().unwrap());
    let served = home.serve_with(&["--database", &cable.url]);
    cable.halt_at("a-key-of-its-own", Arrives::Yes);
    let caller = called(&served, "a-key-of-its-own", "");
    cable.halted();
    until("the claim", || {
        let all = home.json(&["guard", "list"]);
        (all.as_array().unwrap().len() == 1).then_some(())
    });

    kill(served, caller);
    cable.cut(true);

    assert_eq!(upstream.calls(), 0);
    runs_once(&home, &upstream, "a-key-of-its-own", "");
}

#[cfg(feature = "postgres")]
#[test]
fn gateway_case_22_killed_before_it_hears_of_its_record_it_is_replayed() {
    let Some(home) = Home::postgres() else { return };
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let cable = Cable::to(home.database().unwrap());
    let served = home.serve_with(&["--database", &cable.url]);
    cable.halt_at("\"salt\"", Arrives::Yes);
    let caller = called(&served, "k", "");
    cable.halted();
    until("the record", || {
        let all = home.json(&["guard", "list"]);
        (all[0]["state"] == "succeeded").then_some(())
    });

    kill(served, caller);
    cable.cut(true);

    is_replayed(&home, &upstream, "k", "");
}
