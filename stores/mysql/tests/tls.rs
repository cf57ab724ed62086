//! Encrypted connections to a MariaDB of the test's own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use counterfoil_core::StoreError;
use counterfoil_core::store::Store as _;
use counterfoil_mysql::MysqlStore;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A MariaDB that speaks TLS, and is gone with its handle.
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

/// A program of the server. Debian's ordinary users do not have sbin in PATH.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    places
        .map(|place| place.join(name))
        .find(|file| file.exists())
}

/// The server refuses to run as root: then it runs as the user that is made for it.
fn account() -> Option<(u32, u32)> {
    let of_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().find(|line| line.starts_with("mysql:"));
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
        .arg("--no-defaults")
        .arg(option("datadir", &directory.join("data")))
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn start(ca: &CertifiedIssuer<'static, KeyPair>) -> Option<Encrypted> {
    counterfoil_testkit::server::mysql()?;
    let (install, server) = (program("mariadb-install-db")?, program("mariadbd")?);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, ca).unwrap();
    std::fs::write(place.join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(place.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(place.join("ca.pem"), ca.pem()).unwrap();
    if let Some((user, group)) = account() {
        chown(place, Some(user), Some(group)).unwrap();
    }
    let made = command(&install, place)
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .status();
    assert!(made.unwrap().success());
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = port.local_addr().unwrap().port();
    let child = command(&server, place)
        .arg(option("socket", &place.join("socket")))
        .arg(option("pid-file", &place.join("pid")))
        .arg(option("tmpdir", place))
        .arg(option("ssl-cert", &place.join("cert.pem")))
        .arg(option("ssl-key", &place.join("key.pem")))
        .arg(format!("--port={port}"))
        .args(["--bind-address=127.0.0.1", "--skip-networking=0"])
        .arg("--skip-name-resolve")
        .spawn();
    Some(Encrypted {
        child: child.unwrap(),
        port,
        directory,
    })
}

impl Encrypted {
    fn store(&self, host: &str, query: &str) -> MysqlStore {
        let url = format!("mysql://root@{host}:{}/mysql?{query}", self.port);
        MysqlStore::connect(&url).unwrap()
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
    let verified = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={}", server.file("ca.pem"));
    let strangers = format!(
        "ssl-mode=VERIFY_IDENTITY&ssl-ca={}",
        server.file("other.pem")
    );

    let good = server.store("localhost", &verified);
    let started = Instant::now();
    // There are no tables: who is told so has been let in.
    while !matches!(good.check().await, Err(StoreError::SchemaMissing)) {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(60), "{:?}", good.check().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stranger = server.store("localhost", &strangers).check().await;
    let other_name = server.store("127.0.0.1", &verified).check().await;

    for refused in [stranger, other_name] {
        assert!(
            matches!(refused, Err(StoreError::Unreachable(_))),
            "{refused:?}"
        );
    }
    let told = good.encryption().await.unwrap();
    assert!(told.starts_with("TLSv1."), "{told}");
    assert!(told.ends_with(", certificate and name verified"), "{told}");
    let plain = server.store("localhost", "ssl-mode=DISABLED");
    assert_eq!(plain.encryption().await.unwrap(), "none");
    for store in [good, plain] {
        store.close().await;
    }
}
