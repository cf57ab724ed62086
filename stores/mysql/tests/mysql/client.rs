//! Programs in other languages, played by the server's own command-line client.

use std::io::Write as _;
use std::process::{Command, Stdio};

use counterfoil_testkit::fixture::{Fixture, QUEUE, judge, versions};
use counterfoil_testkit::server;
use counterfoil_testkit::suite::run;
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;

use super::harness::MysqlHarness;

/// `mariadb` or `mysql`, connected to the database of a test.
pub(crate) struct Client {
    program: &'static str,
    url: String,
}

impl Client {
    /// Absent when there is none: the test has then said so.
    pub(crate) fn find(harness: &MysqlHarness) -> Option<Self> {
        let works = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
        let program = ["mariadb", "mysql"].iter().find(works).copied();
        if program.is_none() {
            server::skipped(
                &server::current_test(),
                "there is neither `mariadb` nor `mysql`",
            );
        }
        Some(Self {
            program: program?,
            url: harness.url(),
        })
    }

    /// Runs a script in a connection of this character set; its bytes are sent as they are.
    pub(crate) fn run(&self, charset: &str, script: impl AsRef<[u8]>) {
        let options: MySqlConnectOptions = self.url.parse().unwrap();
        let url = options.to_url_lossy();
        let mut child = Command::new(self.program)
            .args([
                "--no-defaults",
                "--protocol=tcp",
                "--batch",
                "--host",
                options.get_host(),
            ])
            .args([
                "--port",
                &options.get_port().to_string(),
                "--user",
                options.get_username(),
            ])
            .args([
                "--default-character-set",
                charset,
                options.get_database().unwrap(),
            ])
            .env("MYSQL_PWD", url.password().unwrap_or(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(script.as_ref())
            .unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}

const CALL: &str = "CALL counterfoil_enqueue('OrderPaid', '{\"total\": 7}', 'order', '42', 7, 'billing', \
    '{\"correlation-id\": \"c\"}', NULL, NULL);";

#[test]
fn the_procedure_enqueues_in_the_callers_transaction() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let Some(client) = Client::find(&t.harness) else {
            return;
        };
        client.run(
            "utf8mb4",
            format!("START TRANSACTION; {CALL} {CALL} ROLLBACK;"),
        );
        client.run("utf8mb4", format!("START TRANSACTION; {CALL} COMMIT;"));
        client.run("utf8mb4", "CALL counterfoil_enqueue('Bare', NULL, NULL, NULL, NULL, 'billing', NULL, NULL, NULL);");
        let id = "0192f0c1-2f43-7000-8000-00000000000a";
        client.run(
            "utf8mb4",
            format!("CALL counterfoil_enqueue('E', '1', NULL, NULL, NULL, 'billing', NULL, '2099-01-01 12:00:00', '{id}');"),
        );
        let relay = t.relay(&[QUEUE]).await;

        let rows = relay.read(QUEUE).await;

        assert_eq!(versions(&rows), [7, -1, -1]);
        let paid = judge(&rows[0]);
        assert_eq!(paid.defect, None);
        assert_eq!(paid.aggregate.unwrap().to_string(), "order/42");
        assert_eq!(paid.headers.get("correlation-id"), Some("c"));
        assert_eq!(
            judge(&rows[1]).defect,
            None,
            "all that may be NULL was NULL"
        );
        assert_ne!(judge(&rows[0]).id, judge(&rows[1]).id);
        assert!(rows[2].early && judge(&rows[2]).id.to_string() == id);
        let shown = t.desk.show(id).await.unwrap().unwrap();
        assert_eq!(
            shown.entry.available_at.unwrap().to_rfc3339(),
            "2099-01-01T12:00:00+00:00"
        );
    });
}

/// The same words, written by programs that speak different character sets and modes.
#[test]
fn any_connection_writes_the_same_lanes() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let Some(client) = Client::find(&t.harness) else {
            return;
        };
        let insert = |before: &str, version: i32| {
            format!(
                "{before} START TRANSACTION; INSERT INTO counterfoil_outbox \
                 (queue, aggregate_type, aggregate_id, version, event_type, payload) \
                 VALUES ('billing', 'café', 'Zoë', {version}, 'Geändert', '{{\"ort\": \"Köln\"}}'); COMMIT;"
            )
        };
        let latin1 = |text: String| {
            text.chars()
                .map(|c| u8::try_from(u32::from(c)).unwrap())
                .collect::<Vec<u8>>()
        };
        client.run("utf8mb4", insert("", 1));
        client.run("latin1", latin1(insert("", 2)));
        client.run(
            "utf8mb4",
            insert("SET collation_connection = 'ucs2_general_ci';", 3),
        );
        client.run(
            "latin1",
            latin1(insert(
                "SET SESSION sql_mode = 'ANSI,STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES';",
                4,
            )),
        );
        client.run(
            "utf8mb4",
            insert("SET SESSION sql_mode = ''; SET time_zone = '-11:00';", 5),
        );
        client.run(
            "latin1",
            latin1(insert(
                "SET SESSION sql_mode = 'PAD_CHAR_TO_FULL_LENGTH';",
                6,
            )),
        );
        let relay = t.relay(&[QUEUE]).await;

        let rows = relay.read(QUEUE).await;

        assert_eq!(versions(&rows), [1, 2, 3, 4, 5, 6]);
        for row in &rows {
            let delivery = judge(row);
            assert_eq!(delivery.aggregate.as_ref().unwrap().to_string(), "café/Zoë");
            assert_eq!(delivery.event_type, "Geändert");
            assert_eq!(
                delivery.payload.as_bytes(),
                "{\"ort\": \"Köln\"}".as_bytes()
            );
            assert_eq!(delivery.defect, None);
            let age = (row.created_at - rows[0].created_at).num_seconds();
            assert!(
                (0..60).contains(&age),
                "written in UTC, whatever the connection's time zone: {age}"
            );
        }
        relay.retry(QUEUE, &rows[0]).await;
        assert!(
            relay.read(QUEUE).await.iter().all(|r| r.behind),
            "one lane for all"
        );
    });
}

#[test]
fn a_plain_insert_with_nothing_in_it_is_a_message() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let Some(client) = Client::find(&t.harness) else {
            return;
        };
        client.run(
            "latin1",
            "START TRANSACTION; INSERT INTO counterfoil_outbox () VALUES (); ROLLBACK;",
        );
        client.run(
            "latin1",
            "START TRANSACTION; INSERT INTO counterfoil_outbox () VALUES (); COMMIT;",
        );
        let relay = t.relay(&[""]).await;

        let rows = relay.read("").await;

        assert_eq!(rows.len(), 1);
        assert_eq!(judge(&rows[0]).defect, None);
    });
}
