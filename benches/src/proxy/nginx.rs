//! nginx, as the service and as the proxy to compare with.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Program, free_port};

/// Where the program is, when it is not in the usual places.
pub const VARIABLE: &str = "COUNTERFOIL_BENCH_NGINX";

/// What the service answers.
const ANSWER: &str = r#"{"order":4711,"state":"accepted","amount":"12.50","currency":"EUR"}"#;

/// A running nginx.
pub struct Nginx {
    /// Where it listens.
    pub address: SocketAddr,
    _program: Program,
}

impl Nginx {
    /// A service that answers everything with the same small body.
    pub fn service(directory: &Path, workers: usize) -> anyhow::Result<Self> {
        let quoted = ANSWER.replace('\'', "");
        let location = format!("default_type application/json; return 200 '{quoted}';");
        start("service", directory, workers, "", &location)
    }

    /// A plain reverse proxy before a service, with connections that are used again.
    pub fn proxy(directory: &Path, workers: usize, service: SocketAddr) -> anyhow::Result<Self> {
        let upstream = format!(
            "upstream service {{ server {service}; keepalive 64; keepalive_requests 100000000; }}"
        );
        let location = "proxy_pass http://service; proxy_http_version 1.1;
                proxy_set_header Connection \"\"; proxy_set_header Host $http_host;
                proxy_set_header X-Forwarded-For $remote_addr;";
        start("proxy", directory, workers, &upstream, location)
    }
}

fn start(
    name: &'static str,
    directory: &Path,
    workers: usize,
    upstream: &str,
    location: &str,
) -> anyhow::Result<Nginx> {
    let home = directory.join(name);
    std::fs::create_dir(&home)?;
    let address = free_port()?;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {}/{kind};\n", home.display()))
        .concat();
    let text = format!(
        "daemon off; worker_processes {workers}; pid {home}/pid; error_log stderr error;
        worker_rlimit_nofile 8192;
        events {{ worker_connections 4096; }}
        http {{
            access_log off; keepalive_requests 100000000; keepalive_timeout 75s; tcp_nodelay on;
            {temporary}
            {upstream}
            server {{ listen {address}; location / {{ {location} }} }}
        }}\n",
        home = home.display()
    );
    let file = home.join("nginx.conf");
    std::fs::write(&file, text)?;
    let args = ["-e", "stderr", "-p", path(&home)?, "-c", path(&file)?];
    let mut program = Program::start(name, &find()?, &args, &home)?;
    program.wait_for(address, &home)?;
    Ok(Nginx {
        address,
        _program: program,
    })
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .ok_or_else(|| anyhow::anyhow!("{} cannot be written", path.display()))
}

fn find() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        return Ok(given.into());
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&directories)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join("nginx"))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            anyhow::anyhow!(
                "nginx is missing: run `cargo xtask bench gateway`, or name it in {VARIABLE}"
            )
        })
}
