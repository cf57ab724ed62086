//! The records of the guard go away under a running process: nothing runs, and it is said.

use crate::gateway::{configure, door, order, replayed};
use crate::home::{Home, Served, until};
use crate::on_every_database;
use crate::upstream::Upstream;

on_every_database!(a_table_that_is_gone_is_told_until_it_is_back);

#[track_caller]
fn readiness(served: &Served, status: u16) -> String {
    until("another readiness", || {
        Some(served.get("/readyz")).filter(|answer| answer.status == status)
    })
    .body
}

/// The lines of the log about the records: of the watch, and of requests that were turned away.
fn told(served: Served) -> String {
    served.signal("TERM");
    let (_, log) = served.end();
    for line in [
        "the guard's records cannot be read:",
        "the guard's records can be read again",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
    log
}

fn a_table_that_is_gone_is_told_until_it_is_back(home: &Home) {
    let upstream = Upstream::start(home.path());
    configure(home, &upstream, "");
    let served = home.serve();
    let first = order(door(&served), "k", "");
    readiness(&served, 200);

    home.execute("ALTER TABLE counterfoil_guard RENAME TO counterfoil_put_aside");
    let why = readiness(&served, 503);
    assert!(why.contains("the guard's records"), "{why}");
    assert_eq!(order(door(&served), "other", "").status, 503);
    watched(&served, 1);
    home.execute("ALTER TABLE counterfoil_put_aside RENAME TO counterfoil_guard");
    readiness(&served, 200);

    let again = order(door(&served), "k", "");
    assert_eq!((replayed(&again), again.body), (true, first.body));
    watched(&served, 0);
    assert_eq!(upstream.calls(), 1);
    told(served);
}

/// Waits until the watch has looked.
fn watched(served: &Served, unreadable: u8) {
    let line = format!("\ncounterfoil_guard_unreadable {unreadable}\n");
    until("the line in the log", || {
        served.get("/metrics").body.contains(&line).then_some(())
    });
}

/// A process keeps the file that it has opened, whatever its name leads to by now.
#[test]
fn a_file_that_is_deleted_is_told_until_it_is_back() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let served = home.serve();
    let first = order(door(&served), "k", "");
    readiness(&served, 200);
    let (file, aside) = (home.file(), home.path().join("aside.db"));

    std::fs::rename(&file, &aside).unwrap();
    readiness(&served, 503);
    watched(&served, 1);
    assert_eq!(order(door(&served), "deleted", "").status, 503);
    assert_eq!(upstream.calls(), 1);
    std::fs::rename(&aside, &file).unwrap();
    readiness(&served, 200);

    let again = order(door(&served), "k", "");
    assert_eq!((replayed(&again), again.body), (true, first.body));
    assert_eq!(order(door(&served), "deleted", "").status, 201);
    watched(&served, 0);
    let log = told(served);
    assert!(log.contains("was deleted while it was in use"), "{log}");
}

/// Nothing brings the first file back: its journal may be mixed with that of the other one.
#[test]
fn a_file_that_is_replaced_is_not_used() {
    let home = Home::sqlite();
    let upstream = Upstream::start(home.path());
    configure(&home, &upstream, "");
    let served = home.serve();
    order(door(&served), "k", "");
    readiness(&served, 200);

    std::fs::rename(home.file(), home.path().join("aside.db")).unwrap();
    std::fs::copy(home.path().join("aside.db"), home.file()).unwrap();

    readiness(&served, 503);
    assert_eq!(order(door(&served), "other", "").status, 503);
    assert_eq!(upstream.calls(), 1);
}
