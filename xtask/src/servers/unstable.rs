//! Programs of Debian's unstable suite, beside the machine's own.
//!
//! # Promise
//! Nothing is installed and no file of the machine's apt is touched: apt works in a directory of its
//! own, from the mirror that the machine uses, and what it downloads is only unpacked. A program runs
//! with the loader and the libraries that were unpacked with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages;
use crate::process::{batch, find, quiet};
use crate::stop::Stop;

const SUITE: &str = "sid";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A file tree that packages were unpacked into.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    loader: PathBuf,
    libraries: PathBuf,
}

/// Downloads a package with everything that it needs, and unpacks all of it into the directory.
pub(crate) fn unpack(package: &str, directory: &Path) -> Result<(), Stop> {
    if find("apt-get", &[]).is_none() || find("dpkg", &[]).is_none() {
        return Err(Stop::failed(format!(
            "{package} is unpacked from Debian's packages, and here is no apt-get"
        )));
    }
    let apt = directory.join("apt");
    let make = |path: &str| {
        fs::create_dir_all(apt.join(path))
            .map_err(|error| Stop::failed(format!("cannot make {}: {error}", apt.display())))
    };
    make("state/lists/partial")?;
    make("cache/archives/partial")?;
    write(&apt.join("status"), "")?;
    write(&apt.join("sources.list"), &source(&mirror()?))?;
    apt_get(&apt, &["update"])?;
    let install = ["install", "--yes", "--no-install-recommends"];
    apt_get(
        &apt,
        &[&install[..], &["--download-only", package]].concat(),
    )?;
    let archives = apt.join("cache/archives");
    for archive in files(&archives).filter(|path| path.extension().is_some_and(|e| e == "deb")) {
        quiet(Command::new("dpkg").arg("-x").arg(&archive).arg(directory))?;
    }
    let _ = fs::remove_dir_all(&apt);
    Ok(())
}

impl Tree {
    /// The tree in this directory.
    pub(crate) fn at(root: &Path) -> Result<Self, Stop> {
        let found = files(&root.join("usr/lib")).find_map(|libraries| {
            let loader = files(&libraries).find(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with("ld-linux"))
            })?;
            libraries.join("libc.so.6").exists().then_some(Self {
                root: root.to_owned(),
                loader,
                libraries,
            })
        });
        found.ok_or_else(|| Stop::failed(format!("{} has no loader", root.display())))
    }

    /// A file of the tree.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The program that runs others of the tree.
    pub(crate) fn loader(&self) -> &Path {
        &self.loader
    }

    /// Lets the loader run a program.
    pub(crate) fn run(&self, command: &mut Command, program: &str) {
        command
            .arg("--library-path")
            .arg(&self.libraries)
            .arg(self.file(program));
    }
}

/// Where the machine gets Debian's own packages from.
fn mirror() -> Result<String, Stop> {
    let ask = || {
        quiet(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Created-By: Packages",
            "Origin: Debian",
            "Label: Debian",
        ]))
    };
    let first = |said: String| said.lines().next().map(str::to_owned);
    if let Some(mirror) = first(ask()?) {
        return Ok(mirror);
    }
    // It does not know what its sources are before it has asked them.
    packages::update()?;
    first(ask()?).ok_or_else(|| Stop::failed("apt-get knows no mirror of Debian"))
}

fn source(mirror: &str) -> String {
    let signed = if Path::new(KEYRING).exists() {
        format!("[signed-by={KEYRING}] ")
    } else {
        String::new()
    };
    format!("deb {signed}{mirror} {SUITE} main\n")
}

fn apt_get(apt: &Path, args: &[&str]) -> Result<(), Stop> {
    let mut command = Command::new("apt-get");
    command.arg("-qq");
    for (name, file) in [
        ("Dir::State", "state"),
        ("Dir::State::status", "status"),
        ("Dir::Cache", "cache"),
        ("Dir::Etc::SourceList", "sources.list"),
    ] {
        let path = apt.join(file);
        command.arg("-o").arg(format!("{name}={}", path.display()));
    }
    for option in [
        "Dir::Etc::SourceParts=/dev/null",
        "Dir::Etc::Preferences=/dev/null",
        "Dir::Etc::PreferencesParts=/dev/null",
        // Its own user could not write here.
        "APT::Sandbox::User=",
        "Acquire::Languages=none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        "APT::Keep-Downloaded-Packages=true",
        "DPkg::Post-Invoke=",
    ] {
        command.args(["-o", option]);
    }
    let status = batch(command.args(args).stdout(std::io::stderr()))?;
    match status.success() {
        true => Ok(()),
        false => Err(Stop::failed(format!(
            "apt-get {} failed in {SUITE}",
            args.join(" ")
        ))),
    }
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    fs::write(path, text)
        .map_err(|error| Stop::failed(format!("cannot write {}: {error}", path.display())))
}
