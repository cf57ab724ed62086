//! The demo, looked at from another terminal.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::home::Home;

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

    let all = home.json(&["policies", "--server", &server.unwrap()]);

    let stopped = Command::new("kill").arg(demo.id().to_string()).status();
    assert!(stopped.unwrap().success());
    assert!(demo.wait().unwrap().success());
    reading.join().unwrap();
    let all = all.as_array().unwrap();
    assert!(all.iter().any(|d| d["destination"] == "partner"), "{all:?}");
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
