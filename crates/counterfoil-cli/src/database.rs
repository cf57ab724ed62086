//! Which database, and opening it.
//!
//! # Promise
//! One place knows all three stores. A store that was left out of the build, an unknown kind of URL
//! and a database that cannot be used are each one clear line that never repeats a password.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::StoreError;
use counterfoil_core::desk::Desk;
use counterfoil_core::guard::Records;
use counterfoil_core::store::Store;
use futures_util::future::BoxFuture;

use crate::args::{Dialect, Global};
use crate::config::Loaded;
use crate::failure::Failure;

type Result<T = (), E = Failure> = std::result::Result<T, E>;

#[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")))]
compile_error!("choose at least one of the features `sqlite`, `postgres` and `mysql`");

/// The file name of the default database.
const DEFAULT_NAME: &str = "counterfoil.db";

/// An outbox with both of its sides.
#[async_trait]
pub(crate) trait Outbox: Store + Desk {
    /// Closes every connection.
    async fn close(&self);

    /// How connections are encrypted, for people; none: there is nothing to encrypt.
    async fn encryption(&self) -> Result<Option<String>, StoreError>;

    /// The records of the guard, in the central table or in one of a domain.
    fn records(&self, table: Option<&str>) -> Result<Arc<dyn Records>, StoreError>;
}

/// Where the outbox is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    dialect: Dialect,
    url: String,
    /// PostgreSQL: where to listen for other processes' commits, if not there.
    listen: Option<String>,
}

impl Place {
    /// The place that the command line, the environment or the configuration names; else the
    /// default.
    pub(crate) fn find(global: &Global, loaded: &Loaded) -> Result<Self> {
        let named = match &global.database {
            Some(url) if !url.trim().is_empty() => Some(url.trim().to_owned()),
            _ => loaded.database_url()?,
        };
        let mut place = match named {
            Some(url) => Self::parse(&url)?,
            None => Self {
                dialect: Dialect::Sqlite,
                url: global
                    .data_dir
                    .join(DEFAULT_NAME)
                    .to_string_lossy()
                    .into_owned(),
                listen: None,
            },
        };
        place.listen = loaded.listen_url()?;
        if place.listen.is_some() && place.dialect != Dialect::Postgres {
            let why = "`listen-url` in [database] is for PostgreSQL: leave it out";
            return Err(Failure::config(why));
        }
        Ok(place)
    }

    /// A file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn of_file(file: &Path) -> Self {
        Self {
            dialect: Dialect::Sqlite,
            url: file.to_string_lossy().into_owned(),
            listen: None,
        }
    }

    fn parse(url: &str) -> Result<Self> {
        let dialect = match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Dialect::Sqlite,
            Some("postgres" | "postgresql") => Dialect::Postgres,
            Some("mysql" | "mariadb") => Dialect::Mysql,
            // The rest is not repeated: it may hold a password.
            _ => {
                let forms = "sqlite:PATH, postgres://HOST/NAME or mysql://HOST/NAME";
                return Err(Failure::config(format!("the database is named as {forms}")));
            }
        };
        let url = match url.strip_prefix("mariadb:") {
            Some(rest) => format!("mysql:{rest}"),
            None => url.to_owned(),
        };
        Ok(Self {
            dialect,
            url,
            listen: None,
        })
    }

    /// Where it is, for those who open it themselves. It may hold a password.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The kind of database.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The file, if it is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        if self.dialect != Dialect::Sqlite {
            return None;
        }
        let Some(path) = self.url.strip_prefix("sqlite:") else {
            return Some(PathBuf::from(&self.url));
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        Some(PathBuf::from(decoded(path)))
    }

    /// Opens the outbox. Nothing is asked of the database yet.
    pub(crate) fn open(&self) -> Result<Arc<dyn Outbox>> {
        if let Some(directory) = self.file().as_deref().and_then(Path::parent) {
            make_private(directory)?;
        }
        match self.dialect {
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => shared(counterfoil_sqlite::SqliteStore::connect(&self.url)),
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let store = counterfoil_postgres::PostgresStore::connect(&self.url)?;
                if let Some(url) = &self.listen {
                    store.listen_at(url)?;
                }
                shared(Ok(store))
            }
            #[cfg(feature = "mysql")]
            Dialect::Mysql => shared(counterfoil_mysql::MysqlStore::connect(&self.url)),
            #[allow(unreachable_patterns, reason = "reachable when a store was left out")]
            other => Err(left_out(other)),
        }
    }

    /// Opens an outbox that must be there already: looking creates nothing.
    pub(crate) async fn open_existing(&self) -> Result<Arc<dyn Outbox>> {
        if let Some(file) = self.file().filter(|file| !file.exists()) {
            return Err(Failure::failed(format!(
                "there is no database at {}: start `counterfoil serve`, run `counterfoil migrate`, \
                 or name another with --database",
                file.display()
            )));
        }
        let outbox = self.open()?;
        outbox
            .check()
            .await
            .map_err(|error| unusable(&*outbox, &error))?;
        Ok(outbox)
    }

    /// Opens an outbox and creates or upgrades its tables first.
    pub(crate) async fn open_migrated(&self) -> Result<Arc<dyn Outbox>> {
        let outbox = self.open()?;
        outbox
            .migrate()
            .await
            .map_err(|error| unusable(&*outbox, &error))?;
        outbox
            .check()
            .await
            .map_err(|error| unusable(&*outbox, &error))?;
        Ok(outbox)
    }
}

