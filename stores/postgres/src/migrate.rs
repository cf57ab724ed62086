//! Creating and upgrading the tables.

use std::fmt::Write as _;

use counterfoil_core::schema::{self, Applied, Migration};
use counterfoil_core::store::Result;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::{PostgresStore, classify};

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
        name: "guard steps",
        sql: include_str!("../migrations/0005_guard_steps.sql"),
    },
    Migration {
        version: 6,
        oldest_reader: 1,
        name: "inbox",
        sql: include_str!("../migrations/0006_inbox.sql"),
    },
    Migration {
        version: 7,
        oldest_reader: 1,
        name: "guard first",
        sql: include_str!("../migrations/0007_guard_first.sql"),
    },
    Migration {
        version: 8,
        oldest_reader: 1,
        name: "guard purge",
        // Not for tables of a domain: in another schema the name could be somebody else's.
        sql: concat!(
            include_str!("../migrations/0008_guard_purge.sql"),
            "DROP INDEX IF EXISTS counterfoil_guard_over;\n"
        ),
    },
    Migration {
        version: 9,
        oldest_reader: 1,
        name: "consumers",
        sql: include_str!("../migrations/0009_consumers.sql"),
    },
    Migration {
        version: 10,
        oldest_reader: 1,
        name: "outages",
        sql: include_str!("../migrations/0010_outages.sql"),
    },
];

const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS counterfoil_migrations (
    version       bigint PRIMARY KEY,
    oldest_reader bigint NOT NULL,
    name          text NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT now()
);";

/// Nobody else uses this number: it is the beginning of SHA-256("counterfoil migrations").
const LOCK: i64 = 0x1d9c_0f5a_77b3_4e21;

/// All steps as plain SQL, for those who run migrations by other means. Can be run twice.
pub fn print_migrations() -> String {
    let mut out = format!("BEGIN;\nSELECT pg_advisory_xact_lock({LOCK});\n{TABLE}\n");
    for m in MIGRATIONS {
        let _ = writeln!(out, "\n-- step {}: {}\n{}", m.version, m.name, m.sql);
        let _ = writeln!(
            out,
            "INSERT INTO counterfoil_migrations (version, oldest_reader, name) VALUES ({}, {}, '{}') ON CONFLICT DO NOTHING;",
            m.version, m.oldest_reader, m.name
        );
    }
    out.push_str("COMMIT;\n");
    out
}

impl PostgresStore {
    pub(crate) async fn run_migrations(&self) -> Result<()> {
        self.check_server().await?;
        // Somebody else may have done it already, perhaps for a program that may not create tables.
        if schema::judge(MIGRATIONS, self.applied().await?).is_ok() {
            return Ok(());
        }
        let mut tx = self.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(LOCK)
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
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
            sqlx::query("INSERT INTO counterfoil_migrations (version, oldest_reader, name) VALUES ($1, $2, $3)")
                .bind(step.version)
                .bind(step.oldest_reader)
                .bind(step.name)
                .execute(&mut *tx)
                .await
                .map_err(classify)?;
        }
        tx.commit().await.map_err(classify)
    }

    pub(crate) async fn applied(&self) -> Result<Option<Applied>> {
        let mut connection = self.pool().acquire().await.map_err(classify)?;
        let (there,): (bool,) =
            sqlx::query_as("SELECT to_regclass('counterfoil_migrations') IS NOT NULL")
                .fetch_one(&mut *connection)
                .await
                .map_err(classify)?;
        if !there {
            return Ok(None);
        }
        read_applied(&mut connection).await.map_err(classify)
    }
}

async fn read_applied(connection: &mut PgConnection) -> sqlx::Result<Option<Applied>> {
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
