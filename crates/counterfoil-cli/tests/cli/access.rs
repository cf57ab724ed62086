//! Who may use the API for what, how tokens and certificates change, and to whom a token is sent.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use rcgen::{CertificateParams, Issuer, KeyPair};

use crate::client::Answer;
use crate::home::{Home, Served, until};
use crate::receiver::Receiver;

const JSON: &str = "content-type: application/json";

const TOKENS: &str = "\
[token.shop]\nsecret = \"producer-0123456789\"\nscopes = [\"producer\"]\n\
[token.support]\nsecret = \"reader-0123456789\"\nscopes = [\"reader\"]\n\
[token.anna]\nsecret = \"operator-0123456789\"\nscopes = [\"operator\"]\n\
[token.prometheus]\nsecret = \"metrics-0123456789\"\nscopes = [\"metrics\"]\n";

fn with(served: &Served, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("authorization: Bearer {token}-0123456789");
    served.request(method, path, &[JSON, &bearer], body.as_bytes())
}

#[test]
fn each_scope_opens_its_own_doors() {
    let home = Home::sqlite();
    let receiver = Receiver::start();
    home.configure(&format!("{TOKENS}{}", receiver.section("billing", "")));
    let served = home.serve();
    let id = "0198c0de-0000-7000-8000-000000000001";
    let message = format!("{{\"id\":\"{id}\",\"event_type\":\"a\",\"delay\":\"1h\"}}");
    assert_eq!(
        with(&served, "producer", "POST", "/v1/messages", &message).status,
        201
    );
    let one = format!("/v1/messages/{id}");
    let breaker = "{\"breaker\":\"open\",\"by\":\"eve\"}";
    let doors = [
        ("POST", "/v1/messages", message.as_str(), vec!["producer"]),
        ("GET", one.as_str(), "", vec!["reader", "operator"]),
        ("GET", "/v1/messages/%231", "", vec!["operator"]),
        ("GET", "/v1/messages/%20%231", "", vec!["operator"]),
        ("GET", "/v1/policies", "", vec!["reader", "operator"]),
        ("GET", "/v1/requests/a/b", "", vec!["reader", "operator"]),
        ("PUT", "/v1/policies/billing", breaker, vec!["operator"]),
        ("GET", "/metrics", "", vec!["metrics"]),
    ];

    for (method, path, body, allowed) in &doors {
        for token in ["producer", "reader", "operator", "metrics"] {
            let answer = with(&served, token, method, path, body);
            if allowed.contains(&token) {
                assert!(
                    ![401, 403].contains(&answer.status),
                    "{token} {path}: {answer:?}"
                );
            } else {
                let told = (answer.status, answer.problem());
                assert_eq!(told, (403, "forbidden".into()), "{token} {path}");
            }
        }
        let stranger = with(&served, "nobody", method, path, body);
        assert_eq!(stranger.problem(), "unauthorized", "{path}");
    }

    let policies = with(&served, "reader", "GET", "/v1/policies", "").json();
    let by = &policies["policies"][0]["forced_by"];
    assert_eq!(by, "anna", "the token says who it was, not the caller");
    served.stop();
}

#[test]
fn tokens_change_without_a_restart_and_a_mistake_changes_nothing() {
    let home = Home::sqlite();
    let file = home.path().join("shop.token");
    std::fs::write(&file, "producer-0123456789\n").unwrap();
    let section = "[token.shop]\nsecret = \"file:shop.token\"\nscopes = [\"producer\"]\n";
    home.configure(section);
    let served = home.serve();
    let post = |token: &str| {
        with(
            &served,
            token,
            "POST",
            "/v1/messages",
            "{\"event_type\":\"a\"}",
        )
    };
    assert_eq!(post("producer").status, 201);

    std::fs::write(&file, "producer-0123456789\nlater-0123456789\n").unwrap();
    until("the second token", || {
        (post("later").status == 201).then_some(())
    });
    assert_eq!(post("producer").status, 201, "both hold during a rotation");
    std::fs::write(&file, "later-0123456789\n").unwrap();
    until("the end of the first", || {
        (post("producer").status == 401).then_some(())
    });

    home.configure(&section.replace("shop.token", "nowhere.token"));
    served.signal("HUP");
    home.configure(&format!(
        "{section}[token.bob]\nsecret = \"operator-0123456789\"\nscopes = [\"operator\"]\n"
    ));
    until("the operator", || {
        (with(&served, "operator", "GET", "/v1/policies", "").status == 200).then_some(())
    });
    assert_eq!(post("later").status, 201);
    served.stop();
}

