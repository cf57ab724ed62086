//! Where the database is: a file, whose directory exists.

use std::path::{Path, PathBuf};

use counterfoil_core::store::{Result, StoreError};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use crate::classify;

/// The options for a URL such as `sqlite:data/app.db?mode=ro`, or for a plain path.
///
/// The file is created when it is missing, and so is its directory, unless it is to be opened
/// read-only.
pub(crate) fn parse(url_or_path: &str) -> Result<SqliteConnectOptions> {
    let options = if url_or_path.starts_with("sqlite:") {
        url_or_path.parse().map_err(classify)?
    } else {
        SqliteConnectOptions::new().filename(url_or_path)
    };
    let options = on_a_file(options)?;
    if is_read_only(&options) {
        return Ok(options);
    }
    make_private(options.get_filename())?;
    // A connection that is opened later must not put another file into the place of one that is gone.
    Ok(options.create_if_missing(false))
}

/// Makes the file, and the directory around it, for its owner only, where they are missing: they will
/// hold what messages hold. SQLite gives the files beside it (`-wal`, `-shm`) the same rights. What is there
/// already keeps the rights that it has.
fn make_private(file: &Path) -> Result<()> {
    if let Some(directory) = file.parent() {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(directory).map_err(|e| {
            let text = format!("the directory {} cannot be created", directory.display());
            StoreError::NotWritable(text, e.into())
        })?;
    }
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
    match open.open(file) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => {
            let text = format!("the file {} cannot be created", file.display());
            Err(StoreError::NotWritable(text, e.into()))
        }
    }
}

/// Refuses a database in memory: nothing of it would be left after a crash, and every connection
/// would see another one.
pub(crate) fn on_a_file(options: SqliteConnectOptions) -> Result<SqliteConnectOptions> {
    let name = options.get_filename();
    let in_memory = name.as_os_str().is_empty()
        || name == Path::new(":memory:")
        || mode(&options).as_deref() == Some("memory");
    if in_memory {
        return Err(StoreError::Unsupported {
            found: "a database in memory".into(),
            needed: "a database file",
        });
    }
    // The working directory may change; the file does not.
    let absolute: PathBuf = std::path::absolute(name)
        .map_err(|e| StoreError::Unreachable(format!("{}: {e}", name.display()).into()))?;
    Ok(options.filename(absolute))
}

pub(crate) fn is_read_only(options: &SqliteConnectOptions) -> bool {
    mode(options).as_deref() == Some("ro")
}

/// The driver shows these settings only in the form of a URL, which it cannot make of every name.
fn mode(options: &SqliteConnectOptions) -> Option<String> {
    let url = options.clone().filename("x").to_url_lossy();
    url.query_pairs()
        .find(|(key, _)| key == "mode")
        .map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_in_memory_is_refused_however_it_is_written() {
        for name in [
            "sqlite::memory:",
            ":memory:",
            "sqlite://x?mode=memory",
            "",
            "sqlite:",
        ] {
            let refused = parse(name).map(|_| ()).unwrap_err();

            assert!(
                refused.to_string().contains("a database in memory"),
                "{name:?}: {refused}"
            );
        }
    }

    #[test]
    fn the_directory_is_made_or_the_error_names_it() {
        let home = tempfile::tempdir().unwrap();
        let (fine, file) = (home.path().join("a/b/c.db"), home.path().join("file"));
        std::fs::write(&file, "").unwrap();

        parse(fine.to_str().unwrap()).unwrap();
        let refused = parse(file.join("under/x.db").to_str().unwrap())
            .map(|_| ())
            .unwrap_err();

        assert!(fine.parent().unwrap().is_dir());
        assert!(
            refused.to_string().contains("file/under cannot be created"),
            "{refused}"
        );
    }

    #[test]
    fn a_path_is_a_path_also_with_characters_that_mean_something_in_a_url() {
        let home = tempfile::tempdir().unwrap();
        let odd = home.path().join("100% #1?mode=memory.db");

        let options = parse(odd.to_str().unwrap()).unwrap();

        assert_eq!(options.get_filename(), odd);
    }
}
