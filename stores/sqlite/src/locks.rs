//! Locks of the operating system: who lives, and who owns a queue.
//!
//! # Promise
//! At most one process, and within it one handle, holds the lock of a queue or of a relay. It ends
//! with the process or the handle, however that ends; nothing has to be renewed and nothing runs out.
//!
//! A lock belongs to an open file, not to a process, so two handles in one process exclude each
//! other as two processes do. Files of queues stay for ever: removing a lock file while somebody
//! opens it would give two holders. Files of relays bear names that never come back, and are removed
//! when the relay is gone.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counterfoil_core::store::{RelayId, Result, StoreError};
use uuid::Uuid;

pub(crate) struct Locks {
    database: PathBuf,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    relays: HashMap<RelayId, File>,
    queues: HashMap<Arc<str>, (RelayId, File)>,
}

impl Locks {
    pub(crate) fn beside(database: &Path) -> Self {
        Self {
            database: database.to_owned(),
            held: Mutex::default(),
        }
    }

    /// Takes the lock that says that a relay lives.
    pub(crate) fn join(&self, relay: &RelayId) -> Result<()> {
        let mut held = self.held();
        if held.relays.contains_key(relay) {
            return Ok(());
        }
        let path = self.file("relay", relay.as_str())?;
        let file = try_exclusive(&path)?.ok_or_else(|| {
            StoreError::Busy(format!("the relay {relay} is already running").into())
        })?;
        held.relays.insert(relay.clone(), file);
        Ok(())
    }

    /// Whether this handle holds the relay's lock. A lock file that somebody removed protects nobody.
    pub(crate) fn holds(&self, relay: &RelayId) -> bool {
        self.held().relays.contains_key(relay)
            && self
                .file("relay", relay.as_str())
                .is_ok_and(|path| path.exists())
    }

    /// Whether anybody holds the relay's lock.
    pub(crate) fn lives(&self, relay: &RelayId) -> Result<bool> {
        let path = self.file("relay", relay.as_str())?;
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            // Somebody else's. Nothing is taken from one who may live.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(true),
            Err(e) => return Err(broken(&path, e)),
        };
        // Shared, so that two who look at the same time do not take each other for the relay.
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(e)) => Err(broken(&path, e)),
        }
    }

    /// Removes the file of a relay that is gone.
    pub(crate) fn forget(&self, relay: &RelayId) {
        if let Ok(path) = self.file("relay", relay.as_str()) {
            // A file that stays is only untidy.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Tries to take the lock of a queue. The caller keeps it with [`Locks::keep`].
    pub(crate) fn try_queue(&self, queue: &str) -> Result<Option<File>> {
        try_exclusive(&self.file("queue", queue)?)
    }

    /// Keeps the lock of a queue on behalf of a relay.
    pub(crate) fn keep(&self, relay: &RelayId, queue: &Arc<str>, file: File) {
        self.held()
            .queues
            .insert(Arc::clone(queue), (relay.clone(), file));
    }

    /// Lets go of the lock of a queue, if the relay holds it.
    pub(crate) fn release(&self, relay: &RelayId, queue: &str) {
        let mut held = self.held();
        if held
            .queues
            .get(queue)
            .is_some_and(|(owner, _)| owner == relay)
        {
            held.queues.remove(queue);
        }
    }

    /// Lets go of everything that a relay holds.
    pub(crate) fn leave(&self, relay: &RelayId) {
        let mut held = self.held();
        held.queues.retain(|_, (owner, _)| owner != relay);
        if held.relays.contains_key(relay) {
            // First the file, then the lock: nobody shall find a file without its lock.
            self.forget(relay);
            held.relays.remove(relay);
        }
    }

    /// Lets go of everything, as the end of the process would.
    pub(crate) fn release_all(&self) {
        *self.held() = Held::default();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a lock file.
    fn file(&self, kind: &str, name: &str) -> Result<PathBuf> {
        // Through whichever link a process has come to the file, the locks are beside the file itself.
        let real = self
            .database
            .canonicalize()
            .map_err(|e| broken(&self.database, e))?;
        let mut directory = real.into_os_string();
        directory.push(".locks");
        Ok(PathBuf::from(directory).join(file_name(kind, name)))
    }
}

/// A name for people, made safe, and a hash that tells apart what looks the same.
fn file_name(kind: &str, name: &str) -> String {
    let shown: String = name
        .chars()
        .take(40)
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).simple();
    format!("{kind}-{shown}-{hash}.lock")
}

/// Opens the file, makes it and its directory when they are missing, and takes its lock.
fn try_exclusive(path: &Path) -> Result<Option<File>> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|e| broken(directory, e))?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|e| broken(path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(broken(path, e)),
    }
}

fn broken(path: &Path, error: io::Error) -> StoreError {
    let text = format!("the lock beside it, {}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => StoreError::Unreachable(format!("{text}: {error}").into()),
        _ => StoreError::NotWritable(text, error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks() -> (tempfile::TempDir, Locks) {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("app.db");
        std::fs::write(&database, "").unwrap();
        let locks = Locks::beside(&database);
        (home, locks)
    }

    #[test]
    fn two_handles_in_one_process_exclude_each_other() {
        let (_home, ours) = locks();
        let theirs = Locks::beside(&ours.database);
        let (a, queue) = (RelayId::new("a"), Arc::from("billing"));

        let file = ours.try_queue("billing").unwrap().unwrap();
        ours.keep(&a, &queue, file);

        assert!(theirs.try_queue("billing").unwrap().is_none());
        assert!(ours.try_queue("billing").unwrap().is_none());
        ours.release(&RelayId::new("b"), "billing");
        assert!(
            theirs.try_queue("billing").unwrap().is_none(),
            "only the owner lets go"
        );
        ours.release(&a, "billing");
        assert!(theirs.try_queue("billing").unwrap().is_some());
    }

    #[test]
    fn a_relay_lives_as_long_as_its_handle() {
        let (_home, ours) = locks();
        let theirs = Locks::beside(&ours.database);
        let relay = RelayId::new("a");

        assert!(!ours.lives(&relay).unwrap());
        ours.join(&relay).unwrap();
        assert!(ours.lives(&relay).unwrap() && theirs.lives(&relay).unwrap());
        assert!(ours.holds(&relay) && !theirs.holds(&relay));
        assert!(matches!(theirs.join(&relay), Err(StoreError::Busy(_))));

        drop(ours);
        assert!(!theirs.lives(&relay).unwrap());
    }

    #[test]
    fn a_relay_whose_lock_file_was_removed_knows_it() {
        let (_home, locks) = locks();
        let relay = RelayId::new("a");
        locks.join(&relay).unwrap();

        locks.forget(&relay);

        assert!(!locks.holds(&relay));
    }

    #[test]
    fn names_that_look_the_same_as_files_have_different_locks() {
        let long = "q".repeat(300);
        let names = ["a/b", "a.b", "A/b", "", &long, &long[1..]];
        let files: std::collections::HashSet<_> =
            names.iter().map(|n| file_name("queue", n)).collect();

        assert_eq!(files.len(), names.len());
        assert!(files.iter().all(|f| f.len() < 255 && !f.contains('/')));
    }

    #[cfg(unix)]
    #[test]
    fn the_locks_are_the_same_through_a_link() {
        let (home, ours) = locks();
        let link = home.path().join("link.db");
        std::os::unix::fs::symlink(&ours.database, &link).unwrap();

        let _held = ours.try_queue("billing").unwrap().unwrap();

        assert!(Locks::beside(&link).try_queue("billing").unwrap().is_none());
    }
}
