//! Decisions about parked messages: back into the queue, or given up.
//!
//! # Promise
//! A record is decided about once: whoever comes second is told so. What goes back never overtakes
//! an earlier message of its aggregate.

use counterfoil_core::desk::{Ignored, ParkedRecord, Redriven, TOO_LATE, number, overtakes};
use counterfoil_core::message::MessageId;
use counterfoil_core::store::Result;

use crate::desk::spellings;
use crate::{PostgresStore, classify};

/// Numbers and ids of records that a decision is about, and ids that it is not about, with reasons.
type Chosen = (Vec<(i64, MessageId)>, Vec<(String, String)>);

impl PostgresStore {
    pub(crate) async fn put_back(
        &self,
        ids: &[String],
        confirmed: bool,
        by: &str,
    ) -> Result<Redriven> {
        let judge = |found| ParkedRecord::may_redrive(found, confirmed);
        let (mut chosen, mut refused) = self.choose(ids, judge).await?;
        let overtaken: Vec<(i64, String)> = sqlx::query_as(include_str!("../sql/overtaken.sql"))
            .bind(numbers(&chosen))
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        chosen.retain(|(seq, id)| {
            let earlier = overtaken.iter().find(|o| o.0 == *seq);
            refused.extend(earlier.map(|o| (id.to_string(), overtakes(&o.1))));
            earlier.is_none()
        });
        let done: Vec<(i64,)> = sqlx::query_as(include_str!("../sql/redrive.sql"))
            .bind(numbers(&chosen))
            .bind(by)
            .bind(confirmed)
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let redriven = in_time(chosen, &done, &mut refused);
        Ok(Redriven { redriven, refused })
    }

    pub(crate) async fn give_up(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        let (chosen, mut refused) = self.choose(ids, ParkedRecord::may_ignore).await?;
        let done: Vec<(i64,)> = sqlx::query_as(include_str!("../sql/ignore.sql"))
            .bind(numbers(&chosen))
            .bind(reason)
            .bind(by)
            .fetch_all(self.pool())
            .await
            .map_err(classify)?;
        let ignored = in_time(chosen, &done, &mut refused);
        Ok(Ignored { ignored, refused })
    }

    /// The records under these ids that may be decided about, lowest first.
    async fn choose(
        &self,
        ids: &[String],
        judge: impl Fn(Option<ParkedRecord>) -> std::result::Result<ParkedRecord, String>,
    ) -> Result<Chosen> {
        let (mut chosen, mut refused) = (Vec::new(), Vec::new());
        for id in ids {
            let found = self.find_parked(id).await?;
            match judge(found) {
                Ok(record) => chosen.push(record.key()),
                Err(reason) => refused.push((id.clone(), reason)),
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        Ok((chosen, refused))
    }

    /// What waits for a decision comes first, then what was given up.
    async fn find_parked(&self, id: &str) -> Result<Option<ParkedRecord>> {
        let found: Option<(i64, String, String, bool)> = sqlx::query_as(
            "SELECT seq, id, state, confirm FROM counterfoil_parked WHERE left(id, 64) = ANY ($1) OR seq = $2
             ORDER BY state <> 'pending', state <> 'ignored', seq LIMIT 1",
        )
        .bind(spellings(id))
        .bind(number(id))
        .fetch_optional(self.pool())
        .await
        .map_err(classify)?;
        Ok(found.map(|(seq, id, state, confirm)| ParkedRecord {
            seq,
            id,
            state,
            confirm,
        }))
    }
}

fn numbers(chosen: &[(i64, MessageId)]) -> Vec<i64> {
    chosen.iter().map(|c| c.0).collect()
}

/// Those of the chosen that are done. The others have been decided about meanwhile.
fn in_time(
    chosen: Vec<(i64, MessageId)>,
    done: &[(i64,)],
    refused: &mut Vec<(String, String)>,
) -> Vec<MessageId> {
    let (done, late): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|c| done.contains(&(c.0,)));
    refused.extend(late.into_iter().map(|c| (c.1.to_string(), TOO_LATE.into())));
    done.into_iter().map(|c| c.1).collect()
}
