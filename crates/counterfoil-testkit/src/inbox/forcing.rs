//! When an operator's word counts for more than the version.

use counterfoil_core::Code;
use counterfoil_core::row::RawRow;

use super::fixture::failed;
use super::harness::InboxHarness;
use crate::fixture::{Fixture, id};

impl<H: InboxHarness> Fixture<H> {
    async fn forced(&self, seq: i64, code: &Code) -> bool {
        let mut tx = self.consume().await;
        let redriven = self.harness.redriven(&mut tx, seq).await.unwrap();
        self.harness.rollback(tx).await;
        redriven.is_some_and(|redriven| redriven.forces(code))
    }

    async fn redriven(&self, seq: i64) -> Option<Code> {
        let mut tx = self.consume().await;
        let redriven = self.harness.redriven(&mut tx, seq).await.unwrap();
        self.harness.rollback(tx).await;
        redriven.map(|redriven| redriven.code)
    }

    async fn redrive(&self, row: &RawRow, confirmed: bool) -> bool {
        let ids = [id(row).to_string()];
        let answer = self.desk.redrive(&ids, confirmed, "ann").await.unwrap();
        answer.redriven.len() == 1
    }
}

/// Of this message, parked for this reason.
pub async fn only_a_confirmed_redrive_forces<H: InboxHarness>(t: Fixture<H>) {
    let relay = t.inbox_relay().await;
    let (conflict, other) = (Code::VERSION_CONFLICT, Code::TIMEOUT);
    t.put_off(&[failed("a", 1, 1)]).await;
    let row = t
        .park_due(&relay, |park| {
            park.confirm = true;
            park.code = conflict.clone();
        })
        .await;
    assert!(!t.forced(row.seq, &conflict).await, "parked");
    assert_eq!(t.redriven(row.seq).await, None);
    assert!(!t.redrive(&row, false).await);
    assert!(!t.forced(row.seq, &conflict).await, "not confirmed");
    assert!(t.redrive(&row, true).await);

    assert!(t.forced(row.seq, &conflict).await);
    assert!(!t.forced(row.seq, &other).await);
    assert!(!t.forced(row.seq + 1, &conflict).await);

    // Parked again for another reason: that redrive is over.
    t.park_due(&relay, |park| park.code = other.clone()).await;
    assert!(!t.forced(row.seq, &conflict).await);
    assert!(t.redrive(&row, true).await);
    assert!(!t.forced(row.seq, &conflict).await);
}

/// Nobody has said that it is known and wanted.
pub async fn a_redrive_without_the_need_of_a_confirmation_does_not_force<H: InboxHarness>(
    t: Fixture<H>,
) {
    let relay = t.inbox_relay().await;
    t.put_off(&[failed("a", 1, 1)]).await;
    let row = t
        .park_due(&relay, |park| park.code = Code::VERSION_CONFLICT)
        .await;

    assert!(t.redrive(&row, true).await);

    assert!(!t.forced(row.seq, &Code::VERSION_CONFLICT).await);
    assert_eq!(t.redriven(row.seq).await, Some(Code::VERSION_CONFLICT));
}
