//! Leased mode: claim, run anything, record how it came out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil::guard::{End, Ended, Entered, Reconciler, Record, Verdict};
use counterfoil::{Fingerprint, Key, Rules};
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Change, Snapshot};
use counterfoil_http::Policy;
use http::StatusCode;
use serde_json::json;

use crate::app::{App, pay, quick};
use crate::database::{Scratch, TestDb};

fn app<D: TestDb>(scratch: Scratch<D>) -> App<D> {
    App::leased(scratch, quick(), Policy::new())
}

pub(crate) async fn case_04_leased_a_repeat_gets_the_same_bytes<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    let first = app.pay("k", json!({"amount": 7})).await;
    let again = app.pay("k", json!({"amount": 7})).await;

    assert_eq!(
        (first.status, first.replayed(), again.replayed()),
        (200, false, true)
    );
    assert_eq!(first.body, again.body);
    assert_eq!((app.runs(), app.effects().await), (1, 1));
}

pub(crate) async fn case_07_another_payload_meanwhile_is_refused_at_once<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let first = app.spawn(pay("k", json!({"do": "wait"})));
    app.arrived(1).await;

    let other = app.pay("k", json!({"amount": 8})).await;
    app.shared.go.add_permits(1);

    assert_eq!(other.status, 422);
    assert_eq!(first.await.unwrap().status, 200);
}

pub(crate) async fn case_14_leased_the_handler_finishes_when_the_caller_goes_away<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let body = json!({"amount": 7, "do": "wait"});
    let first = app.spawn(pay("k", body.clone()));
    app.arrived(1).await;

    first.abort();
    app.shared.go.add_permits(1);
    let again = app.pay("k", body).await;

    assert_eq!((again.status, again.replayed(), app.runs()), (200, true, 1));
}

pub(crate) async fn case_16_leased_a_stream_is_not_buffered<D: TestDb>(scratch: Scratch<D>) {
    crate::transactional::streams_pass(app(scratch)).await;
}

/// Only statuses that say by themselves that nothing was done.
pub(crate) async fn case_17_leased_refusals_are_not_recorded<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    for status in ["401", "429"] {
        for _ in 0..2 {
            let answer = app.pay(status, json!({"do": status})).await;
            assert_eq!(
                (answer.status.to_string().as_str(), answer.replayed()),
                (status, false)
            );
        }
    }

    assert_eq!(app.runs(), 4);
}

pub(crate) async fn case_18_an_error_of_the_server_leaves_uncertainty<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);

    // A time limit around the handler says 408.
    for status in ["500", "408"] {
        let first = app.pay(status, json!({"do": status})).await;
        let again = app.pay(status, json!({"do": status})).await;

        assert_eq!(first.status.to_string(), status);
        assert_eq!(
            (again.status, again.problem().as_str()),
            (409, "outcome-uncertain")
        );
        // Nobody finds out by itself.
        assert_eq!(again.header("retry-after"), None);
        let text = String::from_utf8_lossy(&again.body).into_owned();
        assert!(text.contains("An operator"), "{text}");
    }
    assert_eq!(app.runs(), 2);
}

pub(crate) async fn a_repeat_comes_again_where_a_check_finds_out<D: TestDb>(scratch: Scratch<D>) {
    let app = App::leased(scratch, quick(), Policy::new().reconciled());

    app.pay("k", json!({"do": "500"})).await;
    let again = app.pay("k", json!({"do": "500"})).await;

    assert_eq!(again.problem(), "outcome-uncertain");
    assert!(again.header("retry-after").is_some());
}

/// The handler has begun, and nothing that it did is taken back.
pub(crate) async fn case_19_leased_a_business_error_is_replayed<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);

    for status in ["400", "403", "404", "422"] {
        let first = app.pay(status, json!({"do": status})).await;
        let again = app.pay(status, json!({"do": status})).await;

        assert_eq!(first.status.to_string(), status);
        assert_eq!((again.status, again.replayed()), (first.status, true));
    }

    assert_eq!((app.runs(), app.effects().await), (4, 4));
}

