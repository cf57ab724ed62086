//! Options of routes and upstreams: that the file's word holds at the gateway.

use crate::client::ask;
use crate::gateway::{door, order, replayed};
use crate::home::{Home, Served, until};
use crate::upstream::Upstream;

/// A gateway whose route has these keys, and its upstream those.
fn start(route: &str, upstream_keys: &str) -> (Home, Upstream, Served) {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    home.configure(&format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n\
         [[gateway.route]]\nupstream = \"shop\"\n{route}\n\
         [upstream.shop]\nurl = \"http://{}\"\n{upstream_keys}\n",
        upstream.address
    ));
    let served = home.serve();
    (home, upstream, served)
}

const GUARDED: &str = "caller = \"header:x-caller\"\n";

#[test]
fn another_request_under_a_known_key_replaces_it_where_configured() {
    let (_home, upstream, served) = start(&format!("{GUARDED}mode = \"overwrite\""), "");

    let first = order(door(&served), "k", "");
    let other = order(door(&served), "k", "chunked");
    let again = order(door(&served), "k", "chunked");

    assert_eq!((first.status, replayed(&first)), (201, false));
    assert_eq!((other.status, replayed(&other)), (200, false));
    assert!(replayed(&again));
    assert_eq!(upstream.calls(), 2);
    served.stop();
}

#[test]
fn a_repeat_is_told_that_it_is_one_where_configured() {
    let (_home, upstream, served) = start(&format!("{GUARDED}plain-duplicate = true"), "");

    assert_eq!(order(door(&served), "k", "").status, 201);
    let again = order(door(&served), "k", "");

    assert_eq!((again.status, again.problem().as_str()), (409, "duplicate"));
    assert_eq!(upstream.calls(), 1);
    served.stop();
}

#[test]
fn who_has_no_key_is_told_where_to_read_about_keys() {
    let help = "https://shop.example/keys";
    let keys = format!("{GUARDED}key = \"required\"\nhelp = \"{help}\"");
    let (_home, _upstream, served) = start(&keys, "");

    let told = ask(
        door(&served),
        "POST",
        "/orders",
        &["x-caller: alice"],
        b"{}",
    );

    assert_eq!((told.status, told.problem().as_str()), (400, "key-missing"));
    assert!(told.head.contains(&format!("link: <{help}>")), "{told:?}");
    served.stop();
}

#[test]
fn a_request_that_is_stuck_is_reported_after_the_time_that_its_route_names() {
    let (_home, _upstream, served) = start(&format!("{GUARDED}alert-age = \"1s\""), "");

    assert_eq!(order(door(&served), "k", "vanish-after").status, 502);

    until("the report", || {
        let metrics = served.get("/metrics").body;
        metrics
            .contains("\ncounterfoil_guard_stuck 1\n")
            .then_some(())
    });
    served.stop();
}

#[test]
fn a_service_that_is_slow_is_left_alone_where_configured() {
    let keys = "breaker-slow-after = \"1us\"\nbreaker-slow-ratio = 0.1\nbreaker-min-calls = 1\n\
                breaker-open = \"1h\"\nbreaker-open-cap = \"1h\"\nretry-window = \"10s\"\n\
                retry-jitter = \"decorrelated\"";
    let (home, _upstream, served) = start(GUARDED, keys);
    assert_eq!(order(door(&served), "k", "").status, 201);

    let told = order(door(&served), "other", "");

    assert_eq!(told.problem(), "service-resting");
    let server = format!("http://{}", served.address);
    let all = home.json(&["policies", "--server", &server]);
    assert_eq!(
        (&all[0]["breaker"], &all[0]["cause"]),
        (&"open".into(), &"slow-ratio".into())
    );
    served.stop();
}

#[test]
fn a_former_answer_stands_in_for_a_service_in_trouble_where_configured() {
    let (_home, upstream, served) = start(
        "guard = false\ndegraded = \"cached\"\ncached-age = \"10m\"",
        "retries = 0",
    );
    let page = || ask(door(&served), "GET", "/page", &[], b"");
    let first = page();
    assert_eq!(first.status, 200);

    upstream.get("/control/fail?by=503");
    let told = page();

    assert_eq!((told.status, &told.body), (200, &first.body));
    assert!(told.head.contains("counterfoil-stale: true"), "{told:?}");
    served.stop();
}

#[test]
fn options_that_cannot_be_are_refused_with_their_line() {
    let home = Home::sqlite();
    for (route_keys, upstream_keys, expected) in [
        ("mode = \"loose\"", "", "4: `mode` in [[gateway.route]]: "),
        (
            "degraded = \"stale\"",
            "",
            "4: `degraded` in [[gateway.route]]: ",
        ),
        (
            "help = \"\"",
            "",
            "4: `help` in [[gateway.route]]: write an address",
        ),
        (
            "help = \"a b\"",
            "",
            "4: `help` in [[gateway.route]]: write an address",
        ),
        (
            "alert-age = \"0s\"",
            "",
            "4: `alert-age` in [[gateway.route]]: must be greater",
        ),
        (
            "max-body = \"65 MiB\"",
            "",
            "4: `max-body` in [[gateway.route]]: it is held in memory",
        ),
        (
            "max-answer = \"65 MiB\"",
            "",
            "4: `max-answer` in [[gateway.route]]: it is held in memory",
        ),
        (
            "cached-age = \"1h\"",
            "",
            "4: `cached-age` in [[gateway.route]]: is for `degraded = \"cached\"`",
        ),
        (
            "degraded = \"cached\"\ncached-age = \"0s\"",
            "",
            "5: `cached-age` in [[gateway.route]]: must be greater than zero",
        ),
        (
            "methods = [\"POST\"]\ndegraded = \"cached\"",
            "",
            "5: `degraded` in [[gateway.route]]: copies are for GET",
        ),
        (
            "",
            "retry-jitter = \"some\"",
            "7: `retry-jitter` in [upstream.shop]: ",
        ),
        (
            "",
            "retry-window = \"0s\"",
            "7: `retry-window` in [upstream.shop]: must be at least",
        ),
        (
            "",
            "breaker-slow-after = \"0s\"",
            "7: `breaker-slow-after` in [upstream.shop]: must be greater than zero",
        ),
        (
            "",
            "breaker-slow-after = \"1s\"\nbreaker-slow-ratio = 0.0",
            "8: `breaker-slow-ratio` in [upstream.shop]: must be greater than zero",
        ),
        (
            "",
            "breaker-slow-ratio = 0.5",
            "7: `breaker-slow-ratio` in [upstream.shop]: without `breaker-slow-after`",
        ),
    ] {
        home.configure(&format!(
            "[[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\n{route_keys}\n\
             [upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n{upstream_keys}\n"
        ));

        let told = home.refused(&["config", "check"], 2);

        let expected = format!("error: counterfoil.toml:{expected}");
        assert!(told.starts_with(&expected), "{expected}\n{told}");
    }
}
