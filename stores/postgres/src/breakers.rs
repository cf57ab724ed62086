//! What of breakers survives a restart.

use counterfoil_core::store::{Kept, Remember, Result};

use crate::relay::clean;
use crate::{PostgresStore, classify};

type Row = (
    String,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<String>,
);

impl PostgresStore {
    pub(crate) async fn kept_breakers(&self) -> Result<Vec<Kept>> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT b.destination, b.forced, b.forced_by, b.open_until, b.open_for, o.since, o.error
             FROM counterfoil_breakers b LEFT JOIN counterfoil_outages o ON o.destination = b.destination",
        )
        .fetch_all(self.pool())
        .await
        .map_err(classify)?;
        let kept = |(destination, forced, by, until, open_for, since, error): Row| {
            Kept::new(destination, forced.as_deref(), by, until, open_for).with_outage(since, error)
        };
        Ok(rows.into_iter().map(kept).collect())
    }

    pub(crate) async fn keep_breaker(&self, destination: &str, what: &Remember) -> Result<()> {
        let query = match what {
            Remember::Forced { forced, by } => sqlx::query(
                "INSERT INTO counterfoil_breakers (destination, forced, forced_by) VALUES ($1, $2, $3)
                 ON CONFLICT (destination) DO UPDATE SET forced = excluded.forced, forced_by = excluded.forced_by",
            )
            .bind(destination)
            .bind(forced.map(|f| f.as_str()))
            .bind(by),
            Remember::Open { .. } => sqlx::query(
                "INSERT INTO counterfoil_breakers (destination, open_until, open_for) VALUES ($1, $2, $3)
                 ON CONFLICT (destination) DO UPDATE SET open_until = excluded.open_until, open_for = excluded.open_for",
            )
            .bind(destination)
            .bind(what.open_until())
            .bind(what.open_for()),
        };
        query.execute(self.pool()).await.map_err(classify)?;
        if let Remember::Open { outage, .. } = what {
            let query = match outage {
                Some(outage) => sqlx::query(
                    "INSERT INTO counterfoil_outages (destination, since, error) VALUES ($1, $2, $3)
                     ON CONFLICT (destination) DO UPDATE SET since = excluded.since, error = excluded.error",
                )
                .bind(destination)
                .bind(outage.since.timestamp_millis())
                .bind(outage.error.as_deref().map(clean)),
                None => sqlx::query("DELETE FROM counterfoil_outages WHERE destination = $1")
                    .bind(destination),
            };
            query.execute(self.pool()).await.map_err(classify)?;
        }
        Ok(())
    }
}
