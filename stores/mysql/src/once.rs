//! One-time tokens, and locks that run out.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Consumed, Locks, Token, Tokens};
use counterfoil_core::message::check_name;
use counterfoil_core::span::micros;
use counterfoil_core::store::Result;

use crate::classify;
use crate::guard::{MysqlGuard, taken};
use crate::session::Session;

#[async_trait]
impl Tokens for MysqlGuard {
    async fn issue(&self, owner: &str, ttl: Duration) -> Result<Token> {
        check_name("owner", owner)?;
        let token = Token::random()?;
        let digest = token.digest();
        let query = sqlx::query(include_str!("../sql/once/issue.sql"))
            .bind(digest.as_bytes())
            .bind(owner.as_bytes())
            .bind(micros(ttl));
        Session::write(&self.pool, query).await?;
        Ok(token)
    }

    async fn consume(&self, token: &Token, owner: &str) -> Result<Consumed> {
        let digest = token.digest();
        let query = sqlx::query(include_str!("../sql/once/consume.sql"))
            .bind(digest.as_bytes())
            .bind(owner.as_bytes());
        let done = Session::write(&self.pool, query).await?;
        Ok(match done.rows_affected() {
            1 => Consumed::Won,
            _ => Consumed::Refused,
        })
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let query = sqlx::query(include_str!("../sql/once/purge.sql")).bind(batch);
        Ok(Session::write(&self.pool, query).await?.rows_affected())
    }
}

#[async_trait]
impl Locks for MysqlGuard {
    async fn acquire(&self, name: &str, lease: Duration) -> Result<Option<i64>> {
        check_name("lock", name)?;
        let mut session = Session::for_writing(&self.pool).await?;
        match acquire_in(&mut session, name, lease).await {
            Ok(fence) => {
                session.commit().await?;
                Ok(fence)
            }
            Err(error) => {
                session.rollback().await?;
                if taken(&error) {
                    Ok(None)
                } else {
                    Err(classify(error))
                }
            }
        }
    }

    async fn renew(&self, name: &str, fence: i64, lease: Duration) -> Result<bool> {
        let query = sqlx::query(include_str!("../sql/once/renew.sql"))
            .bind(micros(lease))
            .bind(name.as_bytes())
            .bind(fence);
        let done = Session::write(&self.pool, query).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn release(&self, name: &str, fence: i64) -> Result<bool> {
        let query = sqlx::query(include_str!("../sql/once/release.sql"))
            .bind(name.as_bytes())
            .bind(fence);
        let done = Session::write(&self.pool, query).await?;
        Ok(done.rows_affected() == 1)
    }
}

/// A lock that is held is there, so that the insert fails.
async fn acquire_in(
    session: &mut Session,
    name: &str,
    lease: Duration,
) -> sqlx::Result<Option<i64>> {
    let again = sqlx::query(include_str!("../sql/once/acquire.sql"))
        .bind(micros(lease))
        .bind(name.as_bytes())
        .execute(session.connection())
        .await?;
    if again.rows_affected() == 1 {
        return Ok(Some(again.last_insert_id().cast_signed()));
    }
    let first = sqlx::query(include_str!("../sql/once/acquire_first.sql"))
        .bind(name.as_bytes())
        .bind(micros(lease))
        .execute(session.connection())
        .await?;
    Ok(Some(first.last_insert_id().cast_signed()))
}
