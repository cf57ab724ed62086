//! Transactional mode: claim, business and answer commit together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil::guard::State as RecordState;
use counterfoil::{Guard, Key, Rules};
use counterfoil_core::guard::{Fingerprint, RecordFilter};
use counterfoil_http::Policy;
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::app::{App, pay, quick, request};
use crate::database::{Scratch, TestDb};

fn app<D: TestDb>(scratch: Scratch<D>) -> App<D> {
    App::transactional(scratch, quick(), Policy::new())
}

pub(crate) async fn case_03_a_fresh_key_runs_once<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    let answer = app.pay("k", json!({"amount": 7})).await;

    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_04_a_repeat_gets_the_same_bytes<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);
    let first = app.pay("k", json!({"amount": 7})).await;

    for key in ["k", "\"k\""] {
        let again = app.pay(key, json!({"amount": 7})).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert!(again.replayed());
    }

    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_05_a_repeat_waits_for_the_answer_or_is_told_to_come_again<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let hasty = Guard::<D>::new(
        &app.shared.pool,
        Rules {
            wait: Duration::ZERO,
            ..Rules::default()
        },
    )
    .unwrap();
    let body = json!({"amount": 7, "do": "wait"});
    let first = app.spawn(pay("k", body.clone()));
    app.arrived(1).await;
    let key = Key::new("alice", "http", "k").unwrap();

    // Another process would see the same: it has its own requests only.
    let elsewhere = hasty.enter(&key, &Fingerprint([0; 32])).await.unwrap();
    let patient = app.spawn(pay("k", body));
    app.shared.go.add_permits(1);

    assert_eq!(elsewhere.label(), "in-progress");
    let (first, patient) = (first.await.unwrap(), patient.await.unwrap());
    assert_eq!(first.body, patient.body);
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_06_another_payload_is_refused<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);
    app.pay("k", json!({"amount": 7})).await;

    let other = app.pay("k", json!({"amount": 8})).await;

    assert_eq!(
        (other.status, other.problem().as_str()),
        (422, "key-reused")
    );
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_07_another_payload_meanwhile_waits_for_the_commit<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let first = app.spawn(pay("k", json!({"do": "wait"})));
    app.arrived(1).await;

    let other = app.spawn(pay("k", json!({"amount": 8})));
    app.shared.go.add_permits(1);

    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(other.await.unwrap().status, 422);
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_07_another_payload_is_in_progress_until_the_commit<D: TestDb>(
    scratch: Scratch<D>,
) {
    let hasty = Rules {
        wait: Duration::ZERO,
        ..Rules::default()
    };
    let app = App::transactional(scratch, hasty, Policy::new());
    let first = app.spawn(pay("k", json!({"do": "wait"})));
    app.arrived(1).await;

    let early = app.pay("k", json!({"amount": 8})).await;
    app.shared.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    let late = app.pay("k", json!({"amount": 8})).await;

    assert_eq!((early.status, late.status), (409, 422));
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_08_a_repeat_after_a_409_ends_as_a_replay<D: TestDb>(scratch: Scratch<D>) {
    let rules = Rules {
        wait: Duration::from_millis(20),
        ..Rules::default()
    };
    let app = App::transactional(scratch, rules, Policy::new());
    let body = json!({"amount": 7, "do": "wait"});
    let first = app.spawn(pay("k", body.clone()));
    app.arrived(1).await;

    let early = app.pay("k", body.clone()).await;
    app.shared.go.add_permits(1);
    let first = first.await.unwrap();
    let late = app.pay("k", body).await;

    assert_eq!(
        (early.status, early.problem().as_str()),
        (409, "in-progress")
    );
    assert!(early.header("retry-after").is_some());
    assert_eq!((late.replayed(), late.body), (true, first.body));
}

pub(crate) async fn case_10_callers_do_not_share_keys<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);
    let alice = app.pay("k", json!({"amount": 7})).await;
    let mut request = pay("k", json!({"amount": 9}));
    request
        .headers_mut()
        .insert("x-caller", "bob".parse().unwrap());

    let bob = app.send(request).await;

    assert_eq!((bob.status, bob.replayed()), (200, false));
    assert_ne!(alice.body, bob.body);
    assert_eq!(app.effects().await, 2);
}

