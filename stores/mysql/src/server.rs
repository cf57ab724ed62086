//! Who answers: product, version, and settings that can lose what was promised.

use std::collections::HashMap;
use std::time::Duration;

use counterfoil_core::store::{Result, StoreError};
use sqlx::{ConnectOptions, Connection, Row};

use crate::{MysqlStore, classify, text};

const NEEDED: &str = "MariaDB 10.6 or later, or MySQL 8.0.19 or later";

/// The settings that are looked at. What a product does not have is not answered.
const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
    ('innodb_flush_log_at_trx_commit', 'wsrep_on', 'log_bin', 'binlog_format')";

/// The server as it introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    mariadb: bool,
    version: [u16; 3],
    full: String,
}

impl Server {
    fn parse(full: &str) -> Self {
        let mut numbers = full
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse().unwrap_or(0))
            .chain(std::iter::repeat(0));
        Self {
            mariadb: full.to_ascii_lowercase().contains("mariadb"),
            version: std::array::from_fn(|_| numbers.next().unwrap_or(0)),
            full: full.to_owned(),
        }
    }

    fn supported(&self) -> bool {
        self.version >= if self.mariadb { [10, 6, 0] } else { [8, 0, 19] }
    }

    pub(crate) fn name(&self) -> String {
        let product = if self.mariadb { "MariaDB" } else { "MySQL" };
        format!("{product} {}", self.full)
    }
}

impl MysqlStore {
    /// Refuses servers on which our statements do not work.
    pub(crate) async fn check_server(&self) -> Result<()> {
        // A connection of its own, because a pool hides why it cannot connect.
        let connect = tokio::time::timeout(Duration::from_secs(10), self.inner.options.connect());
        let mut connection = match connect.await {
            Ok(connected) => connected.map_err(classify)?,
            Err(late) => return Err(StoreError::Unreachable(late.into())),
        };
        let (full,): (String,) = sqlx::query_as("SELECT CONVERT(VERSION() USING utf8mb4)")
            .fetch_one(&mut connection)
            .await
            .map_err(classify)?;
        // The server notices by itself that it is gone.
        let _ = connection.close().await;
        let server = self.inner.server.get_or_init(|| Server::parse(&full));
        if server.supported() {
            return Ok(());
        }
        Err(StoreError::Unsupported {
            found: server.name(),
            needed: NEEDED,
        })
    }

    /// Refuses settings on which READ COMMITTED does not work, and warns about those that lose data.
    pub(crate) async fn check_settings(&self) -> Result<()> {
        let rows = sqlx::raw_sql(SETTINGS)
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let mut settings = HashMap::new();
        for row in rows {
            let name: Vec<u8> = row.try_get_unchecked(0).map_err(classify)?;
            let value: Vec<u8> = row.try_get_unchecked(1).map_err(classify)?;
            settings.insert(text(&name), text(&value));
        }
        for warning in warnings(&settings) {
            tracing::warn!(target: "counterfoil", store = %self.place(), "{warning}");
        }
        let is = |name: &str, value: &str| {
            settings
                .get(name)
                .is_some_and(|found| found.eq_ignore_ascii_case(value))
        };
        if is("log_bin", "ON") && is("binlog_format", "STATEMENT") {
            return Err(StoreError::Unsupported {
                found: "binlog_format = STATEMENT".into(),
                needed: "ROW or MIXED, which READ COMMITTED transactions need",
            });
        }
        Ok(())
    }

    /// The product as far as it is known, and where it is.
    pub(crate) fn place(&self) -> String {
        let options = &self.inner.options;
        let product = self
            .inner
            .server
            .get()
            .map_or_else(|| "MySQL".into(), Server::name);
        let database = options.get_database().unwrap_or("?");
        match options.get_socket() {
            Some(socket) => format!("{product} at {}/{database}", socket.display()),
            None => format!(
                "{product} at {}:{}/{database}",
                options.get_host(),
                options.get_port()
            ),
        }
    }
}

fn warnings(settings: &HashMap<String, String>) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(value) = settings
        .get("innodb_flush_log_at_trx_commit")
        .filter(|v| *v != "1")
    {
        warnings.push(format!(
            "innodb_flush_log_at_trx_commit is {value}: a crash of the machine can lose committed messages; \
             1 keeps them"
        ));
    }
    if settings
        .get("wsrep_on")
        .is_some_and(|v| v.eq_ignore_ascii_case("ON"))
    {
        warnings.push(
            "this is a Galera cluster: locks do not reach other nodes; \
             let applications and relays write through one node"
                .into(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart_and_old_ones_are_refused() {
        let cases = [
            ("10.11.19-MariaDB-0+deb12u1", true, true),
            ("10.6.0-MariaDB", true, true),
            ("10.5.29-MariaDB-log", true, false),
            ("11.4.2-MariaDB", true, true),
            ("8.0.19", false, true),
            ("8.0.18-commercial", false, false),
            ("8.4.3", false, true),
            ("9.1.0", false, true),
            ("5.7.44-log", false, false),
            ("8.0.11-TiDB-v7.5.1", false, false),
            ("nonsense", false, false),
        ];
        for (full, mariadb, supported) in cases {
            let server = Server::parse(full);
            assert_eq!(
                (server.mariadb, server.supported()),
                (mariadb, supported),
                "{full}"
            );
        }
    }

    #[test]
    fn settings_that_lose_data_are_warned_about() {
        let settings = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect::<HashMap<String, String>>()
        };

        assert!(
            warnings(&settings(&[
                ("innodb_flush_log_at_trx_commit", "1"),
                ("wsrep_on", "OFF")
            ]))
            .is_empty()
        );
        assert_eq!(
            warnings(&settings(&[
                ("innodb_flush_log_at_trx_commit", "2"),
                ("wsrep_on", "ON")
            ]))
            .len(),
            2
        );
    }
}
