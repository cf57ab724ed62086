//! Encrypted connections.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use counterfoil_core::guard::{Gate as _, Gated, Key, Tokens as _};
use counterfoil_core::inbox::Gate as _;
use counterfoil_redis_gate::{
    LockOptions, Options, OptionsError, RedisGate, RedisLocks, RedisSeen, RedisTokens, SeenOptions,
    TokenOptions,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

const LONG: Duration = Duration::from_secs(20);

/// A Redis that speaks TLS only, and is gone with its handle.
struct Encrypted {
    child: Child,
    url: String,
    ca: Vec<u8>,
    _directory: tempfile::TempDir,
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn start() -> Option<Encrypted> {
    counterfoil_testkit::server::redis()?;
    let directory = tempfile::tempdir().unwrap();
    let ca = authority();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = port.local_addr().unwrap().port();
    let child = Command::new("redis-server")
        .args(["--port", "0", "--bind", "127.0.0.1", "--save", ""])
        .args(["--tls-port", &port.to_string(), "--tls-auth-clients", "no"])
        .arg("--tls-cert-file")
        .arg(file("cert.pem", &certificate.pem()))
        .arg("--tls-key-file")
        .arg(file("key.pem", &key.serialize_pem()))
        .arg("--tls-ca-cert-file")
        .arg(file("ca.pem", &ca.pem()))
        .arg("--dir")
        .arg(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server cannot be started");
    Some(Encrypted {
        child,
        url: format!("rediss://localhost:{port}/"),
        ca: ca.pem().into_bytes(),
        _directory: directory,
    })
}

fn gate(server: &Encrypted, ca: Option<Vec<u8>>) -> RedisGate {
    let options = Options {
        patience: LONG,
        ca,
        ..Options::default()
    };
    RedisGate::new(&server.url, options).unwrap()
}

#[tokio::test]
async fn gates_tokens_and_locks_speak_tls_and_believe_their_authority_only() {
    let Some(server) = start() else { return };
    let ca = Some(server.ca.clone());
    let digest = Key::new("", "test", "k").unwrap().digest();

    let started = Instant::now();
    while !matches!(
        gate(&server, ca.clone()).enter(&digest).await,
        Gated::Open(_)
    ) {
        assert!(started.elapsed() < LONG, "the gate is not open");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seen = SeenOptions {
        patience: LONG,
        ca: ca.clone(),
        ..SeenOptions::default()
    };
    let seen = RedisSeen::new(&server.url, seen).unwrap();
    seen.note("stock", &["a"]).await;
    assert_eq!(seen.seen("stock", &["a", "b"]).await, [true, false]);
    let tokens = TokenOptions {
        patience: LONG,
        ca: ca.clone(),
        ..TokenOptions::default()
    };
    let tokens = RedisTokens::new(&server.url, tokens).unwrap();
    tokens.issue("ann", LONG).await.unwrap();
    let locks = LockOptions {
        patience: LONG,
        ca,
        ..LockOptions::default()
    };
    assert!(RedisLocks::new(&server.url, locks).is_ok());

    for stranger in [None, Some(authority().pem().into_bytes())] {
        let other = Key::new("", "test", "l").unwrap().digest();
        let entered = gate(&server, stranger).enter(&other).await;
        assert_eq!(entered, Gated::Aside, "the certificate is not trusted");
    }
}

#[test]
fn what_would_not_be_verified_is_refused() {
    let made = |url: &str, ca: Option<&str>| {
        let ca = ca.map(|pem| pem.as_bytes().to_vec());
        let options = Options {
            ca,
            ..Options::default()
        };
        RedisGate::new(url, options).map(|_| ())
    };
    let pem = authority().pem();

    assert!(made("rediss://localhost/", None).is_ok());
    assert!(made("rediss://localhost/", Some(&pem)).is_ok());
    let insecure = made("rediss://localhost/#insecure", None);
    assert!(matches!(insecure, Err(OptionsError::Address(_))));
    let plain = made("redis://localhost/", Some(&pem));
    assert!(matches!(plain, Err(OptionsError::Plain)));
    let nothing = made("rediss://localhost/", Some("hello"));
    assert!(matches!(nothing, Err(OptionsError::Ca(_))));
}