pub(crate) async fn case_11_another_path_or_query_is_never_replayed<D: TestDb>(
    scratch: Scratch<D>,
) {
    let policy = Policy::new()
        .methods([http::Method::POST, http::Method::PUT])
        .unwrap();
    let app = App::transactional(scratch, quick(), policy);
    app.pay("k", json!({"amount": 7})).await;

    for (method, path) in [("POST", "/other"), ("POST", "/pay?x=1"), ("PUT", "/pay")] {
        let answer = app
            .send(request(
                method,
                path,
                Some("k"),
                json!({"amount": 7}).to_string(),
            ))
            .await;
        assert_eq!(answer.status, 422, "{method} {path}");
    }
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_11_the_whole_path_counts_inside_a_nested_router<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch).nested("/accounts/{id}");
    let pay = |account| {
        let path = format!("/accounts/{account}/pay");
        request("POST", &path, Some("k"), json!({"amount": 7}).to_string())
    };

    let first = app.send(pay(1)).await;
    let other = app.send(pay(2)).await;
    let again = app.send(pay(1)).await;

    assert_eq!((first.status, other.status), (200, 422));
    assert_eq!((again.replayed(), again.body), (true, first.body));
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_14_the_handler_finishes_when_the_caller_goes_away<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let body = json!({"amount": 7, "do": "wait"});
    let first = app.spawn(pay("k", body.clone()));
    app.arrived(1).await;

    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    app.shared.go.add_permits(1);
    let again = app.pay("k", body).await;

    assert_eq!((again.status, again.replayed()), (200, true));
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_15_an_answer_that_is_too_large_is_given_once<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);

    let first = app.pay("k", json!({"do": "big"})).await;
    let again = app.pay("k", json!({"do": "big"})).await;

    assert_eq!((first.status, first.body.len()), (200, 3 << 20));
    assert_eq!(
        (again.status, again.problem().as_str()),
        (410, "result-not-kept")
    );
    assert!(again.replayed());
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_16_a_stream_is_not_buffered<D: TestDb>(scratch: Scratch<D>) {
    streams_pass(app(scratch)).await;
}

/// The first piece is there before the handler has made the second.
pub(crate) async fn streams_pass<D: TestDb>(app: App<D>) {
    for (kind, first, second) in [
        ("stream", "a", "b"),
        ("events", "data: 1\n\n", "data: 2\n\n"),
    ] {
        let response = app.open(pay(kind, json!({"do": kind}))).await;
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();

        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece, first);
        app.shared.go.add_permits(1);
        assert_eq!(body.collect().await.unwrap().to_bytes(), second);

        let again = app.pay(kind, json!({"do": kind})).await;
        assert_eq!(
            (again.status, again.problem().as_str()),
            (410, "result-not-kept")
        );
    }
    assert_eq!((app.runs(), app.effects().await), (2, 2));
}

pub(crate) async fn case_17_refusals_are_not_recorded<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    for status in ["400", "401", "429"] {
        for _ in 0..2 {
            let answer = app.pay(status, json!({"do": status})).await;
            assert_eq!(
                (answer.status.to_string().as_str(), answer.replayed()),
                (status, false)
            );
        }
    }

    assert_eq!((app.runs(), app.effects().await), (6, 0));
}

pub(crate) async fn case_18_an_error_of_the_server_is_rolled_back_and_runs_again<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    app.shared.fail_first.store(1, Ordering::SeqCst);

    let first = app.pay("k", json!({"amount": 7})).await;
    let again = app.pay("k", json!({"amount": 7})).await;

    assert_eq!(
        (first.status, again.status, again.replayed()),
        (500, 200, false)
    );
    assert_eq!((app.runs(), app.effects().await), (2, 1));
}

pub(crate) async fn case_19_a_business_error_is_replayed_and_its_rows_are_taken_back<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);

    let first = app.pay("k", json!({"do": "404"})).await;
    let again = app.pay("k", json!({"do": "404"})).await;

    assert_eq!((first.status, again.status), (404, 404));
    assert_eq!((again.replayed(), again.body), (true, first.body));
    assert_eq!((app.runs(), app.effects().await), (1, 0));
}

