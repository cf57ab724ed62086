//! Encrypted connections.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use counterfoil_core::Outcome;
use counterfoil_rabbitmq::Settings;
use counterfoil_testkit::server::PrivateRabbitMq;
use lapin::types::FieldTable;

use crate::{build, channel, delivery, one, passing_queue};

fn pem(what: &str, content: &[u8]) -> String {
    let content = STANDARD.encode(content);
    let lines: Vec<&str> = content
        .as_bytes()
        .chunks(64)
        .map(|l| std::str::from_utf8(l).unwrap())
        .collect();
    format!(
        "-----BEGIN {what}-----\n{}\n-----END {what}-----\n",
        lines.join("\n")
    )
}

#[tokio::test]
async fn a_server_that_shows_a_certificate_of_the_file_is_trusted_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(at("cert.pem"), pem("CERTIFICATE", made.cert.der())).unwrap();
    let key = made.signing_key.serialize_der();
    fs::write(at("key.pem"), pem("PRIVATE KEY", &key)).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(at("other.pem"), pem("CERTIFICATE", other.cert.der())).unwrap();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let path = |name: &str| at(name).display().to_string();
    let settings = format!(
        "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n\
         ssl_options.cacertfile = {}\nssl_options.verify = verify_none",
        path("cert.pem"),
        path("key.pem"),
        path("cert.pem"),
    );
    let Some(rabbit) = PrivateRabbitMq::start_with(&settings).await else {
        return;
    };
    let (_connection, channel) = channel(&rabbit.url()).await;
    passing_queue(&channel, "q", FieldTable::default()).await;

    let url = format!("amqps://guest:guest@localhost:{port}/");
    let trusted = Settings::queue(&url, "q").ca_file(at("cert.pem"));
    let trusted = one(&build(trusted), &delivery(1)).await;
    let stranger = Settings::queue(&url, "q").ca_file(at("other.pem"));
    let stranger = one(&build(stranger), &delivery(1)).await;
    let unknown = one(&build(Settings::queue(&url, "q")), &delivery(1)).await;

    assert_eq!(trusted, Outcome::Stored);
    for outcome in [stranger, unknown] {
        assert_eq!(outcome.label(), "unavailable", "{outcome:?}");
        assert!(
            format!("{outcome:?}").contains("certificate"),
            "{outcome:?}"
        );
    }
}
