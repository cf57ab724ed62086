//! Encrypted connections.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use counterfoil_http::client::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::server::{builder, client};

/// A service behind a certificate of its own making: its address, and the certificate.
async fn service() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}/",
        listener.local_addr().unwrap().port()
    );
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret";
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    let encoded = STANDARD.encode(made.cert.der());
    let pem = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
    (url, pem)
}

#[tokio::test]
async fn only_who_is_trusted_is_talked_to() {
    let (url, pem) = service().await;
    let trusting = builder().trust(pem).build().unwrap();

    assert_eq!(trusting.get(&url).send().await.unwrap().text(), "secret");
    let error = client().get(&url).send().await.unwrap_err();
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
    let elsewhere = url.replace("localhost", "127.0.0.1");
    let error = trusting.get(&elsewhere).send().await.unwrap_err();
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
}
