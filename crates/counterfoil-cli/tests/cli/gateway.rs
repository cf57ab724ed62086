//! The gateway in front of a service in another language: killed, reconfigured, filled.

use std::net::TcpStream;

use crate::client::{Answer, ask};
use crate::home::{Home, Served, until};
use crate::on_every_database;
use crate::upstream::Upstream;

/// A route that is quick to doubt and quick to find out.
pub fn configure(home: &Home, upstream: &Upstream, more: &str) {
    configure_at(home, &upstream.address, more);
}

/// The same, to a service at this address.
pub fn configure_at(home: &Home, address: &str, more: &str) {
    home.configure(&format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"header:x-caller\"\n\
         lease = \"2s\"\nprobe = \"GET /orders?ref={{key}}\"\nprobe-after = \"2s\"\nwait = \"1s\"\n\
         {more}\n\
         [upstream.shop]\nurl = \"http://{address}\"\ntimeout = \"1500ms\"\n\
         connect-timeout = \"500ms\"\n"
    ));
}

pub fn order(door: &str, key: &str, what: &str) -> Answer {
    let key = format!("idempotency-key: {key}");
    let headers = ["x-caller: alice", "content-type: application/json", &*key];
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
    gateway_case_29_two_hundred_duplicates_are_one_call,
    gateway_case_21_a_service_that_is_killed_before_the_effect_runs_once,
    gateway_case_21_a_service_that_is_killed_after_the_effect_is_found_out,
    gateway_case_22_killed_before_the_effect_it_runs_once,
    gateway_case_22_killed_after_the_effect_it_is_found_out,
    gateway_case_22_killed_after_completion_it_is_replayed,
);

fn gateway_case_29_two_hundred_duplicates_are_one_call(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
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

/// The service is killed while a request stands still in it, and comes back.
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

/// Kills the gateway while a request stands still at the service, and starts another one.
fn killed_at(home: &Home, upstream: &Upstream, what: &str) -> Served {
    configure(home, upstream, "");
    let served = home.serve();
    let address = door(&served).to_owned();
    let asked = what.to_owned();
    let caller = std::thread::spawn(move || order(&address, "k", &asked));
    upstream.waiting(1);
    served.signal("KILL");
    served.end();
    assert_eq!(caller.join().unwrap().status, 0);
    home.serve()
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
    let served = killed_at(home, &upstream, "hold-before");
    assert_eq!(upstream.effects(), 0);

    // The service itself has not given up: what it does late would be a second effect. It is told
    // to stop before the probe asks.
    drop(upstream);
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
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
    let served = killed_at(home, &upstream, "hold-after");
    upstream.go();

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
fn routes_are_read_again_and_a_mistake_changes_nothing() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "path = \"/orders\"");
    let served = home.serve();
    let echo = || ask(door(&served), "GET", "/echo", &[], b"").status;
    assert_eq!(echo(), 404);

    // The file is noticed by itself, and a signal is not waited for long either.
    configure(&home, &upstream, "path = \"/**\"");
    until("the new routes", || (echo() == 200).then_some(()));
    configure(&home, &upstream, "pth = \"/nothing\"");
    served.signal("HUP");
    until("the refusal", || {
        let refused = "counterfoil_gateway_reloads_total{result=\"refused\"}";
        served.get("/metrics").body.contains(refused).then_some(())
    });
    assert_eq!(echo(), 200);
    configure(&home, &upstream, "path = \"/orders\"");
    served.signal("HUP");
    until("the routes of before", || (echo() == 404).then_some(()));

    served.signal("TERM");
    let (status, log) = served.end();
    assert!(status.success());
    assert!(log.contains("were read again"), "{log}");
    assert!(log.contains("unknown key `pth`"), "{log}");
    assert!(log.contains("the former routes stay"), "{log}");
}

