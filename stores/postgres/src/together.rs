//! Claims and ends of the leased mode, several in one statement: see [`crate::clerk`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use counterfoil_core::guard::columns::{attempts, snapshot};
use counterfoil_core::guard::{Digest, Snapshot, State, Write};
use counterfoil_core::span::micros;
use counterfoil_core::store::Result;
use sqlx::AssertSqlSafe;

use crate::classify;
use crate::clerk::Work;
use crate::handy::Handy;

/// Puts records where none is. The answers are fencing numbers.
pub(crate) struct Claims {
    pub(crate) handy: Arc<Handy>,
    pub(crate) sql: Arc<str>,
}

#[async_trait]
impl Work for Claims {
    type Job = Write;
    type Answer = Option<i64>;

    /// Two of one key: only one may win.
    fn apart(one: &Write, other: &Write) -> bool {
        one.key == other.key
    }

    async fn all(&self, writes: &[Write]) -> Result<Vec<Option<i64>>> {
        let digests: Vec<Digest> = writes.iter().map(|w| w.key.digest()).collect();
        let answers: Vec<_> = writes
            .iter()
            .map(|w| snapshot(w.snapshot.as_ref()))
            .collect();
        let each = |part: fn(&Write) -> Option<i64>| writes.iter().map(part).collect::<Vec<_>>();
        let text = |part: fn(&Write) -> &str| writes.iter().map(part).collect::<Vec<_>>();
        let query = sqlx::query_as::<_, (Vec<u8>, i64)>(AssertSqlSafe(Arc::clone(&self.sql)))
            .bind(digests.iter().map(Digest::as_bytes).collect::<Vec<_>>())
            .bind(each(|w| Some(micros(w.keep))))
            .bind(each(|w| w.lease.map(micros)))
            .bind(each(|w| w.retry_in.map(micros)))
            .bind(
                writes
                    .iter()
                    .map(|w| attempts(w.attempt))
                    .collect::<Vec<_>>(),
            )
            .bind(answers.iter().map(|a| a.0).collect::<Vec<_>>())
            .bind(text(|w| w.state.as_str()))
            .bind(text(|w| w.key.scope()))
            .bind(text(|w| w.key.business_type()))
            .bind(text(|w| w.key.key()))
            .bind(
                writes
                    .iter()
                    .map(|w| w.fingerprint.as_bytes())
                    .collect::<Vec<_>>(),
            )
            .bind(answers.iter().map(|a| a.1.as_deref()).collect::<Vec<_>>())
            .bind(answers.iter().map(|a| a.2).collect::<Vec<_>>());
        let mut lent = self.handy.lend().await?;
        let taken = query.fetch_all(lent.connection()).await.map_err(classify)?;
        lent.keep();
        let fences: HashMap<Vec<u8>, i64> = taken.into_iter().collect();
        Ok(digests
            .iter()
            .map(|d| fences.get(d.as_bytes()).copied())
            .collect())
    }
}

/// The end of a claim.
pub(crate) struct Ending {
    pub(crate) digest: Digest,
    pub(crate) fence: i64,
    pub(crate) state: State,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) keep: Duration,
    pub(crate) retry_in: Option<Duration>,
    /// When it was last changed, if that matters.
    pub(crate) seen: Option<DateTime<Utc>>,
}

/// Ends claims. The answers say whether they were still held.
pub(crate) struct Endings {
    pub(crate) handy: Arc<Handy>,
    pub(crate) sql: Arc<str>,
}

#[async_trait]
impl Work for Endings {
    type Job = Ending;
    type Answer = bool;

    /// Of two ends of one claim only the first counts.
    fn apart(one: &Ending, other: &Ending) -> bool {
        one.digest == other.digest
    }

    async fn all(&self, endings: &[Ending]) -> Result<Vec<bool>> {
        let answers: Vec<_> = endings
            .iter()
            .map(|e| snapshot(e.snapshot.as_ref()))
            .collect();
        let digests: Vec<&[u8]> = endings.iter().map(|e| e.digest.as_bytes()).collect();
        let query = sqlx::query_as::<_, (Vec<u8>,)>(AssertSqlSafe(Arc::clone(&self.sql)))
            .bind(&digests)
            .bind(endings.iter().map(|e| e.fence).collect::<Vec<_>>())
            .bind(endings.iter().map(|e| e.state.as_str()).collect::<Vec<_>>())
            .bind(answers.iter().map(|a| a.0).collect::<Vec<_>>())
            .bind(answers.iter().map(|a| a.1.as_deref()).collect::<Vec<_>>())
            .bind(answers.iter().map(|a| a.2).collect::<Vec<_>>())
            .bind(endings.iter().map(|e| micros(e.keep)).collect::<Vec<_>>())
            .bind(
                endings
                    .iter()
                    .map(|e| e.retry_in.map(micros))
                    .collect::<Vec<_>>(),
            )
            .bind(endings.iter().map(|e| e.seen).collect::<Vec<_>>());
        let mut lent = self.handy.lend().await?;
        let ended = query.fetch_all(lent.connection()).await.map_err(classify)?;
        lent.keep();
        Ok(digests
            .iter()
            .map(|d| ended.iter().any(|(e,)| e == d))
            .collect())
    }
}
