//! The demo, looked at from another terminal.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::home::Home;

/// The figures of a line such as `orders    12   double clicks absorbed    3   partner got …`.
fn figures(line: &str) -> Option<Vec<u64>> {
    line.starts_with("orders ").then(|| {
        let words = line.split(|c: char| !c.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).collect()
    })
}

#[test]
fn the_demo_has_traffic_repeats_and_poison_and_its_books_balance() {
    let home = Home::sqlite();
    let mut demo = home
        .command(&["demo", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);

    let lively = lines.by_ref().find(|line| {
        // orders, repeats absorbed, partner got, its repeats, its failures, waiting, retrying, parked
        figures(line).is_some_and(|n| n[0] > 0 && n[1] > 0 && n[2] > 0 && n[4] > 0 && n[7] > 0)
    });

    assert!(lively.is_some(), "the demo ended by itself");
    let stopped = Command::new("kill").arg(demo.id().to_string()).status();
    assert!(stopped.unwrap().success());
    let rest: Vec<String> = lines.collect();
    assert!(demo.wait().unwrap().success());
    assert!(
        rest.iter().any(|line| line.starts_with("The books:")),
        "{rest:?}"
    );
    assert!(!rest.iter().any(|line| line.contains("wrong:")), "{rest:?}");
}

#[test]
fn the_demo_shows_the_breaker_of_its_partner() {
    let home = Home::sqlite();
    let mut demo = home
        .command(&["demo", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let server = lines.by_ref().map(Result::unwrap).find_map(|line| {
        let rest = line.split_once("policies --server ")?.1;
        Some(rest.trim().to_owned())
    });
    // Somebody has to read on, or the demo would wait for it.
    let reading = std::thread::spawn(move || lines.for_each(drop));
    let server = server.unwrap();
    let partner = || {
        let all = home.json(&["policies", "--server", &server]);
        let all = all.as_array().unwrap().clone();
        all.into_iter().find(|d| d["destination"] == "partner")
    };

    let before = partner().unwrap();
    let open = ["policies", "open", "partner", "--by", "anna"];
    home.json(&[&open[..], &["--server", &server]].concat());
    let after = partner().unwrap();

    let stopped = Command::new("kill").arg(demo.id().to_string()).status();
    assert!(stopped.unwrap().success());
    assert!(demo.wait().unwrap().success());
    reading.join().unwrap();
    assert_eq!(before["forced"], serde_json::Value::Null);
    assert_eq!(after["breaker"], "open");
    assert_eq!(after["forced_by"], "anna");
}

#[test]
fn the_demo_is_for_this_machine() {
    let home = Home::sqlite();

    let refused = home.refused(&["demo", "--listen", "0.0.0.0:0", "--seconds", "1"], 2);

    assert!(
        refused.contains("0.0.0.0:0 can be reached from other machines"),
        "{refused}"
    );
}

#[cfg(unix)]
#[test]
fn the_directory_of_the_demo_is_private_and_new() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::sqlite();
    let shared = home.path().join("tmp");
    std::fs::create_dir(&shared).unwrap();
    let mut demo = home
        .command(&["demo", "--listen", "127.0.0.1:0"])
        .env("TMPDIR", &shared)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let started = lines.by_ref().map(Result::unwrap);
    assert!(
        started
            .take(100)
            .any(|line| line.contains("Ctrl-C stops it"))
    );
    let reading = std::thread::spawn(move || lines.for_each(drop));

    let made: Vec<_> = std::fs::read_dir(&shared)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mode = made[0].metadata().unwrap().permissions().mode();
    let name = made[0].file_name().into_string().unwrap();

    let stopped = Command::new("kill").arg(demo.id().to_string()).status();
    assert!(stopped.unwrap().success());
    assert!(demo.wait().unwrap().success());
    reading.join().unwrap();
    assert_eq!(made.len(), 1);
    assert_eq!(mode & 0o777, 0o700);
    assert!(
        !name.contains(&demo.id().to_string()),
        "{name} can be guessed"
    );
    assert_eq!(
        std::fs::read_dir(&shared).unwrap().count(),
        0,
        "all is removed"
    );
}
