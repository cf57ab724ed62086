//! Decisions about parked messages: back into the queue, or given up.
//!
//! # Promise
//! A record is decided about once: whoever comes second is told so. What goes back never overtakes
//! an earlier message of its aggregate.

use std::collections::HashSet;

use counterfoil_core::desk::{Ignored, ParkedRecord, Redriven, TOO_LATE, number, overtakes};
use counterfoil_core::message::MessageId;
use counterfoil_core::store::Result;

use crate::desk::spellings;
use crate::settle::{self, Line};
use crate::write::WriteTx;
use crate::{MysqlStore, classify, json};

/// Numbers and ids of records that a decision is about, and ids that it is not about, with reasons.
type Chosen = (Vec<(i64, MessageId)>, Vec<(String, String)>);

/// The number, the id and the lane of a record that is locked.
type LockedRecord = (i64, String, Option<String>);

impl MysqlStore {
    pub(crate) async fn put_back(
        &self,
        ids: &[String],
        confirmed: bool,
        by: &str,
    ) -> Result<Redriven> {
        let judge = |found| ParkedRecord::may_redrive(found, confirmed);
        let (mut chosen, mut refused) = self.choose(ids, judge).await?;
        let overtaken = self.overtaken(&chosen).await?;
        chosen.retain(|(seq, id)| {
            let earlier = overtaken.iter().find(|o| o.0 == *seq);
            refused.extend(earlier.map(|o| (id.to_string(), overtakes(&o.1))));
            earlier.is_none()
        });
        let done = self.bring_back(&chosen, confirmed, by).await?;
        let redriven = in_time(chosen, &done, &mut refused);
        Ok(Redriven { redriven, refused })
    }

    pub(crate) async fn give_up(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        let (chosen, mut refused) = self.choose(ids, ParkedRecord::may_ignore).await?;
        let done = self.set_ignored(&chosen, reason, by).await?;
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
        let mut query = sqlx::query_as(
            "SELECT seq, id, state, confirm FROM counterfoil_parked WHERE id IN (?, ?, ?, ?, ?) OR seq = ?
             ORDER BY state <> 'pending', state <> 'ignored', seq LIMIT 1",
        );
        for spelling in spellings(id) {
            query = query.bind(spelling);
        }
        query = query.bind(number(id));
        let found: Option<(i64, String, String, i8)> =
            query.fetch_optional(self.pool()).await.map_err(classify)?;
        Ok(found.map(|(seq, id, state, confirm)| ParkedRecord {
            seq,
            id,
            state,
            confirm: confirm != 0,
        }))
    }

    async fn overtaken(&self, chosen: &[(i64, MessageId)]) -> Result<Vec<(i64, String)>> {
        let list = json(&numbers(chosen))?;
        sqlx::query_as(include_str!("../sql/overtaken.sql"))
            .bind(&list)
            .bind(&list)
            .fetch_all(self.pool())
            .await
            .map_err(classify)
    }

    /// Answers the numbers that went back; the others have been decided about meanwhile.
    async fn bring_back(
        &self,
        chosen: &[(i64, MessageId)],
        confirmed: bool,
        by: &str,
    ) -> Result<Vec<i64>> {
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.begin().await?;
        let locked = lock_parked(&mut tx, chosen, confirmed).await?;
        let mut lanes = HashSet::new();
        let back: Vec<(i64, u8)> = locked
            .iter()
            .map(|(seq, _, lane)| {
                let later = lane.as_ref().is_some_and(|lane| !lanes.insert(lane));
                (*seq, u8::from(later))
            })
            .collect();
        let back = json(&back)?;
        settle::execute(&mut tx, include_str!("../sql/redrive.sql"), back.clone()).await?;
        // An ignored message may have been cancelled before.
        settle::execute(
            &mut tx,
            "DELETE h FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
             STRAIGHT_JOIN counterfoil_history h FORCE INDEX (PRIMARY) ON h.seq = j.seq",
            back.clone(),
        )
        .await?;
        settle::execute(
            &mut tx,
            "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
             STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
             SET p.state = 'redriven', p.redrives = p.redrives + 1, p.updated_at = UTC_TIMESTAMP(6)",
            back,
        )
        .await?;
        settle::tell(&mut tx, "redriven", by, &lines(&locked, None)).await?;
        tx.commit().await?;
        Ok(locked.into_iter().map(|l| l.0).collect())
    }

    /// Answers the numbers that were given up; the others have been decided about meanwhile.
    async fn set_ignored(
        &self,
        chosen: &[(i64, MessageId)],
        reason: &str,
        by: &str,
    ) -> Result<Vec<i64>> {
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.begin().await?;
        let locked = lock_parked(&mut tx, chosen, false).await?;
        let lines = lines(&locked, Some(reason));
        settle::execute(
            &mut tx,
            "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
             STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
             SET p.state = 'ignored', p.updated_at = UTC_TIMESTAMP(6)",
            json(&lines)?,
        )
        .await?;
        settle::tell(&mut tx, "ignored", by, &lines).await?;
        tx.commit().await?;
        Ok(locked.into_iter().map(|l| l.0).collect())
    }
}

async fn lock_parked(
    tx: &mut WriteTx,
    chosen: &[(i64, MessageId)],
    also_ignored: bool,
) -> Result<Vec<LockedRecord>> {
    let mut locked: Vec<LockedRecord> = sqlx::query_as(include_str!("../sql/parked_lock.sql"))
        .bind(json(&numbers(chosen))?)
        .bind(also_ignored)
        .fetch_all(&mut **tx)
        .await
        .map_err(classify)?;
    locked.sort_unstable();
    Ok(locked)
}

fn lines<'a>(locked: &[LockedRecord], detail: Option<&'a str>) -> Vec<Line<'a>> {
    locked
        .iter()
        .map(|(seq, id, _)| (*seq, id.clone(), None, None, detail))
        .collect()
}

fn numbers(chosen: &[(i64, MessageId)]) -> Vec<i64> {
    chosen.iter().map(|c| c.0).collect()
}

/// Those of the chosen that are done. The others have been decided about meanwhile.
fn in_time(
    chosen: Vec<(i64, MessageId)>,
    done: &[i64],
    refused: &mut Vec<(String, String)>,
) -> Vec<MessageId> {
    let (done, late): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|c| done.contains(&c.0));
    refused.extend(late.into_iter().map(|c| (c.1.to_string(), TOO_LATE.into())));
    done.into_iter().map(|c| c.1).collect()
}