pub(crate) async fn case_28_a_replay_keeps_what_belongs_to_the_answer<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);

    let first = app.pay("k", json!({"do": "headers"})).await;
    let again = app.pay("k", json!({"do": "headers"})).await;

    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    assert_eq!((again.status, &again.body[..]), (201, &b"made"[..]));
    assert_eq!(again.header("location"), Some("/payments/1"));
    assert_eq!(again.header("etag"), Some("\"v1\""));
    assert_eq!(again.header("cache-control"), Some("no-store"));
    let lines: Vec<_> = again.headers.get_all("x-line").iter().collect();
    assert_eq!(lines, ["one", "two"]);
    for gone in ["set-cookie", "date", "connection", "x-hop"] {
        assert_eq!(again.header(gone), None, "{gone}");
    }
}

pub(crate) async fn case_29_many_waiters_get_identical_bytes<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);
    let body = json!({"amount": 7, "do": "wait"});
    let first = app.spawn(pay("k", body.clone()));
    app.arrived(1).await;

    let waiters: Vec<_> = (0..100)
        .map(|_| app.spawn(pay("k", body.clone())))
        .collect();
    app.shared.go.add_permits(1);

    let first = first.await.unwrap();
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert_eq!((answer.status, &answer.body), (200, &first.body));
    }
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_29_after_a_failure_exactly_one_successor_runs<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let waiters: Vec<_> = (0..50)
        .map(|_| app.spawn(pay("k", json!({"amount": 7, "do": "wait"}))))
        .collect();
    app.arrived(1).await;
    app.shared.runs.store(0, Ordering::SeqCst);
    app.shared.fail_first.store(1, Ordering::SeqCst);

    // The one that waits goes on and succeeds; the failure is for whoever would come second.
    app.shared.go.add_permits(1);

    let mut bodies = std::collections::HashSet::new();
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert_eq!(answer.status, 200);
        bodies.insert(answer.body);
    }
    assert_eq!((bodies.len(), app.runs(), app.effects().await), (1, 0, 1));

    let many: Vec<_> = (0..50)
        .map(|_| app.spawn(pay("k2", json!({"amount": 7}))))
        .collect();
    let mut statuses = Vec::new();
    for one in many {
        statuses.push(one.await.unwrap().status);
    }
    assert_eq!(statuses.iter().filter(|s| **s == 500).count(), 1);
    assert_eq!((app.runs(), app.effects().await), (2, 2));
}

pub(crate) async fn case_34_authorisation_runs_before_the_guard<D: TestDb>(scratch: Scratch<D>) {
    let allowed = Arc::new(AtomicBool::new(true));
    let door = Arc::clone(&allowed);
    let app = app(scratch).behind(axum::middleware::from_fn(
        move |request: axum::extract::Request, next: axum::middleware::Next| {
            let door = Arc::clone(&door);
            async move {
                if door.load(Ordering::SeqCst) {
                    next.run(request).await
                } else {
                    axum::response::IntoResponse::into_response(http::StatusCode::FORBIDDEN)
                }
            }
        },
    ));
    assert_eq!(app.pay("k", json!({})).await.status, 200);

    allowed.store(false, Ordering::SeqCst);

    assert_eq!(app.pay("k", json!({})).await.status, 403);
}

