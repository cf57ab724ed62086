//! The application: business transactions that write messages beside their own rows.
//!
//! # Promise
//! For every message there is a row in `e2e_facts`, written in the same transaction. So the table
//! says what was committed, whoever died and when. The number of a message within its aggregate
//! comes from a row that stays locked until the transaction ends: versions commit in their order.

use std::str::FromStr;
use std::time::Duration;

use counterfoil::{Counterfoil, Message, MessageId};
use counterfoil_core::BoxError;
use serde::Serialize;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{Postgres, Sqlite, Transaction};

/// The tables of the application, the same on every database.
pub const TABLES: &str = "\
CREATE TABLE e2e_counters (aggregate varchar(64) PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE e2e_facts (
    id varchar(64) PRIMARY KEY,
    queue varchar(64) NOT NULL,
    aggregate varchar(64) NOT NULL,
    version bigint NOT NULL
);";

/// A message to be written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Draft {
    /// What its order is kept for.
    pub aggregate: String,
    /// The queue it goes to.
    pub queue: String,
    /// What happened.
    pub event: String,
}

impl Draft {
    /// A message of the usual type.
    pub fn new(queue: &str, aggregate: impl Into<String>) -> Self {
        Self {
            aggregate: aggregate.into(),
            queue: queue.to_owned(),
            event: "Moved".to_owned(),
        }
    }

    /// Changes its type.
    #[must_use]
    pub fn event(mut self, event: &str) -> Self {
        event.clone_into(&mut self.event);
        self
    }
}

/// A message as the application has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its identity.
    pub id: MessageId,
    /// The queue it went to.
    pub queue: String,
    /// What its order is kept for.
    pub aggregate: String,
    /// Its number within the aggregate.
    pub version: i64,
}

/// An application on a database that has its tables.
pub enum App {
    /// On PostgreSQL.
    Postgres(Counterfoil<counterfoil::Postgres>, PgPool),
    /// On SQLite.
    Sqlite(Counterfoil<counterfoil::Sqlite>, SqlitePool),
}

/// An open transaction of the application.
pub enum Tx {
    /// On PostgreSQL.
    Postgres(Transaction<'static, Postgres>),
    /// On SQLite.
    Sqlite(Transaction<'static, Sqlite>),
}

#[derive(Serialize)]
struct Content {
    version: i64,
}

/// The same statements on either database: SQLite understands `$1` too.
macro_rules! write_facts {
    ($tx:expr, $drafts:expr) => {{
        let mut facts = Vec::with_capacity($drafts.len());
        for draft in $drafts {
            let version: i64 = sqlx::query_scalar(
                "INSERT INTO e2e_counters (aggregate, version) VALUES ($1, 1)
                 ON CONFLICT (aggregate) DO UPDATE SET version = e2e_counters.version + 1
                 RETURNING version",
            )
            .bind(&draft.aggregate)
            .fetch_one(&mut **$tx)
            .await?;
            let fact = Fact {
                id: MessageId::new(),
                queue: draft.queue.clone(),
                aggregate: draft.aggregate.clone(),
                version,
            };
            sqlx::query(
                "INSERT INTO e2e_facts (id, queue, aggregate, version) VALUES ($1, $2, $3, $4)",
            )
            .bind(fact.id.to_string())
            .bind(&fact.queue)
            .bind(&fact.aggregate)
            .bind(fact.version)
            .execute(&mut **$tx)
            .await?;
            facts.push(fact);
        }
        facts
    }};
}

impl App {
    /// Opens the application on the database at this URL.
    pub async fn open(url: &str) -> Result<Self, BoxError> {
        if url.starts_with("sqlite:") {
            let options =
                SqliteConnectOptions::from_str(url)?.busy_timeout(Duration::from_secs(10));
            let pool = SqlitePoolOptions::new()
                .max_connections(2)
                .connect_lazy_with(options);
            let cf = Counterfoil::sqlite(pool.clone())
                .migrate(false)
                .start()
                .await?;
            return Ok(Self::Sqlite(cf, pool));
        }
        let pool = PgPoolOptions::new().max_connections(4).connect_lazy(url)?;
        let cf = Counterfoil::postgres(pool.clone())
            .migrate(false)
            .start()
            .await?;
        Ok(Self::Postgres(cf, pool))
    }

    /// Begins a business transaction.
    pub async fn begin(&self) -> Result<Tx, BoxError> {
        Ok(match self {
            Self::Postgres(_, pool) => Tx::Postgres(pool.begin().await?),
            Self::Sqlite(_, pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
        })
    }

    /// Does some business and writes a message for each piece of it.
    pub async fn write(&self, tx: &mut Tx, drafts: &[Draft]) -> Result<Vec<Fact>, BoxError> {
        let facts = match tx {
            Tx::Postgres(tx) => write_facts!(tx, drafts),
            Tx::Sqlite(tx) => write_facts!(tx, drafts),
        };
        let messages = facts
            .iter()
            .zip(drafts)
            .map(|(f, d)| message(f, d))
            .collect::<Result<Vec<_>, _>>()?;
        match (self, tx) {
            (Self::Postgres(cf, _), Tx::Postgres(tx)) => cf.enqueue_all(tx, &messages).await?,
            (Self::Sqlite(cf, _), Tx::Sqlite(tx)) => cf.enqueue_all(tx, &messages).await?,
            _ => return Err("a transaction of another database".into()),
        }
        Ok(facts)
    }

    /// Commits and nudges the relays.
    pub async fn commit(&self, tx: Tx) -> Result<(), BoxError> {
        match (self, tx) {
            (Self::Postgres(cf, _), Tx::Postgres(tx)) => cf.commit(tx).await?,
            (Self::Sqlite(cf, _), Tx::Sqlite(tx)) => cf.commit(tx).await?,
            _ => return Err("a transaction of another database".into()),
        }
        Ok(())
    }

    /// Does some business in one transaction and commits it.
    pub async fn put(&self, drafts: &[Draft]) -> Result<Vec<Fact>, BoxError> {
        let mut tx = self.begin().await?;
        let facts = self.write(&mut tx, drafts).await?;
        self.commit(tx).await?;
        Ok(facts)
    }

    /// Closes every connection.
    pub async fn close(&self) {
        match self {
            Self::Postgres(cf, pool) => {
                cf.stop().await;
                pool.close().await;
            }
            Self::Sqlite(cf, pool) => {
                cf.stop().await;
                pool.close().await;
            }
        }
    }
}

impl Tx {
    /// Commits and tells nobody, as a process does that dies right after its commit.
    pub async fn commit_in_silence(self) -> Result<(), BoxError> {
        match self {
            Self::Postgres(tx) => tx.commit().await?,
            Self::Sqlite(tx) => tx.commit().await?,
        }
        Ok(())
    }

    /// Undoes everything.
    pub async fn rollback(self) -> Result<(), BoxError> {
        match self {
            Self::Postgres(tx) => tx.rollback().await?,
            Self::Sqlite(tx) => tx.rollback().await?,
        }
        Ok(())
    }
}

fn message(fact: &Fact, draft: &Draft) -> Result<Message, BoxError> {
    let content = Content {
        version: fact.version,
    };
    let message = Message::json("account", &fact.aggregate, &draft.event, &content)?;
    Ok(message.id(fact.id).queue(&fact.queue).version(fact.version))
}
