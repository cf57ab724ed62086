//! What each fault does.

use std::collections::BTreeSet;
use std::sync::Arc;

use counterfoil_core::row::RawRow;
use counterfoil_core::store::{Fence, Result, Settled, Settlement, ShardRef};

use super::{BrokenStore, Fault};

impl BrokenStore {
    /// Spoils the rows of one queue.
    pub(super) async fn spoil(&self, queue: &str, rows: &mut Vec<RawRow>) -> Result<()> {
        match self.fault {
            Fault::SettlesBeforePublishing => self.forget(queue, rows).await?,
            Fault::Drops(every) => {
                let (dropped, kept): (Vec<_>, Vec<_>) = std::mem::take(rows)
                    .into_iter()
                    .partition(|r| r.seq % every == 0);
                self.forget(queue, &dropped).await?;
                *rows = kept;
            }
            Fault::Reorders => self.pass_over(rows),
            Fault::ForgetsHolds => rows.iter_mut().for_each(|row| row.behind = false),
            Fault::None | Fault::SkipsFencing => {}
        }
        Ok(())
    }

    /// Settles rows as sent that nobody has sent.
    async fn forget(&self, queue: &str, rows: &[RawRow]) -> Result<()> {
        let queue: Arc<str> = Arc::from(queue);
        for row in rows {
            let shard = ShardRef {
                queue: Arc::clone(&queue),
                shard: row.shard,
            };
            let Some((relay, epoch)) = self.notes().taken.get(&shard).cloned() else {
                continue;
            };
            let fence = Fence {
                relay,
                queue: Arc::clone(&queue),
                shards: vec![(row.shard, epoch)],
            };
            let sent = vec![row.key()];
            self.inner
                .settle(
                    &fence,
                    &Settlement {
                        sent,
                        keep_sent: true,
                        ..Settlement::default()
                    },
                )
                .await?;
        }
        Ok(())
    }

    /// Leaves out the first row of each lane, once.
    fn pass_over(&self, rows: &mut Vec<RawRow>) {
        let mut notes = self.notes();
        let mut lanes = BTreeSet::new();
        rows.retain(|row| {
            let first = lanes.insert(row.aggregate_id.clone());
            !(first && notes.passed_over.insert(row.seq))
        });
    }

    /// Settles in the name of whoever owns the shards now.
    pub(super) async fn settle_for_the_owner(
        &self,
        fence: &Fence,
        settlement: &Settlement,
    ) -> Result<Settled> {
        let survey = self
            .inner
            .survey(&fence.relay, std::slice::from_ref(&fence.queue))
            .await?;
        let mut settled = Settled::default();
        for (shard, _) in &fence.shards {
            let owner = survey
                .owned
                .iter()
                .find(|o| o.shard.shard == *shard && o.shard.queue == fence.queue);
            let Some(owner) = owner else { continue };
            let stolen = Fence {
                relay: owner.owner.clone(),
                queue: Arc::clone(&fence.queue),
                shards: vec![(*shard, owner.epoch)],
            };
            let part = settlement.restrict([*shard].into_iter().collect());
            settled.stamp = self.inner.settle(&stolen, &part).await?.stamp;
        }
        Ok(settled)
    }
}
