//! What SQLite says, in the words of Counterfoil.

use counterfoil_core::store::StoreError;

/// Turns an error of the driver into one that tells the caller what to do.
pub fn classify(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().and_then(|c| c.parse().ok()).unwrap_or(0);
            let message = database.message().to_owned();
            by_code(code, &message, error)
        }
        // One connection writes: whoever waits too long for it waits for the others.
        sqlx::Error::PoolTimedOut => StoreError::Busy(error.into()),
        sqlx::Error::Io(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::Configuration(_)
        | sqlx::Error::WorkerCrashed => StoreError::Unreachable(error.into()),
        _ => StoreError::Database(error.into()),
    }
}

/// The lowest byte is the kind of error, the others say more about it.
fn by_code(extended: i32, message: &str, error: sqlx::Error) -> StoreError {
    match extended & 0xff {
        // SQLITE_ERROR
        1 if message.contains("no such table: counterfoil_") => StoreError::SchemaMissing,
        // SQLITE_BUSY, SQLITE_LOCKED
        5 | 6 => StoreError::Busy(error.into()),
        // SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL
        8 | 10 | 13 => StoreError::NotWritable(message.to_owned(), error.into()),
        // SQLITE_CANTOPEN
        14 => StoreError::Unreachable(error.into()),
        // SQLITE_CORRUPT and SQLITE_NOTADB among them: trying again does not help.
        _ => StoreError::Database(error.into()),
    }
}
