//! Encrypted connections to a PostgreSQL of the test's own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use counterfoil_core::StoreError;
use counterfoil_core::store::Store as _;
use counterfoil_postgres::{PostgresStore, options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sqlx::postgres::PgSslMode;

#[test]
fn servers_on_other_machines_are_verified_unless_the_url_says_otherwise() {
    let full = |url: &str| matches!(options(url).unwrap().get_ssl_mode(), PgSslMode::VerifyFull);

    for url in [
        "postgres://db.example.com/app",
        "postgres://u:p@10.0.0.7:5432/app",
        "postgres://[fd00::1]/app",
        "postgres://db/app?application_name=x",
        "postgres:///app?host=db.example.com",
    ] {
        assert!(full(url), "{url}");
    }
    for url in [
        "postgres://localhost/app",
        "postgres://127.0.0.1:5433/app",
        "postgres://[::1]/app",
        "postgres:///app?host=/run/postgresql",
        "postgres://db.example.com/app?sslmode=disable",
        "postgres://db.example.com/app?x=1&ssl-mode=require",
    ] {
        assert!(!full(url), "{url}");
    }
}

/// A PostgreSQL that speaks TLS, and is gone with its handle.
struct Encrypted {
    child: Child,
    port: u16,
    directory: tempfile::TempDir,
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

/// Where the server's programs are. Debian keeps them out of PATH.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for version in std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
    {
        places.push(version.unwrap().path().join("bin"));
    }
    places
        .into_iter()
        .find(|place| place.join("initdb").exists() && place.join("postgres").exists())
}

/// The server refuses to run as root: then it runs as the user that is made for it.
fn account() -> Option<(u32, u32)> {
    let of_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid() == 0
    });
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().find(|line| line.starts_with("postgres:"));
    let mut numbers = user.filter(|_| of_root)?.split(':').skip(2);
    let mut next = || numbers.next().unwrap().parse().unwrap();
    Some((next(), next()))
}

fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = account() {
        command.uid(user).gid(group);
    }
    command
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn start(ca: &CertifiedIssuer<'static, KeyPair>) -> Option<Encrypted> {
    counterfoil_testkit::server::postgres()?;
    let programs = programs()?;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let certificate = CertificateParams::new(names).unwrap();
    let certificate = certificate.signed_by(&key, ca).unwrap();
    std::fs::write(place.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(place.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(place.join("ca.pem"), ca.pem()).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(place.join("key.pem"), private).unwrap();
    if let Some((user, group)) = account() {
        for file in [
            place.to_owned(),
            place.join("cert.pem"),
            place.join("key.pem"),
        ] {
            std::os::unix::fs::chown(file, Some(user), Some(group)).unwrap();
        }
    }
    let data = place.join("data");
    let made = command(&programs.join("initdb"), place)
        .args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"])
        .arg(&data)
        .status();
    assert!(made.unwrap().success());
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = port.local_addr().unwrap().port();
    let mut server = command(&programs.join("postgres"), place);
    server.arg("-D").arg(&data);
    for setting in [
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
        format!("unix_socket_directories={}", place.display()),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", place.join("cert.pem").display()),
        format!("ssl_key_file={}", place.join("key.pem").display()),
    ] {
        server.arg("-c").arg(setting);
    }
    Some(Encrypted {
        child: server.spawn().unwrap(),
        port,
        directory,
    })
}

impl Encrypted {
    fn store(&self, host: &str, query: &str) -> PostgresStore {
        let url = format!("postgres://postgres@{host}:{}/postgres?{query}", self.port);
        PostgresStore::connect(&url).unwrap()
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

#[tokio::test]
async fn a_certificate_of_somebody_else_or_for_another_name_is_refused() {
    let ca = authority();
    let Some(server) = start(&ca) else { return };
    std::fs::write(server.file("other.pem"), authority().pem()).unwrap();
    let verified = format!("sslmode=verify-full&sslrootcert={}", server.file("ca.pem"));
    let strangers = format!(
        "sslmode=verify-full&sslrootcert={}",
        server.file("other.pem")
    );

    let good = server.store("localhost", &verified);
    let started = Instant::now();
    while let Err(error) = good.migrate().await {
        assert!(started.elapsed() < Duration::from_secs(60), "{error:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stranger = server.store("localhost", &strangers).check().await;
    let public = server
        .store("localhost", "sslmode=verify-full")
        .check()
        .await;
    let other_name = server.store("127.0.0.1", &verified).check().await;

    good.check().await.unwrap();
    for refused in [stranger, public, other_name] {
        assert!(
            matches!(refused, Err(StoreError::Unreachable(_))),
            "{refused:?}"
        );
    }
    let told = good.encryption().await.unwrap();
    assert!(told.starts_with("TLSv1."), "{told}");
    assert!(told.ends_with(", certificate and name verified"), "{told}");
    let unverified = server.store("localhost", "sslmode=require");
    let told = unverified.encryption().await.unwrap();
    assert!(told.ends_with(", certificate not verified"), "{told}");
    let plain = server.store("localhost", "sslmode=disable");
    assert_eq!(plain.encryption().await.unwrap(), "none");
    for store in [good, unverified, plain] {
        store.close().await;
    }
}
