//! The gateway's part of the file: what is refused, and what a running gateway does with a change.

use crate::client::ask;
use crate::gateway::{configure, door};
use crate::home::{Home, Served, until};
use crate::upstream::Upstream;

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
        let refused = "counterfoil_reloads_total{result=\"refused\"}";
        served.get("/metrics").body.contains(refused).then_some(())
    });
    assert_eq!(echo(), 200);
    configure(&home, &upstream, "path = \"/orders\"");
    served.signal("HUP");
    until("the routes of before", || (echo() == 404).then_some(()));

    served.signal("TERM");
    let (status, log) = served.end();
    assert!(status.success());
    assert!(log.contains("the configuration was read again"), "{log}");
    assert!(log.contains("unknown key `pth`"), "{log}");
    assert!(log.contains("what held before stays"), "{log}");
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
fn times_that_cannot_be_are_refused_with_their_line() {
    let home = Home::sqlite();
    let route = "[[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\n";
    let shop = "[upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n";
    for (route_keys, upstream_keys, expected) in [
        (
            "lease = \"0s\"",
            "",
            "4: `lease` in [[gateway.route]]: must be greater",
        ),
        (
            "keep = \"30s\"",
            "",
            "4: `keep` in [[gateway.route]]: is shorter than the `lease`",
        ),
        ("keep = \"0s\"", "", "4: `keep` in [[gateway.route]]: "),
        (
            "probe-after = \"30s\"\nprobe = \"GET /{key}\"",
            "",
            "4: `probe-after` in [[gateway.route]]: is shorter than the `lease`",
        ),
        ("wait = \"soon\"", "", "4: `wait` in [[gateway.route]]: "),
        ("wait = 5", "", "4: `wait` in [[gateway.route]]: "),
        (
            "",
            "timeout = \"2m\"",
            "1: `lease` in [[gateway.route]]: 1m is too short for an upstream",
        ),
        (
            "",
            "timeout = \"0s\"",
            "7: [upstream.shop]: `timeout` must be greater than zero",
        ),
        (
            "",
            "connect-timeout = \"0s\"",
            "7: [upstream.shop]: `connect-timeout` must be greater than zero",
        ),
        (
            "",
            "idle-timeout = \"0s\"",
            "7: [upstream.shop]: `idle-timeout` must be greater than zero",
        ),
        (
            "",
            "attempt-timeout = \"0s\"",
            "7: `attempt-timeout` in [upstream.shop]: must be greater than zero",
        ),
        (
            "",
            "breaker-open = \"5s\"\nbreaker-open-cap = \"1s\"",
            "8: `breaker-open-cap` in [upstream.shop]: ",
        ),
    ] {
        home.configure(&format!("{route}{route_keys}\n{shop}{upstream_keys}\n"));

        let told = home.refused(&["config", "check"], 2);

        let expected = format!("error: counterfoil.toml:{expected}");
        assert!(told.starts_with(&expected), "{expected}\n{told}");
    }
}

#[test]
fn probes_that_cannot_work_are_refused_with_their_line() {
    let home = Home::sqlite();
    let probe = "probe = \"GET /{key}\"";
    let with = |keys: &str| format!("{probe}\n{keys}");
    for (keys, expected) in [
        (
            "probe = \"HEAD /{key}\"\nprobe-answer = true".to_owned(),
            "5: `probe-answer` in [[gateway.route]]: the answer to a HEAD is empty",
        ),
        (
            "probe-host = \"shop\"".to_owned(),
            "4: `probe-host` in [[gateway.route]]: there is no `probe`",
        ),
        (
            "probe-headers = { x-a = \"1\" }".to_owned(),
            "4: `probe-headers` in [[gateway.route]]: there is no `probe`",
        ),
        (
            with("probe-host = \"http://shop\""),
            "5: `probe-host` in [[gateway.route]]: `http://shop` is no host",
        ),
        (
            with("probe-headers = { \"a b\" = \"1\" }"),
            "5: `probe-headers` in [[gateway.route]]: `a b` is no name of a header",
        ),
        (
            with("[gateway.route.probe-headers]\nx-a = \"1\"\nHost = \"shop\""),
            "7: `probe-headers` in [[gateway.route]]: the header `host` is not for a probe",
        ),
        (
            with("probe-headers = { x-a = \"1\\n2\" }"),
            "5: `probe-headers` in [[gateway.route]]: the value of `x-a` is empty, or has",
        ),
        (
            with("probe-headers = { x-a = \"env:NOT_SET_BY_ANYBODY\" }"),
            "5: `probe-headers` in [[gateway.route]]: the environment variable NOT_SET_BY_ANYBODY",
        ),
    ] {
        home.configure(&format!(
            "[[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\n{keys}\n\
             [upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n"
        ));

        let told = home.refused(&["config", "check"], 2);

        let expected = format!("error: counterfoil.toml:{expected}");
        assert!(told.starts_with(&expected), "{expected}\n{told}");
    }
}

