//! Statements in a session of the application, whose settings may be anything.
//!
//! # Promise
//! What runs here is a transaction at READ COMMITTED, whether or not the session commits by itself
//! and whatever its isolation is. A write waits for a lock for a second at most. Afterwards the
//! session is as it was.
//! # When it is dropped
//! Without [`Session::commit`] or [`Session::rollback`] the connection is closed: it is in the
//! middle of something.

use counterfoil_core::store::Result;
use sqlx::mysql::{MySqlArguments, MySqlPool, MySqlQueryResult, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection};

use crate::classify;

pub(crate) type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

const READ: &str = include_str!("../sql/guard/begin_read.sql");
const WRITE: &str = include_str!("../sql/guard/begin_write.sql");
const COMMIT: &str = include_str!("../sql/guard/commit.sql");
const ROLLBACK: &str = include_str!("../sql/guard/rollback.sql");

pub(crate) struct Session {
    connection: PoolConnection<MySql>,
    ended: bool,
}

impl Session {
    /// A transaction of one statement. A failure rolls back.
    pub(crate) async fn write(pool: &MySqlPool, query: Query<'_>) -> Result<MySqlQueryResult> {
        let mut session = Self::for_writing(pool).await?;
        match query.execute(session.connection()).await {
            Ok(done) => {
                session.commit().await?;
                Ok(done)
            }
            Err(error) => {
                session.rollback().await?;
                Err(classify(error))
            }
        }
    }

    /// Rows at one moment.
    pub(crate) async fn read(pool: &MySqlPool, query: Query<'_>) -> Result<Vec<MySqlRow>> {
        let mut session = Self::acquire(pool).await?;
        session.run(READ).await?;
        let rows = query
            .fetch_all(session.connection())
            .await
            .map_err(classify)?;
        session.run("COMMIT AND NO CHAIN NO RELEASE").await?;
        session.ended = true;
        Ok(rows)
    }

    /// Rows of a script that begins and ends its own transaction.
    pub(crate) async fn script(pool: &MySqlPool, sql: String) -> Result<Vec<MySqlRow>> {
        let mut session = Self::acquire(pool).await?;
        let rows = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_all(session.connection())
            .await
            .map_err(classify)?;
        session.ended = true;
        Ok(rows)
    }

    pub(crate) async fn for_writing(pool: &MySqlPool) -> Result<Self> {
        let mut session = Self::acquire(pool).await?;
        session.run(WRITE).await?;
        Ok(session)
    }

    async fn acquire(pool: &MySqlPool) -> Result<Self> {
        Ok(Self {
            connection: pool.acquire().await.map_err(classify)?,
            ended: false,
        })
    }

    pub(crate) fn connection(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }

    pub(crate) async fn commit(mut self) -> Result<()> {
        self.run(COMMIT).await?;
        self.ended = true;
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<()> {
        self.run(ROLLBACK).await?;
        self.ended = true;
        Ok(())
    }

    async fn run(&mut self, sql: &'static str) -> Result<()> {
        sqlx::raw_sql(sql)
            .execute(self.connection())
            .await
            .map_err(classify)?;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}