pub(crate) async fn case_36_a_repeated_serial_is_a_plain_duplicate_where_wanted<D: TestDb>(
    scratch: Scratch<D>,
) {
    let policy = Policy::new().header("x-serial").unwrap().plain_duplicate();
    let app = App::transactional(scratch, quick(), policy);
    let send = || {
        let mut request = request("POST", "/pay", None, "{}");
        request
            .headers_mut()
            .insert("x-serial", "0007".parse().unwrap());
        request
    };

    let first = app.send(send()).await;
    let again = app.send(send()).await;

    assert_eq!(first.status, 200);
    assert_eq!((again.status, again.problem().as_str()), (409, "duplicate"));
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_38_in_overwrite_mode_the_newer_runs<D: TestDb>(scratch: Scratch<D>) {
    let app = App::transactional(scratch, quick().overwrite(), Policy::new());

    let first = app.pay("k", json!({"amount": 1})).await;
    let newer = app.pay("k", json!({"amount": 2})).await;
    let again = app.pay("k", json!({"amount": 2})).await;

    assert_eq!(
        (first.status, newer.status, newer.replayed()),
        (200, 200, false)
    );
    assert_ne!(first.body, newer.body);
    assert_eq!((again.replayed(), again.body), (true, newer.body));
    assert_eq!(app.runs(), 2);
}

pub(crate) async fn case_39_keys_that_look_alike_are_different<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);
    let long = format!("\"{}\"", "x".repeat(300));

    for key in ["\"Ab\"", "\"ab\"", "\"ab \""] {
        let answer = app.pay(key, json!({})).await;
        assert_eq!((answer.status, answer.replayed()), (200, false), "{key}");
    }

    assert_eq!(app.pay(&long, json!({})).await.status, 400);
    assert_eq!(app.runs(), 3);
}

pub(crate) async fn case_41_a_swallowed_error_records_nothing<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    let first = app.pay("k", json!({"do": "swallow"})).await;

    let records = app
        .guard
        .records()
        .list(&RecordFilter::default())
        .await
        .unwrap();
    if D::A_FAILED_STATEMENT_DOOMS {
        assert_eq!((first.status, first.problem().as_str()), (500, "internal"));
        assert_eq!((app.effects().await, records.len()), (0, 0));
        assert_eq!(app.pay("k", json!({"amount": 1})).await.status, 200);
    } else {
        assert_eq!(first.status, 200);
        assert_eq!(records[0].record.state, RecordState::Succeeded);
    }
    assert_eq!(app.effects().await, 1);
}

pub(crate) async fn case_42_many_duplicates_and_few_connections<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    let many: Vec<_> = (0..200)
        .map(|_| app.spawn(pay("k", json!({"amount": 7}))))
        .collect();

    let mut bodies = std::collections::HashSet::new();
    for one in many {
        let answer = one.await.unwrap();
        assert_eq!(answer.status, 200);
        bodies.insert(answer.body);
    }
    assert_eq!((bodies.len(), app.runs(), app.effects().await), (1, 1, 1));
}

pub(crate) async fn a_panic_rolls_back_and_the_repeat_runs<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    let first = app.pay("k", json!({"do": "panic"})).await;
    let again = app.pay("k", json!({"do": "panic"})).await;
    let other = app.pay("k", json!({"amount": 1})).await;

    assert_eq!((first.status, again.status), (500, 500));
    assert_eq!(other.status, 200);
    assert_eq!((app.runs(), app.effects().await), (3, 1));
}

pub(crate) async fn a_handler_that_keeps_the_transaction_commits_nothing<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);

    let answer = app.pay("k", json!({"do": "keep"})).await;

    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (500, "internal")
    );
    assert_eq!((app.let_go(), app.effects().await), (1, 0));
    let again = app.pay("k", json!({"amount": 7})).await;
    assert_eq!((again.status, again.replayed()), (200, false));
    assert_eq!((app.runs(), app.effects().await), (2, 1));
}

pub(crate) async fn an_error_that_may_pass_later_runs_again<D: TestDb>(scratch: Scratch<D>) {
    let rules = Rules {
        attempts: 2,
        ..quick()
    };
    let app = App::transactional(scratch, rules, Policy::new());

    let first = app.pay("k", json!({"do": "later"})).await;
    let mut answer = app.pay("k", json!({"do": "later"})).await;
    while answer.status == 409 && !answer.replayed() && app.runs() < 2 {
        assert_eq!(answer.problem(), "retry-later");
        tokio::time::sleep(Duration::from_millis(10)).await;
        answer = app.pay("k", json!({"do": "later"})).await;
    }
    let last = app.pay("k", json!({"do": "later"})).await;

    assert_eq!((first.status, &first.body[..]), (409, &b"not yet"[..]));
    assert_eq!((last.status, last.replayed()), (409, true));
    assert_eq!((app.runs(), app.effects().await), (2, 0));
}
