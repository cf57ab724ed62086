//! Creating and upgrading the tables.
//!
//! # Promise
//! Several processes may do so at the same time, and any of them may be killed in the middle: the
//! server commits after each statement, so each can be run again, and a step counts as done only
//! after its last. Nothing is created, and no right to create is needed, when all is there.

use std::fmt::Write as _;

use counterfoil_core::BoxError;
use counterfoil_core::schema::{self, Applied, Migration};
use counterfoil_core::store::{Result, StoreError};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use crate::{MysqlStore, SESSION, classify};

/// Every step, oldest first.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        oldest_reader: 1,
        name: "outbox",
        sql: include_str!("../migrations/0001_outbox.sql"),
    },
    Migration {
        version: 2,
        oldest_reader: 1,
        name: "guard",
        sql: include_str!("../migrations/0002_guard.sql"),
    },
    Migration {
        version: 3,
        oldest_reader: 1,
        name: "once",
        sql: include_str!("../migrations/0003_once.sql"),
    },
    Migration {
        version: 4,
        oldest_reader: 1,
        name: "breakers",
        sql: include_str!("../migrations/0004_breakers.sql"),
    },
    Migration {
        version: 5,
        oldest_reader: 1,
        name: "inbox",
        sql: include_str!("../migrations/0005_inbox.sql"),
    },
    Migration {
        version: 6,
        // Lanes and shards of a row are other numbers than before.
        oldest_reader: 6,
        name: "sha2",
        sql: include_str!("../migrations/0006_sha2.sql"),
    },
    Migration {
        version: 7,
        oldest_reader: 6,
        name: "consumers",
        sql: include_str!("../migrations/0007_consumers.sql"),
    },
    Migration {
        version: 8,
        oldest_reader: 6,
        name: "outages",
        sql: include_str!("../migrations/0008_outages.sql"),
    },
];

const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS counterfoil_migrations (
    version       BIGINT       NOT NULL,
    oldest_reader BIGINT       NOT NULL,
    name          VARCHAR(255) NOT NULL,
    applied_at    DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;";

/// One lock for each database: these locks are the server's. A name may have 64 characters.
const LOCK: &str = "CONCAT('counterfoil:', LEFT(SHA2(DATABASE(), 256), 32))";
const LOCK_SECONDS: u32 = 60;

/// All steps as plain SQL for the `mysql` or `mariadb` client. Can be run twice.
pub fn print_migrations() -> String {
    let mut out = format!("{SESSION};\nSELECT GET_LOCK({LOCK}, {LOCK_SECONDS});\n{TABLE}\n");
    for step in MIGRATIONS {
        let _ = writeln!(
            out,
            "\n-- step {}: {}\n{}",
            step.version, step.name, step.sql
        );
        let _ = writeln!(out, "{};", note(step));
    }
    let _ = writeln!(out, "SELECT RELEASE_LOCK({LOCK});");
    out
}

fn note(step: &Migration) -> String {
    format!(
        "INSERT INTO counterfoil_migrations (version, oldest_reader, name) VALUES ({}, {}, '{}') \
         ON DUPLICATE KEY UPDATE version = counterfoil_migrations.version",
        step.version, step.oldest_reader, step.name
    )
}

impl MysqlStore {
    pub(crate) async fn run_migrations(&self) -> Result<()> {
        self.check_server().await?;
        // Somebody else may have done it already, perhaps for a program that may not create tables.
        if schema::judge(MIGRATIONS, self.applied().await?).is_ok() {
            return Ok(());
        }
        // The lock belongs to the connection, and ends with it however this ends.
        let mut connection = self.open().await?;
        let (locked,): (Option<i64>,) = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT GET_LOCK({LOCK}, {LOCK_SECONDS})"
        )))
        .fetch_one(&mut connection)
        .await
        .map_err(classify)?;
        if locked != Some(1) {
            return Err(StoreError::Busy("another process is migrating".into()));
        }
        run(&mut connection).await?;
        connection.close().await.map_err(classify)
    }

    pub(crate) async fn applied(&self) -> Result<Option<Applied>> {
        let mut connection = self.pool().acquire().await.map_err(classify)?;
        match read_applied(&mut connection).await {
            Err(StoreError::SchemaMissing) => Ok(None),
            other => other,
        }
    }
}

async fn run(connection: &mut MySqlConnection) -> Result<()> {
    sqlx::raw_sql(TABLE)
        .execute(&mut *connection)
        .await
        .map_err(classify)?;
    let applied = read_applied(connection).await?;
    for step in schema::pending(MIGRATIONS, applied)? {
        let done = sqlx::raw_sql(step.sql).execute(&mut *connection).await;
        done.map_err(|error| denied(error, &step))?;
        sqlx::raw_sql(AssertSqlSafe(note(&step)))
            .execute(&mut *connection)
            .await
            .map_err(classify)?;
    }
    Ok(())
}

/// Missing rights are not a missing server: they do not come by waiting.
fn denied(error: sqlx::Error, step: &Migration) -> StoreError {
    match classify(error) {
        StoreError::Unreachable(source) if source.to_string().contains("denied") => {
            let reason: BoxError =
                format!("step {} ({}): {source}", step.version, step.name).into();
            StoreError::Database(reason)
        }
        other => other,
    }
}

async fn read_applied(connection: &mut MySqlConnection) -> Result<Option<Applied>> {
    let found: (Option<i64>, Option<i64>) =
        sqlx::query_as("SELECT MAX(version), MAX(oldest_reader) FROM counterfoil_migrations")
            .fetch_one(connection)
            .await
            .map_err(classify)?;
    Ok(match found {
        (Some(version), Some(oldest_reader)) => Some(Applied {
            version,
            oldest_reader,
        }),
        _ => None,
    })
}
