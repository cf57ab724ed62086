//! The cases of the guard, at the gateway.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use counterfoil_core::guard::State;
use counterfoil_http::Policy;
use counterfoil_http::gateway::{Guarded, Probe, UpstreamSettings};
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::client::{self, order};
use crate::house::{House, guarded, policy, quick};

pub(crate) async fn gateway_case_03_a_fresh_key_runs_once_and_carries_its_numbers(house: House) {
    let door = house.door().await;

    let first = door.order("\"k-1\"", "").await;
    let again = door.order("k-1", "").await;

    assert_eq!((first.status, first.replayed()), (201, false));
    assert_eq!((again.status, again.replayed()), (201, true));
    assert_eq!(again.body, first.body);
    let seen = first.json();
    assert!(seen["fence"].as_str().unwrap().parse::<i64>().unwrap() > 0);
    assert_eq!(seen["attempt"], "1");
    assert_eq!(seen["key"], "\"k-1\"");
    assert_eq!(house.upstream.calls().await, 1);
    assert_eq!(house.state_of("k-1").await, Some(State::Succeeded));
}

pub(crate) async fn gateway_case_07_another_payload_is_refused_while_the_first_is_under_way(
    house: House,
) {
    let door = house.door().await;
    let first = door.spawn("k", "hold-before");
    house.upstream.waiting(1).await;

    let other = door.order("k", "").await;
    house.upstream.go().await;

    assert_eq!(
        (other.status, other.problem().as_str()),
        (422, "key-reused")
    );
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn gateway_case_10_callers_do_not_share_keys(house: House) {
    let door = house.door().await;
    let from = |caller: &'static [&'static str]| {
        let mut request = order("k", "");
        request.headers_mut().remove("x-caller");
        for line in caller {
            request
                .headers_mut()
                .append("x-caller", line.parse().unwrap());
        }
        client::send(door.address, request)
    };

    let (alice, bob) = (from(&["alice"]).await, from(&["bob"]).await);
    let nobody = [
        from(&[]).await,
        from(&[""]).await,
        from(&["alice", "bob"]).await,
    ];

    assert!(!alice.replayed() && !bob.replayed());
    assert_ne!(alice.body, bob.body);
    for answer in nobody {
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (401, "caller-unknown")
        );
    }
    assert_eq!(from(&["bob"]).await.body, bob.body);
    assert_eq!(house.upstream.calls().await, 2);
}

pub(crate) async fn hosts_do_not_share_keys(house: House) {
    let door = house.door().await;
    let to = |door: SocketAddr, host: &'static str| {
        let mut request = order("k", "");
        request.headers_mut().insert("host", host.parse().unwrap());
        client::send(door, request)
    };

    let shop = to(door.address, "shop.example").await;
    let bank = to(door.address, "bank.example").await;
    let other_port = to(door.address, "shop.example:8080").await;

    for fresh in [&shop, &bank, &other_port] {
        assert_eq!((fresh.status, fresh.replayed()), (201, false));
    }
    for spelling in [
        "Shop.Example",
        "shop.example.",
        "shop.example:80",
        "SHOP.example.:443",
    ] {
        let again = to(door.address, spelling).await;
        assert_eq!(
            (again.replayed(), &again.body),
            (true, &shop.body),
            "{spelling}"
        );
    }
    assert_eq!(to(door.address, "bank.example").await.body, bank.body);
    assert_eq!(house.upstream.calls().await, 3);

    // One service under several names, where its gateway is told so.
    let one = Guarded {
        policy: policy().business_type("one").unwrap(),
        per_host: false,
        ..guarded()
    };
    let one = house.door_with(house.route(quick(), Some(one))).await;
    let first = to(one.address, "shop.example").await;
    let again = to(one.address, "bank.example").await;
    assert_eq!((again.replayed(), again.body), (true, first.body));
}

pub(crate) async fn a_probe_asks_the_host_of_the_request(house: House) {
    let guard = Guarded {
        probe: Some(
            Probe::parse("GET /orders?ref={key}")
                .unwrap()
                .header("Authorization", "Bearer probe")
                .unwrap(),
        ),
        ..guarded()
    };
    let door = house.door_with(house.route(quick(), Some(guard))).await;
    door.order("private", "vanish-after").await;

    probed(&door, (1, 0)).await;

    assert_eq!(house.state_of("private").await, Some(State::Succeeded));
}

