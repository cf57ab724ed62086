//! Creating and upgrading the tables.

use std::fmt::Write as _;

use counterfoil_core::schema::{self, Applied, Migration};
use counterfoil_core::store::Result;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use crate::{SqliteStore, classify};

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
        oldest_reader: 1,
        name: "consumers",
        sql: include_str!("../migrations/0006_consumers.sql"),
    },
    Migration {
        version: 7,
        oldest_reader: 1,
        name: "outages",
        sql: include_str!("../migrations/0007_outages.sql"),
    },
];

const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS counterfoil_migrations (
    version       INTEGER PRIMARY KEY,
    oldest_reader INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    applied_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
);";

/// All steps as plain SQL, for those who run migrations by other means. Can be run twice.
pub fn print_migrations() -> String {
    let mut out = format!("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n{TABLE}\n");
    for m in MIGRATIONS {
        let _ = writeln!(out, "\n-- step {}: {}\n{}", m.version, m.name, m.sql);
        let _ = writeln!(
            out,
            "INSERT OR IGNORE INTO counterfoil_migrations (version, oldest_reader, name) VALUES ({}, {}, '{}');",
            m.version, m.oldest_reader, m.name
        );
    }
    out.push_str("COMMIT;\n");
    out
}

impl SqliteStore {
    pub(crate) async fn run_migrations(&self) -> Result<()> {
        self.check_library().await?;
        // Somebody else may have done it already.
        if schema::judge(MIGRATIONS, self.applied().await?).is_ok() {
            return Ok(());
        }
        // The transaction is the lock: a second process waits at its beginning, and then finds
        // everything done.
        let mut tx = self.write().await?;
        sqlx::raw_sql(TABLE)
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        let applied = read_applied(&mut tx).await.map_err(classify)?;
        for step in schema::pending(MIGRATIONS, applied)? {
            sqlx::raw_sql(AssertSqlSafe(step.sql))
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
            sqlx::query("INSERT INTO counterfoil_migrations (version, oldest_reader, name) VALUES (?1, ?2, ?3)")
                .bind(step.version)
                .bind(step.oldest_reader)
                .bind(step.name)
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
        }
        tx.commit().await
    }

    pub(crate) async fn applied(&self) -> Result<Option<Applied>> {
        let mut connection = self.reader().acquire().await.map_err(classify)?;
        let there: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'counterfoil_migrations')",
        )
        .fetch_one(&mut *connection)
        .await
        .map_err(classify)?;
        if !there {
            return Ok(None);
        }
        read_applied(&mut connection).await.map_err(classify)
    }
}

async fn read_applied(connection: &mut SqliteConnection) -> sqlx::Result<Option<Applied>> {
    let found: (Option<i64>, Option<i64>) =
        sqlx::query_as("SELECT max(version), max(oldest_reader) FROM counterfoil_migrations")
            .fetch_one(connection)
            .await?;
    Ok(match found {
        (Some(version), Some(oldest_reader)) => Some(Applied {
            version,
            oldest_reader,
        }),
        _ => None,
    })
}
