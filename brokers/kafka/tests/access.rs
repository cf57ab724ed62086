//! Passwords, TLS, and groups in the older way, on a Kafka that asks for them.

#![allow(clippy::unwrap_used, reason = "a surprise ends the test")]

mod support;

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use counterfoil_core::source::{Settle, Source as _};
use counterfoil_core::{Destination as _, Outcome};
use counterfoil_kafka::{Kafka, KafkaSource, Mechanism, Settings, SourceSettings};
use counterfoil_testkit::broker::fixture::message;
use counterfoil_testkit::server::{Certificate, PrivateKafka};
use support::{make_topic, patiently};

const TIMEOUT: Duration = Duration::from_secs(30);

/// One message there and back, or what was said instead.
async fn there_and_back(settings: Settings, source: SourceSettings) -> Outcome {
    let destination = Kafka::new(settings.timeout(TIMEOUT)).unwrap();
    let sent = message("order", 1, 1);
    let outcome = destination
        .publish(std::slice::from_ref(&sent))
        .await
        .remove(0);
    if outcome != Outcome::Stored {
        return outcome;
    }
    let source = KafkaSource::new(source.timeout(TIMEOUT)).unwrap();
    let mut subscription = patiently(source.subscribe()).await.unwrap();
    let mut seen = false;
    while !seen {
        for arrival in patiently(subscription.receive(10)).await.unwrap() {
            seen |= arrival.text("ce_id") == Some(&sent.id.to_string());
            let settled = vec![(arrival.tag, Settle::Done)];
            patiently(subscription.settle(settled)).await.unwrap();
        }
    }
    patiently(subscription.close()).await.unwrap();
    outcome
}

fn pem(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_password_is_let_in_with_and_without_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = Certificate {
        chain: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    };
    let (trusted, strange) = (pem(&made.cert.pem()), pem(&other.cert.pem()));
    let Some(kafka) = PrivateKafka::start_closed(&certificate).await else {
        return;
    };
    make_topic(&kafka.address(), "orders", 1, &[]).await;
    let open = format!(
        "kafka://{}@{}",
        PrivateKafka::USER,
        kafka.address_with_password()
    );
    let closed = format!(
        "kafkas://{}@{}",
        PrivateKafka::USER,
        kafka.address_with_tls()
    );
    let with = |url: &str, password: &str, mechanism, ca: Option<&Path>| {
        let mut settings = Settings::new(url, "orders")
            .password(password)
            .mechanism(mechanism);
        let mut source = SourceSettings::new(url, "orders", "stock")
            .password(password)
            .mechanism(mechanism);
        if let Some(ca) = ca {
            (settings, source) = (settings.ca_file(ca), source.ca_file(ca));
        }
        there_and_back(settings, source)
    };

    for mechanism in [
        Mechanism::Plain,
        Mechanism::ScramSha256,
        Mechanism::ScramSha512,
    ] {
        let right = with(&open, PrivateKafka::PASSWORD, mechanism, None).await;
        assert_eq!(right, Outcome::Stored, "{mechanism:?}");
        let wrong = with(&open, "wrong", mechanism, None).await;
        assert_eq!(
            wrong.label(),
            "destination-refused",
            "{mechanism:?}: {wrong:?}"
        );
    }
    let scram = Mechanism::ScramSha512;
    let right = with(&closed, PrivateKafka::PASSWORD, scram, Some(trusted.path())).await;
    assert_eq!(right, Outcome::Stored);
    for untrusted in [Some(strange.path()), None] {
        let refused = with(&closed, PrivateKafka::PASSWORD, scram, untrusted).await;
        assert_eq!(refused.label(), "destination-refused", "{refused:?}");
    }
}
