//! The database is away, or locked, for a moment: what the gateway does with answers and new requests.

use crate::cable::Cable;
use crate::gateway::{configure, door, order, replayed};
use crate::home::{Home, Served, until};
use crate::on_every_database;
use crate::upstream::Upstream;

on_every_database!(an_answer_that_cannot_be_recorded_at_once_is_recorded_later);

/// An order that stands still at the service, until the database is not there any more.
fn answered_without_records(
    served: &Served,
    upstream: &Upstream,
    away: impl FnOnce() -> Box<dyn FnOnce()>,
) -> String {
    let address = door(served).to_owned();
    let caller = std::thread::spawn(move || order(&address, "k", "hold-after"));
    upstream.waiting(1);
    let back = away();
    upstream.go();

    // The caller need not wait until the database is back.
    let first = caller.join().unwrap();
    assert_eq!((first.status, replayed(&first)), (201, false));
    let meanwhile = order(door(served), "k", "hold-after");
    assert!([409, 503].contains(&meanwhile.status), "{meanwhile:?}");
    assert_ne!(meanwhile.problem(), "outcome-uncertain");
    back();
    first.body
}

fn an_answer_that_cannot_be_recorded_at_once_is_recorded_later(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let cable = home.database().map(Cable::to);
    let served = match &cable {
        Some(cable) => home.serve_with(&["--database", &cable.url]),
        None => home.serve(),
    };

    let body = answered_without_records(&served, &upstream, || match cable.clone() {
        Some(cable) => {
            cable.cut(true);
            Box::new(move || cable.cut(false))
        }
        None => {
            let lock = home.lock();
            Box::new(move || drop(lock))
        }
    });

    let again = until("the record", || {
        let told = order(door(&served), "k", "hold-after");
        if told.status < 400 {
            return Some(told);
        }
        assert_ne!(told.problem(), "outcome-uncertain");
        None
    });
    assert_eq!((again.status, replayed(&again)), (201, true));
    assert_eq!((again.body, upstream.effects()), (body, 1));
    served.signal("TERM");
    let (_, log) = served.end();
    for line in [
        "cannot record how a request came out",
        "recorded how a request came out",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
}

#[test]
fn a_database_that_is_locked_by_somebody_else_is_unavailable_and_no_request_is_in_progress() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    // Nobody is waited for: however long a repeat may wait, a new request is told at once.
    home.amend("wait = \"1s\"", "wait = \"10m\"");
    let served = home.serve();
    let lock = home.lock();

    for key in ["never-seen", "never-seen-either"] {
        let told = order(door(&served), key, "");
        assert_eq!(
            (told.status, told.problem().as_str()),
            (503, "guard-unavailable")
        );
        assert!(told.head.contains("retry-after:"), "{told:?}");
    }
    assert_eq!(upstream.calls(), 0);
    drop(lock);

    assert_eq!(order(door(&served), "never-seen", "").status, 201);
    assert_eq!(upstream.calls(), 1);
    served.signal("TERM");
    let (_, log) = served.end();
    for line in [
        "the guard's records cannot be read or written",
        "the guard's records can be written again",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
}
