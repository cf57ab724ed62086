//! The gateway, as a user runs it: `counterfoil serve` with a file of settings.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Program, free_port};

/// What is not guarded.
pub const PASSING: &str = "/pass/orders";
/// What is guarded.
pub const GUARDED: &str = "/orders";

/// A running gateway.
pub struct Gateway {
    /// Where it listens.
    pub address: SocketAddr,
    /// The process.
    pub program: Program,
}

impl Gateway {
    /// Starts one before a service; `cache` is its memory for copies of answers, such as `64 MB`.
    pub fn start(
        name: &'static str,
        directory: &Path,
        database: &str,
        service: SocketAddr,
        cache: Option<&str>,
    ) -> anyhow::Result<Self> {
        let home = directory.join(name);
        std::fs::create_dir(&home)?;
        let (api, address) = (free_port()?, free_port()?);
        let cache = cache.map_or(String::new(), |size| format!("replay-cache = \"{size}\"\n"));
        let settings = format!(
            "[database]\nurl = \"{database}\"\n\
             [gateway]\nlisten = \"{address}\"\n{cache}\
             [[gateway.route]]\npath = \"/pass/**\"\nupstream = \"service\"\nguard = false\n\
             [[gateway.route]]\nupstream = \"service\"\ncaller = \"one\"\n\
             [upstream.service]\nurl = \"http://{service}\"\n"
        );
        std::fs::write(home.join("counterfoil.toml"), settings)?;
        let args = ["--config", "counterfoil.toml", "serve", "--listen"];
        let args = args.map(str::to_owned).into_iter().chain([api.to_string()]);
        let args: Vec<String> = args.collect();
        let mut program = Program::start(name, &binary()?, &args, &home)?;
        program.wait_for(address, &home)?;
        Ok(Self { address, program })
    }
}

/// The binary of the same build.
fn binary() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.with_file_name("counterfoil");
    anyhow::ensure!(
        path.is_file(),
        "{} is missing: run `cargo xtask bench gateway`, or build it with `cargo build --release`",
        path.display()
    );
    Ok(path)
}
