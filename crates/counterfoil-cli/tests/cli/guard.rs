//! `guard`: look at requests, forget one, settle one.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::{Expect, Fingerprint, Key, Records, Snapshot, State, Write};

use crate::home::Home;
use crate::on_every_database;

on_every_database!(
    requests_are_listed_shown_and_forgotten,
    an_uncertain_request_is_settled_by_hand,
);

fn records(home: &Home) -> Arc<dyn Records> {
    match home.database() {
        #[cfg(feature = "postgres")]
        Some(url) if url.starts_with("postgres") => {
            let store = counterfoil_postgres::PostgresStore::connect(url).unwrap();
            Arc::new(store.guard(None).unwrap()) as Arc<dyn Records>
        }
        #[cfg(feature = "mysql")]
        Some(url) if url.starts_with("m") => {
            let store = counterfoil_mysql::MysqlStore::connect(url).unwrap();
            Arc::new(store.guard(None).unwrap())
        }
        _ => {
            let file = home.file();
            let store = counterfoil_sqlite::SqliteStore::connect(&file.to_string_lossy()).unwrap();
            Arc::new(store.guard(None).unwrap())
        }
    }
}

fn write(caller: &str, key: &str, state: State, lease: Option<Duration>) -> Write {
    Write {
        key: Key::new(caller, "pay", key).unwrap(),
        fingerprint: Fingerprint([1; 32]),
        state,
        attempt: 1,
        lease,
        keep: Duration::from_secs(3_600),
        retry_in: None,
        snapshot: (state == State::Succeeded).then(|| Snapshot {
            status: 201,
            headers: vec![("location".into(), b"/payments/1".to_vec())],
            body: Some("{\"receipt\": 1}".into()),
        }),
        expect: Expect::Absent,
    }
}

fn put(home: &Home, writes: &[Write]) {
    home.ok(&["migrate"]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let records = records(home);
        for write in writes {
            assert!(records.put(write).await.unwrap().is_some());
        }
    });
}

fn requests_are_listed_shown_and_forgotten(home: &Home) {
    put(
        home,
        &[
            write("alice", "req-1", State::Succeeded, None),
            write("bob", "req-1", State::Succeeded, None),
            write(
                "bob",
                "req-2",
                State::Processing,
                Some(Duration::from_secs(60)),
            ),
        ],
    );

    let all = home.json(&["guard", "list"]);
    let busy = home.json(&["guard", "list", "--state", "processing"]);
    let shown = home.ok(&["guard", "show", "req-1", "--caller", "alice"]);
    let which = home.refused(&["guard", "show", "req-1"], 2);
    let unknown = home.refused(&["guard", "show", "req-9"], 3);
    let state = home.refused(&["guard", "list", "--state", "done"], 2);
    let stats = home.json(&["guard", "stats"]);

    assert_eq!(all.as_array().unwrap().len(), 3);
    assert_eq!(busy[0]["key"], "req-2");
    assert!(
        shown.contains("location: /payments/1") && shown.contains("\"receipt\": 1"),
        "{shown}"
    );
    assert!(which.contains("--caller"), "{which}");
    assert!(unknown.contains("req-9"), "{unknown}");
    assert!(state.contains("processing, succeeded"), "{state}");
    assert_eq!(
        (
            stats[0]["succeeded"].as_u64(),
            stats[0]["processing"].as_u64()
        ),
        (Some(2), Some(1))
    );

    home.ok(&[
        "guard", "forget", "req-1", "--caller", "alice", "--type", "pay", "--reason", "refunded",
        "--by", "bob",
    ]);
    home.refused(&["guard", "show", "req-1", "--caller", "alice"], 3);
    let story = home.json(&[
        "guard", "history", "req-1", "--caller", "alice", "--type", "pay",
    ]);
    let line = &story[0];
    assert_eq!(
        (&line["kind"], &line["actor"], &line["detail"]),
        (&"forgotten".into(), &"bob".into(), &"refunded".into()),
        "{story}"
    );
    let hint = home.refused(&["guard", "history", "req-1", "--caller", "alice"], 3);
    assert!(hint.contains("say --type"), "{hint}");
    let table = home.ok(&["guard", "table", "shop_guard"]);
    assert!(
        table.contains("shop_guard") && !table.contains("EXISTS counterfoil_guard "),
        "{table}"
    );
}

fn an_uncertain_request_is_settled_by_hand(home: &Home) {
    put(
        home,
        &[
            write("alice", "lost", State::Uncertain, None),
            write("alice", "gone", State::Uncertain, None),
            write("alice", "refused", State::Uncertain, None),
            write(
                "alice",
                "busy",
                State::Processing,
                Some(Duration::from_secs(60)),
            ),
        ],
    );

    let why = ["--reason", "asked the bank"];
    let reconcile = |more: &[&'static str]| [&["guard", "reconcile"], more, &why].concat();
    let settled = home.ok(&reconcile(&[
        "lost",
        "--happened",
        "--body",
        "{\"receipt\": 7}",
    ]));
    let released = home.ok(&reconcile(&["gone", "--did-not-happen"]));
    let busy = home.refused(&reconcile(&["busy", "--did-not-happen"]), 1);
    let again = home.refused(&reconcile(&["lost", "--did-not-happen"]), 1);
    home.refused(&reconcile(&["lost"]), 2);
    home.refused(&["guard", "reconcile", "lost", "--did-not-happen"], 2);
    home.refused(&["guard", "forget", "lost"], 2);
    home.ok(&reconcile(&[
        "refused",
        "--failed",
        "--body",
        "\"no funds\"",
    ]));
    let beside = home.refused(&["guard", "forget", "busy", "--reason", "stuck"], 1);
    home.ok(&["guard", "forget", "busy", "--force", "--reason", "stuck"]);

    assert!(settled.contains("Settled"), "{settled}");
    assert!(released.contains("Released"), "{released}");
    assert!(busy.contains("still works"), "{busy}");
    assert!(again.contains("is succeeded"), "{again}");
    assert!(beside.contains("--force"), "{beside}");
    home.refused(&["guard", "show", "busy"], 3);
    let shown = home.json(&["guard", "show", "refused"]);
    assert_eq!(
        (&shown["state"], &shown["status"]),
        (&"failed".into(), &422.into())
    );
    let shown = home.json(&["guard", "show", "lost"]);
    assert_eq!(shown["state"], "succeeded");
    assert_eq!(shown["body"], "{\"receipt\": 7}");
    let events = shown["events"].as_array().unwrap();
    assert_eq!(events.len(), 1, "what was refused leaves no line: {shown}");
    assert_eq!(
        (
            &events[0]["kind"],
            &events[0]["actor"],
            &events[0]["detail"]
        ),
        (&"happened".into(), &"ann".into(), &"asked the bank".into())
    );
    let table = home.ok(&["guard", "show", "lost"]);
    assert!(table.contains("asked the bank"), "{table}");
    home.refused(&["guard", "show", "gone"], 3);
}
