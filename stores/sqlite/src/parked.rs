//! Decisions about parked messages: back into the queue, or given up.
//!
//! # Promise
//! A record is decided about once: whoever comes second is told so. What goes back never overtakes
//! an earlier message of its aggregate.

use counterfoil_core::desk::{Ignored, ParkedRecord, Redriven, number, overtakes};
use counterfoil_core::message::MessageId;
use counterfoil_core::store::Result;
use sqlx::sqlite::SqliteConnection;

use crate::desk::spellings;
use crate::settle::{array, run};
use crate::{SqliteStore, classify};

/// Numbers and ids of records that a decision is about, and ids that it is not about, with reasons.
type Chosen = (Vec<(i64, MessageId)>, Vec<(String, String)>);

impl SqliteStore {
    pub(crate) async fn put_back(
        &self,
        ids: &[String],
        confirmed: bool,
        by: &str,
    ) -> Result<Redriven> {
        let mut tx = self.write().await?;
        let judge = |found| ParkedRecord::may_redrive(found, confirmed);
        let (mut chosen, mut refused) = choose(&mut tx, ids, judge).await?;
        let overtaken: Vec<(i64, String)> = sqlx::query_as(include_str!("../sql/overtaken.sql"))
            .bind(array(chosen.iter().map(|c| c.0)))
            .fetch_all(&mut *tx)
            .await
            .map_err(classify)?;
        chosen.retain(|(seq, id)| {
            let earlier = overtaken.iter().find(|o| o.0 == *seq);
            refused.extend(earlier.map(|o| (id.to_string(), overtakes(&o.1))));
            earlier.is_none()
        });
        let list = array(chosen.iter().map(|c| c.0));
        run(&mut tx, include_str!("../sql/redrive.sql"), [list.clone()]).await?;
        if confirmed {
            // An ignored message may have been cancelled before.
            run(
                &mut tx,
                "DELETE FROM counterfoil_history WHERE seq IN (SELECT value FROM json_each(?1))",
                [list.clone()],
            )
            .await?;
        }
        run(
            &mut tx,
            "UPDATE counterfoil_parked
             SET state = 'redriven', redrives = redrives + 1, updated_at = (SELECT ms FROM counterfoil_now)
             WHERE seq IN (SELECT value FROM json_each(?1))",
            [list.clone()],
        )
        .await?;
        run(
            &mut tx,
            "INSERT INTO counterfoil_events (seq, id, kind, actor)
             SELECT seq, id, 'redriven', ?2 FROM counterfoil_parked
             WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq",
            [list, by.to_owned()],
        )
        .await?;
        tx.commit().await?;
        let redriven = chosen.into_iter().map(|c| c.1).collect();
        Ok(Redriven { redriven, refused })
    }

    pub(crate) async fn give_up(&self, ids: &[String], reason: &str, by: &str) -> Result<Ignored> {
        let mut tx = self.write().await?;
        let (chosen, refused) = choose(&mut tx, ids, ParkedRecord::may_ignore).await?;
        let list = array(chosen.iter().map(|c| c.0));
        run(
            &mut tx,
            "UPDATE counterfoil_parked SET state = 'ignored', updated_at = (SELECT ms FROM counterfoil_now)
             WHERE seq IN (SELECT value FROM json_each(?1))",
            [list.clone()],
        )
        .await?;
        run(
            &mut tx,
            "INSERT INTO counterfoil_events (seq, id, kind, detail, actor)
             SELECT seq, id, 'ignored', ?2, ?3 FROM counterfoil_parked
             WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq",
            [list, reason.to_owned(), by.to_owned()],
        )
        .await?;
        tx.commit().await?;
        let ignored = chosen.into_iter().map(|c| c.1).collect();
        Ok(Ignored { ignored, refused })
    }
}

/// The records under these ids that may be decided about, lowest first. The transaction has the
/// write lock, so nobody decides otherwise before it ends.
async fn choose(
    tx: &mut SqliteConnection,
    ids: &[String],
    judge: impl Fn(Option<ParkedRecord>) -> std::result::Result<ParkedRecord, String>,
) -> Result<Chosen> {
    let (mut chosen, mut refused) = (Vec::new(), Vec::new());
    for id in ids {
        let found = find_parked(tx, id).await?;
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
async fn find_parked(tx: &mut SqliteConnection, id: &str) -> Result<Option<ParkedRecord>> {
    let found: Option<(i64, String, String, bool)> = sqlx::query_as(
        "SELECT seq, id, state, confirm FROM counterfoil_parked WHERE id IN (SELECT value FROM json_each(?1)) OR seq = ?2
         ORDER BY state <> 'pending', state <> 'ignored', seq LIMIT 1",
    )
    .bind(spellings(id))
    .bind(number(id))
    .fetch_optional(tx)
    .await
    .map_err(classify)?;
    Ok(found.map(|(seq, id, state, confirm)| ParkedRecord {
        seq,
        id,
        state,
        confirm,
    }))
}
