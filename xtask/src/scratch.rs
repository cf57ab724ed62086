//! The temporary directory of one xtask.
//!
//! # Promise
//! It is gone when xtask ends. When xtask was killed with no chance to clean up, the next one does
//! it: a locked file inside says that the owner is alive, and the kernel gives the lock back.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::stop::Stop;

const PREFIX: &str = "counterfoil-xtask-";
const LOCK: &str = "lock";

/// A temporary directory, removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes a new one in the system's temporary directory and removes abandoned ones.
    pub(crate) fn new() -> Result<Self, Stop> {
        Self::inside(&std::env::temp_dir())
    }

    fn inside(parent: &Path) -> Result<Self, Stop> {
        remove_abandoned(parent);
        let path = parent.join(format!("{PREFIX}{}-{}", std::process::id(), nanos()));
        let failed = |error| Stop::failed(format!("cannot make {}: {error}", path.display()));
        // Others may pass through, because a server can run as another user.
        DirBuilder::new()
            .mode(0o711)
            .create(&path)
            .map_err(failed)?;
        let lock = lock(&path).map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    /// A path inside.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A new private directory inside.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Stop> {
        let path = self.join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Stop::failed(format!("cannot make {}: {error}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("xtask: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// A number that differs from one moment to the next.
pub(crate) fn nanos() -> u32 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.subsec_nanos())
}

fn lock(directory: &Path) -> std::io::Result<File> {
    // Locked under another name first: whoever finds the file named LOCK finds it locked.
    let early = directory.join("lock.new");
    let file = File::create_new(&early)?;
    file.lock()?;
    fs::rename(&early, directory.join(LOCK))?;
    Ok(file)
}

fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && is_abandoned(&entry.path()) {
            // Best effort: it may belong to another user, or another xtask may be at it too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(directory: &Path) -> bool {
    File::open(directory.join(LOCK)).is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_removed_when_dropped_or_abandoned_but_not_while_in_use() {
        let parent = Scratch::new().unwrap();
        let dead = parent.directory(&format!("{PREFIX}1-1")).unwrap();
        File::create_new(dead.join(LOCK)).unwrap();
        let starting = parent.directory(&format!("{PREFIX}1-2")).unwrap();
        let living = Scratch::inside(&parent.path).unwrap();

        let newest = Scratch::inside(&parent.path).unwrap();

        assert!(!dead.exists());
        assert!(starting.exists());
        assert!(living.path.exists());
        let path = newest.path.clone();
        drop(newest);
        assert!(!path.exists());
    }
}