pub(crate) async fn of_failures_little_is_kept_and_none_runs_again<D: TestDb>(scratch: Scratch<D>) {
    let policy = Policy::new().max_failure(100).failure_quota(150);
    let app = App::leased(scratch, quick(), policy);
    let told = async |key: &str, body: serde_json::Value| {
        let first = app.pay(key, body.clone()).await;
        let again = app.pay(key, body).await;
        assert_eq!((first.replayed(), again.replayed()), (false, true));
        (first.status, again.status)
    };
    // One is all that this caller may have kept.
    let large = json!({"do": "refused", "size": 101});
    assert_eq!(told("large", large).await, (409, 410));
    let fits = json!({"do": "refused", "size": 90});
    assert_eq!(told("one", fits.clone()).await, (409, 409));
    assert_eq!(told("two", fits).await, (409, 410));
    // What took effect has nothing to do with it, and neither have others.
    assert_eq!(told("done", json!({"amount": 7})).await, (200, 200));
    let mut other = pay("k", json!({"do": "409"}));
    other
        .headers_mut()
        .insert("x-caller", "bob".parse().unwrap());
    assert_eq!(app.send(other).await.status, 409);
    assert_eq!(app.runs(), 5);

    let key = Key::new("alice", "http", "one").unwrap().digest();
    let kept = app.guard.records().look(&key).await.unwrap().unwrap();
    let hours = (kept.record.expires_at - kept.now).num_hours();
    assert!(hours <= 24, "kept for {hours} hours");
}

pub(crate) async fn case_18_a_harmless_error_runs_again_and_a_final_one_is_replayed<D: TestDb>(
    scratch: Scratch<D>,
) {
    let policy = Policy::new()
        .harmless([StatusCode::SERVICE_UNAVAILABLE])
        .final_errors([StatusCode::NOT_IMPLEMENTED]);
    let app = App::leased(scratch, quick(), policy);

    for _ in 0..2 {
        let harmless = app.pay("h", json!({"do": "503"})).await;
        assert_eq!((harmless.status, harmless.replayed()), (503, false));
    }
    let last = app.pay("f", json!({"do": "501"})).await;
    let again = app.pay("f", json!({"do": "501"})).await;

    assert_eq!(
        (last.status, again.status, again.replayed()),
        (501, 501, true)
    );
    assert_eq!(app.runs(), 3);
}

pub(crate) async fn case_23_a_stale_owner_gets_the_winners_answer<D: TestDb>(scratch: Scratch<D>) {
    let app = app(scratch);
    let key = Key::new("alice", "http", "k").unwrap();
    let asked = Fingerprint([1; 32]);
    let Entered::Fresh(first) = app.guard.enter_leased(&key, &asked).await.unwrap() else {
        panic!("not fresh")
    };

    // The lease was lost, and somebody found out that nothing had happened.
    let released = app
        .guard
        .records()
        .change(&key.digest(), first.fence(), &Change::Release)
        .await;
    // A rival in another process.
    let rival = counterfoil::Guard::<D>::new(&app.shared.pool, quick()).unwrap();
    let Entered::Fresh(second) = rival.enter_leased(&key, &asked).await.unwrap() else {
        panic!("not fresh")
    };
    assert!(released.unwrap() && second.fence() > first.fence());
    let won = second
        .end(End::Succeeded(Snapshot::json(&"second").unwrap()))
        .await;
    let late = first
        .end(End::Succeeded(Snapshot::json(&"first").unwrap()))
        .await;

    assert!(matches!(won, Ok(Ended::Recorded(_))));
    let Ok(Ended::Lost(Some(there))) = late else {
        panic!("a stale owner was believed")
    };
    assert_eq!(
        there.record.snapshot,
        Some(Snapshot::json(&"second").unwrap())
    );
}

pub(crate) async fn case_23_the_caller_of_a_stale_owner_gets_the_winners_answer<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let first = app.spawn(pay("k", json!({"do": "wait"})));
    app.arrived(1).await;
    let key = Key::new("alice", "http", "k").unwrap();
    let records = app.guard.records();
    let found = records.look(&key.digest()).await.unwrap().unwrap();

    assert!(records.settle(&found, &Change::Release).await.unwrap());
    let rival = counterfoil::Guard::<D>::new(&app.shared.pool, quick()).unwrap();
    let entered = rival.enter_leased(&key, &found.record.fingerprint).await;
    let Ok(Entered::Fresh(second)) = entered else {
        panic!("not fresh")
    };
    let answer = Snapshot {
        status: 201,
        headers: Vec::new(),
        body: Some("of the second".into()),
    };
    second.end(End::Succeeded(answer)).await.unwrap();
    app.shared.go.add_permits(1);

    let told = first.await.unwrap();
    assert_eq!(
        (told.status, told.replayed(), &told.body[..]),
        (201, true, &b"of the second"[..])
    );
}

