//! What MySQL and MariaDB say, in the words of Counterfoil.

use counterfoil_core::store::StoreError;
use sqlx::mysql::MySqlDatabaseError;

/// Turns an error of the driver into one that tells the caller what to do.
///
/// After [`StoreError::Busy`] the transaction is over: the server may have rolled all of it back
/// (1213), or only one statement (1205). Roll back, and begin again.
pub fn classify(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) => {
            let number = database
                .try_downcast_ref::<MySqlDatabaseError>()
                .map_or(0, |e| e.number());
            let message = database.message().to_owned();
            by_number(number, message, error)
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

fn by_number(number: u16, message: String, error: sqlx::Error) -> StoreError {
    match number {
        // no such table
        1146 => StoreError::SchemaMissing,
        // deadlock (in a group: at commit), lock wait timeout, changed since last read, NOWAIT,
        // interrupted, statement timeouts
        1213 | 3101 | 1205 | 1020 | 3572 | 1317 | 1969 | 3024 => StoreError::Busy(error.into()),
        // disk full, table full, cannot write, out of memory, read-only server and transaction
        1021 | 1114 | 1026 | 1037 | 1041 | 1290 | 1792 | 1836 => {
            StoreError::NotWritable(message, error.into())
        }
        // who may not connect, or not now; too many statements
        1461 | 1040 | 1044 | 1045 | 1049 | 1129 | 1130 | 1203 | 1226 | 1698
        // shutting down, killed, lost, a cluster node that is not ready
        | 1047 | 1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 4031 => {
            StoreError::Unreachable(error.into())
        }
        _ => StoreError::Database(error.into()),
    }
}
