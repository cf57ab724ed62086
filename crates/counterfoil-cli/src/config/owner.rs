//! Whose file it is.

use std::path::Path;

use crate::failure::{Failure, Result};

/// Whether only we, or the administrator, can have written a file.
pub(super) fn is_trusted(path: &Path) -> Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let data = std::fs::metadata(path)
            .map_err(|e| Failure::config(format!("{} cannot be read: {e}", path.display())))?;
        let us = rustix::process::geteuid().as_raw();
        Ok(judge(data.uid(), data.mode(), us))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        Ok(true)
    }
}

#[cfg(unix)]
fn judge(owner: u32, mode: u32, us: u32) -> bool {
    (owner == us || owner == 0) && mode & 0o002 == 0
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_trusted_when_we_or_the_administrator_wrote_it() {
        assert!(judge(1000, 0o644, 1000));
        assert!(judge(0, 0o644, 1000));
        assert!(!judge(1001, 0o644, 1000), "somebody else's");
        assert!(!judge(1001, 0o644, 0), "the administrator is no exception");
        assert!(!judge(1000, 0o666, 1000), "everybody can write it");
    }
}
