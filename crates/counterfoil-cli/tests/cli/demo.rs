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
