//! The API by itself: what it refuses, whom it answers, what it tells about itself.

use serde_json::json;

use crate::cable::Cable;
use crate::home::{Home, until};
use crate::receiver::Receiver;
use crate::{client, on_every_database};

on_every_database!(
    bad_input_is_refused_and_stores_nothing,
    the_process_tells_how_it_is
);

fn bad_input_is_refused_and_stores_nothing(home: &Home) {
    let served = home.serve();
    let deep = format!(
        r#"{{"event_type":"a","payload":{}{}}}"#,
        "[".repeat(9_999),
        "]".repeat(9_999)
    );
    let many = format!(
        "{{\"messages\":[{}]}}",
        vec![r#"{"event_type":"a"}"#; 1_001].join(",")
    );
    let large = format!(
        r#"{{"event_type":"a","payload":"{}"}}"#,
        "x".repeat(16 * 1024 * 1024)
    );
    let one_bad =
        json!({ "messages": [{ "event_type": "fine" }, { "event_type": "" }] }).to_string();
    let cases: Vec<(&[u8], u16, &str)> = vec![
        (b"", 400, "invalid-json"),
        (b"{", 400, "invalid-json"),
        (b"{\"event_type\":\"\xff\"}", 400, "invalid-json"),
        (b"[]", 422, "invalid-message"),
        (b"{}", 422, "invalid-message"),
        (b"{\"event_type\":\"a\\u0000\"}", 422, "invalid-message"),
        (
            b"{\"event_type\":\"a\",\"id\":\"7\"}",
            422,
            "invalid-message",
        ),
        (b"{\"event_type\":\"a\",\"typo\":1}", 422, "invalid-message"),
        (deep.as_bytes(), 422, "invalid-message"),
        (many.as_bytes(), 422, "too-many-messages"),
        (large.as_bytes(), 413, "too-large"),
        (one_bad.as_bytes(), 422, "invalid-message"),
    ];

    for (body, status, word) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let answer = served.post(body);
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (status, word),
            "{shown}"
        );
    }

    assert_eq!(home.json(&["audit"])["counts"]["pending"], 0);

    let opaque = served
        .post(r#"{"event_type":"a","payload_base64":"AAEC","delay":"1h"}"#)
        .stored();
    let shown = home.json(&["outbox", "show", &opaque[0].0]);
    assert_eq!(shown["message"]["payload_bin_bytes"], 3);
    served.stop();
}

#[test]
fn requests_that_lead_nowhere_say_so() {
    let home = Home::sqlite();
    let served = home.serve();
    let json = "content-type: application/json";
    let huge = served.request(
        "POST",
        "/v1/messages",
        &[json, "content-length: 99999999999"],
        b"",
    );
    assert_eq!(huge.problem(), "too-large");
    let form = served.request("POST", "/v1/messages", &[], b"{\"event_type\":\"a\"}");
    assert_eq!(form.problem(), "unsupported-media-type");
    assert_eq!(served.get("/v1/messages").problem(), "method-not-allowed");
    assert_eq!(served.get("/v1/messages/%ff").problem(), "not-found");
    assert_eq!(served.get("/v1/messages/nothing").problem(), "not-found");
    assert_eq!(served.get("/nothing").problem(), "not-found");
    assert!(served.raw(b"\x16\x03\x01nonsense\r\n\r\n").status < 500);
    served.stop();
}

#[cfg(feature = "postgres")]
#[test]
fn while_the_database_is_away_callers_are_told_to_come_back() {
    let Some(home) = Home::postgres() else { return };
    let cable = Cable::to(home.database().unwrap());
    let served = home.serve_with(&["--database", &cable.url]);
    let message = r#"{"id":"0198c0de-0000-7000-8000-000000000001","event_type":"a"}"#;

    cable.cut(true);
    let away = served.post(message);
    let unready = served.get("/readyz");
    cable.cut(false);

    assert_eq!((away.status, away.problem().as_str()), (503, "unavailable"));
    assert!(away.head.contains("retry-after: 1"), "{away:?}");
    assert_eq!(unready.status, 503, "{unready:?}");
    let classes = [
        "the database cannot be reached\n",
        "the database does not answer in time\n",
    ];
    assert!(classes.contains(&unready.body.as_str()), "{unready:?}");
    let stored = until("the database back", || {
        Some(served.post(message))
            .filter(|answer| answer.status < 300)
            .map(|a| a.stored())
    });
    assert_eq!(stored.len(), 1);
    assert_eq!(home.json(&["audit"])["counts"]["pending"], 1, "stored once");
    until("readiness", || {
        (served.get("/readyz").status == 200).then_some(())
    });
    served.stop();
}

