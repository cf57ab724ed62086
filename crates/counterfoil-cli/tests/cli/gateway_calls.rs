//! Calls that reach the service: how many, and what becomes of those that it does not answer.

use crate::client::{Answer, ask};
use crate::gateway::{configure, door, look_into, order, replayed, settled};
use crate::home::{Home, Served};
use crate::on_every_database;
use crate::upstream::Upstream;

on_every_database!(
    gateway_case_29_two_hundred_duplicates_are_one_call,
    gateway_case_21_a_service_that_is_killed_before_the_effect_runs_once,
    gateway_case_21_a_service_that_is_killed_after_the_effect_is_found_out,
);

fn gateway_case_29_two_hundred_duplicates_are_one_call(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    home.amend("wait = \"1s\"", "wait = \"30s\"");
    let served = home.serve();
    let address = door(&served).to_owned();

    let callers: Vec<_> = (0..200)
        .map(|_| {
            let address = address.clone();
            std::thread::spawn(move || order(&address, "k", "hold-after"))
        })
        .collect();
    upstream.waiting(1);
    upstream.go();
    let answers: Vec<Answer> = callers.into_iter().map(|c| c.join().unwrap()).collect();

    let first = answers.iter().filter(|a| !replayed(a)).count();
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
    }
    assert_eq!((first, upstream.calls(), upstream.effects()), (1, 1, 1));
    let metrics = served.get("/metrics").body;
    let coalesced = "counterfoil_coalesced_total{destination=\"upstream:shop\"} ";
    let coalesced = metrics.lines().find_map(|l| l.strip_prefix(coalesced));
    let coalesced: u32 = coalesced
        .unwrap_or_else(|| panic!("{metrics}"))
        .parse()
        .unwrap();
    assert!((1..200).contains(&coalesced), "{coalesced}");
    served.stop();
}

/// The service is killed while a request stands still in it, and comes back. The probe asks it.
fn service_killed_at(home: &Home, what: &str) -> (Served, Upstream) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let served = home.serve();
    let address = door(&served).to_owned();
    let asked = what.to_owned();
    let caller = std::thread::spawn(move || order(&address, "k", &asked));
    upstream.waiting(1);

    let upstream = upstream.killed(home.path());

    let told = caller.join().unwrap();
    assert_eq!(
        (told.status, told.problem().as_str()),
        (502, "service-unanswered")
    );
    let doubt = order(door(&served), "k", what);
    assert_eq!(
        (doubt.status, doubt.problem().as_str()),
        (409, "outcome-uncertain")
    );
    assert_eq!(upstream.calls(), 0, "nothing is made again");
    look_into(home, &served);
    (served, upstream)
}

fn gateway_case_21_a_service_that_is_killed_before_the_effect_runs_once(home: &Home) {
    let (served, upstream) = service_killed_at(home, "hold-before");
    upstream.go();

    let answer = settled(&served, "k", "hold-before");

    assert_eq!((answer.status, replayed(&answer)), (201, false));
    assert!(replayed(&order(door(&served), "k", "hold-before")));
    assert_eq!((upstream.effects(), upstream.calls()), (1, 1));
    served.stop();
}

fn gateway_case_21_a_service_that_is_killed_after_the_effect_is_found_out(home: &Home) {
    let (served, upstream) = service_killed_at(home, "hold-after");

    let told = settled(&served, "k", "hold-after");

    assert_eq!(
        (told.status, told.problem().as_str()),
        (410, "result-not-kept")
    );
    assert_eq!((upstream.effects(), upstream.calls()), (1, 0));
    served.stop();
}

/// Calls that reach a service which always fails, for each kind of request: no hop between the
/// caller and the service tries again by itself.
#[test]
fn without_retries_every_request_is_one_call_whatever_fails() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let file = home.path().join("counterfoil.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let limits = "retries = 0\nbreaker-failures = 0\nbreaker-min-calls = 1000\n";
    home.configure(&format!("{text}{limits}"));
    let served = home.serve();
    // A connection that is used again is where an impatient client would try again by itself.
    let warm = || {
        assert_eq!(
            ask(door(&served), "GET", "/status?is=204", &[], b"").status,
            204
        );
    };
    let asked = || {
        let state = upstream.state();
        state["calls"].as_u64().unwrap() + state["statuses"].as_u64().unwrap()
    };

    for (n, what) in [
        "500",
        "503",
        "429",
        "vanish-before",
        "vanish-after",
        "broken-answer",
    ]
    .iter()
    .enumerate()
    {
        for keyed in [true, false] {
            warm();
            let before = asked();
            let told = match keyed {
                true => order(door(&served), &format!("k{n}"), what),
                false => {
                    let body = format!("{{\"do\":\"{what}\"}}");
                    let headers = ["x-caller: alice", "content-type: application/json"];
                    ask(door(&served), "POST", "/orders", &headers, body.as_bytes())
                }
            };
            assert!(told.status >= 400 || *what == "broken-answer", "{told:?}");
            assert_eq!(asked() - before, 1, "{what}, keyed: {keyed}");
        }
    }
    for method in ["GET", "HEAD"] {
        for status in ["500", "503", "429"] {
            let before = asked();
            let path = format!("/status?is={status}");
            let told = ask(door(&served), method, &path, &[], b"");
            assert_eq!(told.status.to_string(), status);
            assert_eq!(asked() - before, 1, "{method} {status}");
        }
    }
    served.stop();
}

#[test]
fn a_service_in_trouble_is_left_alone_listed_and_remembered() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "degraded = true\nharmless = [503]");
    let file = home.path().join("counterfoil.toml");
    let limits = "retries = 2\nretry-deadline = \"3m\"\nbreaker-failures = 3\nbreaker-open = \"1m\"\n\
                  breaker-open-cap = \"1m\"\nconnections = 7\nwaiting = 1\n";
    let text = std::fs::read_to_string(&file).unwrap();
    home.configure(&format!("{text}{limits}"));
    // No call is made again when a third of the lease is over.
    home.amend("\nlease = \"30s\"", "\nlease = \"10m\"")
        .amend("probe-after = \"30s\"", "probe-after = \"10m\"");
    let served = home.serve();
    let policy = |served: &Served| served.get("/v1/policies").json()["policies"][0].clone();
    assert_eq!(policy(&served)["destination"], "upstream:shop");
    assert_eq!(policy(&served)["breaker"], "closed");
    assert_eq!(policy(&served)["limit"], 7);

    // The first call and its two retries open the breaker: one place for retries, and no other.
    let failed = order(door(&served), "failed", "503");
    assert_eq!(upstream.calls(), 3);
    let told = order(door(&served), "k", "");

    assert_eq!(failed.json()["error"], "503", "what the service has said");
    assert_eq!(told.status, 503, "{told:?}");
    assert!(told.body.contains("service-resting"), "{told:?}");
    assert_eq!(policy(&served)["breaker"], "open");
    let metrics = served.get("/metrics").body;
    let open = "counterfoil_breaker_state{destination=\"upstream:shop\"} 2";
    assert!(metrics.contains(open), "{metrics}");
    let server = format!("http://{}", served.address);
    home.ok(&["policies", "open", "upstream:shop", "--server", &server]);
    served.stop();

    let served = home.serve();
    assert_eq!(order(door(&served), "k", "").status, 503);
    assert_eq!(upstream.calls(), 3, "known before the first call");
    let server = format!("http://{}", served.address);
    home.ok(&["policies", "close", "upstream:shop", "--server", &server]);
    assert_eq!(order(door(&served), "k", "").status, 201);
    served.stop();
}