#[test]
fn what_cannot_work_is_refused_with_its_line() {
    let home = Home::sqlite();
    home.configure(
        "[gateway]\nlisen = \"127.0.0.1:0\"\ntrusted-proxies = [\"nobody\"]\n\
         [[gateway.route]]\nupstream = \"shpo\"\ncaller = \"one\"\n\
         [[gateway.route]]\nupstream = \"shop\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\nlease = \"5s\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\npath = \"/a\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\npath = \"/a\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\npath = \"/b\"\nkeep = \"8d\"\n\
         [[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\npath = \"/c\"\nprobe = \"POST /{key}\"\n\
         [upstream.shop]\nurl = \"http://127.0.0.1:8000\"\ntimeot = \"3s\"\n\
         [upstream.tls]\nurl = \"https://example.com\"\n\
         [upstream.odd]\nurl = \"http://127.0.0.1:8000\"\nretries = 6\nretry-cap = 1\nbreaker-ratio = 1.5\n\
         [upstream.zero]\nurl = \"http://127.0.0.1:8000\"\nconnections = 0\n\
         [upstream.soon]\nurl = \"http://127.0.0.1:8000\"\nretry-deadline = \"0s\"\n",
    );

    let done = home.run(&["config", "check"]);

    assert_eq!(done.code, Some(2), "{done:?}");
    for expected in [
        "2: unknown key `lisen` in [gateway]; did you mean `listen`?",
        "3: `trusted-proxies` in [gateway]: `nobody` is neither",
        "5: `upstream` in [[gateway.route]]: there is no [upstream.shpo]; did you mean `shop`?",
        "7: `caller` in [[gateway.route]]: a guarded route says whose",
        "12: `lease` in [[gateway.route]]: 5s is too short for an upstream",
        "17: the route to /a takes the same requests as an earlier one (line 13)",
        "21: this route and an earlier one (line 13) have the same business type",
        "30: `probe` in [[gateway.route]]: a probe must change nothing",
        "33: unknown key `timeot` in [upstream.shop]; did you mean `timeout`?",
        "35: [upstream.tls]: https is not supported",
        "38: `retries` in [upstream.odd]: at most 5",
        "39: `retry-cap` in [upstream.odd]: ",
        "40: `breaker-ratio` in [upstream.odd]: ",
        "43: [upstream.zero]: `connections` must be greater than zero",
        "46: `retry-deadline` in [upstream.soon]: must be greater than zero",
    ] {
        let expected = format!("error: counterfoil.toml:{expected}");
        let found = done.err.lines().any(|line| line.starts_with(&expected));
        assert!(found, "{expected}\n{}", done.err);
    }
}

#[test]
fn the_state_of_a_request_can_be_asked_for() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(
        &home,
        &upstream,
        "degraded = true\nbusiness-type = \"orders\"\nprobe-answer = true",
    );
    let served = home.serve();

    let accepted = order(door(&served), "k", "vanish-after");

    assert_eq!(accepted.status, 202);
    let state = |path: &str| served.get(path).json()["state"].clone();
    let path = "/v1/requests/orders/k?caller=alice";
    assert_eq!(state(path), "uncertain");
    assert_eq!(served.get("/v1/requests/orders/k").status, 404);
    until("the probe", || (state(path) == "succeeded").then_some(()));
    let found = order(door(&served), "k", "vanish-after");
    assert_eq!((found.status, replayed(&found)), (200, true));
    assert_eq!(upstream.calls(), 1);
    served.stop();
}

#[test]
fn a_service_in_trouble_is_left_alone_listed_and_remembered() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "degraded = true\nharmless = [503]");
    let file = home.path().join("counterfoil.toml");
    let limits = "retries = 2\nbreaker-failures = 3\nbreaker-open = \"1m\"\n\
                  breaker-open-cap = \"1m\"\nconnections = 7\nwaiting = 1\n";
    let text = std::fs::read_to_string(&file).unwrap();
    home.configure(&format!("{text}{limits}"));
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
    assert_eq!(told.status, 202, "{told:?}");
    assert_eq!(told.json()["state"], "not-started");
    assert_eq!(policy(&served)["breaker"], "open");
    let metrics = served.get("/metrics").body;
    let open = "counterfoil_breaker_state{destination=\"upstream:shop\"} 2";
    assert!(metrics.contains(open), "{metrics}");
    let server = format!("http://{}", served.address);
    home.ok(&["policies", "open", "upstream:shop", "--server", &server]);
    served.stop();

    let served = home.serve();
    assert_eq!(order(door(&served), "k", "").status, 202);
    assert_eq!(upstream.calls(), 3, "known before the first call");
    let server = format!("http://{}", served.address);
    home.ok(&["policies", "close", "upstream:shop", "--server", &server]);
    assert_eq!(order(door(&served), "k", "").status, 201);
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