#[test]
fn an_address_that_others_can_reach_keeps_its_tokens() {
    let home = Home::sqlite();
    home.configure(&format!("[server]\nlisten = \"0.0.0.0:0\"\n{TOKENS}"));
    let mut served = home.serve_as(&["serve"]);
    served.address = served.address.replace("0.0.0.0", "127.0.0.1");

    home.configure("[server]\nlisten = \"127.0.0.1:7070\"\n");

    until("the refusal", || {
        let anybody = served.get("/v1/policies").status;
        assert_eq!(anybody, 401, "never without");
        let figures = with(&served, "metrics", "GET", "/metrics", "").body;
        let refused = "counterfoil_reloads_total{result=\"refused\"}";
        figures.contains(refused).then_some(())
    });
    let reader = with(&served, "reader", "GET", "/v1/policies", "");
    assert_eq!(reader.status, 200, "the former ones stay");
    served.signal("TERM");
    let (_, log) = served.end();
    assert!(log.contains("the file has no tokens any more"), "{log}");
}

/// Somebody else's server: it answers one request and gives what it was sent.
fn stranger() -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"policies\":[]}";
        stream.write_all(answer).unwrap();
        String::from_utf8(head).unwrap()
    });
    (address, heard)
}

#[test]
fn a_configured_token_is_sent_to_the_configured_server_only() {
    let home = Home::sqlite();
    home.configure(&format!("[server]\nlisten = \"127.0.0.1:7070\"\n{TOKENS}"));
    let (address, heard) = stranger();

    home.ok(&["policies", "--server", &format!("http://{address}")]);

    let head = heard.join().unwrap();
    assert!(!head.contains("authorization"), "{head}");
    let (address, heard) = stranger();
    home.configure(&format!("[server]\nlisten = \"{address}\"\n{TOKENS}"));
    home.ok(&["policies"]);
    let head = heard.join().unwrap();
    assert!(
        head.contains("authorization: Bearer operator-0123456789"),
        "{head}"
    );
}

#[cfg(unix)]
#[test]
fn a_secret_that_a_file_of_somebody_else_names_is_not_sent() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::sqlite();
    let (address, _heard) = stranger();
    home.configure(&format!(
        "[server]\nlisten = \"{address}\"\ntokens = [\"env:MY_SECRET\"]\n"
    ));
    let file = home.path().join("counterfoil.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();

    let output = home
        .command(&["policies"])
        .env("MY_SECRET", "hunter2-0123456789")
        .output();

    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("its token is not sent"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

/// A certificate for this machine, and the authority that vouches for it.
struct Paper {
    authority: String,
    certificate: String,
    key: String,
}

fn paper() -> Paper {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Paper {
        authority: authority.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

impl Paper {
    fn write(&self, home: &Home) {
        std::fs::write(home.path().join("key.pem"), &self.key).unwrap();
        std::fs::write(home.path().join("cert.pem"), &self.certificate).unwrap();
    }
}

#[test]
fn the_api_speaks_https_and_takes_a_new_certificate_without_a_restart() {
    let home = Home::sqlite();
    let (first, second) = (paper(), paper());
    first.write(&home);
    std::fs::write(home.path().join("first.pem"), &first.authority).unwrap();
    std::fs::write(home.path().join("second.pem"), &second.authority).unwrap();
    home.configure("[server]\ncertificate-file = \"cert.pem\"\nkey-file = \"key.pem\"\n");
    let served = home.serve();
    let server = served.address.replace("127.0.0.1", "https://localhost");
    let ask = |ca: &str| home.run(&["policies", "--server", &server, "--ca-file", ca]);

    let good = ask("first.pem");
    let stranger = ask("second.pem");
    let public = home.run(&["policies", "--server", &server]);
    let plain = home.run(&["policies", "--server", &server.replace("https", "http")]);
    let name = home.run(&[
        "policies",
        "--server",
        &server.replace("localhost", "127.0.0.1"),
        "--ca-file",
        "first.pem",
    ]);

    assert_eq!(good.code, Some(0), "{good:?}");
    for refused in [stranger, public, plain, name] {
        assert_eq!(refused.code, Some(1), "{refused:?}");
    }
    std::fs::write(home.path().join("cert.pem"), "nonsense").unwrap();
    served.signal("HUP");
    assert_eq!(ask("first.pem").code, Some(0), "the former one stays");
    second.write(&home);
    until("the second certificate", || {
        (ask("second.pem").code == Some(0)).then_some(())
    });
    assert_eq!(ask("first.pem").code, Some(1));
    served.stop();
}

#[test]
fn a_certificate_that_cannot_work_is_refused_at_the_start() {
    let home = Home::sqlite();
    let (mine, other) = (paper(), paper());
    mine.write(&home);
    home.configure("[server]\ncertificate-file = \"cert.pem\"\n");
    let alone = home.refused(&["serve"], 2);
    home.configure("[server]\ncertificate-file = \"cert.pem\"\nkey-file = \"key.pem\"\n");
    std::fs::write(home.path().join("key.pem"), &other.key).unwrap();
    let foreign = home.refused(&["serve"], 2);
    assert_eq!(home.refused(&["config", "check"], 2), foreign);
    std::fs::remove_file(home.path().join("key.pem")).unwrap();
    let missing = home.refused(&["serve"], 2);

    assert!(alone.contains("go together"), "{alone}");
    assert!(foreign.contains("key.pem"), "{foreign}");
    assert!(missing.contains("key.pem"), "{missing}");
}
