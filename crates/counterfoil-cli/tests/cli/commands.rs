//! Commands by themselves: help, migrations, errors, bench.

use std::io::Read as _;
use std::process::Stdio;

use crate::home::Home;
use crate::on_every_database;

#[test]
fn every_command_has_an_example() {
    let home = Home::sqlite();
    let commands = [
        "serve",
        "migrate",
        "config default",
        "config check",
        "enqueue",
        "outbox list",
        "outbox show",
        "outbox stats",
        "outbox cancel",
        "queue list",
        "queue pause",
        "queue resume",
        "queue history",
        "parked list",
        "parked show",
        "parked redrive",
        "parked ignore",
        "guard list",
        "guard show",
        "guard history",
        "guard forget",
        "guard reconcile",
        "guard stats",
        "guard table",
        "policies list",
        "policies open",
        "policies close",
        "policies auto",
        "policies simulate",
        "explain",
        "audit",
        "bench",
        "completions",
    ];
    for command in commands {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = home.ok(&args);
        assert!(
            help.contains(&format!("\n  counterfoil {command}")),
            "{command}: {help}"
        );
    }
}

#[test]
fn the_book_shows_what_the_simulation_prints() {
    let home = Home::sqlite();

    let table = home.ok(&["policies", "simulate"]);

    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/retries.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(table.trim_end()), "{table}");
    let other = home.ok(&["policies", "simulate", "--rate", "100", "--seed", "2"]);
    assert_ne!(table, other);
    for wrong in [["--ratio", "1.5"], ["--rate", "0"], ["--outage", "11m"]] {
        let done = home.run(&[&["policies", "simulate"], &wrong[..]].concat());
        assert_eq!(done.code, Some(2), "{wrong:?}");
    }
}

