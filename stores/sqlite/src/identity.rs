//! Whether the name of the database still leads to the file that is open.
//!
//! A process keeps the file that it has opened, whatever becomes of the name. What it writes into a
//! file without a name is lost with the process, and meanwhile others find another file, or none.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use counterfoil_core::store::{Result, StoreError};

/// The database file, as it was when it was first seen.
#[derive(Debug)]
pub(crate) struct Identity {
    path: PathBuf,
    opened: OnceLock<Id>,
}

/// Device and number of a file.
type Id = (u64, u64);

impl Identity {
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            opened: OnceLock::new(),
        }
    }

    /// Refuses a file that was deleted or replaced since it was first seen.
    pub(crate) fn check(&self) -> Result<()> {
        let became = match id(&self.path) {
            Ok(now) if *self.opened.get_or_init(|| now) == now => return Ok(()),
            Ok(_) => "replaced",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                match self.opened.get() {
                    Some(_) => "deleted",
                    // It is made by the first connection.
                    None => return Ok(()),
                }
            }
            // Whether it can be used is for SQLite to say.
            Err(_) => return Ok(()),
        };
        let path = self.path.display();
        let why = format!("the database file {path} was {became} while it was in use");
        Err(StoreError::Database(why.into()))
    }
}

#[cfg(unix)]
fn id(path: &Path) -> std::io::Result<Id> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map(|data| (data.dev(), data.ino()))
}

/// Here an open file can neither be deleted nor replaced.
#[cfg(not(unix))]
fn id(path: &Path) -> std::io::Result<Id> {
    std::fs::metadata(path).map(|_| (0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_until_it_is_deleted_or_replaced() {
        let home = tempfile::tempdir().unwrap();
        let (file, aside) = (home.path().join("a.db"), home.path().join("b.db"));
        let identity = Identity::of(&file);
        let why = |identity: &Identity| identity.check().unwrap_err().one_line();

        assert!(identity.check().is_ok(), "it is not there yet");
        std::fs::write(&file, "").unwrap();
        assert!(identity.check().is_ok());
        std::fs::rename(&file, &aside).unwrap();
        assert!(why(&identity).contains("was deleted"), "{}", why(&identity));
        std::fs::write(&file, "").unwrap();
        assert!(
            why(&identity).contains("was replaced"),
            "{}",
            why(&identity)
        );
        std::fs::rename(&aside, &file).unwrap();
        assert!(identity.check().is_ok());
    }
}
