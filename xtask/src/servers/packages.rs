//! Debian packages.
//!
//! # Promise
//! Nothing is installed unless xtask is root and a program is really missing. Services of the
//! installed packages are not started, and the machine's own rule about that is put back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::account::is_root;
use crate::process::{batch, find};
use crate::stop::Stop;

const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Another apt may be at work; wait for it.
const PATIENCE: &str = "DPkg::Lock::Timeout=600";

/// Finds programs, and installs packages if they are not there.
pub(crate) fn provide<T>(packages: &[&str], locate: impl Fn() -> Option<T>) -> Result<T, Stop> {
    if let Some(found) = locate() {
        return Ok(found);
    }
    let names = packages.join(" ");
    if !is_root() || find("apt-get", &[]).is_none() {
        return Err(Stop::failed(format!(
            "not installed; on Debian: sudo apt-get install {names}"
        )));
    }
    install(packages)?;
    locate().ok_or_else(|| Stop::failed(format!("not found after the installation of {names}")))
}

fn install(packages: &[&str]) -> Result<(), Stop> {
    eprintln!("xtask: installing {}", packages.join(" "));
    let _policy = Policy::deny_starts(Path::new(POLICY))?;
    update()?;
    apt_get(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

/// Lets apt ask its sources what there is, once in a run.
pub(crate) fn update() -> Result<(), Stop> {
    static UPDATED: OnceLock<()> = OnceLock::new();

    if UPDATED.get().is_none() {
        apt_get(&["update"])?;
        let _ = UPDATED.set(());
    }
    Ok(())
}

fn apt_get(args: &[&str]) -> Result<(), Stop> {
    let status = batch(
        Command::new("apt-get")
            .args(["-qq", "-o", PATIENCE])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            // Its remarks are ours, and ours go to stderr.
            .stdout(std::io::stderr()),
    )?;
    if status.success() {
        Ok(())
    } else {
        Err(Stop::failed(format!("apt-get {} failed", args.join(" "))))
    }
}

/// While it lives, package scripts may not start services.
#[derive(Debug)]
struct Policy {
    path: PathBuf,
    saved: PathBuf,
}

impl Policy {
    fn deny_starts(path: &Path) -> Result<Self, Stop> {
        let policy = Self {
            path: path.to_owned(),
            saved: path.with_extension("d.before-xtask"),
        };
        let failed = |error| Stop::failed(format!("cannot write {}: {error}", path.display()));
        // A saved file that is there already is from an xtask that was killed: it is the real one.
        if path.exists() && !policy.saved.exists() {
            fs::rename(path, &policy.saved).map_err(failed)?;
        }
        fs::write(path, "#!/bin/sh\nexit 101\n").map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        Ok(policy)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let restored = if self.saved.exists() {
            fs::rename(&self.saved, &self.path)
        } else {
            fs::remove_file(&self.path)
        };
        if let Err(error) = restored {
            eprintln!("xtask: cannot restore {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_rule_about_service_starts_is_put_back() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.join("policy-rc.d");

        let policy = Policy::deny_starts(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("exit 101"));
        drop(policy);
        assert!(!path.exists());

        fs::write(&path, "the old rule").unwrap();
        let policy = Policy::deny_starts(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("exit 101"));
        drop(policy);
        assert_eq!(fs::read_to_string(&path).unwrap(), "the old rule");
    }
}