#[test]
fn looking_at_a_database_that_is_not_there_creates_nothing() {
    let home = Home::sqlite();

    let refused = home.refused(&["outbox", "list"], 1);

    assert!(refused.contains("there is no database at"), "{refused}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[cfg(feature = "postgres")]
#[test]
fn an_unreachable_database_is_one_line() {
    let home = Home::sqlite();
    let nobody = "postgres://somebody:hunter2@127.0.0.1:1/app";

    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["audit"]] {
        let args: Vec<&str> = command
            .iter()
            .copied()
            .chain(["--database", nobody])
            .collect();
        let refused = home.refused(&args, 1);

        assert!(
            refused.contains("PostgreSQL at 127.0.0.1:1/app"),
            "{refused}"
        );
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn a_url_of_an_unknown_kind_is_not_repeated() {
    let refused = Home::sqlite().refused(&["audit", "--database", "oracle://a:hunter2@b"], 2);

    assert!(!refused.contains("hunter2"), "{refused}");
}

#[test]
fn a_taken_port_is_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let refused = Home::sqlite().refused(&["serve", "--listen", &address], 1);

    assert!(
        refused.contains("another program listens there"),
        "{refused}"
    );
}

#[test]
fn migrations_can_be_printed_for_every_database_without_one() {
    let home = Home::sqlite();

    for dialect in ["sqlite", "postgres", "mysql"] {
        let sql = home.ok(&["migrate", "--print", "--dialect", dialect]);
        assert!(sql.contains("counterfoil_outbox"), "{dialect}");
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::sqlite();
    let mut command = home.command(&["config", "default"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());

    let status = child.wait().unwrap();

    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert!(status.success() && err.is_empty(), "{status}: {err}");
}

#[test]
fn completions_name_the_commands() {
    assert!(
        Home::sqlite()
            .ok(&["completions", "bash"])
            .contains("redrive")
    );
}

on_every_database!(
    a_schema_for_a_newer_program_is_refused,
    tables_are_missing_until_somebody_migrates,
    enqueue_recognises_a_repeat,
    a_row_without_an_id_goes_by_its_number,
    bench_measures_and_leaves_nothing,
);

fn a_schema_for_a_newer_program_is_refused(home: &Home) {
    home.ok(&["migrate"]);
    home.ok(&["migrate"]);
    home.execute(
        "UPDATE counterfoil_migrations SET version = 999, oldest_reader = 999 WHERE version = 1",
    );

    for command in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["audit"],
        &["migrate"],
    ] {
        let refused = home.refused(command, 1);
        assert!(refused.contains("upgrade the program"), "{refused}");
    }
}

fn tables_are_missing_until_somebody_migrates(home: &Home) {
    let refused = home.refused(&["audit"], 1);
    assert!(refused.contains("counterfoil migrate"), "{refused}");

    home.ok(&["migrate"]);

    assert!(home.ok(&["audit"]).contains("Nothing is missing"));
}

fn enqueue_recognises_a_repeat(home: &Home) {
    home.ok(&["migrate"]);
    std::fs::write(home.path().join("body.json"), "{\"total\": 7}").unwrap();
    let id = "0198c0de-0000-7000-8000-000000000001";
    let args = [
        "enqueue",
        "--event-type",
        "OrderPaid",
        "--payload",
        "@body.json",
        "--aggregate",
        "order/42",
        "--version",
        "-1",
        "--header",
        "trace=a=b",
        "--queue",
        "billing",
        "--id",
        id,
    ];

    let (first, again) = (home.ok(&args), home.json(&args));

    assert_eq!(first, format!("{id} enqueued\n"));
    assert_eq!(again["duplicate"], true);
    let shown = home.json(&["outbox", "show", &id.to_uppercase()]);
    let entry = &shown["message"]["entry"];
    assert_eq!(entry["aggregate"]["id"], "42");
    assert_eq!(entry["version"], -1);
    assert_eq!(shown["message"]["payload"], "{\"total\": 7}");
    assert!(
        shown["message"]["headers"]
            .as_str()
            .unwrap()
            .contains("a=b")
    );

    let found = |args: &[&str]| home.json(args).as_array().unwrap().len();
    assert_eq!(found(&["outbox", "list", "--aggregate", "order/42"]), 1);
    assert_eq!(
        found(&["outbox", "list", "--aggregate", "42", "--queue", "billing"]),
        1
    );
    assert_eq!(found(&["outbox", "list", "--aggregate", "invoice/42"]), 0);
    assert_eq!(found(&["outbox", "list", "--queue", ""]), 0);

    assert!(
        home.refused(&["enqueue", "--event-type", "a", "--payload", "{"], 2)
            .contains("JSON")
    );
    assert!(
        home.refused(&["enqueue", "--event-type", "a", "--id", "7"], 2)
            .contains("UUID")
    );
    assert!(
        home.refused(&["enqueue", "--event-type", ""], 2)
            .contains("event type is empty")
    );
}

fn a_row_without_an_id_goes_by_its_number(home: &Home) {
    home.ok(&["migrate"]);
    home.execute("INSERT INTO counterfoil_outbox (id, queue) VALUES (NULL, 'billing')");

    let listed = home.json(&["outbox", "list"]);
    let number = format!("#{}", listed[0]["seq"]);

    assert_eq!(listed[0]["id"], number);
    assert!(home.ok(&["outbox", "list"]).contains(&number));
    assert!(home.ok(&["outbox", "show", &number]).contains("billing"));
    assert!(home.ok(&["explain", &number]).contains("No live relay"));
    assert_eq!(
        home.ok(&["outbox", "cancel", &number]),
        format!("{number} cancelled\n")
    );
    assert!(home.ok(&["explain", &number]).starts_with("Cancelled at"));
    assert_eq!(home.run(&["explain", "#999999"]).code, Some(3));
}

fn bench_measures_and_leaves_nothing(home: &Home) {
    home.ok(&["migrate"]);
    home.ok(&["enqueue", "--event-type", "Waiting"]);

    let figures = home.json(&["bench", "--messages", "1000", "--aggregates", "50"]);

    for key in ["enqueue_per_s", "drain_per_s", "p50_ms", "p99_ms"] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
    let audit = home.json(&["audit"]);
    assert_eq!(audit["counts"]["pending"], 1, "{audit}");
    assert_eq!(audit["counts"]["ledger"], 1, "{audit}");
}

#[test]
fn bench_removes_a_database_that_was_not_there() {
    let home = Home::sqlite();

    home.ok(&["bench", "--messages", "100"]);

    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_queue_that_nobody_knows_is_not_paused() {
    let home = Home::sqlite();
    home.configure(
        "[destination.billing]\ntype = \"webhook\"\nurl = \"https://example.com/\"\nunsigned = true\n",
    );
    home.ok(&["migrate"]);
    home.ok(&["enqueue", "--event-type", "a", "--queue", "shipping"]);

    let slip = home.refused(&["queue", "pause", "biling"], 3);
    let other = home.refused(&["queue", "pause", "shiping"], 3);

    assert!(slip.ends_with("did you mean `billing`?"), "{slip}");
    assert!(other.ends_with("did you mean `shipping`?"), "{other}");
    assert!(
        home.json(&["queue", "history", "biling"])
            .as_array()
            .unwrap()
            .is_empty()
    );
    home.ok(&["queue", "pause", "billing"]);
    home.ok(&["queue", "pause", "shipping"]);
    home.ok(&["queue", "pause", "not-yet", "--force"]);
    home.ok(&["queue", "pause", "not-yet"]);
}

#[cfg(feature = "postgres")]
#[test]
fn an_error_of_postgres_does_not_name_a_line_of_its_source() {
    let Some(home) = Home::postgres() else { return };
    home.ok(&["migrate"]);
    home.execute("ALTER TABLE counterfoil_queues RENAME COLUMN paused_at TO gone");

    let said = home.refused(&["queue", "list"], 1);

    assert!(said.ends_with("does not exist (SQLSTATE 42703)"), "{said}");
}

#[cfg(unix)]
#[test]
fn only_its_owner_can_read_the_database_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::sqlite();
    let served = home.serve();
    served.post(r#"{"event_type":"a"}"#).stored();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = home.file();

    assert_eq!(mode(file.parent().unwrap()), 0o700);
    for end in ["", "-wal", "-shm"] {
        let name = format!("{}{end}", file.display());
        assert_eq!(mode(name.as_ref()), 0o600, "{name}");
    }
    served.stop();

    let elsewhere = home.path().join("new/deep/other.db");
    home.ok(&[
        "migrate",
        "--database",
        &format!("sqlite:{}", elsewhere.display()),
    ]);
    assert_eq!(mode(&elsewhere), 0o600);
    assert_eq!(mode(elsewhere.parent().unwrap()), 0o700);
}
