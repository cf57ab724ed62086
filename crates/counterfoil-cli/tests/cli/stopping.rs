//! Signals: the first finishes what has begun, the second does not wait.

use crate::home::{Home, until};
use crate::on_every_database;
use crate::receiver::Receiver;

const ID: &str = "0198c0de-0000-7000-8000-000000000001";

/// A delivery may take long, and so may the end of it.
fn patient(home: &Home, receiver: &Receiver) {
    let billing = receiver.section("billing", "timeout = \"45s\"");
    home.configure(&format!(
        "[relay]\nlease = \"60s\"\ndrain = \"50s\"\n{billing}"
    ));
}

on_every_database!(a_delivery_under_way_is_finished_before_the_end);

fn a_delivery_under_way_is_finished_before_the_end(home: &Home) {
    let receiver = Receiver::start();
    receiver.hold();
    patient(home, &receiver);
    let served = home.serve();
    served.post(format!(
        r#"{{"id":"{ID}","event_type":"a","queue":"billing"}}"#
    ));
    receiver.wait_for(ID);

    served.signal("TERM");
    until("a closed port", || {
        std::net::TcpStream::connect(&served.address).err()
    });
    receiver.go_on();
    let (status, log) = served.end();

    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(home.json(&["audit"])["counts"]["pending"], 0);
    assert_eq!(receiver.requests().len(), 1);
}

#[cfg(feature = "postgres")]
#[test]
fn a_signal_ends_a_start_that_waits_for_its_database() {
    let home = Home::sqlite();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}/app", silent.local_addr().unwrap());
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0", "--database", &url]);
    let mut child = command.spawn().unwrap();
    let _connection = silent.accept().unwrap();

    let kill = std::process::Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();

    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let home = Home::sqlite();
    let receiver = Receiver::start();
    receiver.hold();
    patient(&home, &receiver);
    let served = home.serve();
    served.post(format!(
        r#"{{"id":"{ID}","event_type":"a","queue":"billing"}}"#
    ));
    receiver.wait_for(ID);

    served.signal("INT");
    until("a closed port", || {
        std::net::TcpStream::connect(&served.address).err()
    });
    served.signal("INT");
    let (status, log) = served.end();

    assert_eq!(status.code(), Some(1), "{log}");
    assert_eq!(
        home.json(&["audit"])["counts"]["pending"],
        1,
        "it will be offered again"
    );
}