pub(crate) async fn gateway_case_13_an_upload_that_breaks_off_claims_nothing(house: House) {
    let door = house.door().await;
    let head = "POST /orders HTTP/1.1\r\nhost: a\r\nx-caller: alice\r\nidempotency-key: k\r\n";

    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let part = format!("{head}content-length: 100\r\n\r\n{{\"do\":");
    stream.write_all(part.as_bytes()).await.unwrap();
    drop(stream);
    let broken = format!("{head}transfer-encoding: chunked\r\n\r\n4\r\nabcdXX\r\n");
    let told = client::raw(door.address, broken.as_bytes()).await;

    assert!(told.starts_with("HTTP/1.1 400 "), "{told}");
    assert_eq!(house.upstream.calls().await, 0);
    assert_eq!(house.state_of("k").await, None);
    assert_eq!(door.order("k", "").await.status, 201);
}

pub(crate) async fn gateway_case_14_the_service_is_heard_out_when_the_caller_goes_away(
    house: House,
) {
    let door = house.door().await;
    let caller = door.spawn("k", "hold-after");
    house.upstream.waiting(1).await;

    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    house.upstream.go().await;
    let again = door.order("k", "hold-after").await;

    assert_eq!((again.status, again.replayed()), (201, true));
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn gateway_case_15_an_answer_that_is_too_large_is_given_once(house: House) {
    let door = house.door().await;

    let first = door.order("k", "big").await;
    let again = door.order("k", "big").await;

    assert_eq!(first.status, 200);
    assert!(first.body.len() > 3 << 20);
    assert_eq!(
        (again.status, again.problem().as_str()),
        (410, "result-not-kept")
    );
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn gateway_case_16_streams_are_not_buffered(house: House) {
    let door = house.door().await;
    for (key, what, piece) in [("e", "events", "data: 1\n\n"), ("s", "stream", "first,")] {
        let mut sender = client::connect(door.address).await;
        let response = sender.send_request(order(key, what)).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();

        // The first piece is here while the service has not written the second.
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        house.upstream.waiting(1).await;
        house.upstream.go().await;
        let rest = body.collect().await.unwrap().to_bytes();

        assert_eq!(first, piece);
        assert!(!rest.is_empty());
        let again = door.order(key, what).await;
        assert_eq!(
            (again.status, again.problem().as_str()),
            (410, "result-not-kept")
        );
    }
    let first = door.order("c", "chunked").await;
    let again = door.order("c", "chunked").await;
    assert_eq!((again.replayed(), again.body), (true, first.body));
    assert_eq!(house.upstream.calls().await, 3);
}

pub(crate) async fn gateway_case_18_an_error_of_the_service_is_uncertain_harmless_or_final(
    house: House,
) {
    let door = house.door().await;

    for what in ["500", "503", "501", "409", "422", "401"] {
        assert_eq!(door.order(what, what).await.status.to_string(), what);
    }
    let doubt = door.order("500", "500").await;
    let harmless = door.order("503", "503").await;
    let last = door.order("501", "501").await;
    let business = door.order("409", "409").await;
    let invalid = door.order("422", "422").await;
    let refused = door.order("401", "401").await;

    assert_eq!(
        (doubt.status, doubt.problem().as_str()),
        (409, "outcome-uncertain")
    );
    assert_eq!((harmless.status, harmless.replayed()), (503, false));
    assert_eq!((last.status, last.replayed()), (501, true));
    assert_eq!((business.status, business.replayed()), (409, true));
    assert_eq!((invalid.status, invalid.replayed()), (422, true));
    assert_eq!((refused.status, refused.replayed()), (401, false));
    assert_eq!(house.upstream.calls().await, 8);
}

pub(crate) async fn gateway_case_20_no_byte_reached_the_service_and_the_repeat_runs(
    mut house: House,
) {
    let door = house.door().await;
    house.upstream.kill();

    let told = door.order("k", "").await;

    assert_eq!(
        (told.status, told.problem().as_str()),
        (502, "service-unreachable")
    );
    assert!(told.headers.contains_key("retry-after"));
    assert_eq!(house.state_of("k").await, None);
    house.upstream.run();
    assert_eq!(door.order("k", "").await.status, 201);
    assert_eq!(house.upstream.effects().await, 1);
}

pub(crate) async fn gateway_case_20_a_connection_that_was_closed_meanwhile_costs_nothing(
    mut house: House,
) {
    let door = house.door().await;
    for round in 0..5 {
        let answer = door.order(&format!("k-{round}"), "").await;
        assert_eq!((answer.status, answer.replayed()), (201, false));
        // The connection that waits for the next request dies with the service.
        house.upstream.kill();
        house.upstream.run();
    }
    assert_eq!(house.upstream.effects().await, 5);
}

/// Rounds of the probe, until so many requests are settled or released.
async fn probed(door: &crate::house::Door, (settled, released): (u32, u32)) {
    let started = Instant::now();
    let (mut now_settled, mut now_released) = (0, 0);
    while (now_settled, now_released) != (settled, released) {
        let round = door.gateway.reconcile().round().await.unwrap();
        now_settled += round.settled;
        now_released += round.released;
        assert!(started.elapsed() < Duration::from_secs(20), "{round:?}");
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn gateway_case_21_a_lost_answer_is_uncertain_and_a_probe_settles_it(
    house: House,
) {
    let door = house.door_with(house.route(quick(), Some(guarded()))).await;
    let kept = Guarded {
        policy: policy().business_type("kept").unwrap(),
        probe: Some(
            Probe::parse("GET /orders?ref={key}")
                .unwrap()
                .keep_answer(1000)
                .unwrap(),
        ),
        ..guarded()
    };
    let keeping = house.door_with(house.route(quick(), Some(kept))).await;

    let before = door.order("before", "vanish-before").await;
    let after = door.order("after&ref=x", "vanish-after").await;
    let sick = door.order("sick", "vanish-after").await;
    let with_answer = keeping.order("kept", "vanish-after").await;

    for told in [before, after, sick, with_answer] {
        assert_eq!(
            (told.status, told.problem().as_str()),
            (502, "service-unanswered")
        );
    }
    let calls = house.upstream.calls().await;
    for key in ["before", "after&ref=x", "sick"] {
        let what = if key == "before" {
            "vanish-before"
        } else {
            "vanish-after"
        };
        let told = door.order(key, what).await;
        assert_eq!(
            (told.status, told.problem().as_str()),
            (409, "outcome-uncertain")
        );
    }
    assert_eq!(house.upstream.calls().await, calls);

    probed(&door, (1, 1)).await;
    probed(&keeping, (1, 0)).await;

    let happened = door.order("after&ref=x", "vanish-after").await;
    assert_eq!(
        (happened.status, happened.problem().as_str()),
        (410, "result-not-kept")
    );
    let unknown = door.order("sick", "vanish-after").await;
    assert_eq!(unknown.problem(), "outcome-uncertain");
    let found = keeping.order("kept", "vanish-after").await;
    assert_eq!((found.status, found.replayed()), (200, true));
    assert!(found.json()["order"].is_u64());
    assert_eq!(house.upstream.calls().await, calls);
    let rerun = door.order("before", "vanish-before").await;
    assert_eq!(rerun.problem(), "service-unanswered");
    assert_eq!(house.upstream.calls().await, calls + 1);
}

pub(crate) async fn gateway_case_21_a_probe_carries_what_the_service_asks_for(house: House) {
    let probe = Probe::parse("GET /orders?ref={key}").unwrap();
    let probe = probe.host("shop.example").unwrap();
    let probe = probe.header("Authorization", "Bearer probe").unwrap();
    let guard = Guarded {
        probe: Some(probe),
        ..guarded()
    };
    let door = house.door_with(house.route(quick(), Some(guard))).await;
    door.order("private", "vanish-after").await;

    // A service that tells strangers 404 would have had it done again.
    probed(&door, (1, 0)).await;

    assert_eq!(house.state_of("private").await, Some(State::Succeeded));
    let again = door.order("private", "vanish-after").await;
    assert_eq!(again.problem(), "result-not-kept");
    assert_eq!(house.upstream.effects().await, 1);
}

pub(crate) async fn gateway_case_21_who_finds_out_is_said_as_it_is(house: House) {
    let unprobed = |degraded| Guarded {
        probe: None,
        policy: policy().business_type("unprobed").unwrap(),
        degraded,
        ..guarded()
    };
    let probed = house.door().await;
    let route = house.route(quick(), Some(unprobed(None)));
    let by_hand = house.door_with(route).await;
    let accepting = Some(Duration::from_secs(7));
    let route = house.route(quick(), Some(unprobed(accepting)));
    let accepting = house.door_with(route).await;

    for (door, by_itself) in [(&probed, true), (&by_hand, false)] {
        door.order("k", "vanish-after").await;
        let told = door.order("k", "vanish-after").await;

        assert_eq!(told.problem(), "outcome-uncertain");
        assert_eq!(told.headers.contains_key("retry-after"), by_itself);
        let detail = told.json()["detail"].as_str().unwrap().to_owned();
        assert_eq!(detail.contains("It is being found out"), by_itself);
        assert_eq!(detail.contains("An operator"), !by_itself);
    }
    let told = accepting.order("k", "vanish-after").await;
    assert_eq!(told.status, 202);
    let detail = told.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("An operator"), "{detail}");
}

pub(crate) async fn a_guarded_method_in_lower_case_is_refused(house: House) {
    let guard = Guarded {
        policy: Policy::new().business_type("orders").unwrap(),
        ..guarded()
    };
    let door = house.door_with(house.route(quick(), Some(guard))).await;

    for method in ["post", "Patch"] {
        for key in ["", "idempotency-key: k\r\n"] {
            let request = format!(
                "{method} /orders HTTP/1.1\r\nhost: a\r\nx-caller: alice\r\n{key}\
                 connection: close\r\ncontent-length: 2\r\n\r\n{{}}"
            );
            let told = client::raw(door.address, request.as_bytes()).await;
            assert!(told.starts_with("HTTP/1.1 501 "), "{told}");
            assert!(told.contains("method-unknown"), "{told}");
        }
    }
    assert_eq!(house.upstream.calls().await, 0);
}

pub(crate) async fn gateway_case_21_silence_is_uncertain(house: House) {
    let settings = UpstreamSettings {
        timeout: Duration::from_millis(300),
        ..quick()
    };
    let door = house
        .door_with(house.route(settings, Some(guarded())))
        .await;

    let told = door.order("k", "hang").await;
    let again = door.order("k", "hang").await;

    assert_eq!(
        (told.status, told.problem().as_str()),
        (504, "service-unanswered")
    );
    assert_eq!(
        (again.status, again.problem().as_str()),
        (409, "outcome-uncertain")
    );
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn gateway_case_21_a_broken_answer_is_uncertain(house: House) {
    let door = house.door().await;

    let told = door.order("k", "broken-answer").await;
    let again = door.order("k", "broken-answer").await;

    assert_eq!(told.status, 500);
    assert_eq!(again.problem(), "outcome-uncertain");
    assert_eq!(house.upstream.effects().await, 1);
}

pub(crate) async fn gateway_case_28_a_replay_keeps_what_belongs_to_the_answer(house: House) {
    let door = house.door().await;

    let first = door.order("k", "").await;
    let again = door.order("k", "").await;

    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    assert_eq!(first.header("cache-control"), Some("max-age=60"));
    assert_eq!(first.header("x-hop"), None);
    assert_eq!(again.header("set-cookie"), None);
    assert_eq!(again.header("x-hop"), None);
    assert_eq!(again.header("cache-control"), Some("no-store"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.header("etag"), Some("\"v1\""));
    let lines: Vec<_> = again.headers.get_all("x-line").iter().collect();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(again.body, first.body);
}

pub(crate) async fn gateway_case_29_two_hundred_duplicates_are_one_call(house: House) {
    let door = house.door().await;
    let callers: Vec<_> = (0..200).map(|_| door.spawn("k", "hold-after")).collect();
    house.upstream.waiting(1).await;
    house.upstream.go().await;

    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }

    assert_eq!(answers.iter().filter(|a| !a.replayed()).count(), 1);
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
    }
    let state = house.upstream.state().await;
    assert_eq!(state["calls"], 1);
    assert_eq!(state["effects"].as_array().unwrap().len(), 1);
}

pub(crate) async fn gateway_case_29_after_a_failure_exactly_one_successor_runs(house: House) {
    let door = house.door().await;
    let callers: Vec<_> = (0..100).map(|_| door.spawn("k", "fail-once")).collect();
    house.upstream.waiting(1).await;
    house.upstream.go().await;

    let mut failed = 0;
    let mut bodies = std::collections::HashSet::new();
    for caller in callers {
        let answer = caller.await.unwrap();
        match answer.status {
            503 => failed += 1,
            _ => drop(bodies.insert(answer.body)),
        }
    }

    assert_eq!((failed, bodies.len()), (1, 1));
    assert_eq!(house.upstream.effects().await, 1);
    assert_eq!(house.upstream.calls().await, 2);
    // Bodies of requests without a key are not guarded at all.
    let free = client::request("POST", "/orders").body(Body::from("{}"));
    assert!(!client::send(door.address, free.unwrap()).await.replayed());
}

/// A request to a service that tells what it got, under the key `k` unless it has another.
async fn echo(door: &crate::house::Door, kind: &str, key: &str, body: &str) -> client::Answer {
    let request = client::request("POST", "/echo")
        .header("content-type", kind)
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()));
    client::send(door.address, request.unwrap()).await
}

pub(crate) async fn gateway_case_33_json_in_another_spelling_is_the_same_payload(house: House) {
    let json = "application/json";
    let (first, second) = (
        r#"{"amount":7,"to":"bob","sent_at":1}"#,
        "{ \"to\" : \"bob\",\n\"sent_at\": 1, \"amount\":7 }",
    );
    let later = r#"{"amount":7,"to":"bob","sent_at":2}"#;
    let kinds = [
        ("bytes", policy()),
        ("canonical", policy().canonical_json()),
        ("ignored", policy().ignored_fields(["sent_at"])),
    ];
    for (n, (kind, policy)) in kinds.into_iter().enumerate() {
        let guard = Guarded {
            policy: policy.business_type(kind).unwrap(),
            ..guarded()
        };
        let door = house.door_with(house.route(quick(), Some(guard))).await;

        let one = echo(&door, json, "k", first).await;
        let spelled = echo(&door, json, "k", second).await;
        let sent_later = echo(&door, json, "k", later).await;

        assert_eq!((one.status, one.replayed()), (200, false), "{kind}");
        assert_eq!(spelled.replayed(), n >= 1, "{kind}");
        assert_eq!(sent_later.replayed(), n >= 2, "{kind}");
        let other = echo(&door, json, "k", r#"{"amount":8,"to":"bob","sent_at":1}"#).await;
        assert_eq!(other.problem(), "key-reused", "{kind}");
    }
    assert_eq!(house.upstream.calls().await, 3);
}

pub(crate) async fn gateway_case_02_where_keys_are_strict_a_bare_one_is_refused(house: House) {
    let guard = Guarded {
        policy: policy().strict_syntax(),
        ..guarded()
    };
    let door = house.door_with(house.route(quick(), Some(guard))).await;

    let bare = door.order("k", "").await;
    assert_eq!(
        (bare.status, bare.problem().as_str()),
        (400, "key-malformed")
    );
    assert_eq!(house.state_of("k").await, None);
    assert_eq!(door.order("\"k\"", "").await.status, 201);
    assert_eq!(house.upstream.calls().await, 1);
}

pub(crate) async fn gateway_case_40_a_form_with_another_boundary_is_the_same_payload(house: House) {
    let door = house.door().await;
    let form = async |boundary: &str, amount: u32| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n\
             {amount}\r\n--{boundary}--\r\n"
        );
        let kind = format!("multipart/form-data; boundary={boundary}");
        echo(&door, &kind, "k", &body).await
    };

    let (one, two, other) = (
        form("aaa", 7).await,
        form("bbb", 7).await,
        form("aaa", 8).await,
    );

    assert_eq!((one.status, one.replayed()), (200, false));
    assert_eq!((two.replayed(), two.body), (true, one.body));
    assert_eq!(other.problem(), "key-reused");
    assert_eq!(house.upstream.calls().await, 1);
}