/// All steps of the schema as plain SQL.
pub(crate) fn migrations(dialect: Dialect) -> Result<String> {
    match dialect {
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => Ok(counterfoil_sqlite::print_migrations()),
        #[cfg(feature = "postgres")]
        Dialect::Postgres => Ok(counterfoil_postgres::print_migrations()),
        #[cfg(feature = "mysql")]
        Dialect::Mysql => Ok(counterfoil_mysql::print_migrations()),
        #[allow(unreachable_patterns, reason = "reachable when a store was left out")]
        other => Err(left_out(other)),
    }
}

/// The statements that create a table of the guard for one domain.
pub(crate) fn guard_table(dialect: Dialect, name: &str) -> Result<String> {
    Ok(match dialect {
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => counterfoil_sqlite::SqliteGuard::print_table(name)?,
        #[cfg(feature = "postgres")]
        Dialect::Postgres => counterfoil_postgres::PostgresGuard::print_table(name)?,
        #[cfg(feature = "mysql")]
        Dialect::Mysql => counterfoil_mysql::MysqlGuard::print_table(name)?,
        #[allow(unreachable_patterns, reason = "reachable when a store was left out")]
        other => return Err(left_out(other)),
    })
}

/// The error, and of which database.
pub(crate) fn unusable(outbox: &dyn Outbox, error: &StoreError) -> Failure {
    let text = error.one_line();
    let hint = match text.contains("TLS") || text.contains("certificate") {
        true => {
            "; a database on another machine must show a certificate that is trusted, unless its URL says \
             otherwise: see `sslmode`"
        }
        false => "",
    };
    Failure::failed(format!("{}: {text}{hint}", outbox.describe()))
}

fn shared<S: Outbox>(opened: counterfoil_core::store::Result<S>) -> Result<Arc<dyn Outbox>> {
    Ok(Arc::new(opened?))
}

/// A path as it stands in a URL, with `%20` and the like undone.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn left_out(dialect: Dialect) -> Failure {
    let name = match dialect {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
        Dialect::Mysql => "mysql",
    };
    Failure::failed(format!(
        "this program was built without the feature `{name}`"
    ))
}

/// Makes a directory that only its owner can read: it will hold what messages hold.
fn make_private(directory: &Path) -> Result {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(|e| {
        Failure::failed(format!(
            "the directory {} cannot be created: {e}",
            directory.display()
        ))
    })
}

macro_rules! outboxes {
    ($($feature:literal $store:path, $encryption:expr;)*) => {$(
        #[cfg(feature = $feature)]
        #[async_trait]
        impl Outbox for $store {
            async fn close(&self) {
                <$store>::close(self).await;
            }

            async fn encryption(&self) -> Result<Option<String>, StoreError> {
                let ask: fn(&Self) -> BoxFuture<'_, Result<Option<String>, StoreError>> = $encryption;
                ask(self).await
            }

            fn records(&self, table: Option<&str>) -> Result<Arc<dyn Records>, StoreError> {
                Ok(Arc::new(self.guard(table)?))
            }
        }
    )*};
}

outboxes! {
    "sqlite" counterfoil_sqlite::SqliteStore, |_| Box::pin(async { Ok(None) });
    "postgres" counterfoil_postgres::PostgresStore, |store| {
        Box::pin(async { store.encryption().await.map(Some) })
    };
    "mysql" counterfoil_mysql::MysqlStore, |store| {
        Box::pin(async { store.encryption().await.map(Some) })
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_finds_its_database() {
        let kind = |url: &str| Place::parse(url).unwrap().dialect;

        assert_eq!(kind("sqlite:a.db"), Dialect::Sqlite);
        assert_eq!(kind("postgresql://localhost/app"), Dialect::Postgres);
        assert_eq!(kind("mariadb://localhost/app"), Dialect::Mysql);
        assert_eq!(Place::parse("mariadb://h/a").unwrap().url, "mysql://h/a");
        let file = |url: &str| Place::parse(url).unwrap().file();
        assert_eq!(file("sqlite://d/a.db?mode=ro"), Some("d/a.db".into()));
        assert_eq!(file("sqlite:a%20b%.db"), Some("a b%.db".into()));
    }

    #[test]
    fn a_url_that_is_not_understood_is_not_repeated() {
        let refused = Place::parse("oracle://scott:tiger@host").unwrap_err();

        assert!(!format!("{refused:?}").contains("tiger"));
    }
}
