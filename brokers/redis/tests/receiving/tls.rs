//! Encrypted connections.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;

use counterfoil_core::source::{Settle, Source as _, SourceError};
use counterfoil_core::{Destination as _, Outcome};
use counterfoil_redis_streams::{RedisStreams, RedisStreamsSource, Settings, SourceSettings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::{LONG, settle, take, until};

/// A Redis that speaks TLS only, and is gone with its handle.
struct Encrypted {
    child: std::process::Child,
    port: u16,
    ca: String,
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

fn start() -> Encrypted {
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
    Encrypted {
        child,
        port,
        ca: ca.pem(),
        _directory: directory,
    }
}

#[tokio::test]
async fn messages_go_there_and_back_encrypted() {
    if counterfoil_testkit::server::redis().is_none() {
        return;
    }
    let server = start();
    let url = format!("rediss://localhost:{}/", server.port);
    let settings = Settings::new(&url, "s").timeout(LONG).ca(server.ca.clone());
    let destination = Arc::new(RedisStreams::new(settings).unwrap());
    let sent = crate::delivery();

    until("it is stored", async || {
        destination.publish(std::slice::from_ref(&sent)).await == [Outcome::Stored]
    })
    .await;
    let settings = SourceSettings::new(&url, "s", "g").ca(server.ca.clone());
    let source = RedisStreamsSource::new(settings).unwrap();
    let mut member = source.subscribe().await.unwrap();
    let came = take(&mut *member, 1).await;

    assert_eq!(came[0].text("ce_id"), Some(sent.id.to_string().as_str()));
    settle(&mut *member, &came, Settle::Done).await.unwrap();
    member.close().await.unwrap();

    let other = authority().pem();
    let strangers = SourceSettings::new(&url, "s", "g").ca(other);
    let refused = RedisStreamsSource::new(strangers)
        .unwrap()
        .subscribe()
        .await;
    let unavailable = matches!(refused.err(), Some(SourceError::Unavailable(_)));
    assert!(unavailable, "a certificate of somebody else is not trusted");
}

#[test]
fn certificates_that_are_none_are_refused() {
    let settings = Settings::new("rediss://localhost/", "s").ca("no certificate");

    assert!(RedisStreams::new(settings).is_err());
}