fn the_process_tells_how_it_is(home: &Home) {
    let receiver = Receiver::start();
    home.configure(&receiver.section("billing", ""));
    let served = home.serve();

    assert_eq!(served.get("/healthz").status, 200);
    until("readiness", || {
        (served.get("/readyz").status == 200).then_some(())
    });
    served.post(r#"{"event_type":"a","queue":"billing"}"#);
    until("the delivery in the metrics", || {
        let metrics = served.get("/metrics").body;
        let all = [
            "counterfoil_delivered_total{queue=\"billing\"} 1",
            "counterfoil_pending{queue=\"billing\",state=\"new\"}",
            "counterfoil_oldest_seconds{queue=\"billing\"}",
            "counterfoil_parked{queue=\"billing\"}",
            "counterfoil_unserved{queue=\"billing\"}",
            "counterfoil_paused{queue=\"billing\"}",
        ];
        all.iter().all(|line| metrics.contains(line)).then_some(())
    });

    home.execute(
        "UPDATE counterfoil_migrations SET version = 999, oldest_reader = 999 WHERE version = 1",
    );
    let answer = until("unreadiness", || {
        Some(served.get("/readyz")).filter(|answer| answer.status == 503)
    });
    assert!(answer.body.contains("upgrade the program"), "{answer:?}");
    assert_eq!(
        served.get("/healthz").status,
        200,
        "the process lives all the same"
    );
    served.stop();
}

#[test]
fn with_tokens_nobody_enters_without_one() {
    let home = Home::sqlite();
    std::fs::write(
        home.path().join("tokens"),
        "0123456789abcdef\nfedcba9876543210\n",
    )
    .unwrap();
    home.configure("[server]\ntokens = [\"file:tokens\"]\n");
    let served = home.serve();
    let message = br#"{"event_type":"a"}"#;
    let json = "content-type: application/json";

    for header in [
        "x: y",
        "authorization: Bearer wrong",
        "authorization: Basic 0123456789abcdef",
    ] {
        let answer = served.request("POST", "/v1/messages", &[json, header], message);
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (401, "unauthorized"),
            "{header}"
        );
        assert_eq!(
            served.request("GET", "/metrics", &[header], b"").status,
            401
        );
    }
    let bearer = "authorization: Bearer fedcba9876543210";
    let named = "host: counterfoil.example.com";
    let answer = served.request("POST", "/v1/messages", &[json, bearer, named], message);

    assert_eq!(answer.status, 201);
    assert_eq!(
        served.request("GET", "/metrics", &[bearer], b"").status,
        200
    );
    assert_eq!(served.get("/healthz").status, 200);
    served.stop();
}

#[test]
fn without_tokens_a_web_page_cannot_use_the_api() {
    let home = Home::sqlite();
    let served = home.serve();
    let headers = [
        "content-type: application/json",
        "host: rebound.example.com:7070",
    ];

    let answer = served.request("POST", "/v1/messages", &headers, br#"{"event_type":"a"}"#);

    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (403, "foreign-host")
    );
    served.stop();
}

#[test]
fn a_client_that_says_nothing_is_let_go_and_others_are_served_meanwhile() {
    let home = Home::sqlite();
    let served = home.serve();
    let silent = served.connect();
    let mut half = served.connect();
    std::io::Write::write_all(&mut half, b"GET /healthz HTTP/1.1\r\nhost:").unwrap();

    assert_eq!(served.get("/healthz").status, 200);

    for stream in [silent, half] {
        let answer = client::read(stream);
        assert!(answer.status == 0 || answer.status == 408, "{answer:?}");
    }
    served.stop();
}

#[test]
fn without_tokens_nobody_comes_through_a_proxy_or_from_another_web_page() {
    let home = Home::sqlite();
    let served = home.serve();
    let own = format!("origin: http://{}", served.address);
    let ask = |header: &str| {
        let headers = ["content-type: application/json", header];
        served.request("POST", "/v1/messages", &headers, br#"{"event_type":"a"}"#)
    };

    for header in [
        "x-forwarded-for: 203.0.113.7",
        "X-Forwarded-Proto: https",
        "Forwarded: for=203.0.113.7",
        "Via: 1.1 proxy",
        "X-Real-IP: 203.0.113.7",
    ] {
        let answer = ask(header);
        let told = (answer.status, answer.problem());
        assert_eq!(told, (403, "forwarded".into()), "{header}");
    }
    for origin in [
        "origin: https://example.com",
        "origin: null",
        "origin: http://localhost:1",
    ] {
        let answer = ask(origin);
        let told = (answer.status, answer.problem());
        assert_eq!(told, (403, "foreign-origin".into()), "{origin}");
    }

    assert_eq!(ask(&own).status, 201, "its own pages may");
    assert_eq!(home.json(&["audit"])["counts"]["pending"], 1);
    served.stop();
}

#[cfg(feature = "postgres")]
#[test]
fn a_database_that_is_away_is_one_line_in_the_log() {
    let Some(home) = Home::postgres() else { return };
    let receiver = Receiver::start();
    let section = receiver.section("billing", "");
    home.configure(&format!("[relay]\nlease = \"5m\"\n{section}"));
    let cable = Cable::to(home.database().unwrap());
    let served = home.serve_with(&["--database", &cable.url]);
    until("readiness", || {
        (served.get("/readyz").status == 200).then_some(())
    });

    cable.cut(true);
    until("the relay to notice", || {
        let figures = served.get("/metrics").body;
        figures
            .contains("counterfoil_store_errors_total")
            .then_some(())
    });
    assert_eq!(served.post(r#"{"event_type":"a"}"#).status, 503);
    until("unreadiness", || {
        (served.get("/readyz").status == 503).then_some(())
    });
    cable.cut(false);
    until("readiness", || {
        (served.get("/readyz").status == 200).then_some(())
    });
    served.signal("TERM");
    let (_, log) = served.end();

    let away: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("WARN"))
        .collect();
    assert_eq!(away.len(), 1, "{log}");
    assert!(away[0].contains("trying again"), "{log}");
}
