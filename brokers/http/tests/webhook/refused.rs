//! Whom we do not talk to: private addresses, and peers that cannot prove who they are.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use counterfoil_core::{Code, Outcome};
use counterfoil_webhook::{Settings, SettingsError, WebhookDestination};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::receiver::Receiver;
use crate::{delivery, nobody_came, offer, reason, secret, unattended};

#[tokio::test]
async fn a_private_address_in_the_url_is_refused_when_built() {
    let listener = unattended();
    let url = format!("http://{}/", listener.local_addr().unwrap());

    let error = WebhookDestination::new(Settings::signed(url, [secret()])).unwrap_err();

    assert_eq!(error, SettingsError::PrivateAddress([127, 0, 0, 1].into()));
    assert!(nobody_came(&listener));
}

#[tokio::test]
async fn a_name_for_a_private_address_is_refused_when_connecting() {
    let listener = unattended();
    let port = listener.local_addr().unwrap().port();
    for scheme in ["http", "https"] {
        let url = format!("{scheme}://localhost:{port}/");
        let settings = Settings::signed(url, [secret()]).allow_plain(true);
        let webhook = WebhookDestination::new(settings).unwrap();

        let outcome = offer(&webhook, &delivery()).await;

        let (label, code, words) = reason(&outcome);
        assert_eq!(
            (label, code),
            ("destination-refused", Some(Code::ADDRESS_REFUSED))
        );
        assert!(
            words.starts_with("localhost is at the private address "),
            "{words}"
        );
    }
    assert!(nobody_came(&listener));
}

/// A server certificate for `localhost`, and itself as the authority.
fn certificate() -> (TlsAcceptor, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let encoded = STANDARD.encode(made.cert.der());
    let pem = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
    (TlsAcceptor::from(Arc::new(config)), pem)
}

fn over_tls(receiver: &Receiver, host: &str) -> Settings {
    let url = format!("https://{host}:{}/", receiver.address.port());
    Settings::signed(url, [secret()]).allow_private(true)
}

#[tokio::test]
async fn an_authority_of_our_own_can_be_trusted() {
    let (acceptor, ca) = certificate();
    let mut receiver = Receiver::encrypted(acceptor).await;
    let webhook = WebhookDestination::new(over_tls(&receiver, "localhost").extra_ca(ca)).unwrap();

    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);
    assert_eq!(offer(&webhook, &delivery()).await, Outcome::Stored);

    assert_eq!(
        receiver.request().await.connection,
        receiver.request().await.connection
    );
}

#[tokio::test]
async fn an_unknown_authority_or_another_name_gets_no_message() {
    let (acceptor, ca) = certificate();
    let receiver = Receiver::encrypted(acceptor).await;
    let unknown = over_tls(&receiver, "localhost");
    let misnamed = over_tls(&receiver, "127.0.0.1").extra_ca(ca);

    for settings in [unknown, misnamed] {
        let webhook = WebhookDestination::new(settings).unwrap();
        let outcome = offer(&webhook, &delivery()).await;

        let (label, _, words) = reason(&outcome);
        assert_eq!(label, "unavailable");
        assert!(words.starts_with("cannot agree on encryption"), "{words}");
    }
}
