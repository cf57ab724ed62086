//! Who we are, and over which wire.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use counterfoil_core::source::{DeadLetter, Settle, Source as _};
use counterfoil_core::{Code, Outcome};
use counterfoil_nats::{Create, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateNats;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::{build, delivery, one, source, take};

/// A key that stands in the documentation of NATS.
const SEED: &str = "SUANQDPB2RUOE4ETUA26CNX7FUKE5ZZKFCQIIW63OX225F2CO7UEXTM7ZY";
const PUBLIC: &str = "UAMMBNV2EYR65NYZZ7IAK5SIR5ODNTTERJOBOF4KJLMWI45YOXOSWULM";

async fn is_let_in(settings: Settings) -> bool {
    let outcome = one(&build(settings.create(Create::new())), &delivery(1, 1)).await;
    match outcome {
        Outcome::Stored => true,
        Outcome::DestinationRefused { .. } => false,
        other => panic!("{other:?}"),
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

#[tokio::test]
async fn a_password_may_stand_in_the_url_or_beside_it() {
    let settings = r#"authorization { user: relay, password: "a#b/c" }"#;
    let Some(nats) = PrivateNats::start_with(settings).await else {
        return;
    };
    let to = |user: &str| {
        let url = nats.url().replace("//", &format!("//{user}"));
        Settings::new(url, "orders")
    };

    assert!(is_let_in(to("relay:a%23b%2Fc@")).await);
    assert!(is_let_in(to("relay@").password("a#b/c")).await);
    assert!(!is_let_in(to("relay@").password("hunter2")).await);
    assert!(!is_let_in(to("")).await);
}

#[tokio::test]
async fn a_token_is_taken() {
    let Some(nats) = PrivateNats::start_with("authorization { token: secret }").await else {
        return;
    };
    let to = |token: &str| Settings::new(nats.url(), "orders").token(token);

    assert!(is_let_in(to("secret")).await);
    assert!(!is_let_in(to("wrong")).await);
}

#[tokio::test]
async fn a_key_is_taken() {
    let settings = format!("authorization {{ users: [ {{ nkey: {PUBLIC} }} ] }}");
    let Some(nats) = PrivateNats::start_with(&settings).await else {
        return;
    };

    assert!(is_let_in(Settings::new(nats.url(), "orders").nkey(SEED)).await);
    assert!(!is_let_in(Settings::new(nats.url(), "orders").nkey("nonsense")).await);
    assert!(!is_let_in(Settings::new(nats.url(), "orders")).await);
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_not_talked_to() {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let server = server.signed_by(&key, &ca).unwrap();
    std::fs::write(path("ca.pem"), pem("CERTIFICATE", ca.der())).unwrap();
    std::fs::write(path("cert.pem"), pem("CERTIFICATE", server.der())).unwrap();
    std::fs::write(path("key.pem"), pem("PRIVATE KEY", &key.serialize_der())).unwrap();
    let settings = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}",
        path("cert.pem"),
        path("key.pem")
    );
    let Some(nats) = PrivateNats::start_with(&settings).await else {
        return;
    };
    let url = nats.url().replace("nats://", "tls://");

    let trusted = Settings::new(&url, "orders").ca_file(path("ca.pem"));
    assert!(is_let_in(trusted).await);
    let stranger = build(Settings::new(&url, "orders"));
    let outcome = one(&stranger, &delivery(1, 1)).await;
    let reading = SourceSettings::new(&url, "orders", "stock").ca_file(path("ca.pem"));
    let member = source(reading).subscribe().await.unwrap();

    let let_in = ["destination-refused", "unavailable"].contains(&outcome.label());
    assert!(let_in, "{outcome:?}");
    member.close().await.unwrap();
}

#[tokio::test]
async fn who_names_an_authority_does_not_speak_in_clear() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    assert!(is_let_in(Settings::new(nats.url(), "orders")).await);
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(&ca, pem("CERTIFICATE", authority.der())).unwrap();

    let destination = build(Settings::new(nats.url(), "orders").ca_file(&ca));
    let outcome = one(&destination, &delivery(1, 1)).await;
    let reading = SourceSettings::new(nats.url(), "orders", "stock").ca_file(&ca);
    let member = source(reading).subscribe().await;

    assert_ne!(outcome.label(), "stored", "the server has no certificate");
    assert!(member.is_err());
}

#[tokio::test]
async fn any_of_several_servers_will_do() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    let several = format!("nats://127.0.0.1:1,{}", nats.url());

    for _ in 0..4 {
        assert!(is_let_in(Settings::new(&several, "orders")).await);
    }
}

#[tokio::test]
async fn the_rights_that_the_book_names_are_enough() {
    let settings = r#"authorization { users: [
        { user: admin, password: pw }
        { user: relay, password: pw, permissions: {
            publish: ["orders.*", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.orders"],
            subscribe: ["_INBOX.>"] } }
        { user: stock, password: pw, permissions: {
            publish: ["orders.DLQ", "counterfoil.members.orders.stock", "$JS.ACK.orders.>",
                "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.orders",
                "$JS.API.CONSUMER.INFO.orders.*", "$JS.API.CONSUMER.CREATE.orders.>",
                "$JS.API.CONSUMER.MSG.NEXT.orders.*", "$JS.API.CONSUMER.UNPIN.orders.*"],
            subscribe: ["_INBOX.>", "counterfoil.members.orders.stock"] } } ] }"#;
    let Some(nats) = PrivateNats::start_with(settings).await else {
        return;
    };
    let url = |user: &str| nats.url().replace("//", &format!("//{user}:pw@"));
    let to = |user: &str| Settings::new(url(user), "orders").partitions(2);
    assert!(is_let_in(to("admin")).await);
    let graves = Settings::new(url("admin"), "orders.DLQ");
    assert!(is_let_in(graves).await);

    assert!(is_let_in(to("relay")).await);
    let reading = SourceSettings::new(url("stock"), "orders", "stock").partitions(2);
    let reading = source(reading);
    let mut first = reading.subscribe().await.unwrap();
    let came = take(&mut first, 2).await;
    let dead = Settle::Dead(DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "no".into(),
        attempts: 1,
    });
    let settled = vec![(came[0].tag, dead), (came[1].tag, Settle::Done)];
    first.settle(settled).await.unwrap();
    assert_eq!(first.lag().await.unwrap(), Some(0));
    first.close().await.unwrap();
    assert_eq!(reading.retention().await.unwrap(), None);

    assert!(is_let_in(to("relay")).await);
    let mut second = reading.subscribe().await.unwrap();
    let came = take(&mut second, 1).await;
    assert_eq!(
        came[0].deliveries,
        Some(1),
        "what was settled does not come again"
    );
    second.close().await.unwrap();
}