pub(crate) async fn case_24_a_handler_longer_than_its_lease_stays_exclusive<D: TestDb>(
    scratch: Scratch<D>,
) {
    let lease = Duration::from_secs(3);
    let rules = Rules { lease, ..quick() };
    let app = App::leased(scratch, rules, Policy::new());
    let body = json!({"amount": 7, "do": "wait"});
    let first = app.spawn(pay("k", body.clone()));
    app.arrived(1).await;

    // More than two leases, by the database's clock. A beat that is late looks like a death until
    // it is there: only that it comes counts.
    let key = Key::new("alice", "http", "k").unwrap().digest();
    let records = app.guard.records();
    let look = async || records.look(&key).await.unwrap().unwrap().record;
    let first_end = look().await.lease_until.unwrap();
    let renewed = async {
        loop {
            let record = look().await;
            assert_eq!(record.state, counterfoil::guard::State::Processing);
            let stuck = records.stuck(Duration::ZERO, None, 10).await.unwrap();
            let longer = record.lease_until.unwrap() - first_end;
            if longer.to_std().unwrap() > 2 * lease && stuck.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let renewed = tokio::time::timeout(Duration::from_secs(60), renewed).await;
    renewed.expect("the lease is not renewed");
    app.shared.go.add_permits(1);

    assert_eq!(first.await.unwrap().status, 200);
    assert!(app.pay("k", body).await.replayed());
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_38_in_overwrite_mode_the_older_is_fenced_off<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::leased(scratch, quick().overwrite(), Policy::new());
    let older = app.spawn(pay("k", json!({"amount": 1, "do": "wait"})));
    app.arrived(1).await;

    let newer = app.pay("k", json!({"amount": 2})).await;
    app.shared.go.add_permits(1);
    let older = older.await.unwrap();

    assert_eq!((newer.status, newer.replayed()), (200, false));
    assert_eq!((older.replayed(), &older.body), (true, &newer.body));
    let again = app.pay("k", json!({"amount": 2})).await;
    assert_eq!(again.body, newer.body);
}

struct Says(Verdict);

#[async_trait]
impl Reconciler for Says {
    async fn did_it_happen(&self, _record: &Record) -> Result<Verdict, BoxError> {
        Ok(self.0.clone())
    }
}

pub(crate) async fn a_panic_leaves_uncertainty_and_a_check_settles_it<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = app(scratch);
    let body = json!({"do": "panic"});
    for key in ["happened", "not"] {
        assert_eq!(app.pay(key, body.clone()).await.status, 500);
        let doubt = app.pay(key, body.clone()).await;
        assert_eq!(doubt.problem(), "outcome-uncertain");
    }
    let at_once = Rules {
        lease: Duration::from_nanos(1),
        alert_age: Duration::from_nanos(1),
        reconcile_age: Duration::from_nanos(1),
        ..Rules::default()
    };
    let answer = Snapshot {
        status: 200,
        headers: vec![("content-type".into(), b"text/plain".to_vec())],
        body: Some("it did".into()),
    };
    let unknown =
        app.guard
            .reconcile()
            .check("http", at_once.clone(), Arc::new(Says(Verdict::Unknown)));
    assert_eq!(unknown.round().await.unwrap().left, 2);
    let happened = Arc::new(Says(Verdict::Happened(answer)));

    // Only the first key is settled: the other is released afterwards.
    let found = app
        .guard
        .records()
        .stuck(Duration::ZERO, None, 10)
        .await
        .unwrap();
    assert_eq!(found.len(), 2);
    app.guard
        .forget(&Key::new("alice", "http", "not").unwrap())
        .await
        .unwrap();
    let round = app
        .guard
        .reconcile()
        .check("http", at_once, happened)
        .round()
        .await
        .unwrap();

    assert_eq!((round.settled, round.released, round.left), (1, 0, 0));
    let replay = app.pay("happened", body.clone()).await;
    assert_eq!(
        (replay.status, replay.replayed(), &replay.body[..]),
        (200, true, &b"it did"[..])
    );
    assert_eq!(app.pay("not", body).await.status, 500);
    assert_eq!(app.runs(), 3);
}
