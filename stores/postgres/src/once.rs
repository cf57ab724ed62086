//! One-time tokens, and locks that run out.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{Consumed, Locks, Token, Tokens};
use counterfoil_core::message::check_name;
use counterfoil_core::span::micros;
use counterfoil_core::store::Result;

use crate::classify;
use crate::guard::PostgresGuard;

#[async_trait]
impl Tokens for PostgresGuard {
    async fn issue(&self, owner: &str, ttl: Duration) -> Result<Token> {
        check_name("owner", owner)?;
        let token = Token::random()?;
        sqlx::query(include_str!("../sql/once/issue.sql"))
            .bind(token.digest().as_bytes())
            .bind(owner)
            .bind(micros(ttl))
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(token)
    }

    async fn consume(&self, token: &Token, owner: &str) -> Result<Consumed> {
        let done = sqlx::query(include_str!("../sql/once/consume.sql"))
            .bind(token.digest().as_bytes())
            .bind(owner)
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(match done.rows_affected() {
            1 => Consumed::Won,
            _ => Consumed::Refused,
        })
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let done = sqlx::query(include_str!("../sql/once/purge.sql"))
            .bind(i64::from(batch))
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected())
    }
}

#[async_trait]
impl Locks for PostgresGuard {
    async fn acquire(&self, name: &str, lease: Duration) -> Result<Option<i64>> {
        check_name("lock", name)?;
        sqlx::query_scalar(include_str!("../sql/once/acquire.sql"))
            .bind(name)
            .bind(micros(lease))
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)
    }

    async fn renew(&self, name: &str, fence: i64, lease: Duration) -> Result<bool> {
        let done = sqlx::query(include_str!("../sql/once/renew.sql"))
            .bind(name)
            .bind(fence)
            .bind(micros(lease))
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }

    async fn release(&self, name: &str, fence: i64) -> Result<bool> {
        let done = sqlx::query(include_str!("../sql/once/release.sql"))
            .bind(name)
            .bind(fence)
            .execute(&self.pool)
            .await
            .map_err(classify)?;
        Ok(done.rows_affected() == 1)
    }
}