#[test]
fn what_would_be_ignored_is_refused_with_its_line() {
    let home = Home::sqlite();
    let shop = "[upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n";
    let guarded = "upstream = \"shop\"\ncaller = \"one\"\n";
    let free = "upstream = \"shop\"\nguard = false\n";
    let unheard = "is for guarded requests, and the route says `guard = false`";
    for (route, keys, upstream, expected) in [
        (
            free,
            "caller = \"one\"",
            "",
            format!("4: `caller` in [[gateway.route]]: {unheard}"),
        ),
        (
            free,
            "key = \"required\"",
            "",
            format!("4: `key` in [[gateway.route]]: {unheard}"),
        ),
        (
            free,
            "degraded = true",
            "",
            format!("4: `degraded` in [[gateway.route]]: {unheard}"),
        ),
        (
            free,
            "harmless = [503]",
            "",
            format!("4: `harmless` in [[gateway.route]]: {unheard}"),
        ),
        (
            free,
            "final = []",
            "",
            format!("4: `final` in [[gateway.route]]: {unheard}"),
        ),
        (
            free,
            "lease = \"1m\"",
            "",
            format!("4: `lease` in [[gateway.route]]: {unheard}"),
        ),
        (
            guarded,
            "guarded-methods = []",
            "",
            "4: `guarded-methods` in [[gateway.route]]: nothing would be guarded".into(),
        ),
        (
            guarded,
            "methods = [\"GET\", \"PUT\"]",
            "",
            "4: `methods` in [[gateway.route]]: none of them is guarded (POST, PATCH would be)"
                .into(),
        ),
        (
            guarded,
            "methods = [\"POST\"]\nguarded-methods = [\"POST\", \"PUT\"]",
            "",
            "5: `guarded-methods` in [[gateway.route]]: PUT does not come here".into(),
        ),
        (
            guarded,
            "harmless = [502, 503]\nfinal = [501, 503]",
            "",
            "5: `final` in [[gateway.route]]: 503 is in `harmless` too".into(),
        ),
        (
            guarded,
            "not-recorded = [429, 503]",
            "",
            "4: `not-recorded` in [[gateway.route]]: 503 is an error of the server".into(),
        ),
        (
            guarded,
            "canonical-json = false\nignored-fields = [\"at\"]",
            "",
            "4: `canonical-json` in [[gateway.route]]: cannot be `false` with".into(),
        ),
        (
            guarded,
            "probe-after = \"20m\"",
            "",
            "4: `probe-after` in [[gateway.route]]: there is no `probe`".into(),
        ),
        (
            guarded,
            "probe-answer = true",
            "",
            "4: `probe-answer` in [[gateway.route]]: there is no `probe`".into(),
        ),
        (
            guarded,
            "[gateway]\nreplay-cache-age = \"1m\"",
            "",
            "5: `replay-cache-age` in [gateway]: there is no `replay-cache`".into(),
        ),
        (
            guarded,
            "[gateway]\ngate-ttl = \"1m\"",
            "",
            "5: `gate-ttl` in [gateway]: there is no `gate`".into(),
        ),
        (
            guarded,
            "",
            "timeout = \"2s\"\nattempt-timeout = \"3s\"",
            "8: `attempt-timeout` in [upstream.shop]: is longer than the `timeout` (2s)".into(),
        ),
    ] {
        home.configure(&format!(
            "[[gateway.route]]\n{route}{keys}\n{shop}{upstream}\n"
        ));

        let told = home.refused(&["config", "check"], 2);

        let expected = format!("error: counterfoil.toml:{expected}");
        assert!(told.starts_with(&expected), "{expected}\n{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

/// How often a changed file was refused.
fn refused_reloads(served: &Served) -> u32 {
    let metrics = served.get("/metrics").body;
    let count = "counterfoil_reloads_total{result=\"refused\"} ";
    let count = metrics.lines().find_map(|l| l.strip_prefix(count));
    count.map_or(0, |n| n.parse().unwrap())
}

#[test]
fn nobody_says_who_the_caller_is_where_other_machines_reach_the_gateway() {
    let home = Home::sqlite();
    let configure = |listen: &str, trusted: &str| {
        home.configure(&format!(
            "[gateway]\nlisten = \"{listen}\"\ntrusted-proxies = {trusted}\n\
             [[gateway.route]]\nupstream = \"shop\"\ncaller = \"header:x-account\"\n\
             [upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n"
        ));
    };
    let told = "each of them could say who its caller is";

    configure("127.0.0.1:0", "[]");
    home.ok(&["config", "check"]);
    configure("0.0.0.0:0", "[]");
    for command in [&["config", "check"][..], &["serve"]] {
        let refused = home.refused(command, 2);
        assert!(refused.contains(told), "{refused}");
    }

    // Neither is the file believed later: it may name another address, but that is where we listen.
    configure("0.0.0.0:0", "[\"192.0.2.1\"]");
    let served = home.serve();
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let before = refused_reloads(&served);
        configure(listen, "[]");
        served.signal("HUP");
        until("the refusal", || {
            (refused_reloads(&served) > before).then_some(())
        });
    }
    served.signal("TERM");
    let (_, log) = served.end();
    assert!(log.matches(told).count() >= 2, "{log}");
    assert!(!log.contains("were read again"), "{log}");
}

#[test]
fn a_long_lease_needs_no_probe() {
    let home = Home::sqlite();
    home.configure(
        "[[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\nlease = \"20m\"\n\
         [upstream.shop]\nurl = \"http://127.0.0.1:8000\"\n",
    );

    home.ok(&["config", "check"]);
}

#[test]
fn a_file_that_cannot_hold_changes_nothing_whatever_is_wrong_with_it() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let file = home.path().join("counterfoil.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let served = home.serve();
    let echo = || ask(door(&served), "GET", "/echo", &[], b"").status;
    let refused = || refused_reloads(&served);

    let twice = format!("{good}[[gateway.route]]\nupstream = \"shop\"\ncaller = \"one\"\n");
    for bad in [
        good.replace("upstream = \"shop\"", "upstream = \"shpo\""),
        twice,
        good.replace("lease = \"30s\"", "lease = \"1s\""),
        good.replace("[gateway]", "[gateway"),
        String::new(),
    ] {
        assert_ne!(bad, good);
        let before = refused();
        home.configure(&bad);
        served.signal("HUP");
        until("the refusal", || (refused() > before).then_some(()));
        assert_eq!(echo(), 200, "{bad}");
    }
    let before = refused();
    std::fs::remove_file(&file).unwrap();
    served.signal("HUP");
    until("the refusal", || (refused() > before).then_some(()));
    assert_eq!(echo(), 200);

    home.configure(
        &good
            .replace("[gateway]\n", "[gateway]\n# once more\n")
            .replace(
                "caller = \"header:x-caller\"",
                "caller = \"header:x-caller\"\npath = \"/orders\"",
            ),
    );
    until("the new routes", || (echo() == 404).then_some(()));
    served.stop();
}
