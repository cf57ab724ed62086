//! Where a case has its tables: in a schema of its own, or behind a pooler, which passes no
//! `search_path` on, in a database of its own.

use counterfoil_core::message::MessageId;
use counterfoil_testkit::server;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

pub(crate) struct Place {
    pub(crate) server: String,
    /// Behind a pooler.
    pub(crate) database: Option<String>,
    /// The schema with the tables.
    pub(crate) schema: String,
}

impl Place {
    /// Absent when there is no server: the test has then said so.
    pub(crate) async fn fresh(prefix: &str, pooled: bool) -> Option<Self> {
        let name = format!("{prefix}_{}", MessageId::new().as_uuid().simple());
        let place = if pooled {
            let server = server::pgbouncer()?;
            on_server(&server, format!("CREATE DATABASE {name}")).await;
            Self {
                server,
                database: Some(name),
                schema: "public".into(),
            }
        } else {
            let server = server::postgres()?;
            on_server(&server, format!("CREATE SCHEMA {name}")).await;
            Self {
                server,
                database: None,
                schema: name,
            }
        };
        Some(place)
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        self.url_with("")
    }

    /// Its URL with more settings of the session, which a pooler does not pass on.
    pub(crate) fn url_with(&self, settings: &str) -> String {
        let (server, schema) = (&self.server, &self.schema);
        if let Some(database) = &self.database {
            return other_database(server, database);
        }
        let and = if server.contains('?') { '&' } else { '?' };
        format!("{server}{and}options=-c%20search_path%3D{schema}{settings}")
    }

    pub(crate) async fn remove(&self) {
        let sql = match &self.database {
            // The pooler still has connections to it.
            Some(database) => format!("DROP DATABASE {database} WITH (FORCE)"),
            None => format!("DROP SCHEMA {} CASCADE", self.schema),
        };
        on_server(&self.server, sql).await;
    }
}

/// The URL of another database on the same server.
pub(crate) fn other_database(server: &str, database: &str) -> String {
    let (before, _) = server.rsplit_once('/').expect("a URL with a database");
    format!("{before}/{database}")
}

async fn on_server(server: &str, sql: String) {
    let mut connection = PgConnection::connect(server)
        .await
        .expect("no connection to PostgreSQL");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}
