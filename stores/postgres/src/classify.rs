//! What PostgreSQL says, in the words of Counterfoil.

use std::fmt;

use counterfoil_core::store::StoreError;

/// What the server said. The driver adds the line of the server's own source where it was said, which
/// looks like a line of the user's.
#[derive(Debug)]
struct Said {
    code: String,
    message: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)
    }
}

impl std::error::Error for Said {}

impl Said {
    fn new(code: &str, message: &str) -> Self {
        Self {
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }
}

/// Turns an error of the driver into one that tells the caller what to do.
pub fn classify(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default().into_owned();
            let message = database.message().to_owned();
            by_code(&code, &message, Said::new(&code, &message))
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::Configuration(_)
        | sqlx::Error::WorkerCrashed => StoreError::Unreachable(error.into()),
        _ => StoreError::Database(error.into()),
    }
}

fn by_code(code: &str, message: &str, error: Said) -> StoreError {
    match code {
        // undefined_table, undefined_column, undefined_function
        "42P01" | "42883" => StoreError::SchemaMissing,
        // in_failed_sql_transaction
        "25P02" => {
            StoreError::Doomed("an earlier statement failed and its error was swallowed".into())
        }
        // no_active_sql_transaction, invalid_savepoint_specification
        "25P01" | "3B001" => StoreError::Doomed("it was ended before its end".into()),
        // serialization_failure, deadlock_detected, lock_not_available, query_canceled (by a timeout)
        "40001" | "40P01" | "55P03" | "57014" => StoreError::Busy(error.into()),
        // read_only_sql_transaction, disk_full, out_of_memory
        "25006" | "53100" | "53200" => StoreError::NotWritable(message.to_owned(), error.into()),
        // invalid_authorization, invalid_password, invalid_catalog_name, too_many_connections
        "28000" | "28P01" | "3D000" | "53300" => StoreError::Unreachable(error.into()),
        // admin_shutdown, crash_shutdown, cannot_connect_now, connection exceptions
        _ if code.starts_with("57P") || code.starts_with("08") => {
            StoreError::Unreachable(error.into())
        }
        _ => StoreError::Database(error.into()),
    }
}
