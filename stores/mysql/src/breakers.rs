//! What of breakers survives a restart.

use counterfoil_core::store::{Kept, Remember, Result};

use crate::{MysqlStore, classify};

type Row = (
    Vec<u8>,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<String>,
);

impl MysqlStore {
    pub(crate) async fn kept_breakers(&self) -> Result<Vec<Kept>> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT b.destination, b.forced, b.forced_by, b.open_until, b.open_for, o.since, o.error
             FROM counterfoil_breakers b LEFT JOIN counterfoil_outages o ON o.destination = b.destination",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let kept = |(destination, forced, by, until, open_for, since, error): Row| {
            let destination = String::from_utf8_lossy(&destination).into_owned();
            Kept::new(destination, forced.as_deref(), by, until, open_for).with_outage(since, error)
        };
        Ok(rows.into_iter().map(kept).collect())
    }

    pub(crate) async fn keep_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        let query = match what {
            Remember::Forced { forced, by } => sqlx::query(
                "INSERT INTO counterfoil_breakers (destination, forced, forced_by) VALUES (?, ?, ?)
                 ON DUPLICATE KEY UPDATE forced = VALUES(forced), forced_by = VALUES(forced_by)",
            )
            .bind(destination.as_bytes())
            .bind(forced.map(|f| f.as_str()))
            .bind(by.chars().take(255).collect::<String>()),
            Remember::Open { .. } => sqlx::query(
                "INSERT INTO counterfoil_breakers (destination, open_until, open_for) VALUES (?, ?, ?)
                 ON DUPLICATE KEY UPDATE open_until = VALUES(open_until), open_for = VALUES(open_for)",
            )
            .bind(destination.as_bytes())
            .bind(what.open_until())
            .bind(what.open_for()),
        };
        query.execute(self.pool()).await.map_err(classify)?;
        if let Remember::Open { outage, .. } = what {
            let query = match outage {
                Some(outage) => sqlx::query(
                    "INSERT INTO counterfoil_outages (destination, since, error) VALUES (?, ?, ?)
                     ON DUPLICATE KEY UPDATE since = VALUES(since), error = VALUES(error)",
                )
                .bind(destination.as_bytes())
                .bind(outage.since.timestamp_millis())
                .bind(outage.error.as_deref()),
                None => sqlx::query("DELETE FROM counterfoil_outages WHERE destination = ?")
                    .bind(destination.as_bytes()),
            };
            query.execute(self.pool()).await.map_err(classify)?;
        }
        Ok(())
    }
}
